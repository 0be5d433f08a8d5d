"""A loss that is added in one place is trained, logged, validated, resumed, reported, evaluated and used by
blame.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch

from gristmill.events import read_events
from tests.trainers.training.test_loop import STEPS, small
from trainers.data.packed_corpus import open_corpus, training_data
from trainers.engine.cross_entropy import cross_entropy
from trainers.engine.forward import forward_of, tensors
from trainers.engine.losses import LOSSES, Loss
from trainers.models import build_model
from trainers.objectives.causal import Causal
from trainers.recipes import llama_tiny
from trainers.report.read_runs import read_runs
from trainers.report.run_page import render, summary
from trainers.runs import checkpoint
from trainers.runs.progress import line
from trainers.runs.run import open_run

pytestmark = [
    pytest.mark.deepspeed,
    pytest.mark.slow,
    pytest.mark.filterwarnings("default"),
    pytest.mark.usefixtures("alone", "echo"),
]
WEIGHT = 0.5


def echo_targets(batch):
    return (batch.targets >= 0) & (batch.positions % 3 == 0)


def echo_nats(made):
    """Return the nats of a loss in which every third token predicts itself."""
    arrays = made.arrays
    counted = (arrays["targets"] >= 0) & (arrays["positions"] % 3 == 0)
    logits = made.architecture.logits(made.network, made.states)
    return cross_entropy(logits, torch.where(counted, arrays["inputs"], -100))


def row_targets(batch):
    return (batch.sequence % 3 == 0) & (batch.segments[:, 0] >= 0)


def row_nats(made):
    """Return the loss of whole rows, which is the mean square of the states in every third row. A step may
    have no target of this loss.
    """
    counted = (made.arrays["sequence"] % 3 == 0) & (made.arrays["segments"][:, 0] >= 0)
    return made.states.float().square().mean(dim=(1, 2)) * counted


@pytest.fixture
def echo(monkeypatch):
    """Give the causal objective two more losses."""
    added = (Loss("echo_loss", echo_targets, echo_nats), Loss("row_loss", row_targets, row_nats))
    for loss in added:
        monkeypatch.setitem(LOSSES, loss.name, loss)
    monkeypatch.setattr(Causal, "losses", {"loss": 1.0, "echo_loss": WEIGHT, "row_loss": 2.0})


@pytest.fixture(scope="module")
def corpus(corpus_directory):
    return open_corpus((str(corpus_directory),), None)


def train(corpus, run, stage=0):
    from trainers.training.loop import train

    config = small(corpus, stage, data=replace(llama_tiny().data, corpora=(str(corpus.directory),)))
    config = replace(config, optimizer=replace(config.optimizer, gradient_clipping=0.0))
    open_run(run, config, corpus)
    lines = []
    train(config, corpus, run, lines.append)
    return config, lines


def by_hand(corpus, config, step):
    """Return (nats and targets of each loss and source, gradient of the weighted sum) of a step under the
    initial weights.
    """
    data = training_data(corpus, config)
    model = build_model(config.model, corpus.tokenizer.specials, config.seed)
    batch = data.rows(data.order.take(step * config.batch.sequences, config.batch.sequences))
    nats = forward_of(model, config)(**tensors(batch, "cpu"))
    targets = {"loss": batch.targets >= 0, "echo_loss": echo_targets(batch), "row_loss": row_targets(batch)}
    weights = {"loss": 1.0, "echo_loss": WEIGHT, "row_loss": 2.0}
    sum(weights[name] * nats[name].sum() / max(1, targets[name].sum()) for name in nats).backward()
    sums = {
        (name, source.name): (nats[name][batch.source == i].sum().item(), targets[name][batch.source == i].sum())
        for name in nats
        for i, source in enumerate(data.sources)
    }
    return sums, {name: parameter.grad for name, parameter in model.named_parameters()}


def check_losses(event, sums):
    """Assert that the losses of an event, in total and for each source, are the given nats divided by the
    given numbers of targets.
    """
    for name in ("loss", "echo_loss", "row_loss"):
        nats, targets = np.sum([its for (loss, _), its in sums.items() if loss == name], axis=0)
        assert (name in event) == (targets > 0)
        if targets:
            assert event[name] == pytest.approx(nats / targets, rel=1e-5)
    for (name, source), (nats, targets) in sums.items():
        entry = event["sources"].get(source, {})
        assert (name in entry) == (targets > 0)
        if targets:
            assert entry[name] == pytest.approx(nats / targets, rel=1e-5)


@pytest.mark.parametrize("stage", [0, 3])
def test_a_loss_that_is_added_in_one_place_is_everywhere(corpus, tmp_path, stage):
    from trainers.evaluation.blame import blame, show
    from trainers.evaluation.evaluate import evaluate

    run = tmp_path / "run"
    config, lines = train(corpus, run, stage)
    steps, (validation,) = (read_events(run / "log.jsonl", kind) for kind in ("step", "validation"))

    sums, gradient = by_hand(corpus, config, 0)
    check_losses(steps[0], sums)
    state = checkpoint.read_state(checkpoint.newest(run, pytest.fail, 1))
    for name, its in gradient.items():  # AdamW's first moment after one step is a tenth of the gradient
        torch.testing.assert_close(state[name]["exp_avg"], 0.1 * its, atol=1e-7, rtol=1e-4)

    assert any("row_loss" in event for event in steps)
    assert not all("row_loss" in event for event in steps)
    assert f"echo loss {steps[0]['echo_loss']:.4g}" in next(each for each in lines if each.startswith("step 1/"))
    assert f"echo loss {validation['echo_loss']:.4f}" in line("validation", validation)
    page = render(read_runs([run]))
    for shown in ("Echo loss, nats per target", "Row loss, nats per target", "<span>validation echo loss</span>"):
        assert shown in page
    assert f"<b>{validation['echo_loss']:.4f}</b>" in page
    assert summary(read_runs([run])[0])["validation"]["row_loss"] == validation["row_loss"]
    found = evaluate(run)
    assert {name: found[name] for name in LOSSES if name in found} == pytest.approx(
        {name: validation[name] for name in LOSSES if name in validation}, rel=1e-5
    )
    assert {"loss", "echo_loss", "row_loss"} <= set(found)

    # Blame divides each loss among the documents that the step has read, under the weights of the step before.
    blamed = blame(run, 3, pytest.fail)
    assert blamed.losses == pytest.approx({name: steps[2][name] for name in blamed.losses}, rel=1e-4)
    assert sum(document.excess for document in blamed.documents) == pytest.approx(0, abs=1e-2)
    shown = []
    show(blamed, 1, shown.append)
    assert f"echo loss {blamed.losses['echo_loss']:.4f}" in shown[0]


def test_a_run_of_several_losses_goes_on_exactly(corpus, tmp_path):
    run = tmp_path / "run"
    train(corpus, run)
    keys = ("loss", "echo_loss", "row_loss", "sources")
    expected = {e["step"]: {key: e.get(key) for key in keys} for e in read_events(run / "log.jsonl", "step")}
    for step in range(4, STEPS + 1):
        (run / "checkpoints" / f"step-{step:08d}" / "model.safetensors").write_bytes(b"")
    for name in ("log.jsonl", "finished.json"):
        (run / name).unlink()
    train(corpus, run)
    found = {e["step"]: {key: e.get(key) for key in keys} for e in read_events(run / "log.jsonl", "step")}
    assert found == {step: expected[step] for step in range(4, STEPS + 1)}
