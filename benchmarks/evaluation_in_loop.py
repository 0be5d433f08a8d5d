"""Benchmark what evaluation during training costs a run, by comparing its steps with and without evaluation.

    python -m benchmarks.evaluation_in_loop CORPUS [--pairs 3] [--steps 120] [--every 40]

Runs of demo_decoder on one thread alternate: without evaluation, and with the suite `probes` evaluated every
`--every` steps in a separate process. Both save the same checkpoints. Two ratios are printed, each measured
from the first logged step to the last:

- processor time of the training process alone, which shows the work that an evaluation adds to the training loop and depends
  little on other load
- wall-clock time, which also shows how far the two processes slow each other down, and needs a free core
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.signals import machine
from gristmill.events import read_events
from gristmill.storage.disk import LocalPath

_TICKS = os.sysconf("SC_CLK_TCK")


def processor_seconds(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def steps_logged(run: LocalPath) -> int:
    return sum(1 for _ in read_events(run / "log.jsonl", "step")) if (run / "log.jsonl").exists() else 0


def train(corpus: Path, run: LocalPath, options: argparse.Namespace, evaluates: bool) -> tuple[float, float]:
    """Train a run; return its processor and wall-clock seconds between the first and the last logged step."""
    settings = [f"budget.steps={options.steps}", f"checkpoints.every={options.every}", "log_every=5"]
    settings += [f"validation.every={options.steps}", "validation.tokens=2048"]
    settings += ["evaluation.suite=probes", f"evaluation.every={options.every}"] if evaluates else []
    words = ["trainers", "pretrain", "demo_decoder", f"corpus={corpus}", f"run={run}", *settings]
    seen: list[tuple[int, float]] = []
    with (
        open(os.devnull, "w") as nothing,
        subprocess.Popen(
            [sys.executable, "-m", *words], stdout=nothing, env={**os.environ, "OMP_NUM_THREADS": "1"}
        ) as process,
    ):
        while process.poll() is None:
            count = steps_logged(run)
            if count and (not seen or seen[-1][0] != count):
                seen.append((count, processor_seconds(process.pid)))
            time.sleep(0.05)
    if process.returncode:
        raise SystemExit(f"training ended with status {process.returncode}")
    times = [event["time"] for event in read_events(run / "log.jsonl", "step")]
    return seen[-1][1] - seen[0][1], times[-1] - times[0]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--every", type=int, default=40)
    options = parser.parse_args()
    print(machine())
    ratios: dict[str, list[float]] = {"processor": [], "wall-clock": []}
    for pair in range(options.pairs):
        with tempfile.TemporaryDirectory() as folder:
            order = (False, True) if pair % 2 == 0 else (True, False)
            of = {each: train(options.corpus, LocalPath(f"{folder}/{each}"), options, each) for each in order}
            evaluated = sum(1 for _ in read_events(LocalPath(f"{folder}/True/log.jsonl"), "evaluation"))
        for number, name in enumerate(ratios):
            ratios[name].append(of[True][number] / of[False][number])
        print(
            f"pair {pair}: without {of[False][0]:.1f} s, with {of[True][0]:.1f} s of processor time; {evaluated} evaluations"
        )
    for name, values in ratios.items():
        print(f"{name} time, with / without: median {statistics.median(values):.4f}, all {sorted(values)}")


if __name__ == "__main__":
    main()
