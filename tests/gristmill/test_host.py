"""Outputs are accessed only through `gristmill.host`: the accesses of commands are watched, and calls of
native readers are checked in the source.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.chaos.harness.small_corpus import write_config, write_sources

ROOT = Path(__file__).parents[2]
WATCHER = Path(__file__).with_name("around_the_host.py")
OUTSIDE = {
    "pipelines/reading", "pipelines/stages/score", "pipelines/stages/measure/evaluation_sets.py", "pipelines/classifiers",
    "trainers/training/begin.py", "pipelines/planning/starting/file_groups.py",
}  # fmt: skip
"""Modules that read sources, models and evaluation sets of users with native readers, not through the host."""


def around(directory, *commands):
    arguments = [sys.executable, str(WATCHER), str(directory), json.dumps([list(map(str, each)) for each in commands])]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(arguments, capture_output=True, text=True, cwd=ROOT, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Return a directory, a corpus in it, and the accesses that bypassed the host while the corpus was built,
    exported, indexed, searched, rewritten by `forget` and garbage-collected.
    """
    place = tmp_path_factory.mktemp("watched")
    write_sources(place / "raw")
    out = place / "outputs" / "corpus"
    config = write_config(place / "corpus.yaml", place / "raw")
    config.write_text(config.read_text().replace("output: unset", f"output: {out}"))
    (place / "ids").write_text("lines/0.jsonl#3\n")
    seen = around(
        place / "outputs",
        ["pipelines", "build", config, "--in-process"],
        ["pipelines", "export", out, place / "outputs" / "text"],
        ["pipelines", "index", out],
        ["pipelines", "search", out, "the"],
        ["pipelines", "forget", out, "--ids", place / "ids"],
        ["pipelines", "gc", config, "--delete"],
        ["pipelines", "build", config, "--in-process"],
    )
    return place, out, seen


def test_commands_of_pipelines_touch_outputs_through_the_host_alone(corpus):
    assert corpus[2] == []


@pytest.mark.slow
def test_commands_of_trainers_touch_runs_through_the_host_alone(corpus):
    place, out, _ = corpus
    run = place / "outputs" / "run"
    settings = ["batch.sequences=2", "budget.steps=2", "schedule.warmup_steps=1", "checkpoints={every: 1, keep: 1}"]
    seen = around(
        place / "outputs",
        ["trainers", "pretrain", "llama_tiny", f"corpus={out}", f"run={run}", *settings],
        ["trainers", "export", run, "--output", place / "outputs" / "model"],
    )
    assert seen == []


def test_native_readers_are_lent_their_paths():
    around_it = []
    for path in sorted(
        file for package in ("gristmill", "pipelines", "trainers") for file in (ROOT / package).rglob("*.py")
    ):
        name = path.relative_to(ROOT).as_posix()
        if any(name.startswith(each) for each in OUTSIDE):
            continue
        for call in re.findall(
            r"(?:OSFile|memory_map|safe_open|load_file|np\.memmap)\((?!self)[^)]*", path.read_text()
        ):
            if "lent(" not in call:
                around_it.append(f"{name}: {call}")
    assert around_it == []
