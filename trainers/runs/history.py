"""Read a run's log: past events, without superseded measurements, and new events as they are written."""

import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from gristmill.events import events_of

MEASURED = ("step", "validation", "skipped")
_INTERVAL = 0.3  # seconds between two reads of a growing log


def drop_superseded(events: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return `events` without superseded measurements. When a run resumes from a step, what it had measured
    after that step is dropped. If a suspended worker and the workers that continued the run measured the same
    step, only the first measurement is kept.
    """
    kept: list[dict[str, Any]] = []
    measured: set[tuple[str, int]] = set()
    attempt = 0
    for event in events:
        if event["event"] == "start":
            if event.get("attempt", attempt) < attempt:
                continue
            attempt = event.get("attempt", attempt)
            kept = [e for e in kept if e["event"] not in MEASURED or e["step"] <= event["step"]]
            measured = {each for each in measured if each[1] <= event["step"]}
        if event["event"] in MEASURED:
            if (event["event"], event["step"]) in measured:
                continue
            measured.add((event["event"], event["step"]))
        kept.append(event)
    return kept


def follow(path: Path, start: int, stop: threading.Event) -> Iterator[dict[str, Any]]:
    """Yield the events after byte `start` of `path` as they are written. Once `stop` is set, yield the
    remaining events and end.
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
