"""Facts from /proc by which a process can tell whether another process of the same machine is dead."""

import json
import os
from pathlib import Path

import xxhash


def kernel() -> str:
    """Return a digest of the scope of a process id: machine, boot, and namespaces of processes and time.
    Empty if unknown.

    Containers with the same host name differ in their namespaces.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        spaces = [str(Path("/proc/self/ns", kind).readlink()) for kind in ("pid", "time")]
    except OSError:
        return ""
    scope = json.dumps([os.uname().nodename, boot, *spaces], separators=(",", ":"))
    return xxhash.xxh3_128_hexdigest(scope.encode())


def process_start(pid: int) -> str | None:
    """Return when a process started, in ticks since boot; "" for a zombie or a dead process, None if unknown."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return "" if state in ("Z", "X") else fields[18]
