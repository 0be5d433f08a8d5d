"""Every objective under every ZeRO stage on two workers, and models that differ from the stock ones or are
called in parts: tied stacks, layers that share parameters, an untied output layer, fixed tables, relative
positions, layers called one by one, two losses, and a generator.
"""

import json
from pathlib import Path

import pytest
import torch

from tests.trainers.engine.zero_worker import pretraining_of
from tests.trainers.launching import run_workers
from tests.trainers.models.model_worker import MODELS, RATE, SEQUENCES, STEPS, prepared
from trainers.engine.forward import forward_of, tensors
from trainers.engine.optimizers import parameter_groups
from trainers.objectives import OBJECTIVES

pytestmark = [pytest.mark.deepspeed, pytest.mark.slow]


@pytest.fixture(scope="module")
def corpora(corpus_directory, salient_directory):
    return str(corpus_directory), str(salient_directory)


@pytest.fixture(scope="module")
def found(corpora, tmp_path_factory):
    output = tmp_path_factory.mktemp("models") / "losses.json"
    statuses, printed = run_workers(2, Path(__file__).with_name("model_worker.py"), *corpora, output)
    assert statuses == [0, 0], printed[-4000:]
    return json.loads(output.read_text())


def test_every_objective_is_among_them():
    assert {pretraining_of(recipe).objective.kind for recipe, _ in MODELS.values()} == set(OBJECTIVES)


@pytest.mark.parametrize("name", MODELS)
def test_every_stage_has_the_losses_of_plain_torch(name, found, corpora):
    config, data, model = prepared(name, corpora)
    forward = forward_of(model, config)
    groups = parameter_groups(model, config.optimizer)
    groups = [{**group, "lr": RATE} for group in groups]
    optimizer = torch.optim.AdamW(groups, betas=config.optimizer.betas, eps=config.optimizer.epsilon)
    expected = []
    for step in range(STEPS):
        (batch,) = data.micro_batches(step * SEQUENCES, SEQUENCES, SEQUENCES, 0, 1)
        nats = forward(**tensors(batch, "cpu"))
        loss = sum(each.weight * nats[each.name].sum() / int(each.targets(batch).sum()) for each in forward.losses)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), config.optimizer.gradient_clipping)
        optimizer.step()
        optimizer.zero_grad()
        expected.append(loss.item())
    assert min(expected[1:]) < expected[0] - 0.02
    for stage in range(4):
        assert found[name][str(stage)] == pytest.approx(expected, abs=1e-5), f"stage {stage}"
