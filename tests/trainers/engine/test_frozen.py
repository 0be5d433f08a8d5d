"""Models in which only the first blocks are trained, under every ZeRO stage on two workers: the losses equal
those of plain torch, frozen parameters have no optimizer state, and training resumes under another stage.
"""

import json
from pathlib import Path

import pytest
import torch

from tests.trainers.engine.frozen_worker import HALF, RATE, RECIPE_NAMES, SEQUENCES, STEPS, prepared
from tests.trainers.launching import run_workers
from trainers.engine.forward import forward_of, tensors
from trainers.engine.optimizers import parameter_groups
from trainers.rows.batch import IGNORED

pytestmark = [pytest.mark.deepspeed, pytest.mark.slow]


@pytest.fixture(scope="module")
def found(corpus_directory, tmp_path_factory):
    output = tmp_path_factory.mktemp("frozen") / "found.json"
    statuses, printed = run_workers(2, Path(__file__).with_name("frozen_worker.py"), corpus_directory, output)
    assert statuses == [0, 0], printed[-4000:]
    return json.loads(output.read_text())


@pytest.fixture(scope="module", params=RECIPE_NAMES)
def expected(request, corpus_directory):
    """The recipe, the names of its trained parameters, and the losses computed with plain torch."""
    config, data, model = prepared(request.param, str(corpus_directory))
    forward = forward_of(model, config)
    groups = [{**group, "lr": RATE} for group in parameter_groups(model, config.optimizer)]
    optimizer = torch.optim.AdamW(groups, betas=config.optimizer.betas, eps=config.optimizer.epsilon)
    losses = []
    for step in range(STEPS):
        (batch,) = data.micro_batches(step * SEQUENCES, SEQUENCES, SEQUENCES, 0, 1)
        loss = forward(**tensors(batch, "cpu"))["loss"].sum() / int((batch.targets != IGNORED).sum())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), config.optimizer.gradient_clipping)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    assert 0 < len(trained) < len(list(model.parameters()))
    return request.param, trained, losses


def test_every_stage_has_the_losses_of_plain_torch(found, expected):
    recipe, _, losses = expected
    assert losses[-1] < losses[0] - 0.02
    for stage in range(4):
        assert found[recipe][str(stage)]["losses"] == pytest.approx(losses, abs=1e-5), f"stage {stage}"


def test_the_state_is_that_of_trained_parameters_alone(found, expected):
    recipe, trained, _ = expected
    for stage in range(4):
        its = found[recipe][str(stage)]
        assert its["state"] == {name: ["exp_avg", "exp_avg_sq", "weight"] for name in trained}
        assert set(its["gradients"]) <= set(trained)


def test_the_state_resumes_under_the_next_stage(found, expected):
    recipe, _, losses = expected
    for stage in range(4):
        assert found[recipe][str(stage)]["resumed"] == pytest.approx(losses[HALF:], abs=1e-5), f"stage {stage}"


def test_bf16_trains_with_a_frozen_base(found, expected):
    recipe, _, losses = expected
    for its in found[recipe]["bf16"].values():
        assert its == pytest.approx(losses, abs=0.05)
