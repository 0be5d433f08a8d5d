"""Facts about processes, read from /proc."""

import json
import os
from contextlib import suppress
from pathlib import Path

import xxhash


def kernel() -> str:
    """Return a digest of the scope in which a process id is unique: host name, boot, and the namespaces of
    process ids and time. Empty if unknown.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        spaces = [str(Path("/proc/self/ns", kind).readlink()) for kind in ("pid", "time")]
    except OSError:
        return ""
    scope = json.dumps([os.uname().nodename, boot, *spaces], separators=(",", ":"))
    return xxhash.xxh3_128_hexdigest(scope.encode())


def process_start(pid: int) -> str | None:
    """Return the start time of a process, in ticks since boot. The result is "" for a zombie, and None if
    /proc does not show the process.
    """
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return "" if state in ("Z", "X") else fields[18]


def tree_seconds(root: int) -> float | None:
    """Return the CPU time in seconds of a process and its living descendants, including the time of ended
    children that they have waited for. None if unknown.
    """
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, ValueError):
            fields = entry.read_text().rpartition(")")[2].split()
            number = int(entry.parent.name)
            parents[number], ticks[number] = int(fields[1]), sum(map(int, fields[11:15]))
    if root not in ticks:
        return None
    tree = {root}
    while more := {number for number, parent in parents.items() if parent in tree} - tree:
        tree |= more
    return sum(ticks[number] for number in tree) / os.sysconf("SC_CLK_TCK")
