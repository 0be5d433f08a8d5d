"""Runs of a study with real training: results, divergence, failures, and a planted truth that is found end to
end.
"""

import subprocess
import sys
from dataclasses import replace

import pytest
import yaml

from gristmill.events import read_events
from gristmill.storage.disk import LocalPath
from gristmill.storage.store import read_json, write_json
from tests.trainers.launching import ROOT, environment
from tests.trainers.studies.corpus_studies import build_variants, write_corpus_study
from tests.trainers.studies.planted_corpus import build_planted
from tests.trainers.studies.study_files import opened, write_study
from trainers.config.job import Init
from trainers.studies.running.train_study_run import _cost, _logged_seconds, read_result, train_study_run

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default"), pytest.mark.usefixtures("alone")]


@pytest.fixture
def run(tmp_path, corpus_directory):
    return opened(write_study(tmp_path, corpus_directory))[0].points[1]


def test_a_run_ends_as_a_row_without_its_model(run, tmp_path):
    directory = LocalPath(tmp_path / "run")
    assert train_study_run(run, directory, 1) == ("finished", "")
    result = read_result(directory)
    assert set(result.metrics) == {"code", "plays"}
    assert 0 < min(result.metrics.values()) < 10
    assert (result.tokens, result.steps) == (
        pytest.approx(5000, rel=0.06),
        read_json(directory / "finished.json")["step"],
    )
    validations = read_events(directory / "log.jsonl", "validation")
    assert [event["step"] for event in validations] == [result.steps - 1, result.steps]
    assert "document_bits_per_byte" not in validations[-1]
    mean = sum(event["sources"]["code"]["bits_per_byte"] for event in validations) / 2
    assert result.metrics["code"] == pytest.approx(mean)
    assert not (directory / "checkpoints").exists()
    assert not (directory / "export").exists()
    assert result.seconds >= result.step_seconds + result.validation_seconds > 0
    assert sum(result.cost["flops"].values()) == pytest.approx(result.flops)
    assert result.cost["joules"] > 0
    before = (directory / "log.jsonl").read_bytes()
    assert train_study_run(run, directory, 1)[0] == "finished"
    assert (directory / "log.jsonl").read_bytes() == before


def test_a_run_of_an_objective_without_likelihood_is_measured_by_its_loss(tmp_path, corpus_directory):
    masked = ["recipe=tiny_roberta", "settings.schedule.warmup_steps=2", "metrics.measure=loss", "metrics.tokens=4096"]
    study, _ = opened(write_study(tmp_path, corpus_directory), *masked)
    directory = LocalPath(tmp_path / "run")
    assert train_study_run(study.points[1], directory, 1) == ("finished", "")
    validations = read_events(directory / "log.jsonl", "validation")[-2:]
    assert "bits_per_byte" not in validations[-1]
    metrics = read_result(directory).metrics
    for name in ("code", "plays"):
        assert metrics[name] == pytest.approx(sum(event["sources"][name]["loss"] for event in validations) / 2)


def test_a_run_reads_the_corpus_that_was_built_for_its_entry_in_two_phases(tmp_path):
    file = write_corpus_study(tmp_path)
    build_variants(file)
    study, _ = opened(file, "anneal=0.5", "design.entries.long.weights={web: 1}")
    run = next(run for run in study.points if run.entry == "long")
    directory = LocalPath(tmp_path / "run")
    assert train_study_run(run, directory, 1) == ("finished", "")
    result = read_result(directory)
    assert set(result.metrics) == {"held"}
    (start,) = read_events(directory / "log.jsonl", "start")
    assert read_json(directory / "run.json")["fingerprints"]["corpus"] == study.corpora.of(run.job).fingerprint
    assert start["parameters"] == result.parameters
    first = study.corpora.of(run.job).train["code"].tokens / sum(
        s.tokens for s in study.corpora.of(run.job).train.values()
    )
    assert result.sources["code"]["tokens"] / result.tokens == pytest.approx(first / 2, abs=0.05)


def test_doremi_trains_its_reference_and_then_its_proxy(tmp_path, corpus_directory):
    study, _ = opened(write_study(tmp_path, corpus_directory), "doremi={}")
    reference, proxy = study.doremi
    root = LocalPath(tmp_path / "runs")
    state, reason = train_study_run(proxy, root / proxy.key, 1)
    assert (state, "is no export" in reason) == ("failed", True)
    assert train_study_run(reference, root / reference.key, 1) == ("finished", "")
    assert (root / reference.key / "export").is_dir()
    assert not (root / reference.key / "checkpoints").exists()
    assert train_study_run(proxy, root / proxy.key, 1) == ("finished", "")
    weights = read_result(root / proxy.key).domain_weights
    assert tuple(weights) == study.domains
    assert sum(weights.values()) == pytest.approx(1)
    assert len(set(weights.values())) > 1
    assert not (root / proxy.key / "export").exists()


def test_the_time_between_two_parts_of_a_run_does_not_count():
    times = [
        ("start", 10),
        ("step", 14),
        ("stopped", 15),
        ("warning", 900),
        ("resume", 901),
        ("start", 902),
        ("step", 905),
    ]
    assert _logged_seconds([{"event": event, "time": float(time)} for event, time in times]) == 5 + 3


def test_of_the_energy_of_the_machine_a_run_bears_the_share_of_its_threads(monkeypatch):
    monkeypatch.setattr("trainers.studies.running.train_study_run.usable_cores", lambda: 4)
    flops = dict.fromkeys(("read", "decoded", "predicted"), 1.0)
    start = {"event": "start", "time": 0.0, "workers": 1, "device": "cpu", "threads": 1}
    events = [start, {"event": "step", "time": 10.0, "flops": flops, "joules": 80.0}]
    assert _cost(events, 1)["joules"] == 10 * 12  # nominal power of one thread
    measured = [start | {"energy_from": "RAPL"}, *events[1:]]
    cost = _cost(measured, 1)
    assert (cost["joules"], cost["energy_from"]) == (20.0, "measured by RAPL, 1 of 4 cores")
    assert _cost(measured, 4)["joules"] == 80.0
    assert _cost([], 1) is None


def test_a_run_that_diverges_is_a_row_and_is_not_trained_again(run, tmp_path, monkeypatch):
    from trainers.engine.engine import Engine

    whole = Engine.train_step

    def not_finite(engine, batches, step, *others):
        totals, _ = whole(engine, batches, step, *others)
        return totals, float("nan")

    monkeypatch.setattr(Engine, "train_step", not_finite)
    directory = LocalPath(tmp_path / "run")
    state, reason = train_study_run(run, directory, 1)
    assert state == "diverged"
    assert "steps in a row" in reason
    assert read_result(directory).metrics == {}
    monkeypatch.undo()
    assert train_study_run(run, directory, 1)[0] == "diverged"


def test_a_run_that_fails_is_a_row_and_is_trained_again(run, tmp_path, monkeypatch):
    from trainers.training import loop

    def broken(*_):
        raise RuntimeError("no\nluck")

    monkeypatch.setattr(loop, "build_forward", broken)
    directory = LocalPath(tmp_path / "run")
    assert train_study_run(run, directory, 1) == ("failed", "RuntimeError: no")
    monkeypatch.undo()
    assert train_study_run(run, directory, 1)[0] == "finished"


def test_a_run_whose_parent_has_changed_since_the_study_was_opened_fails(run, tmp_path):
    export = LocalPath(tmp_path / "export")
    export.mkdir()
    write_json(export / "gristmill.json", {"checkpoint": "newer"})
    run = replace(run, job=replace(run.job, init=Init(str(export))), parent="older")
    outcome, reason = train_study_run(run, LocalPath(tmp_path / "run"), 1)
    assert (outcome, "has changed or has a newer checkpoint since the study" in reason) == ("failed", True)
    assert not (tmp_path / "run" / "run.json").exists()


def test_a_full_disk_writes_no_row(run, tmp_path, monkeypatch):
    from trainers.runs import checkpoint

    def full(*_, **__):
        raise OSError(28, "No space left on device", "/data")

    monkeypatch.setattr(checkpoint, "save", full)
    directory = LocalPath(tmp_path / "run")
    state, reason = train_study_run(run, directory, 1)
    assert state == "storage"
    assert "No space left on device" in reason
    assert read_result(directory) is None
    monkeypatch.undo()
    assert train_study_run(run, directory, 1)[0] == "finished"


PLANTED = """\
name: planted
question: Does garbage harm?
output: {root}
corpora: [{corpus}]
recipe: llama_tiny
settings: {{batch.sequences: 8, data.sequence_length: 64, optimizer.learning_rate: 5.0e-3}}
target: {{tokens: 400e3}}
design: {{kind: swarm, runs: 14, strengths: [1.0, 2.0]}}
proxies: {{tokens: 40e3, anchors: 2}}
metrics: {{tokens: 2048, last: 2}}
proposal: {{kl: 0, max_epochs: null, draws: 60}}
doremi: {{}}
confirmation: {{candidates: [proposal, prior, doremi], tokens: 60e3, seeds: 3}}
"""


def test_a_planted_truth_is_found_by_training(tmp_path):
    """Two thirds of the prior are garbage, and the held-out text resembles `clean` and `kin`. The study
    lowers the share of garbage below 0.1, finds that the garbage harms while `clean` and `kin` help, and
    confirms that the proposal is better.
    """
    corpus = build_planted(LocalPath(tmp_path / "corpus"))
    file = write_study(tmp_path, corpus, PLANTED)
    command = [sys.executable, "-m", "trainers", "study", "run", str(file), "--workers", "2"]
    done = subprocess.run(command, env=environment(), cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    study, root = opened(file)
    proposal = read_weights_of(root)
    assert proposal["garbage"] < 0.1 < study.prior[study.domains.index("garbage")]
    effects = read_json(root / "fit.json")["mean_effects"]
    assert effects["garbage"]["low"] > 0
    assert effects["clean"]["high"] < 0
    assert effects["kin"]["high"] < 0
    verdict = read_json(root / "confirmation.json")
    verdicts = {each["entry"]: each["verdict"] for each in verdict["overall"]}
    assert verdicts["proposal"] == "better"
    # DoReMi weighs by training losses, and so short a run is still learning how often each token of the garbage occurs.
    reference, proxy = study.doremi
    weights = read_result(root / "runs" / proxy.key).domain_weights
    assert sum(weights.values()) == pytest.approx(1)
    assert weights["garbage"] > proposal["garbage"]
    compared = yaml.safe_load((root / "proposal.yaml").read_text())["baselines"]["doremi"]
    assert compared["weights"] == pytest.approx(weights, abs=1e-6)
    assert not compared["tied"]
    assert list((root / "runs" / reference.key).glob("export/*.safetensors"))
    assert set(verdicts) == {"proposal", "prior", "doremi"}
    assert verdicts["doremi"] != "better"
    assert done.stdout.count("doremi") >= 3  # plan, proposal, verdict
    assert "doremi (" in (root / "report.html").read_text()
    again = subprocess.run(command, env=environment(), cwd=ROOT, capture_output=True, text=True, check=False)
    assert "to train on" not in again.stdout


def read_weights_of(root):
    return yaml.safe_load((root / "proposal.yaml").read_text())["weights"]
