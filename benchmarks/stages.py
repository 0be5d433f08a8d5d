"""Benchmark stages: build a corpus from scratch in a temporary directory and report seconds and MB/s per stage.

    python -m benchmarks.stages corpora_configs/demo.yaml [--workers 2 | --in-process]

Seconds are task seconds summed over workers (for corpus stages, wall seconds); MB are those of the stage's
input text. Kernels are compiled before the clock starts, unless --cold. Comparisons of single stages with
peers are in the other scripts of this folder.
"""

import argparse
import json
import tempfile
import time
from collections import defaultdict
from pathlib import Path

from benchmarks.signals import machine
from pipelines.building.build import build
from pipelines.cluster.local import LocalCluster
from pipelines.cluster.ray import RayCluster
from pipelines.planning.corpus import load_corpus_config
from pipelines.planning.inventory import take_inventory
from pipelines.planning.plan import Plan, make_plan


def timed_build(config: Path, output: str, workers: int | None) -> tuple[Plan, float]:
    """Build into `output`, in this process if `workers` is None; return the plan and wall-clock seconds."""
    corpus = load_corpus_config(config, [f"output={output}"])
    started = time.perf_counter()
    plan = make_plan(corpus, take_inventory(corpus.sources, corpus.place))
    cluster = LocalCluster() if workers is None else RayCluster(workers)
    try:
        build(plan, cluster, lambda line: None)
    finally:
        cluster.close()
    return plan, time.perf_counter() - started


def table(plan: Plan) -> list[str]:
    seconds: dict[str, float] = defaultdict(float)
    text_bytes: dict[str, int] = defaultdict(int)
    for step in plan.steps:
        run = json.loads((plan.config.place / step.directory / "run.json").read_text())
        seconds[step.name] += run["seconds"]
        text_bytes[step.name] += run["text_bytes"]
    rows = ["| stage | seconds | MB of text | MB/s |", "|---|---|---|---|"]
    for name, spent in seconds.items():
        megabytes = text_bytes[name] / 1e6
        rows.append(f"| {name} | {spent:.2f} | {megabytes:.1f} | {megabytes / max(spent, 1e-9):.1f} |")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description="Seconds and MB/s per stage of a build.")
    parser.add_argument("config", type=Path)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--in-process", action="store_true")
    parser.add_argument("--cold", action="store_true", help="do not build once before the timed build")
    options = parser.parse_args()
    workers = None if options.in_process else options.workers
    with tempfile.TemporaryDirectory() as scratch:
        if not options.cold:
            timed_build(options.config, f"{scratch}/warm", workers)
        plan, wall = timed_build(options.config, f"{scratch}/timed", workers)
        size = sum(inventory.bytes for inventory in plan.inventories.values())
        print(f"{options.config.name}, {'in process' if workers is None else f'{workers} Ray workers'}: ", end="")
        print(f"{wall:.1f} s for {size / 1e6:.1f} MB of files; {machine()}\n")
        print("\n".join(table(plan)))


if __name__ == "__main__":
    main()
