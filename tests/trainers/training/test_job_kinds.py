"""Jobs of several kinds are distinguished by `kind` and trained by one loop. This module defines one more
kind.
"""

import json
from dataclasses import dataclass, replace
from typing import Literal

import pytest
import yaml

from gristmill.config import plain
from gristmill.errors import ConfigError, UserError
from gristmill.events import read_events
from trainers.config.architecture import fill
from trainers.config.job import Job
from trainers.config.job_kinds import JOBS, as_pretraining, parse_job
from trainers.config.pretraining import Data, Pretraining
from trainers.data.packed_corpus import open_corpus, training_data, validation_data
from trainers.evaluation.evaluate import evaluate
from trainers.inference.generate import Sampling, generate
from trainers.objectives.causal import Causal
from trainers.recipes import llama_tiny
from trainers.runs.job_data import READERS, DataReader
from trainers.runs.run import open_run, read_config, read_resolved

STEPS = 3


@dataclass(frozen=True, kw_only=True)
class Reciting(Job):
    """A job that trains on the plays of one corpus, without the sections `data`, `objective` and
    `validation`.
    """

    kind: Literal["reciting"] = "reciting"
    plays: str
    length: int = 32

    @property
    def objective(self):
        return Causal()

    @property
    def inputs(self):
        return (self.plays,)

    @property
    def validation_interval(self):
        return STEPS

    def with_inputs(self, inputs):
        return replace(self, plays=inputs[0])

    def as_read(self):
        """Return the equivalent pretraining job, which the functions of pretraining read."""
        read = Data(corpora=self.inputs, sequence_length=self.length, weights={"plays": 1.0})
        return replace(llama_tiny(), model=self.model, batch=self.batch, budget=self.budget, data=read, seed=self.seed)


READER = DataReader(
    corpus=lambda job: open_corpus(job.inputs, None),
    training=lambda corpus, job, excluded: training_data(corpus, job.as_read(), excluded),
    validation=lambda corpus, job: validation_data(corpus, job.as_read(), 128),
    documents=lambda corpus, job: None,
)


@pytest.fixture
def two_kinds(monkeypatch):
    monkeypatch.setitem(JOBS, "reciting", Reciting)
    monkeypatch.setitem(READERS, "reciting", READER)


def reciting(corpus_directory):
    recipe = plain(llama_tiny())
    shared = {name: recipe[name] for name in ("name", "model", "optimizer")}
    return {
        **shared,
        "kind": "reciting",
        "plays": str(corpus_directory),
        "batch": {"sequences": 2, "tokens": 64},
        "budget": {"steps": STEPS, "tokens": STEPS * 64},
        "checkpoints": {"every": 1},
        "log_every": 1,
        "execution": {"zero_stage": 0, "micro_batch": 1},
    }


def test_a_job_without_a_kind_is_pretraining():
    data = plain(llama_tiny())
    assert data["kind"] == "pretraining"
    assert parse_job({name: value for name, value in data.items() if name != "kind"}, "x") == parse_job(data, "x")
    assert isinstance(parse_job(data, "x"), Pretraining)


def test_the_kind_decides_which_fields_there_are(two_kinds, corpus_directory):
    data = reciting(corpus_directory)
    assert isinstance(parse_job(data, "x"), Reciting)
    with pytest.raises(ConfigError, match="x: data: no such field in Reciting"):
        parse_job({**data, "data": {}}, "x")
    with pytest.raises(ConfigError, match="x: plays: no such field in Pretraining"):
        parse_job({**data, "kind": "pretraining"}, "x")
    with pytest.raises(ConfigError, match="x: log_every: got 0"):  # what both kinds check
        parse_job({**data, "log_every": 0}, "x")


def test_an_unknown_kind_is_refused_with_its_near_match(two_kinds):
    data = plain(llama_tiny())
    kinds = "pretraining, finetuning, reciting"
    with pytest.raises(ConfigError, match=f"x: kind: got 'pretrainig', expected one of {kinds}; did you mean 'pretr"):
        parse_job({**data, "kind": "pretrainig"}, "x")
    with pytest.raises(ConfigError, match=f"x: kind: got 'recting', expected one of {kinds}; did you mean 'reciting'"):
        parse_job({**data, "kind": "recting"}, "x")


@pytest.mark.deepspeed
@pytest.mark.slow
@pytest.mark.filterwarnings("default")
@pytest.mark.usefixtures("alone", "two_kinds")
def test_the_loop_trains_stops_and_resumes_a_job_of_another_kind(corpus_directory, tmp_path):
    from trainers.training.launch import launch

    job = parse_job(reciting(corpus_directory), "x")
    corpus = READER.corpus(job)
    job = replace(job, model=fill(job.model, corpus.tokenizer.vocab_size))
    lines = {}
    for name, stopped in (("whole", ()), ("resumed", (1, 2))):
        run = tmp_path / name
        for steps in (*stopped, None):
            open_run(run, job, corpus)
            launch(job, corpus, run, 1, _stop_after(run, steps))
        assert json.loads((run / "finished.json").read_text())["step"] == STEPS
        lines[name] = [e["loss"] for e in read_events(run / "log.jsonl") if e["event"] == "step"]
    assert len(lines["whole"]) == STEPS
    assert lines["resumed"] == pytest.approx(lines["whole"], abs=1e-6)

    assert read_resolved(run)["kind"] == "reciting"
    assert read_config(run) == job
    ledger = json.loads((run / "ledger.json").read_text())
    assert (ledger["corpora"], ledger["step"]) == ([str(corpus_directory)], STEPS)
    assert any(event["event"] == "validation" for event in read_events(run / "log.jsonl"))
    assert "reciting" in (run / "report.html").read_text()
    assert generate(run / "export", "abc", Sampling(tokens=4)).startswith("abc")
    with pytest.raises(UserError, match="is of kind reciting, allowed pretraining"):
        evaluate(run)


def _stop_after(run, step):
    """Return a callback for output lines that stops a run after `step` steps. With None, the run is not
    stopped.
    """

    def show(line):
        if step is not None and f"{step}/{STEPS}" in line:
            (run / "stop").touch()

    return show


def test_a_command_for_pretraining_names_the_kind_that_it_got(two_kinds, corpus_directory):
    with pytest.raises(UserError, match="runs/a: is of kind reciting, allowed pretraining"):
        as_pretraining(parse_job(reciting(corpus_directory), "x"), "runs/a")
    assert yaml.safe_load(yaml.safe_dump(plain(llama_tiny())))["kind"] == "pretraining"
