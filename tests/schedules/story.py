"""A readable account of a run: what each agent did, and between which operations of other agents."""

import re
from collections.abc import Iterator, Sequence

from tests.schedules.memory_disk import ROOT
from tests.schedules.scheduler import CRITICAL, LEASE, Event

_FAULTS = {"kill": "is killed", "suspend": "is suspended, seconds:", "fail": "fails", "power": "loses power"}
_SHOWN = 6  # operations of one turn


def tell(trace: Sequence[Event]) -> str:
    """Return lines of text: each fault, and for each turn of an agent what it published, removed or did to a
    lease.
    """
    lines = []
    for start, end in _turns(trace):
        first, turn = trace[start], trace[start:end]
        if first.operation in _FAULTS:
            lines.append(
                f"{first.time - 1000:9.3f} s  !! {first.agent} {_FAULTS[first.operation]} {first.note}".rstrip()
            )
            continue
        shown = [event for event in turn if _matters(event)]
        if turn[-1] not in shown:
            shown.append(turn[-1])
        left = len(turn) - len(shown[-_SHOWN:])
        more = [f"{left} others"] if left else []
        lines.append(
            f"{first.time - 1000:9.3f} s  {first.agent}: " + "; ".join([*more, *map(_describe, shown[-_SHOWN:])])
        )
        stops = next((event for event in trace[end:] if event.agent == first.agent), None)
        if stops is not None and stops.operation not in ("sleep", "wait"):
            what = _FAULTS[stops.operation] if stops.operation in _FAULTS else f"is about to: {_describe(stops)}"
            lines.append(f"{'':13}{first.agent} {what}")
    return "\n".join(lines)


def _turns(trace: Sequence[Event]) -> Iterator[tuple[int, int]]:
    start = 0
    for number in range(1, len(trace) + 1):
        if number == len(trace) or trace[number].agent != trace[start].agent or _is_fault(trace, number):
            yield start, number
            start = number


def _is_fault(trace: Sequence[Event], number: int) -> bool:
    return trace[number].operation in _FAULTS or trace[number - 1].operation in _FAULTS


def _matters(event: Event) -> bool:
    return event.operation in CRITICAL or event.path.endswith(LEASE) or bool(event.note)


def _describe(event: Event) -> str:
    paths = [path.removeprefix(f"{ROOT}/") for path in (event.path, event.other) if path]
    note = f" ({event.note})" if event.note else ""
    return re.sub(r"[0-9a-f]{29}(?=\.tmp)", "", f"{event.operation} {' -> '.join(paths)}".rstrip()) + note
