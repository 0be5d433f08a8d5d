"""What a build knows while it runs: its plan, and the steps that are published so far."""

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
    """A build in progress: what is published so far, by label."""

    plan: Plan
    root: Location
    cluster: AnyCluster
    say: Callable[[str], None]
    published: dict[str, StepManifest]
    metrics: BuildMetrics

    def record_run(self, step: Step, seconds: float, text_bytes: int, elapsed: float, **more: int) -> None:
        """Write `run.json`: times and rates of a step, kept apart from its manifest. `seconds` are task seconds added up.

        `peak_bytes` is the most memory of a task of the group that the step ran in, 0 where unknown; `more` other bytes.
        """
        run = {"seconds": round(seconds, 3), "wall_seconds": round(elapsed, 3), "text_bytes": text_bytes}
        run |= {"peak_bytes": self.cluster.peak_bytes, **more}
        host = {"workers": self.cluster.workers, "host": os.uname().nodename, "finished": round(time.time(), 3)}
        write_json(self.root / step.directory / "run.json", run | host)
