"""Runs the stages of ULMFiT and ELMo as given in docs/finetuning.md for a few steps with toy models."""

import re
import shlex
from pathlib import Path

import pytest

from gristmill.events import read_events
from gristmill.storage.store import read_json
from tests.trainers.training.test_finetuning import TASK, write_split
from trainers.__main__ import main
from trainers.runs.checkpoint import newest, read_state

PAGE = Path(__file__).parents[3] / "docs" / "finetuning.md"
pytestmark = [
    pytest.mark.deepspeed,
    pytest.mark.filterwarnings("default"),
    pytest.mark.usefixtures("alone"),
]
SMALL = [
    "budget.tokens=null",
    "budget.steps=3",
    "data.sequence_length=64",
    "batch.sequences=4",
    "schedule.warmup_steps=1",
]
TOYS = {"awd_lstm": "tiny_awd_lstm", "elmo": "tiny_elmo", "imdb": "find.yaml", "sst2": "find.yaml"}
SHORT = ["batch.sequences=8", "budget.epochs=null", "budget.steps=6", "validation.every=3"]


def run_section(title, corpus_directory, folder, fine):
    """Run the commands of a section and return their verbs. `fine` holds extra arguments for commands other
    than `pretrain`.
    """
    (folder / "find.yaml").write_text(TASK.replace("test: test.jsonl", "").replace("unlabelled: [test]\n", ""))
    for split, seed, count in (("train", 1, 64), ("dev", 2, 20)):
        write_split(folder / f"{split}.jsonl", seed, count)
    section = PAGE.read_text().partition(f"### {title}\n")[2]
    block = re.search(r"^```sh\n(.*?)^```", section, re.M | re.S)
    commands = [shlex.split(line) for line in block[1].replace("\\\n", "").splitlines()]
    for command in commands:
        words = [re.sub(r"^corpus=.*", f"corpus={corpus_directory}", word) for word in command[3:]]
        words = [TOYS.get(word, word) for word in words]
        assert main([*words, "log_every=1", *(SMALL if words[0] == "pretrain" else [*SHORT, *fine])]) == 0
    return [command[3] for command in commands]


def test_the_stages_of_ulmfit_run_one_after_the_other(corpus_directory, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run_section("ULMFiT", corpus_directory, tmp_path, ["unfreeze_every=2"]) == [
        "pretrain",
        "pretrain",
        "finetune",
    ]
    assert read_json(tmp_path / "runs/reviews/run.json")["parent"]["path"].endswith("runs/general")
    assert read_json(tmp_path / "runs/imdb/run.json")["parent"]["path"].endswith("runs/reviews")
    assert "accuracy" in read_json(tmp_path / "runs/imdb/scores.json")["splits"]["dev"]
    assert len(list(read_events(tmp_path / "runs/imdb/log.jsonl", "step"))) == 6


def test_elmos_layers_are_mixed_for_a_task(corpus_directory, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run_section("ELMo", corpus_directory, tmp_path, []) == ["pretrain", "finetune"]
    first, *_, last = read_events(tmp_path / "runs/elmo/log.jsonl", "step")
    for name in ("loss", "backward_loss"):
        assert last[name] < first[name]
    state = read_state(newest(tmp_path / "runs/elmo_sst2", pytest.fail))
    assert {name for name in state if name.startswith("elmo.")} == set()
    assert state["task_head.mix.scalars"]["weight"].shape == (3,)
    assert state["task_head.mix.scalars"]["weight"].any()
    assert state["task_head.mix.gamma"]["weight"].item() != 1
    assert "accuracy" in read_json(tmp_path / "runs/elmo_sst2/scores.json")["splits"]["dev"]
