"""Read a run's log: the measurements that no later part of the run has repeated, and the events that a
running process adds.
"""

import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from gristmill.events import events_of

MEASURED = ("step", "validation", "skipped")
_INTERVAL = 0.3  # seconds between two looks at a log


def drop_superseded(events: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return `events` without measurements that a later part of the run has repeated: those beyond its first
    step.
    """
    kept: list[dict[str, Any]] = []
    for event in events:
        if event["event"] == "start":
            kept = [e for e in kept if e["event"] not in MEASURED or e["step"] <= event["step"]]
        kept.append(event)
    return kept


def follow(path: Path, start: int, stop: threading.Event) -> Iterator[dict[str, Any]]:
    """Yield the events after byte `start` of `path` as they are added. Ends at the end of the file once
    `stop` is set.
    """
    rest = b""
    while True:
        last = stop.wait(_INTERVAL)
        if path.exists():
            with path.open("rb") as log:
                log.seek(start)
                data = log.read()
            start += len(data)
            *complete, rest = (rest + data).split(b"\n")
            yield from events_of(complete)
        if last:
            return
