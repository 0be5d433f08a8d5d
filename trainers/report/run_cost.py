"""Compute the cost of a run from its log, and that of its evaluations from their results. The cost of a run
includes steps that were repeated after it was resumed.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from gristmill.storage.disk import LocalPath
from trainers.engine.hardware.footprint import Footprint, add_footprints, footprint, parse_footprint
from trainers.runs.stored_evaluations import read_evaluations

TERMS = ("read", "decoded", "predicted")
_BEFORE_START = ("warning", "resume", "init", "excluded", "new")  # logged while a part is prepared


def run_cost(events: Sequence[Mapping[str, Any]]) -> Footprint | None:
    """Return the cost of a run, or None if it has not begun.

    Operations are those of training, without validation. Device hours are wall-clock hours times the number
    of workers, summed over the launches and restarts of the run. If the energy of one of them was not
    measured, it is estimated from nominal power where that is known.
    """
    parts = parts_of(events)
    return add_footprints([_part_cost(part) for part in parts]) if parts else None


def evaluation_cost(run: LocalPath) -> Footprint | None:
    """Return the total cost of the stored evaluations of a run's checkpoints; None if no cost is stored."""
    costs = [result.record["cost"] for result in read_evaluations(run) if "cost" in result.record]
    return add_footprints([parse_footprint(cost) for cost in costs]) if costs else None


def parts_of(events: Sequence[Mapping[str, Any]]) -> list[list[Mapping[str, Any]]]:
    """Split the events of a run into parts, one for each launch or restart, beginning with its `start` event.
    Damaged lines and events logged while the next part was being prepared are left out.
    """
    parts: list[list[Mapping[str, Any]]] = []
    for event in events:
        if event["event"] == "start":
            parts.append([])
        if parts and event["event"] != "damaged":  # a damaged event has the time of the event before it
            parts[-1].append(event)
    for part in parts:
        end = len(part)
        while part[end - 1]["event"] in _BEFORE_START:
            end -= 1
        if part is not parts[-1] or any(event["event"] != "warning" for event in part[end:]):
            del part[end:]
    return parts


def _part_cost(part: Sequence[Mapping[str, Any]]) -> Footprint:
    start, steps = part[0], [event for event in part if event["event"] == "step"]
    measured = [event["joules"] for event in part if event.get("joules") is not None]
    flops = None
    if all("flops" in event for event in steps):
        flops = {term: sum(event["flops"][term] for event in steps) for term in TERMS}
    seconds = (part[-1]["time"] - start["time"]) * start["workers"]
    joules = sum(measured) if start.get("energy_from") else None
    return footprint(flops, seconds, start["device"], start.get("threads", 1), joules, start.get("energy_from", ""))
