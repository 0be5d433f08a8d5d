"""Build a corpus from its configuration, on Ray or in this process."""

import os
import time
from collections.abc import Callable, Mapping

from gristmill.budget import spend
from gristmill.console import ProgressDisplay
from gristmill.errors import UserError
from gristmill.libraries.advisories import refuse_known
from gristmill.storage.disk import LocalPath
from gristmill.storage.lease import lock
from pipelines.building.build import ensure_owner, plan_and_build, refuse_unwritable
from pipelines.building.build_budget import DRIVER, close_and_record
from pipelines.cluster.local import LocalCluster
from pipelines.cluster.memory import room_here
from pipelines.cluster.ray import RayCluster
from pipelines.contracts.manifest import CorpusManifest
from pipelines.contracts.reads import Text
from pipelines.contracts.stage import PartStage
from pipelines.planning.corpus import CorpusConfig
from pipelines.planning.forecast import forecast
from pipelines.planning.inventory import Inventory, take_inventory
from pipelines.planning.plan import Step, make_plan
from pipelines.planning.poison import load_poison
from pipelines.planning.published import add_published_files

# Worker seconds. Two workers of a local Ray do this in the time that Ray takes to start and its workers to load what
# they need (`benchmarks.end_to_end`, docs/benchmarks.md).
_WORTH_RAY = 15.0


def run_build(
    config: CorpusConfig,
    workers: int | None = None,
    address: str | None = None,
    *,
    in_process: bool = False,
    quarantine: bool = False,
    memory: int | None = None,
    variant: str | None = None,
    before: float = 0.0,
) -> CorpusManifest:
    """Build a corpus, show the progress, and return the corpus's manifest.

    The build runs on the Ray cluster at `address` (default: RAY_ADDRESS in the environment) or, if neither is
    given, on a local Ray with `workers` workers (default: the number of cores). Two kinds of builds run all
    tasks in this process instead: those with `in_process` and no `address`, and small ones (`_is_small`) for
    which no cluster is given.

    `memory` is the number of bytes that a task may use. With `quarantine`, documents that break a step are
    set aside instead of ending the build. With `variant`, the corpus is published as a variant of this name,
    and the manifest already published in the output is not replaced. `before` is the processor time in
    seconds that this process spent on other things before the build.
    """
    workers = workers if workers is not None else os.cpu_count() or 1
    if workers < 1:
        raise UserError(f"workers: got {workers}, expected 1 or more")
    refuse_known("pyarrow")  # it reads untrusted bytes
    began = time.monotonic()
    output = config.place
    refuse_unwritable(output)
    ensure_owner(output, config.name, write=False)
    with spend(DRIVER), ProgressDisplay() as display, lock(output, "building", display.say):
        display.say(f"corpus {config.name}: looking at the files of {len(config.sources)} sources")
        inventories = take_inventory(config.sources, output)
        cluster: LocalCluster | RayCluster
        named = address or os.environ.get("RAY_ADDRESS")
        if address is None and (in_process or (not named and _is_small(config, inventories, display.say))):
            cluster = LocalCluster(display.progress, memory=room_here(memory, 1))
        else:
            cluster = RayCluster(workers, address, display.progress, display.say, memory)
        try:
            corpus = plan_and_build(config, inventories, cluster, display.say, quarantine=quarantine, variant=variant)
            close_and_record(cluster, output, began, display.say, before)
        finally:
            cluster.close()
    return corpus


def _is_small(config: CorpusConfig, inventories: Mapping[str, Inventory], say: Callable[[str], None]) -> bool:
    """Return whether the build should run in this process rather than on Ray, and if so, tell the user. It
    should if starting Ray would take longer than the build, no document can kill the process (only on Ray
    does a build survive that), and the output is not in an object store.
    """
    output = config.place
    if output.local is None:
        return False
    plan = add_published_files(make_plan(config, inventories, load_poison(output)))
    expected = forecast(plan, [LocalPath(output.local)])
    left = [plan.step(label) for label in expected.steps]
    seconds = sum(step.seconds for step in expected.steps.values())
    if not left or expected.unknown or seconds > _WORTH_RAY or not all(map(_is_safe, left)):
        return False
    say(
        f"the {len(left)} steps left take about {seconds:.0f} s: they run in this process, Ray would take longer to start"
    )
    return True


def _is_safe(step: Step) -> bool:
    ours = type(step.stage).__module__.partition(".")[0] == __name__.partition(".")[0]
    reads_text = isinstance(step.stage, PartStage) and any(isinstance(each, Text) for each in step.stage.reads())
    return ours and step.name != "read" and not reads_text
