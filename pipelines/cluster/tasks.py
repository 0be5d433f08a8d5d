"""Code that the local cluster and the Ray cluster share: the titles of tasks that users see, the record of
the time that tasks take, and the errors raised when the last attempt of a task fails.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gristmill.errors import (
    BrokenTaskError,
    RemoteError,
    StorageError,
    TaskMemoryError,
    UserError,
    reason_of,
)
from gristmill.terminal import human_bytes

Progress = Callable[[str, int, int], None]
ATTEMPTS = 3
PAUSE_SECONDS = 0.5  # pause after the first failure of a task; it grows with each failure
_MORE_MEMORY = (
    "give tasks more (--memory-per-worker, fewer --workers), or lower part_bytes or max_document_bytes of the source"
)


@dataclass
class Usage:
    """The time that the tasks and steps of a build have used so far, on all machines.

    `spent` maps each purpose to its processor time in seconds. The time of a task itself is credited to
    `purpose`. `start_seconds` and `step_seconds` are the wall-clock times that starting Ray and running steps
    took.
    """

    purpose: str = "tasks"
    spent: dict[str, float] = field(default_factory=dict)
    start_seconds: float = 0.0
    step_seconds: float = 0.0


def no_progress(title: str, done: int, total: int) -> None:
    """Ignore a progress report. This is the default, which shows none."""
    return


def task_failure(label: str, error: BaseException, position: int, memory: int | None) -> UserError:
    """Return the error to raise after the last attempt of a task: a BrokenTaskError if `is_broken` says so,
    otherwise a plain UserError. The message of a library's exception is left out if it may quote the text of
    documents.
    """
    if is_broken(error):
        reason = f"failed {ATTEMPTS} times, the last time it {broken_reason(error, memory)}"
        kind = "death" if type(error).__name__ == "WorkerCrashedError" else "memory"
        return BrokenTaskError(f"{label}: {reason}; {_MORE_MEMORY}", position, memory, kind)
    if isinstance(error, OSError) and error.errno is not None:
        return UserError(
            f"{label}: {reason_of(error)}; fix that and run the same command, which continues where it stopped"
        )
    if isinstance(error, RemoteError):
        return UserError(f"{label}: failed {ATTEMPTS} times: {error}; run the same command when the store answers")
    lacking = getattr(error, "client_exc", error)  # Ray's error if a worker cannot import what a task is made of
    if isinstance(lacking, ImportError):
        return UserError(
            f"{label}: a worker has not all that is installed here: {lacking}; install the same everywhere"
        )
    if isinstance(error, StorageError):
        return UserError(
            f"{label}: failed {ATTEMPTS} times: {error}; fix that and run the same command, which continues where it stopped"
        )
    if type(error).__module__ == "ray.exceptions":  # errors of processes and nodes, not raised by the task itself
        return UserError(
            f"{label}: failed {ATTEMPTS} times, last with Ray's {type(error).__name__}: nodes or their network may have failed; "
            "the same command continues where it stopped"
        )
    # The message of a library's exception may quote the text that caused it, so only its type and location
    # are shown.
    location = ""
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        location = f" in {Path(code.co_filename).name}:{trace.tb_lineno}"
        trace = trace.tb_next
    return UserError(f"{label}: failed {ATTEMPTS} times, last with {type(error).__name__}{location}")


def is_broken(error: BaseException) -> bool:
    """Return whether an error means that a task ran out of memory or that its process died."""
    # Ray's errors are recognised by name, so that builds without Ray do not import it.
    return isinstance(error, MemoryError) or type(error).__name__ in ("OutOfMemoryError", "WorkerCrashedError")


def broken_reason(error: BaseException, memory: int | None) -> str:
    """Return why a task broke, as a verb phrase such as `ran out of memory`. `is_broken(error)` must be True."""
    size = f" with {human_bytes(memory)}" if memory is not None else ""
    if isinstance(error, MemoryError):
        location = f", at {error.place}" if isinstance(error, TaskMemoryError) and error.place else ""
        return f"ran out of memory{size}{location}"
    if type(error).__name__ == "OutOfMemoryError":
        return f"was killed{size} because its node ran out of memory"
    return f"lost its process{size}, which crashed or was killed for lack of memory"


def title_of(function: Callable[..., Any]) -> str:
    """Return the title of a task for users: its function's name, with spaces for underscores."""
    return function.__name__.strip("_").replace("_", " ")
