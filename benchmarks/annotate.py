"""Benchmark the whole annotate pass, from files to columns: MB/s of text per core, and peak memory of a
worker.

    python -m benchmarks.annotate [--workers 2] [--stages language quality_signals ...]     data: $GRISTMILL_DATA/prose

All prose of the development data is read as one source with parts of maximum size (128 MiB of text) and
annotated by the measuring stages in one fused pass on Ray. MB/s per core is the number of bytes of text
divided by the wall-clock seconds of all tasks, for reading and for every stage, so other load on the machine
lowers it. Memory is the largest resident set of a worker process, polled ten times a second.
benchmarks/signals.py compares quality signals with datatrove's filters.
"""

import argparse
import json
import os
import tempfile
import threading
import time
from pathlib import Path

import psutil

from benchmarks.signals import machine
from pipelines.building.build import build
from pipelines.cluster.local import LocalCluster
from pipelines.cluster.ray import RayCluster
from pipelines.planning.corpus import CorpusConfig, load_corpus_config
from pipelines.planning.inventory import take_inventory
from pipelines.planning.plan import make_plan
from pipelines.reading.sources.source import Source

STAGES = ("url_rules", "language", "quality_signals", "text_hash", "minhash_signatures")


class Memory(threading.Thread):
    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.largest = 0
        self.done = threading.Event()

    def run(self) -> None:
        while not self.done.wait(0.1):
            for process in psutil.Process().children(recursive=True):
                try:
                    if process.name().startswith("ray::"):
                        self.largest = max(self.largest, process.memory_info().rss)
                except psutil.Error:
                    continue


def configured(output: str, stages: list[str], root: Path) -> CorpusConfig:
    path = Path(output) / "annotate.yaml"
    steps = [{stage: {}} for stage in stages]
    source = {"name": "prose", "root": str(root), "format": "jsonl", "part_bytes": Source.part_bytes}
    path.write_text(json.dumps({"name": "annotate", "output": f"{output}/out", "sources": [source], "steps": steps}))
    return load_corpus_config(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--stages", nargs="+", default=list(STAGES))
    options = parser.parse_args()
    if "GRISTMILL_DATA" not in os.environ:
        raise SystemExit("error: set GRISTMILL_DATA to the folder of shared data")
    root = Path(os.environ["GRISTMILL_DATA"]) / "prose"
    with tempfile.TemporaryDirectory() as warm:  # compiles the kernels
        (Path(warm) / "one.jsonl").write_text(json.dumps({"text": "One document. " * 50, "url": "https://a.example"}))
        config = configured(warm, options.stages, Path(warm) / "one.jsonl")
        build(make_plan(config, take_inventory(config.sources, config.place)), LocalCluster(), lambda line: None)
    with tempfile.TemporaryDirectory() as scratch:
        config = configured(scratch, options.stages, root)
        plan = make_plan(config, take_inventory(config.sources, config.place))
        memory = Memory()
        memory.start()
        started = time.perf_counter()
        cluster = RayCluster(options.workers)
        try:
            build(plan, cluster, lambda line: None)
        finally:
            cluster.close()
            memory.done.set()
        wall = time.perf_counter() - started
        runs = {step.name: json.loads((config.place / step.directory / "run.json").read_text()) for step in plan.steps}
    size = max(run["text_bytes"] for name, run in runs.items() if name != "read")
    seconds = {name: run["seconds"] for name, run in runs.items() if name == "read" or name in options.stages}
    print(machine())
    for name, spent in seconds.items():
        print(f"{name:20s} {spent:7.1f} s {size / 1e6 / spent:8.1f} MB/s")
    total = sum(seconds.values())
    print(
        f"{'read to columns':20s} {total:7.1f} s {size / 1e6 / total:8.1f} MB/s per core; {size / 1e6:.0f} MB of text"
    )
    print(
        f"{options.workers} workers, {wall:.1f} s in all with Ray's start; largest worker {memory.largest / 1e6:,.0f} MB resident"
    )


if __name__ == "__main__":
    main()
