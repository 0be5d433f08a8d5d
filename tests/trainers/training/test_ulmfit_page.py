"""The three stages of ULMFiT as docs/finetuning.md gives them, with a model of toy size for a few steps."""

import re
import shlex
from pathlib import Path

import pytest

from gristmill.events import read_events
from gristmill.storage.store import read_json
from tests.trainers.training.test_finetuning import TASK, write_split
from trainers.__main__ import main

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
SHORT = ["unfreeze_every=2", "batch.sequences=8", "budget.epochs=null", "budget.steps=6", "validation.every=3"]


def test_the_stages_run_one_after_the_other(corpus_directory, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "find.yaml").write_text(TASK.replace("test: test.jsonl", "").replace("unlabelled: [test]\n", ""))
    for split, seed, count in (("train", 1, 64), ("dev", 2, 20)):
        write_split(tmp_path / f"{split}.jsonl", seed, count)
    section = PAGE.read_text().partition("### ULMFiT")[2]
    block = re.search(r"^```sh\n(.*?)^```", section, re.M | re.S)
    commands = [shlex.split(line) for line in block[1].replace("\\\n", "").splitlines()]
    assert [command[3] for command in commands] == ["pretrain", "pretrain", "finetune"]
    for command in commands:
        words = [re.sub(r"^corpus=.*", f"corpus={corpus_directory}", word) for word in command[3:]]
        words = [{"awd_lstm": "tiny_awd_lstm", "imdb": "find.yaml"}.get(word, word) for word in words]
        assert main([*words, "log_every=1", *(SMALL if words[0] == "pretrain" else SHORT)]) == 0
    assert read_json(tmp_path / "runs/reviews/run.json")["parent"]["path"].endswith("runs/general")
    assert read_json(tmp_path / "runs/imdb/run.json")["parent"]["path"].endswith("runs/reviews")
    assert "accuracy" in read_json(tmp_path / "runs/imdb/scores.json")["splits"]["dev"]
    assert len(list(read_events(tmp_path / "runs/imdb/log.jsonl", "step"))) == 6
