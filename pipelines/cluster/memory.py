"""The memory of tasks: how much one used, as the kernel counts it, and the ceiling that it may not pass."""

import os
import resource
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import TypeVar

from gristmill.config import parse_size
from gristmill.errors import TaskMemoryError, UserError

Item = TypeVar("Item")
Result = TypeVar("Result")
ALLOCATOR = {"ARROW_DEFAULT_MEMORY_POOL": "system"}
"""Environment variables that a process under a ceiling must start with: Arrow's other allocators map memory
by the GiB, and a ceiling counts mapped memory.
"""
LEAST = 300_000_000
"""The smallest ceiling of a task in bytes, most of it for libraries. With half as much, some of them fail to
load with errors of their own or try for ever (OpenBLAS); with five sixths, those in Rust abort. Measured with
a corpus of 1 MB.
"""
_KEPT_BACK = 0.1  # of a machine: for its system, the driver and Ray's own processes


def ceiling_of(text: str) -> int:
    """The ceiling of a task in bytes: `4GB` is 4e9, `4GiB` is 2**32, `4000000000` itself. Raises UserError
    for anything else, and for less than LEAST.
    """
    try:
        size = parse_size(text)
    except ValueError as error:
        raise UserError(str(error)) from None
    if size < LEAST:
        raise UserError(f"got {text!r}, allowed {LEAST // 10**6}MB and more: the libraries of a task take most of that")
    return size


def machine_memory() -> int:
    """Bytes that this process may use of the machine: all of it, or the limit of its control group; less a tenth."""
    sizes = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), *_group_limits()]
    return int(min(sizes) * (1 - _KEPT_BACK))


def room_here(memory: int | None, workers: int) -> int:
    """Bytes that all tasks on this machine may have together: `memory` for each worker as far as there is so much."""
    machine = machine_memory()
    if memory is None:
        return machine
    if memory > machine:
        raise UserError(
            f"--memory-per-worker: got {memory:,} bytes, this machine has {machine:,} for tasks, a tenth kept back"
        )
    return min(memory * workers, machine)


def _group_limits() -> Iterator[int]:
    """Limits of this process's control group and of those around it, of version 1 and 2, where they have any."""
    with suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text(encoding="utf-8", errors="replace").splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers not in ("", "memory"):
                continue
            root = Path("/sys/fs/cgroup") / controllers
            group = root / path.lstrip("/")
            for place in (group, *group.parents):
                if place.is_relative_to(root):
                    with suppress(OSError, ValueError):  # no such file at the root, and "max"
                        yield int((place / ("memory.limit_in_bytes" if controllers else "memory.max")).read_text())


def measured(function: Callable[[Item], Result], item: Item, ceiling: int | None = None) -> tuple[Result, int]:
    """The result of a task, and the largest resident memory of its process while it ran, in bytes; 0 where
    that is unknown.

    With a `ceiling` in bytes, raises TaskMemoryError if the task needs more. Linux forgets the high-water
    mark when 5 is written to /proc/self/clear_refs (proc(5)).
    """
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_bytes(b"5")
    try:
        with _limited(ceiling):
            result = function(item)
    except MemoryError as error:
        place = error.place if isinstance(error, TaskMemoryError) else _innermost(error)
    else:
        return result, _status().get("VmHWM", 0)
    raise TaskMemoryError(place)  # the other one is gone, and with it the memory that its frames held


@contextmanager
def _limited(ceiling: int | None) -> Iterator[None]:
    """The kernel refuses this process more than `ceiling` bytes of memory of its own while the block runs.

    RLIMIT_DATA counts private writable addresses (setrlimit(2), Linux 4.7). Those that are mapped and not in use before the
    first task of the process, such as the stacks of threads, come on top; what tasks leave behind does not. Where the kernel
    does not say how many there are, there is no ceiling.
    """
    reserved = _reserved()
    if ceiling is None or sys.platform != "linux" or reserved is None:
        yield
        return
    with suppress(ValueError):  # outside of the main thread
        # Ray's handler takes memory to print where it was; where there is none it aborts again, for ever.
        signal.signal(signal.SIGABRT, signal.SIG_DFL)
    before, most = resource.getrlimit(resource.RLIMIT_DATA)
    limit = ceiling + reserved
    limits = [limit, *(bound for bound in (before, most) if bound != resource.RLIM_INFINITY)]
    resource.setrlimit(resource.RLIMIT_DATA, (min(limits), most))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (before, most))


@cache
def _reserved() -> int | None:
    """Bytes of private addresses that this process had mapped but not touched at the first call."""
    status = _status()
    return max(0, status["VmData"] - status["RssAnon"]) if "RssAnon" in status else None


def _innermost(error: BaseException) -> str:
    """Where it was raised. Its message may quote the text that was worked on."""
    trace, place = error.__traceback__, ""
    while trace is not None:
        place = f"{Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno}"
        trace = trace.tb_next
    return place


def _status() -> dict[str, int]:
    """Sizes of this process in bytes, by the kernel's names; none where there is no /proc."""
    sizes = {}
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines():
            name, _, value = line.partition(":")
            if value.endswith(" kB"):
                sizes[name] = int(value.split()[0]) << 10
    return sizes
