"""Directed schedules: those with the fewest switches at points where two agents interact, which random
schedules take long to find.

One agent is stopped before an operation that publishes or removes something. Another agent runs to its end,
or to one of its operations in the same directory, and then the first agent continues. In other schedules, the
machine loses power right after such an operation, or the first agent is suspended for a long time if the two
do not share a machine. There are also schedules in which one agent checks what it publishes between two
operations of the other.
"""

import itertools
from collections.abc import Iterator
from random import Random

from tests.schedules.choices import Replay
from tests.schedules.explore import Scenario, run
from tests.schedules.scheduler import CRITICAL, LEASE, Decision

_SECONDS = 4000.0  # of a suspension: more than a lease lasts
_MANIFEST = ".manifest.json."
_FAULTS = ("kill", "suspend", "fail", "power")
Directed = tuple[Decision, ...]


def directed_schedules(scenario: Scenario) -> Iterator[Directed]:
    """Yield lists of decisions: first those with one switch or fault, then those of `_windows`, then the
    others in random order.
    """
    alone = _operations(scenario, ())
    agents = tuple(name for name in alone if "." not in name)  # not heartbeats
    later = []
    for first, second in itertools.permutations(agents, 2):
        start = (Decision("", 0, "run", first),)
        for number, (_, path, other) in _stops(_operations(scenario, start)[first]):
            stop = (*start, Decision(first, number, "run", second))
            yield stop
            later.append((stop, first, second, (path, other)))
            if "power" in scenario.faults:
                yield (*start, Decision(first, number + 1, "power", "a"))
            else:  # on machines of their own, where the others take over its lease
                yield (*start, Decision(first, number, "suspend", first, _SECONDS))
    for first, second in itertools.permutations(agents, 2):
        yield from _windows(scenario, first, second)
    Random(0).shuffle(later)
    for stop, first, second, paths in later:
        for number, (_, path, other) in enumerate(_operations(scenario, stop)[second], 1):
            if _meet(paths, (path, other)):
                yield (*stop, Decision(second, number, "run", first))


def _windows(scenario: Scenario, first: str, second: str) -> Iterator[Directed]:
    """Yield schedules in which `first` checks its output before publishing, between two operations of
    `second`, and publishes after `second` has ended.
    """
    start = (Decision("", 0, "run", first),)
    for number, (kind, path, _) in enumerate(_operations(scenario, start)[first], 1):
        if kind != "create" or _MANIFEST not in path:
            continue
        stop = (*start, Decision(first, number, "run", second))
        for inside, _ in _stops(_operations(scenario, stop)[second]):
            between = (*stop, Decision(second, inside, "run", first))
            goes_on = _operations(scenario, between)[first][number:]
            published = (place for place, each in enumerate(goes_on, number + 1) if each[2].endswith(_MANIFEST[1:-1]))
            if (last := next(published, None)) is not None:
                yield (*between, Decision(first, last, "run", second))


def _operations(scenario: Scenario, decisions: Directed) -> dict[str, list[tuple[str, str, str]]]:
    found: dict[str, list[tuple[str, str, str]]] = {}
    for event in run(scenario, Replay(decisions, 0), trace=True)[0].trace or ():
        if event.operation not in _FAULTS:
            found.setdefault(event.agent, []).append(event[2:5])
    return found


def _stops(operations: list[tuple[str, str, str]]) -> Iterator[tuple[int, tuple[str, str, str]]]:
    for number, operation in enumerate(operations, 1):
        kind, path, other = operation
        if kind in CRITICAL and not path.endswith(LEASE) and not other.endswith(LEASE):
            yield number, operation


def _meet(one: tuple[str, str], two: tuple[str, str]) -> bool:
    """Return whether two operations are in the same directory, or one is on the directory that contains the
    other.
    """
    return any({a, a.rpartition("/")[0]} & {b, b.rpartition("/")[0]} for a in one if a for b in two if b)
