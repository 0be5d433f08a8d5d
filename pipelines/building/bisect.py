"""Which document breaks a task, found by halving: one that makes its stage raise, takes all memory, or ends its process."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from gristmill.errors import BrokenTaskError, PoisonError, UserError

_AGAIN = 2  # how often the document that was found must break the task once more, alone


class _Cluster(Protocol):
    def fits(self, function: Callable[[Any], Any], item: Any, memory: int | None) -> bool: ...


@dataclass(frozen=True)
class Probe:
    """One stage of a task over the documents `low` to `high` (excluded) of its part; what it writes is thrown away."""

    task: Any
    stage: int
    low: int
    high: int


def first_failing(count: int, fails: Callable[[int, int], bool]) -> int | None:
    """The first row of `count` that alone fails, given whether the rows from one to another (excluded) do; None where only
    their company does.
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
    """PoisonError with the document that alone breaks a stage of a task, every time; `error` itself where there is none.

    Every probe is a task of its own, with the memory that the last attempt had: it may die as the task did. `names`: of the
    task's stages; `run`: a module-level function. What other programs do to a process is not held against a document: it
    has to break its stage alone three times, and the stage has to survive the part without documents.
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
