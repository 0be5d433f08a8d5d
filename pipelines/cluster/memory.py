"""Measure and limit the memory of tasks, as the kernel counts it, and keep Arrow from importing pandas
needlessly.
"""

import resource
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Generic, NamedTuple, TypeVar

from gristmill.budget import spend, take_account
from gristmill.config import parse_size
from gristmill.errors import TaskMemoryError, UserError
from gristmill.machine import machine_memory

Item = TypeVar("Item")
Result = TypeVar("Result")
ALLOCATOR = {"ARROW_DEFAULT_MEMORY_POOL": "system"}
"""The environment variables that a process with a memory limit must be started with. The limit counts mapped
memory, and Arrow's other allocators map several GiB.
"""
LEAST = 300_000_000
"""Minimum memory limit of a task in bytes; its libraries take most of it. With half as much, some libraries
fail to load with unclear messages or retry forever (OpenBLAS); with five sixths, Rust libraries abort.
Measured with a corpus of 1 MB.
"""


def ceiling_of(text: str) -> int:
    """Parse the memory limit of a task and return it in bytes: `4GB` is 4e9, `4GiB` is 2**32. Raises
    UserError for a text that is not a size, and for a limit below LEAST.
    """
    try:
        size = parse_size(text)
    except ValueError as error:
        raise UserError(str(error)) from None
    if size < LEAST:
        raise UserError(f"got {text!r}, allowed {LEAST // 10**6}MB or more: the libraries of a task take most of that")
    return size


def room_here(memory: int | None, workers: int) -> int:
    """Return how many bytes all tasks on this machine may use together: `memory` times `workers`, or what the
    machine has for tasks if that is less or `memory` is None. Raises UserError if `memory` alone is more than
    the machine has.
    """
    machine = machine_memory()
    if memory is None:
        return machine
    if memory > machine:
        raise UserError(
            f"--memory-per-worker: got {memory:,} bytes, this machine has {machine:,} for tasks, after a tenth is reserved"
        )
    return min(memory * workers, machine)


@cache
def leave_pandas_out() -> None:
    """Keep Arrow from importing pandas at the first `pa.array` of a list, which would cost time and memory in
    every process. If other code imports pandas later, Arrow uses it.
    """
    if "pandas" in sys.modules:
        return
    import pyarrow as pa

    finder = _LaterPandas()
    sys.meta_path.insert(0, finder)
    pa.array(())  # Arrow looks for pandas once
    finder.hides = False


class _LaterPandas(MetaPathFinder):
    """An import hook that makes imports of pandas fail as long as `hides` is set. When pandas is imported
    later, the hook makes Arrow look for it again; otherwise, `pa.array` would not recognise a Series, and
    would turn its missing values into NaN instead of null.
    """

    hides = True

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != "pandas":
            return None
        if self.hides:
            raise ModuleNotFoundError(fullname, name=fullname)
        others = (finder.find_spec(fullname, path, target) for finder in sys.meta_path if finder is not self)
        spec = next((each for each in others if each is not None), None)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_tell(module: ModuleType) -> None:
                import pyarrow as pa

                with suppress(ValueError):
                    sys.meta_path.remove(self)
                execute(module)
                pa.array(()).to_pandas()  # Arrow looks for pandas again

            spec.loader.exec_module = execute_and_tell  # type: ignore[method-assign]
        return spec


class Measured(NamedTuple, Generic[Result]):
    """The result of a task. `peak` is the peak resident memory of its process in bytes (0 if unknown).
    `spent` maps each purpose to the processor time in seconds that the process has used for it since the
    previous call of `take_account`.
    """

    result: Result
    peak: int
    spent: dict[str, float]


def measured(
    function: Callable[[Item], Result], item: Item, ceiling: int | None = None, purpose: str = "tasks"
) -> Measured[Result]:
    """Run a task, and return its result with the peak memory of this process and the processor time that the
    process used. The time of the task itself is credited to `purpose`.

    Raises TaskMemoryError if the task runs out of memory. On Linux, `ceiling` limits its private memory to
    that many bytes. Where the kernel allows it, peak memory counts from the start of the task (proc(5)),
    otherwise from the start of the process.
    """
    leave_pandas_out()
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_bytes(b"5")
    try:
        with spend(purpose), _limited(ceiling):
            result = function(item)
    except MemoryError as error:
        location = error.place if isinstance(error, TaskMemoryError) else _innermost(error)
    else:
        return Measured(result, _status().get("VmHWM", 0), take_account())
    raise TaskMemoryError(
        location
    )  # raised outside the handler, so that the frames of the original error release their memory


@contextmanager
def _limited(ceiling: int | None) -> Iterator[None]:
    """Limit this process to `ceiling` bytes of private memory while the block runs.

    RLIMIT_DATA counts private writable address space (setrlimit(2), Linux 4.7). Address space that was mapped
    but unused before the first task, such as thread stacks, is added to the limit.
    """
    reserved = _reserved()
    if ceiling is None or sys.platform != "linux" or reserved is None:
        yield
        return
    with suppress(ValueError):  # raised outside the main thread
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
    """Return how many bytes of private address space this process had mapped but not touched when this
    function was first called; later calls return the same value. None if the system does not report it.
    """
    status = _status()
    return max(0, status["VmData"] - status["RssAnon"]) if "RssAnon" in status else None


def _innermost(error: BaseException) -> str:
    """Return the `file:line` that raised the error, to be shown instead of its message, which may quote a
    document.
    """
    trace, location = error.__traceback__, ""
    while trace is not None:
        location = f"{Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno}"
        trace = trace.tb_next
    return location


def _status() -> dict[str, int]:
    """Return the memory sizes from /proc/self/status, in bytes, keyed by their names there."""
    sizes = {}
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines():
            name, _, value = line.partition(":")
            if value.endswith(" kB"):
                sizes[name] = int(value.split()[0]) << 10
    return sizes
