"""The memory of tasks: measure what a task uses, as the kernel counts it, and enforce a limit."""

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
"""Environment that a process with a memory limit must be started with: the limit counts mapped memory, and
Arrow's other allocators map it by the GiB.
"""
LEAST = 300_000_000
"""Minimum limit of a task in bytes; its libraries take most of it. With half as much some libraries fail to
load with messages of their own or retry forever (OpenBLAS); with five sixths, Rust libraries abort. Measured
with a corpus of 1 MB.
"""
_KEPT_BACK = 0.1  # share of a machine's memory reserved for the system, the driver and Ray's own processes


def ceiling_of(text: str) -> int:
    """Parse the memory limit of a task in bytes: `4GB` is 4e9, `4GiB` is 2**32, `4000000000` is itself.
    Raises UserError for anything else, and for less than LEAST.
    """
    try:
        size = parse_size(text)
    except ValueError as error:
        raise UserError(str(error)) from None
    if size < LEAST:
        raise UserError(f"got {text!r}, allowed {LEAST // 10**6}MB or more: the libraries of a task take most of that")
    return size


def machine_memory() -> int:
    """Return the bytes of memory that this process may use: those of the machine or the limit of its control
    group, less a tenth.
    """
    sizes = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), *_group_limits()]
    return int(min(sizes) * (1 - _KEPT_BACK))


def room_here(memory: int | None, workers: int) -> int:
    """Return the bytes that all tasks on this machine may use together: `memory` per worker, at most what the
    machine has. Raises UserError if it has less than `memory`.
    """
    machine = machine_memory()
    if memory is None:
        return machine
    if memory > machine:
        raise UserError(
            f"--memory-per-worker: got {memory:,} bytes, this machine has {machine:,} for tasks, a tenth kept back"
        )
    return min(memory * workers, machine)


def _group_limits() -> Iterator[int]:
    """Memory limits of this process's control group and its ancestors (versions 1 and 2), as far as they have
    any.
    """
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
    """Run a task. Returns its result, and the peak resident memory of its process while it ran, in bytes (0
    if unknown).

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
    raise TaskMemoryError(place)  # raised outside the handler, so that the first error's frames release their memory


@contextmanager
def _limited(ceiling: int | None) -> Iterator[None]:
    """While the block runs, the kernel limits this process to `ceiling` bytes of private memory.

    RLIMIT_DATA counts private writable addresses (setrlimit(2), Linux 4.7). Addresses mapped but unused
    before the first task of the process, such as thread stacks, are added to the limit; those that tasks
    leave behind are not. If the kernel does not report how many there are, there is no limit.
    """
    reserved = _reserved()
    if ceiling is None or sys.platform != "linux" or reserved is None:
        yield
        return
    with suppress(ValueError):  # not in the main thread
        # Ray's handler needs memory to print a stack trace; without any it aborts again, forever.
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
    """Return the bytes of private addresses that this process had mapped but not touched at the first call."""
    status = _status()
    return max(0, status["VmData"] - status["RssAnon"]) if "RssAnon" in status else None


def _innermost(error: BaseException) -> str:
    """Return `file:line` that raised the error; its message may quote the text of a document and is not used."""
    trace, place = error.__traceback__, ""
    while trace is not None:
        place = f"{Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno}"
        trace = trace.tb_next
    return place


def _status() -> dict[str, int]:
    """Memory sizes of this process in bytes, by the kernel's names; empty without /proc."""
    sizes = {}
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines():
            name, _, value = line.partition(":")
            if value.endswith(" kB"):
                sizes[name] = int(value.split()[0]) << 10
    return sizes
