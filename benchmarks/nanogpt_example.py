"""Benchmark nanoGPT's whole example for a CPU (docs/reproduced.md): seconds, processor seconds, seconds to
the first step and peak memory of `python -m trainers pretrain nanogpt_cpu` and of nanoGPT's own `train.py`,
alternately.

    python -m benchmarks.nanogpt_example CORPUS TEXT NANOGPT [--steps 2000] [--pairs 1]

CORPUS is built from corpora_configs/shakespeare_characters.yaml; TEXT is all.txt, whose download the same
YAML file describes; NANOGPT is a checkout of karpathy/nanoGPT, which is run unchanged with the options of its
README. With 2,000 steps, nanoGPT evaluates 20 batches of each split at the beginning and every 250 steps
(4,320 rows in all), and ours measures the whole validation split twice (3,486 rows).
"""

import argparse
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

_README = (
    "--device=cpu --compile=False --eval_iters=20 --log_interval=1 --block_size=64 --batch_size=12 --n_layer=4 --n_head=4 "
    "--n_embd=128 --dropout=0.0"
)
_ROOT = Path(__file__).parents[1]


def prepare(text: Path, directory: Path) -> None:
    """Write the same files as nanoGPT's own data/shakespeare_char/prepare.py."""
    characters = text.read_text(encoding="utf-8")
    known = sorted(set(characters))
    numbers = {character: number for number, character in enumerate(known)}
    ids = np.array([numbers[character] for character in characters], np.uint16)
    cut = int(len(ids) * 0.9)
    directory.mkdir(parents=True)
    ids[:cut].tofile(directory / "train.bin")
    ids[cut:].tofile(directory / "val.bin")
    meta = {"vocab_size": len(known), "itos": dict(enumerate(known)), "stoi": numbers}
    (directory / "meta.pkl").write_bytes(pickle.dumps(meta))


def run(command: Sequence[str], first: str, directory: Path) -> tuple[float, float, float, float]:
    """Run a command; return (seconds, processor seconds, seconds until a line begins with `first`, peak MB)."""
    environment = {**os.environ, "PYTHONPATH": str(_ROOT), "PYTHONUNBUFFERED": "1"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # without bytecode every start compiles the libraries again
    began, reached, lines = time.perf_counter(), float("nan"), []
    process = subprocess.Popen(
        command, cwd=directory, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert process.stdout is not None
    for line in process.stdout:
        lines.append(line)
        if line.startswith(first) and np.isnan(reached):
            reached = time.perf_counter() - began
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"{' '.join(command)}: exit status {process.returncode}\n{''.join(lines[-20:])}")
    return time.perf_counter() - began, usage.ru_utime + usage.ru_stime, reached, usage.ru_maxrss / 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("corpus", "text", "nanogpt"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--pairs", type=int, default=1)
    options = parser.parse_args()
    nanogpt, steps = options.nanogpt.resolve(), options.steps
    if not (nanogpt / "train.py").exists():
        sys.exit(f"{nanogpt}: no checkout of nanoGPT here, so there is nothing to compare with")
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch)
        copy = directory / "nanogpt"  # it reads and writes files in its own directory
        shutil.copytree(nanogpt, copy)
        prepare(options.text, copy / "data" / "shakespeare_char")
        warm = min(100, steps // 2)  # 100 in the example, which shorter runs do not reach
        length = [f"--max_iters={steps}", f"--lr_decay_iters={steps}", f"--warmup_iters={warm}"]
        theirs = [sys.executable, "train.py", "config/train_shakespeare_char.py", *_README.split(), *length]
        rows = []
        for pair in range(options.pairs):
            own = [f"corpus={options.corpus.resolve()}", f"run={directory / str(pair)}", f"budget.steps={steps}"]
            own += [f"schedule.warmup_steps={warm}"]
            ours = [sys.executable, "-m", "trainers", "pretrain", "nanogpt_cpu", *own]
            results = (run(theirs, "iter 0", copy), run(ours, "first", directory))
            rows.append(results)
            for name, (seconds, processor, first, peak) in zip(("nanoGPT", "ours"), results, strict=True):
                print(
                    f"{name:8} {seconds:7.1f} s   {processor:7.1f} processor s   first step after {first:5.1f} s   "
                    f"peak {peak:5.0f} MB",
                    flush=True,
                )
    table = np.array(rows)
    ratios = np.median(table[:, 0] / table[:, 1], axis=0)
    print(f"nanoGPT / ours, {steps} steps: {ratios[0]:.2f} of the time, {ratios[1]:.2f} of the processor time")


if __name__ == "__main__":
    main()
