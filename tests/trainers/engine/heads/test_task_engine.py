"""Heads trained and used for prediction by one worker and by two, under every ZeRO stage, against plain
torch.
"""

from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.trainers.engine.heads.task_batches import forward_of, network_of
from tests.trainers.engine.heads.task_worker import HEADS, RATE, SIZES, STEPS, configuration, micro_batches
from tests.trainers.launching import run_workers
from trainers.engine.forward import tensors
from trainers.engine.optimizers import parameter_groups
from trainers.rows.task_outputs import join_outputs, outputs_of

pytestmark = [pytest.mark.deepspeed, pytest.mark.slow]


@pytest.fixture(scope="module")
def launched(tmp_path_factory):
    @cache
    def found(world):
        output = tmp_path_factory.mktemp(f"world{world}") / "found.npz"
        statuses, printed = run_workers(world, Path(__file__).with_name("task_worker.py"), output)
        assert not any(statuses), printed[-4000:]
        return np.load(output)

    return found


@cache
def expected(kind):
    """Return (losses, outputs) computed with plain torch."""
    model = SIZES[kind]
    network = network_of(model, kind, **HEADS.get(kind, {}))
    forward = forward_of(network, model, kind)
    settings = configuration(0).optimizer
    groups = [{**group, "lr": RATE} for group in parameter_groups(network, settings)]
    optimizer = torch.optim.AdamW(groups, betas=settings.betas, eps=settings.epsilon)
    batches, losses = micro_batches(kind, 1, 0), []
    for step in range(STEPS + 1):
        network.eval()
        targets = sum(forward.losses[0].targets(batch).sum() for batch in batches)
        loss = sum(forward(**tensors(batch, "cpu"))["loss"].sum() for batch in batches) / int(targets)
        losses.append(loss.item())
        if step < STEPS:
            loss.backward()
            torch.nn.utils.clip_grad_norm_(network.parameters(), settings.gradient_clipping)
            optimizer.step()
            optimizer.zero_grad()
    with torch.no_grad():
        parts = [
            outputs_of(kind, forward(predicts=True, **tensors(b, "cpu"))["predictions"].numpy(), b) for b in batches
        ]
    return losses, join_outputs(parts)


@pytest.mark.parametrize("kind", SIZES)
@pytest.mark.parametrize("world", [1, 2])
def test_every_stage_trains_and_predicts_as_plain_torch(launched, world, kind):
    found = launched(world)
    losses, outputs = expected(kind)
    assert losses[-1] < losses[0]
    for stage in range(4):
        assert found[f"{kind} {stage} losses"] == pytest.approx(losses, abs=1e-5), f"stage {stage}"
        assert found[f"{kind} {stage} numbers"].tolist() == outputs.numbers.tolist()
        assert found[f"{kind} {stage} scores"] == pytest.approx(outputs.scores, abs=1e-4), f"stage {stage}"
        if outputs.offsets is not None:
            assert found[f"{kind} {stage} offsets"].tolist() == outputs.offsets.tolist()
