"""The budget of a build: the processor time that it used, by purpose."""

import os
import resource
import time
from collections.abc import Callable, Mapping
from typing import Any

from gristmill.budget import CHILDREN, add_account, take_account
from gristmill.host import host
from gristmill.process import tree_seconds
from gristmill.storage.location import Location
from gristmill.storage.store import write_json
from pipelines.building.state import AnyCluster
from pipelines.cluster.tasks import Usage

DRIVER = "planning and publishing"
_SHOWN = 0.02  # share of the total from which a purpose is printed


def close_and_record(
    cluster: AnyCluster, root: Location, began: float, say: Callable[[str], None], before: float = 0.0
) -> None:
    """Close the cluster and print the budget of the build. If a step was built, also write the budget to
    `run.json` in the output directory `root`. `began` is the value of `time.monotonic()` when the build
    began.

    `before` is the processor time in seconds, as `processor_seconds` gives it, that the process had spent on
    other things when the build began; the budget leaves it out. The caller then also called `take_account`,
    which discards the purposes of that time. By default, the budget includes the start of the process.
    """
    # Measured before Ray ends, because what its processes used cannot be found out afterwards.
    seconds, own, workers = processor_seconds() - before, take_account(), cluster.workers
    if cluster.usage.start_seconds:
        own.pop(CHILDREN, None)  # with Ray, only its own processes are children of this one
    add_account(cluster.usage.spent, own)
    cluster.close()
    budget = summarise_budget(cluster.usage, seconds)
    say(describe_budget(budget))
    if cluster.usage.step_seconds:
        wall = time.monotonic() - began
        fixed = max(0.0, wall - cluster.usage.step_seconds) + cluster.usage.start_seconds
        rounded = {
            "wall_seconds": round(wall, 3),
            "fixed_seconds": round(fixed, 3),
            "workers": workers,
            "waiting_seconds": round(max(0.0, wall * workers - budget["processor_seconds"]), 3),
            "finished": round(host().time(), 3),
        }
        write_json(root / "run.json", {**budget, **rounded})


def summarise_budget(usage: Usage, seconds: float) -> dict[str, Any]:
    """Return the processor time of a build in seconds: the total as `processor_seconds`, and the time of each
    purpose, in descending order, as `by_purpose`.

    `seconds` is the time that the operating system counted for the build's processes on this machine, and the
    sum of `usage.spent` covers all machines. The total is the larger of the two.
    """
    spent = dict(usage.spent)
    rest = seconds - sum(spent.values())
    if usage.start_seconds and rest > 0:
        spent["Ray"] = rest
    ranked = sorted(spent.items(), key=lambda entry: -entry[1])
    return {
        "processor_seconds": round(max(seconds, sum(spent.values())), 3),
        "by_purpose": {purpose: round(share, 3) for purpose, share in ranked},
    }


def describe_budget(budget: Mapping[str, Any]) -> str:
    """Describe a budget from `summarise_budget` in one line. Purposes that took less than 2% of the total are
    added up as `other`.
    """
    total, purposes = budget["processor_seconds"], budget["by_purpose"]
    shown = {purpose: seconds for purpose, seconds in purposes.items() if seconds >= _SHOWN * total}
    rest = sum(purposes.values()) - sum(shown.values())
    parts = [f"{purpose} {seconds:.1f}" for purpose, seconds in shown.items()]
    return f"processor time {total:.1f} s: {', '.join([*parts, f'other {rest:.1f}'])}"


def processor_seconds() -> float:
    """Return the CPU time of this process and its descendants, in seconds. Where /proc is missing, running
    descendants are not counted.
    """
    seconds = tree_seconds(os.getpid())
    if seconds is not None:
        return seconds
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)
