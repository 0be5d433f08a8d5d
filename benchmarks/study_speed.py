"""Measure what a study costs besides its training steps, and how well `study plan` predicts its time.

    python -m benchmarks.study_speed DIRECTORY --corpus data/corpora/demo [--runs 32] [--tokens 200000] [--width 128]

A swarm is calibrated (`study plan --calibrate`), planned and trained, without a confirmation. The script
prints the time that the plan predicted for the proxies, and the time that they took. Then it prints sums over
all proxies: the seconds of steps, of validation, and of everything else (opening the corpus, building the
model, checkpoints, export, result) as a share of the steps. The time of the whole command also includes
imports, the fit, the proposal and the page. DIRECTORY/study must not have runs yet.

With `--study FILE`, an existing study file is measured instead, in its own directory, which must not have
runs yet either.
"""

import argparse
import subprocess
import sys
import time
from pathlib import Path

import yaml

from benchmarks.signals import machine
from gristmill.events import read_events
from trainers.studies.designs.study_runs import OpenStudy, open_study
from trainers.studies.outcomes.study_verdict import candidate_runs
from trainers.studies.planning.plan_study import plan_study
from trainers.studies.running.study_directory import RUNS, load_study, results_of, root_of


def run(*words: object) -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, "-m", *map(str, words)], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def write_study(options: argparse.Namespace) -> Path:
    root = options.directory.absolute()
    root.mkdir(parents=True, exist_ok=True)
    plan = {
        "name": "study_speed",
        "output": str(root / "study"),
        "corpora": [str(options.corpus.absolute())],
        "recipe": "demo_decoder",
        "settings": {"model.width": options.width, "model.feed_forward": 4 * options.width},
        "target": {"tokens": 40 * options.tokens},
        "design": {"kind": "swarm", "runs": options.runs},
        "proxies": {"tokens": options.tokens, "anchors": 2},
        "metrics": {"tokens": 4096, "last": 2},
        "proposal": {"max_epochs": None},
    }
    file = root / "study.yaml"
    file.write_text(yaml.safe_dump(plan, sort_keys=False))
    return file


def predicted(opened: OpenStudy, file: Path, workers: int) -> tuple[list[float], float]:
    """Return the predicted seconds of each stage of the study, and of the whole command."""
    plan = plan_study(opened, root_of(load_study(file)), workers)
    return [plan.seconds(stage) or 0.0 for stage in plan.stages], plan.total_seconds or 0.0


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    parser.add_argument("--corpus", type=Path)
    parser.add_argument("--study", type=Path)
    parser.add_argument("--runs", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=200_000)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    if (options.corpus is None) == (options.study is None):
        raise SystemExit("give --corpus or --study")
    print(machine(), flush=True)
    file = options.study or write_study(options)
    root = root_of(load_study(file))
    if (root / RUNS).exists():
        raise SystemExit(f"{root}: has runs already")
    run("trainers", "study", "plan", file, "--calibrate", "--workers", options.workers)
    opened = open_study(load_study(file))
    stages, total = predicted(opened, file, options.workers)
    seconds = run("trainers", "study", "run", file, "--workers", options.workers)
    trained = [opened.proxies]
    if opened.study.confirmation is not None:
        trained.append(candidate_runs(opened, root))
    for guess, runs in zip(stages, trained, strict=True):
        logs = [read_events(root / RUNS / each.key / "log.jsonl") for each in runs]
        spent = max(log[-1]["time"] for log in logs) - min(log[0]["time"] for log in logs)
        done = list(results_of(root, runs).values())
        steps, validation = sum(r.step_seconds for r in done), sum(r.validation_seconds for r in done)
        rest = sum(r.seconds for r in done) - steps - validation
        print(
            f"{len(done)} runs of {done[0].parameters:,} parameters x {done[0].tokens:,} tokens: predicted {guess:.0f} s, took "
            f"{spent:.0f} s ({spent / guess - 1:+.0%}); steps {steps:.0f} s, validation {validation:.0f} s, everything else "
            f"{rest:.0f} s ({rest / steps:.1%} of the steps)",
            flush=True,
        )
    print(f"the whole command took {seconds:.0f} s; predicted {total:.0f} s ({seconds / total - 1:+.0%})")


if __name__ == "__main__":
    main()
