"""The memory and cores that this process may use on its machine, within the limits of its control group."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_KEPT_BACK = 0.1  # share of a machine's memory reserved for the system, the driver and Ray's own processes


def machine_memory() -> int:
    """Return the bytes of memory that this process may use: nine tenths of the machine's memory or of the
    limit of the process's control group, if that is smaller.
    """
    sizes = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), *_group_limits()]
    return int(min(sizes) * (1 - _KEPT_BACK))


def free_memory() -> int:
    """Estimate the bytes of memory that this process could allocate now: what the kernel reports as
    available, but at most `machine_memory()`. Memory that the process's control group already uses is not
    subtracted from that limit.
    """
    lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    available = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    return min(available, machine_memory())


def usable_cores() -> int:
    """Return the number of cores that this process may use, according to its CPU affinity and the CPU quotas
    of its control groups (version 2).
    """
    cores = len(os.sched_getaffinity(0))
    for group in _groups(""):
        with suppress(OSError, ValueError):  # no such file at the root, and "max"
            quota, period = (group / "cpu.max").read_text().split()
            cores = min(cores, int(quota) // int(period))
    return max(1, cores)


def _group_limits() -> Iterator[int]:
    """Yield the memory limits in bytes of this process's control group and its ancestors (versions 1 and 2)."""
    for controller, file in (("", "memory.max"), ("memory", "memory.limit_in_bytes")):
        for group in _groups(controller):
            with suppress(OSError, ValueError):  # no such file at the root, and "max"
                yield int((group / file).read_text())


def _groups(controller: str) -> Iterator[Path]:
    """Yield the directories of this process's control group and its ancestors. An empty `controller` selects
    control groups of version 2.
    """
    with suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text(encoding="utf-8", errors="replace").splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers != controller:
                continue
            root = Path("/sys/fs/cgroup") / controllers
            group = root / path.lstrip("/")
            yield from (directory for directory in (group, *group.parents) if directory.is_relative_to(root))
