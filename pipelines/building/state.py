"""The state of a running build: its plan, and the steps published so far."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from gristmill.errors import ConflictError
from gristmill.host import host
from gristmill.storage.location import Location
from gristmill.storage.store import write_json
from pipelines.building.build_metrics import BuildMetrics
from pipelines.cluster.local import LocalCluster
from pipelines.cluster.ray import RayCluster
from pipelines.contracts.manifest import (
    StepManifest,
    StepOutput,
    check_mark,
    publish,
    publish_first,
)
from pipelines.contracts.tombstone import FORGOTTEN, mark_of
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
    gone: Mapping[str, Sequence[str]]
    """The records that the output had forgotten when the build began, as `path#record`, by source."""
    variant: str | None = None
    """The name under which the corpus is published as a variant of the directory's corpus; None if it is published
    as the directory's corpus itself.
    """

    def output(self, step: Step, inputs: Mapping[str, Location] | None = None) -> StepOutput:
        """Return the output through which the tasks of a step write their files. `inputs` is as in
        `StepOutput`.
        """
        return StepOutput(self.root, step.directory, inputs or {}, mark_of(self.gone))

    def publish(self, step: Step, manifest: StepManifest) -> None:
        """Publish a step and record its manifest in `published`. If the step is not reproducible and another
        build has published it first, that build's manifest is recorded.

        Raises ConflictError if documents were forgotten since the build began, or if files of the step are
        gone.
        """
        mark = mark_of(self.gone)
        if mark:
            manifest = replace(manifest, facts={**manifest.facts, FORGOTTEN: mark})

        def check() -> None:
            self.check_forgotten()
            self._check_files(step, manifest)

        if step.stage.reproducible:
            publish(self.root, step.directory, manifest, check)
            self.published[step.label] = manifest
        else:
            self.published[step.label] = publish_first(self.root, step.directory, manifest, check)

    def _check_files(self, step: Step, manifest: StepManifest) -> None:
        missing = self.output(step).missing([*(part.file for part in manifest.parts), *manifest.files])
        if missing:
            raise ConflictError(
                f"{self.root / step.directory / missing[0]}: was removed by another command while the step was "
                f"built ({len(missing)} files are missing); run the command again"
            )

    def check_forgotten(self) -> None:
        """Raise ConflictError if documents were forgotten since the build began."""
        check_mark(self.root, mark_of(self.gone))

    def check_steps(self) -> None:
        """Raise ConflictError if documents were forgotten since the build began, or if `gc` has removed a
        step of the plan. In an object store, steps are not checked.
        """
        self.check_forgotten()
        for step in self.plan.steps if self.root.local is not None else ():
            if not (self.root / step.directory / "manifest.json").exists():
                raise ConflictError(
                    f"{self.root / step.directory}: was removed by another command after this build had published it; "
                    "run the command again"
                )

    def record_run(self, step: Step, seconds: float, text_bytes: int, elapsed: float, **more: int) -> None:
        """Write a step's `run.json`, which records its times, sizes and peak memory, and where it ran.

        `seconds` is the time of the step, summed over its tasks. `elapsed` is the wall-clock time of all
        steps that ran together. For a corpus stage, both are the wall-clock time of the step. `text_bytes` is
        the size of the text or, for a read step, of the decoded records. `more` holds further byte counts to
        record.
        """
        run = {"seconds": round(seconds, 3), "wall_seconds": round(elapsed, 3), "text_bytes": text_bytes}
        run |= {"peak_bytes": self.cluster.peak_bytes, **more}
        where = {
            "workers": self.cluster.workers,
            "host": host().identity()["host"],
            "finished": round(host().time(), 3),
        }
        write_json(self.root / step.directory / "run.json", run | where)
