"""The state of a running build: its plan, and the steps published so far."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass

from gristmill.storage.location import Location
from gristmill.storage.store import write_json
from pipelines.building.build_metrics import BuildMetrics
from pipelines.cluster.local import LocalCluster
from pipelines.cluster.ray import RayCluster
from pipelines.contracts.manifest import StepManifest
from pipelines.planning.plan import Plan, Step

AnyCluster = LocalCluster | RayCluster


@dataclass
class Build:
    """A build in progress. `published` holds the manifests of the steps published so far, by label."""

    plan: Plan
    root: Location
    cluster: AnyCluster
    say: Callable[[str], None]
    published: dict[str, StepManifest]
    metrics: BuildMetrics

    def record_run(self, step: Step, seconds: float, text_bytes: int, elapsed: float, **more: int) -> None:
        """Write `run.json`: times and rates of a step, which do not belong in its manifest. `seconds` is the
        sum over tasks, `elapsed` the wall time; `more` are other byte counts.

        Its field `peak_bytes` is the most memory of any task in the group that the step ran in, 0 if unknown.
        """
        run = {"seconds": round(seconds, 3), "wall_seconds": round(elapsed, 3), "text_bytes": text_bytes}
        run |= {"peak_bytes": self.cluster.peak_bytes, **more}
        host = {"workers": self.cluster.workers, "host": os.uname().nodename, "finished": round(time.time(), 3)}
        write_json(self.root / step.directory / "run.json", run | host)
