"""What a run's log says in the end: a run that goes on from an earlier step logs some steps twice, and the later ones
count.
"""

from collections.abc import Iterable
from typing import Any

MEASURED = ("step", "validation", "skipped")


def effective(events: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """`events` without the measurements that lie beyond the step from which a later part of the run began."""
    kept: list[dict[str, Any]] = []
    for event in events:
        if event["event"] == "start":
            kept = [e for e in kept if e["event"] not in MEASURED or e["step"] <= event["step"]]
        kept.append(event)
    return kept
