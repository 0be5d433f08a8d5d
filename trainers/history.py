"""What a run's log says in the end: a run that goes on from an earlier step logs some steps twice, and the later ones
count.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

MEASURED = ("step", "validation", "skipped")


def read_events(log: Path, size: int | None = None) -> list[dict[str, Any]]:
    """All events of `log.jsonl`, or of its first `size` bytes; nothing where there is no log yet."""
    if not log.exists():
        return []
    with open(log, "rb") as file:
        lines = file.read(-1 if size is None else size).splitlines()
    return events_of(lines)


def events_of(lines: Iterable[bytes]) -> list[dict[str, Any]]:
    """The events of `lines` of a log; those that a kill cut off are passed over."""
    return list(filter(None, map(_event, lines)))


def effective(events: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """`events` without the measurements that lie beyond the step from which a later part of the run began."""
    kept: list[dict[str, Any]] = []
    for event in events:
        if event["event"] == "start":
            kept = [e for e in kept if e["event"] not in MEASURED or e["step"] <= event["step"]]
        kept.append(event)
    return kept


def _event(line: bytes) -> dict[str, Any] | None:
    try:
        entry = json.loads(line)
    except ValueError:
        return None
    return entry if isinstance(entry, dict) and "event" in entry else None
