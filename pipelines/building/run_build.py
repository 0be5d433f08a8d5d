"""Build a corpus from its configuration, on Ray or in this process."""

import os
import time

from gristmill.budget import spend
from gristmill.console import ProgressDisplay
from gristmill.errors import UserError
from gristmill.libraries.advisories import refuse_known
from gristmill.storage.lease import lock
from pipelines.building.build import ensure_owner, plan_and_build, refuse_unwritable
from pipelines.building.build_budget import DRIVER, close_and_record
from pipelines.cluster.local import LocalCluster
from pipelines.cluster.memory import room_here
from pipelines.cluster.ray import RayCluster
from pipelines.contracts.manifest import CorpusManifest
from pipelines.planning.corpus import CorpusConfig
from pipelines.planning.inventory import take_inventory


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
    """Build a corpus, show the progress, and return its manifest.

    It runs on the Ray cluster at `address`, or on this machine with so many `workers`, by default its cores. With
    `in_process` and without `address`, every task runs in this process. `memory` is the number of bytes that a task may
    use. With `quarantine`, documents that break a stage are set aside instead of ending the build. `variant` is the name
    under which the corpus is published beside that of the output. `before` is the processor time in seconds that this
    process has spent on other things.
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
        if in_process and address is None:
            cluster = LocalCluster(display.progress, memory=room_here(memory, 1))
        else:
            cluster = RayCluster(workers, address, display.progress, display.say, memory)
        try:
            corpus = plan_and_build(config, inventories, cluster, display.say, quarantine=quarantine, variant=variant)
            close_and_record(cluster, output, began, display.say, before)
        finally:
            cluster.close()
    return corpus
