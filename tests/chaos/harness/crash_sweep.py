"""Commands that are crashed at operations on the disk or on an object store, and then run again."""

import queue
import random
import re
import shutil
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tests.chaos.harness.crash_server import Server
from tests.chaos.harness.crashing import Crash, Operation, Point
from tests.chaos.harness.outcome import Outcome, files_of

Injected = Callable[[str, str, Outcome, float], None]
Names = Sequence[tuple[str, str]]
GROUP = "Crash points"


@dataclass(frozen=True)
class Case:
    """A command to crash.

    `names` holds pairs of a pattern of paths and a name for the table. `begin` prepares the directory, and
    `outcome` judges it after the second run.
    """

    name: str
    names: Names
    command: Callable[[Path], Sequence[Any]]
    begin: Callable[[Path], None]
    outcome: Callable[[Path], Outcome]
    record: str = ""  # where rows of training are written, beside the root
    bucket: str = ""
    detail: Literal["operations", "files", "none"] = "none"  # what has rows of its own in the table
    most: int = 2  # crashes for each kind of operation on each kind of file; four times as many losses of power
    done: str = ""  # what the command says, refusing, where all had been done before the crash


def kind_of(case: Case, operations: Sequence[Operation], point: Point) -> tuple[str, str]:
    """Return (what the crash hits, at which operation), in words for the table."""
    if point.crash.startswith("names"):
        return "power is lost", point.crash
    if point.number == len(operations):
        return "killed", "after the last operation"
    here = operations[point.number - (point.crash == "torn")]
    before = operations[point.number - 1]
    if here.kind == "make directory":
        return "directory", "before it is made"
    if here.kind == "fsync directory":
        if before.kind not in ("rename", "link"):
            return "directory", "before its fsync"
        here = Operation("directory's fsync", before.path)
    what = next(name for pattern, name in case.names if re.fullmatch(pattern, plain_name(here.path)))
    return what, "half written" if point.crash == "torn" else f"before its {here.kind}"


def plain_name(path: str) -> str:
    """Return a path with the names of temporary files replaced by the final ones."""
    while (shorter := re.sub(r"(^|/)\.([^/]+)\.[0-9a-f]{32}\.tmp", r"\1\2", path)) != path:
        path = shorter
    return path


def row_of(case: Case, what: str, when: str) -> str:
    if case.detail == "operations" or what in ("power is lost", "killed"):
        return f"{case.name}: {what}, {when}"
    if when == "half written":
        return f"{case.name}: killed, a file half written"
    return f"{case.name}: killed at {what}" if case.detail == "files" else f"{case.name}: killed before an operation"


def points_of(case: Case, operations: Sequence[Operation]) -> list[Point]:
    """Return every crash point: each operation with each way of dying that applies to it, and a kill after
    the last.
    """
    crashes: list[Crash] = ["kill"] if case.bucket else ["kill", "names kept", "names lost"]
    points = [Point(number, crash) for crash in crashes for number in range(len(operations))]
    points += [
        Point(number + 1, "torn") for number, each in enumerate(operations) if each.kind in ("creation", "opening")
    ]
    return [*points, Point(len(operations), "kill")]


def chosen(case: Case, operations: Sequence[Operation], few: int | None) -> list[Point]:
    """Return the crash points to try.

    With `few`, that many points are drawn with a fixed seed. Without it, the points of each kind are evenly
    spread, at most `case.most` of them (four times as many for a loss of power).
    """
    points = points_of(case, operations)
    if few is not None:
        return random.Random(7).sample(points, few)
    kinds: dict[tuple[str, str], list[Point]] = defaultdict(list)
    for point in points:
        kinds[kind_of(case, operations, point)].append(point)
    found = []
    for (what, _), alike in kinds.items():
        most = case.most * (4 if what == "power is lost" else 1)
        found += alike if len(alike) <= most else [alike[len(alike) * n // most] for n in range(most)]
    return found


class Pool:
    def __init__(self, servers: Sequence[Server]) -> None:
        self._free: queue.SimpleQueue[Server] = queue.SimpleQueue()
        self.all = servers
        for each in servers:
            self._free.put(each)

    def crash(self, case: Case, root: Path, point: Point, operation: Operation | None) -> tuple[Outcome, float]:
        """Crash the command once and run it again; return the outcome and the seconds of the second run."""
        used = self._free.get()
        try:
            case.begin(root)
            record = f"{root}.{case.record}" if case.record else ""
            died = used.run(case.command(root), root, point, bucket=case.bucket, record=record)
            assert died.status == -9, died.said[-4000:]
            again = used.run(case.command(root), root, bucket=case.bucket, record=record)
            finished = again.status == 0 or (case.done and case.done in again.said)
            assert finished, f"{point} {operation}: {again.said[-4000:]}"
            return case.outcome(root), again.seconds
        finally:
            self._free.put(used)

    def sweep(self, case: Case, root: Path, injected: Injected, few: int | None = None) -> None:
        """Crash a command at chosen points (see `chosen`), each time in a new directory, and record each
        outcome.
        """
        case.begin(root)
        there = set(root.rglob("*"))
        operations = self.all[0].run(case.command(root), root, bucket=case.bucket).operations
        seen = {plain_name(operation.path).rpartition("/")[2] for operation in operations}
        unseen = [path for path in set(root.rglob("*")) - there if path.name not in seen]
        assert not unseen, "came by a way that is not watched"
        shutil.rmtree(root, ignore_errors=True)

        def crash(numbered: tuple[int, Point]) -> tuple[Point, Outcome, float]:
            number, point = numbered
            own = root.with_name(f"{root.name}{number}")
            operation = operations[point.number] if point.number < len(operations) else None
            outcome, seconds = self.crash(case, own, point, operation)
            if outcome == Outcome(0, 0, True):  # else it stays, to be looked at
                shutil.rmtree(own, ignore_errors=True)
            return point, outcome, seconds

        points = chosen(case, operations, few)
        with ThreadPoolExecutor(len(self.all)) as threads:
            for point, outcome, seconds in threads.map(crash, enumerate(points)):
                injected(GROUP, row_of(case, *kind_of(case, operations, point)), outcome, seconds)


def nothing(root: Path) -> None:
    """Prepare nothing, for a command whose directory does not exist yet."""


def same_as(whole: Path) -> Callable[[Path], Outcome]:
    """Return a function that compares all files of a directory with those of the undisturbed result `whole`."""
    wanted = files_of(whole)

    def outcome(out: Path) -> Outcome:
        files = files_of(out)
        return Outcome(len(wanted.keys() - files.keys()), len(files.keys() - wanted.keys()), files == wanted)

    return outcome
