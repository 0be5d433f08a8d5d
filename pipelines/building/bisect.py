"""Find by bisection the document on which a stage runs out of memory or loses its process."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from gristmill.errors import BrokenTaskError, PoisonError, UserError

_AGAIN = 2  # number of further times that the document, alone, must break the task


class _Cluster(Protocol):
    def fits(self, function: Callable[[Any], Any], item: Any, memory: int | None) -> bool: ...


@dataclass(frozen=True)
class Probe:
    """A trial run of the stage with index `stage` of a task, over the rows [low, high) of the task's part."""

    task: Any
    stage: int
    low: int
    high: int


def first_failing(count: int, fails: Callable[[int, int], bool]) -> int | None:
    """Bisect `count` rows and return the index of a row that fails on its own, or None if none is found, for
    example because rows fail only together. `fails(low, high)` returns whether the rows [low, high) fail as a
    group.
    """
    low, high = 0, count
    while high - low > 1:
        middle = (low + high) // 2
        if fails(low, middle):
            high = middle
        else:
            low = middle
    return low if high > low and fails(low, low + 1) else None


def find_poison(
    error: BrokenTaskError, task: Any, names: Sequence[str], stage: int, run: Callable[[Probe], Any], cluster: _Cluster
) -> UserError:
    """Return a PoisonError for the document that breaks a stage of a task, or `error` if no single document
    breaks it. `names` are the names of the task's stages, `stage` is the index of the one that broke, and
    `run` is a module-level function that runs a probe.

    A document is blamed only if the stage breaks on it alone three times, and does not break when given no
    documents.
    """
    part = task.part

    def fails(low: int, high: int) -> bool:
        return not cluster.fits(run, Probe(task, stage, low, high), error.memory)

    if fails(0, 0):
        return error
    row = first_failing(part.rows, fails)
    if row is None or not all(fails(row, row + 1) for _ in range(_AGAIN)):
        return error
    from gristmill.terminal import human_bytes

    identifier = part.table(("id",))["id"][row].as_py().hex()
    what = "runs out of memory" if error.reason == "memory" else "loses its process"
    room = "" if error.memory is None else f" with {human_bytes(error.memory)}"
    return PoisonError(
        f"{names[stage]}: document {identifier} of part {part.name} breaks it, alone and repeatedly: it {what}{room}; give "
        "tasks more with --memory-per-worker, or set the document aside with build --quarantine-poison",
        names[stage], part.source, identifier, error.reason,
    )  # fmt: skip
