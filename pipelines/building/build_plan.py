"""Plan a build without running it: find out which steps are finished, which will run and why, and estimate
the time and space that the build will take.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from gristmill.storage.disk import LocalPath
from pipelines.building.build import ensure_owner
from pipelines.contracts.manifest import load_step
from pipelines.planning.corpus import CorpusConfig
from pipelines.planning.forecast import Forecast, forecast
from pipelines.planning.inventory import take_inventory
from pipelines.planning.plan import Plan, make_plan
from pipelines.planning.poison import load_poison
from pipelines.planning.published import add_published_files, explain
from pipelines.planning.rule_checks import null_notices
from pipelines.planning.source_check import check_counts, check_sample
from pipelines.planning.source_fit import fit_of_plan


@dataclass(frozen=True)
class PlannedStep:
    """A step of a planned build. `name` includes the source if the step has one (`language.web`), and `stage`
    is the name of its stage. Its results are stored in `directory`, relative to the output; `is_finished`
    says whether they are already there. `why` is the reason why the step will run, for example what has
    changed since it was last built; it is empty if the step is finished.
    """

    name: str
    stage: str
    directory: str
    is_finished: bool
    why: str


@dataclass(frozen=True)
class BuildPlan:
    """What a build would do. `steps` are in the order of `plan`. `warnings` are about settings and rules that
    do not fit the documents of a source, and about rules that test nullable columns without saying what
    happens to nulls. `expected` estimates the time and space that the unfinished steps will take, from the
    rates of earlier builds.
    """

    plan: Plan
    steps: tuple[PlannedStep, ...]
    warnings: tuple[str, ...]
    expected: Forecast

    @property
    def files(self) -> dict[str, tuple[int, int]]:
        """(number of files, their total size in bytes) of each source, by the name of the source."""
        return {name: (len(each.files), each.bytes) for name, each in self.plan.inventories.items()}


def plan_build(config: CorpusConfig, rates: Sequence[LocalPath] = ()) -> BuildPlan:
    """Plan the build of a corpus: list its files, find out which steps are finished, and sample the first
    records of each source that has not been read yet. The forecast also uses the rates of the builds in the
    outputs `rates`.

    Raises UserError or a subclass, as a build does.
    """
    output = config.place
    ensure_owner(output, config.name, write=False)
    plan = add_published_files(make_plan(config, take_inventory(config.sources, output), load_poison(output)))
    tallies = {}
    for source in config.sources:
        directory = plan.step(f"read.{source.name}").directory
        manifest = load_step(output, directory)
        files = plan.inventories[source.name].files
        if manifest:
            check_counts(source, manifest, output / directory, files)
        else:
            tallies[source.name] = check_sample(source, files)
    # In an object store, reading the rates of every step would take too long.
    here = [LocalPath(output.local)] if output.local else []
    steps = []
    for step in plan.steps:
        is_finished = load_step(output, step.directory) is not None
        why = "" if is_finished else explain(step, output)
        steps.append(PlannedStep(step.label, str(step.identity["stage"]), step.directory, is_finished, why))
    warnings = (*null_notices(config), *fit_of_plan(plan, output, tallies))
    return BuildPlan(plan, tuple(steps), warnings, forecast(plan, [*here, *rates]))
