"""Group DRO against a second implementation of algorithm 1 of DoReMi (Xie et al., 2023), resuming, and the
division of a step into micro-batches.
"""

import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
import yaml

from gristmill.errors import UserError
from gristmill.events import read_events
from gristmill.storage.disk import LocalPath
from tests.trainers.engine.test_execution import launch, run
from tests.trainers.studies.planted_corpus import build_planted
from tests.trainers.training.test_loop import STEPS, small
from trainers.commands.settings import read_weights
from trainers.config.job import BatchSize, TrainingBudget
from trainers.config.loss_weighting import GroupDRO
from trainers.config.pretraining import Data
from trainers.data.packed_corpus import open_corpus, training_data
from trainers.engine.forward import forward_of, tensors
from trainers.inference.model_export import load_trained
from trainers.models import build_model
from trainers.recipes import llama_tiny
from trainers.runs import checkpoint
from trainers.runs.run import open_run
from trainers.training.weighting.group_dro import GroupDROState

trains = [
    pytest.mark.deepspeed,
    pytest.mark.slow,
    pytest.mark.filterwarnings("default"),
    pytest.mark.usefixtures("alone"),
]


def algorithm_1(weights, last, ours, theirs, domain_of, step_size, smoothing):
    """Return (excess losses, next weights). `ours` and `theirs` hold the nats of the tokens of each example,
    for the model and for the reference.
    """
    k = len(weights)
    excess = list(last)
    for i in range(k):
        examples = [n for n, domain in enumerate(domain_of) if domain == i]
        length = sum(len(ours[n]) for n in examples)
        if length:
            total = sum(max(a - b, 0.0) for n in examples for a, b in zip(ours[n], theirs[n], strict=True))
            excess[i] = total / length
    grown = [weights[i] * np.exp(step_size * excess[i]) for i in range(k)]
    return excess, [(1 - smoothing) * grown[i] / sum(grown) + smoothing / k for i in range(k)]


def test_the_update_is_algorithm_1_and_a_domain_without_targets_keeps_its_excess_loss():
    rng, settings = np.random.default_rng(0), GroupDRO("x", step_size=0.7, smoothing=0.05)
    state = GroupDROState(np.full(3, 1 / 3), np.zeros(3), np.zeros(3))
    weights, last, total = [1 / 3] * 3, [0.0] * 3, np.zeros(3)
    for step in range(6):
        domain_of = [0, 1, 0, 2, 1] if step != 3 else [0, 1, 0, 0, 1]
        ours, theirs = ([list(rng.exponential(2, 4 + n)) for n in range(5)] for _ in range(2))
        nats, targets = np.zeros(3), np.zeros(3)
        for n, domain in enumerate(domain_of):
            nats[domain] += np.maximum(np.subtract(ours[n], theirs[n]), 0).sum()
            targets[domain] += len(ours[n])
        last, weights = algorithm_1(weights, last, ours, theirs, domain_of, 0.7, 0.05)
        state = state.update(nats, targets, settings)
        total += weights
        assert state.weights == pytest.approx(weights, rel=1e-12)
    assert state.summed / state.steps == pytest.approx(total / 6, rel=1e-12)
    assert state.weights.min() >= 0.05 / 3


def test_a_huge_excess_loss_overflows_nothing():
    settings = GroupDRO("x", step_size=1e6)
    state = GroupDROState(np.full(2, 0.5), np.zeros(2), np.zeros(2)).update(np.array([5e3, 1.0]), np.ones(2), settings)
    assert state.weights == pytest.approx([1 - 5e-4, 5e-4])
    settings = replace(settings, smoothing=0.0)
    for nats in ([5e3, 1.0], [1.0, 5e3]):
        state = state.update(np.array(nats), np.ones(2), settings)
        assert state.weights.sum() == pytest.approx(1)


@pytest.mark.parametrize(("field", "value"), [("step_size", 0.0), ("smoothing", 1.5)])
def test_settings_out_of_range_are_errors(field, value):
    with pytest.raises(ValueError, match=f"{field}: got"):
        GroupDRO("x", **{field: value}).check()


def train(corpus, path, **changes):
    from trainers.training.loop import train

    data = Data(corpora=(str(corpus.directory),), weights="uniform", sequence_length=64)
    config = small(corpus, **{"data": data, "batch": BatchSize(sequences=4), **changes})
    config = replace(config, optimizer=replace(config.optimizer, gradient_clipping=0.0))
    open_run(path, config, corpus)
    train(config, corpus, path, None)
    return config


@pytest.fixture(scope="module")
def corpus(corpus_directory):
    return open_corpus((str(corpus_directory),), None)


@pytest.fixture(scope="module")
def trained(corpus, tmp_path_factory):
    """(root, configuration). A reference run of a few steps and a run with group DRO against it are below
    `root`.
    """
    root = LocalPath(tmp_path_factory.mktemp("dro"))
    train(corpus, root / "reference", seed=3)
    config = train(corpus, root / "proxy", online_weights=GroupDRO(str(root / "reference" / "export")))
    return root, config


def weights_in(path):
    return {e["step"]: e["domain_weights"] for e in read_events(path / "log.jsonl", "step")}


def token_nats(model, config, batch):
    nats = forward_of(model, config)(**tensors(batch, "cpu"))["loss"]
    return [nats[n][torch.from_numpy(batch.targets[n] >= 0)] for n in range(len(nats))]


class TestOneWorker:
    pytestmark = trains

    def test_weights_and_gradient_of_a_run_are_those_of_algorithm_1(self, corpus, trained):
        root, config = trained
        data = training_data(corpus, config)
        names = [source.name for source in data.sources]
        reference = load_trained(root / "reference" / "export").model
        model = build_model(config.model, corpus.tokenizer.specials, config.seed)
        weights, last, mean = [1 / len(names)] * len(names), [0.0] * len(names), np.zeros(len(names))
        for step in range(STEPS):
            batch = data.rows(data.order.take(step * config.batch.sequences, config.batch.sequences))
            ours = token_nats(model, config, batch)
            theirs = token_nats(reference, config, batch)
            lists = ([its.tolist() for its in each] for each in (ours, theirs))
            last, weights = algorithm_1(weights, last, *lists, batch.source.tolist(), 1.0, 1e-3)
            mean += weights
            assert list(weights_in(root / "proxy")[step + 1].values()) == pytest.approx(weights, rel=1e-4)
            if step == 0:  # AdamW's first moment after one step is a tenth of the gradient
                loss = 0.0
                for i, weight in enumerate(weights):
                    its = [each for each, source in zip(ours, batch.source, strict=True) if source == i]
                    if sum(map(len, its)):
                        loss = loss + weight * torch.cat(its).mean()
                loss.backward()
                first = checkpoint.read_state(checkpoint.newest(root / "proxy", pytest.fail, 1))
                for name, parameter in model.named_parameters():
                    torch.testing.assert_close(first[name]["exp_avg"], 0.1 * parameter.grad, atol=1e-7, rtol=1e-3)
            state = checkpoint.read_state(checkpoint.newest(root / "proxy", pytest.fail, step + 1))
            with torch.no_grad():
                for name, parameter in model.named_parameters():
                    parameter.copy_(state[name]["weight"])
        written = yaml.safe_load((root / "proxy" / "domain_weights.yaml").read_text())
        assert list(written["weights"].values()) == pytest.approx(mean / STEPS, rel=1e-4)
        given = read_weights(Data(weights=str(root / "proxy" / "domain_weights.yaml"))).weights
        assert given == written["weights"]

    def test_a_run_resumes_with_its_weights_exactly(self, corpus, trained, tmp_path):
        root, config = trained
        shutil.copytree(root / "proxy", tmp_path / "again")
        path = LocalPath(tmp_path / "again")
        for step in range(4, STEPS + 1):
            (path / "checkpoints" / f"step-{step:08d}" / "model.safetensors").write_bytes(b"")
        for name in ("log.jsonl", "finished.json", "domain_weights.yaml"):
            (path / name).unlink()
        from trainers.training.loop import train

        train(config, corpus, path, None)
        expected = weights_in(root / "proxy")
        assert weights_in(path) == {step: expected[step] for step in range(4, STEPS + 1)}
        files = [(each / "domain_weights.yaml").read_text() for each in (root / "proxy", path)]
        assert files[0] == files[1]

    def test_micro_batches_do_not_matter(self, corpus, trained, tmp_path):
        root, config = trained
        whole = replace(config.execution, micro_batch=4)
        train(corpus, tmp_path / "whole", online_weights=config.online_weights, execution=whole)
        expected, found = weights_in(root / "proxy"), weights_in(tmp_path / "whole")
        for step in range(1, STEPS + 1):
            assert found[step] == pytest.approx(expected[step], abs=0.5e-5)

    def test_a_skipped_step_changes_no_weight(self, corpus, trained, tmp_path, monkeypatch):
        from trainers.engine.engine import Engine

        whole = Engine.train_step

        def third(engine, batches, step, *others):
            totals, norm = whole(engine, batches, step, *others)
            return totals, float("nan") if step == 2 else norm

        monkeypatch.setattr(Engine, "train_step", third)
        _, config = trained
        train(corpus, tmp_path / "run", online_weights=config.online_weights)
        states = [checkpoint.newest(tmp_path / "run", pytest.fail, step).online_weights for step in (2, 3, 4)]
        assert states[0] == states[1] != states[2]

    def test_references_that_do_not_fit_are_errors(self, corpus, trained, tmp_path):
        root, config = trained
        with pytest.raises(UserError, match=r"online_weights.reference: .* is no export; give RUN/export"):
            train(corpus, tmp_path / "a", online_weights=GroupDRO(str(root / "reference")))
        changed = replace(config.online_weights, reference_digest="0" * 32)
        with pytest.raises(UserError, match="has changed since this run began"):
            train(corpus, tmp_path / "b", online_weights=changed)

    def test_a_domain_of_noise_gets_less_weight(self, tmp_path):
        corpus = open_corpus((str(build_planted(LocalPath(tmp_path / "corpus"))),), None)
        changes = {
            "batch": BatchSize(sequences=12),
            "budget": TrainingBudget(steps=40),
            "optimizer": replace(llama_tiny().optimizer, learning_rate=5e-3),
            "execution": replace(llama_tiny().execution, micro_batch=12),
        }
        train(corpus, tmp_path / "reference", **changes, seed=1)
        path = tmp_path / "proxy"
        train(corpus, path, **changes, online_weights=GroupDRO(str(tmp_path / "reference" / "export")))
        mean = yaml.safe_load((path / "domain_weights.yaml").read_text())["weights"]
        assert mean["garbage"] < 0.2 < 1 / 3 < max(mean["clean"], mean["kin"])
        assert sum(mean.values()) == pytest.approx(1)
        assert max(its["garbage"] for its in weights_in(path).values()) < 1 / 3  # it never grows


@pytest.mark.deepspeed
@pytest.mark.slow
def test_workers_and_zero_stages_do_not_matter(corpus_directory, tmp_path):
    dro = {"kind": "group_dro", "reference": str(tmp_path / "plain" / "export")}
    two = [
        run("plain") | {"exports": True},
        *(run(f"dro{stage}", stage=stage, online_weights=dro) for stage in (0, 2, 3)),
    ]
    ado = {"kind": "ado", "warmup_fraction": 0.3}
    launch(2, corpus_directory, tmp_path, [*two, run("ado0", stage=0, online_weights=ado)])
    alone = [run(f"{name} alone", online_weights=its) for name, its in (("dro", dro), ("ado", ado))]
    launch(1, corpus_directory, tmp_path, alone)
    for method, stages in (("dro", (0, 2, 3)), ("ado", (0,))):
        expected = weights_in(tmp_path / f"{method} alone")
        last = expected[max(expected)]
        assert len(set(last.values())) == len(last) > 1
        for stage in stages:
            found = weights_in(tmp_path / f"{method}{stage}")
            for step, its in expected.items():
                assert found[step] == pytest.approx(its, abs=0.5e-5)
