"""Measure how long the commands of a study with many runs take: `study plan` (which also reports progress),
`fit`, `propose` and `report`.

    python -m benchmarks.many_study_runs DIRECTORY [--runs 10000] [--domains 8]

The script builds a small corpus of generated text with a source for each domain. The study is a swarm of
`--runs` mixtures. Nothing is trained: results are computed from a formula with noise, and each run gets a
directory with a `result.json`. The script prints the wall-clock and processor seconds of each command,
including imports, and its peak resident memory. Files that exist in DIRECTORY are reused. The project's
limits are 10 s and 1 GB for `plan` and `report`.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

import numpy as np
import yaml

from benchmarks.signals import machine
from gristmill.storage.store import write_json
from trainers.engine.hardware.footprint import footprint
from trainers.studies.designs.study_runs import open_study
from trainers.studies.running.study_directory import RUNS, load_study, register, root_of
from trainers.studies.running.train_study_run import FORMAT, RESULT, RunResult

WORDS, DOCUMENTS = 400, 60  # of each document; of each domain
NOISE = 0.01  # bits per byte


def build(root: Path, domains: int) -> Path:
    corpus, generator = root / "corpus", np.random.default_rng(0)
    if (corpus / "manifest.json").exists():
        return corpus
    sources = []
    for number in range(domains):
        name = f"domain_{number:02d}"
        (root / "texts").mkdir(parents=True, exist_ok=True)
        with (root / "texts" / f"{name}.jsonl").open("w") as out:
            for _ in range(DOCUMENTS):
                words = generator.integers(0, 50 * (number + 1), WORDS)
                out.write(json.dumps({"text": " ".join(f"{name[-2:]}w{word}" for word in words)}) + "\n")
        sources.append({"name": name, "root": str(root / "texts" / f"{name}.jsonl"), "format": "jsonl"})
    steps = [
        {"learn_tokenizer": {"vocab_size": 700, "sample_bytes": 500_000}},
        {"shards": {"tokenizer": "learn_tokenizer", "validation_share": 0.1}},
    ]
    plan = {"name": "many", "output": str(corpus), "sources": sources, "steps": steps}
    (root / "corpus.yaml").write_text(yaml.safe_dump(plan, sort_keys=False))
    command = [sys.executable, "-m", "pipelines", "build", str(root / "corpus.yaml")]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return corpus


def write_results(file: Path) -> None:
    """Write a simulated result for each run of the study that has none."""
    study = load_study(file)
    opened, root = open_study(study), root_of(study)
    register(study, root)
    effects = np.random.default_rng(1).normal(-1, 1, (len(opened.metrics), len(opened.domains)))
    generator = np.random.default_rng(2)
    for run in opened.proxies:
        directory = root / RUNS / run.key
        if (directory / RESULT).exists():
            continue
        shares, tokens = np.array([run.weights[name] for name in opened.domains]), run.job.budget.tokens or 0
        values = 1 + np.exp(effects @ shares) + NOISE * generator.normal(size=len(opened.metrics))
        sources = {
            name: {"tokens": round(share * tokens), "requested_tokens": share * tokens, "epochs": 1.0}
            for name, share in run.weights.items()
        }
        cost = footprint({"read": 6e9, "decoded": 0.0, "predicted": 1e9}, 3.0, "cpu", 1).plain()
        metrics = dict(zip(opened.metrics, values.tolist(), strict=True))
        times = (3.0, 2.0, 0.5)
        result = RunResult("finished", "", metrics, sources, tokens, 20, 7e9, 10_000, *times, cost=cost)
        directory.mkdir(parents=True, exist_ok=True)
        write_json(directory / RESULT, {"format": FORMAT, **asdict(result)})


def measure(verb: str, root: Path) -> None:
    command = [sys.executable, "-m", "trainers", "study", verb, str(root)]
    began = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - began
    if status:
        raise SystemExit(f"study {verb}: status {status}")
    spent = usage.ru_utime + usage.ru_stime
    print(f"study {verb:8} {seconds:6.1f} s  {spent:6.1f} s of processor  {usage.ru_maxrss / 1e6:5.2f} GB", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--domains", type=int, default=8)
    options = parser.parse_args()
    root = options.directory.absolute()
    root.mkdir(parents=True, exist_ok=True)
    print(machine(), flush=True)
    corpus = build(root, options.domains)
    place = root / f"study_{options.runs}"
    plan = {
        "name": "many",
        "output": str(place),
        "corpora": [str(corpus)],
        "recipe": "demo_decoder",
        "settings": {"model.width": 64, "model.feed_forward": 256, "batch.sequences": 4},
        "target": {"tokens": 1_000_000},
        "design": {"kind": "swarm", "runs": options.runs, "distance": 0.001},
        "proxies": {"tokens": 50_000},
        "metrics": {"tokens": 4096, "last": 2},
        "proposal": {"max_epochs": None},
    }
    file = root / f"{place.name}.yaml"
    file.write_text(yaml.safe_dump(plan, sort_keys=False))
    began = time.perf_counter()
    write_results(file)
    print(f"results written in {time.perf_counter() - began:.0f} s", flush=True)
    for verb in ("plan", "fit", "propose", "report"):
        measure(verb, place)


if __name__ == "__main__":
    main()
