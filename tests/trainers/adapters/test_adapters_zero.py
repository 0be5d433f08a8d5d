"""Methods under every ZeRO stage on two workers: the losses equal those of plain torch on one worker, and a
run can resume under another stage.
"""

import json
from pathlib import Path

import pytest
import torch

from tests.trainers.adapters.adapter_worker import (
    ALL_STAGES,
    CASES,
    HALF,
    MODELS,
    RATE,
    RESUMED,
    STAGES,
    STEPS,
    batch,
    configuration,
    model,
)
from tests.trainers.launching import run_workers
from trainers.adapters.weights.rank_allocation import RankAllocation
from trainers.engine.forward import Forward, tensors
from trainers.engine.optimizers import parameter_groups
from trainers.rows.batch import IGNORED

pytestmark = [pytest.mark.deepspeed, pytest.mark.slow]


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    output = tmp_path_factory.mktemp("adapters") / "found.json"
    statuses, printed = run_workers(2, Path(__file__).with_name("adapter_worker.py"), output)
    assert statuses == [0, 0], printed[-4000:]
    return json.loads(output.read_text())


@pytest.mark.parametrize("case", MODELS)
def test_every_stage_has_the_losses_of_plain_torch_and_resumes_under_another(case, found):
    network, config = model(case), configuration("0")
    forward = Forward(network, MODELS[case])
    groups = [{**group, "lr": RATE} for group in parameter_groups(network, config.optimizer)]
    optimizer = torch.optim.AdamW(groups, betas=config.optimizer.betas, eps=config.optimizer.epsilon)
    trained = {name: parameter for name, parameter in network.named_parameters() if parameter.requires_grad}
    ranks = RankAllocation({name: tuple(each.shape) for name, each in trained.items()}, CASES["adalora"], STEPS)
    expected = []
    for step in range(STEPS):
        its = batch(case, step)
        loss = forward(**tensors(its, "cpu"))["loss"].sum() / int((its.targets != IGNORED).sum())
        loss.backward()
        gradients = {name: each.grad.clone() for name, each in trained.items()}
        torch.nn.utils.clip_grad_norm_(network.parameters(), config.optimizer.gradient_clipping)
        optimizer.step()
        if case == "adalora":
            with torch.no_grad():
                for name, values in ranks.update(step + 1, trained, gradients).items():
                    trained[name].copy_(values)
        optimizer.zero_grad()
        expected.append(loss.item())
    untrained = Forward(model(case), MODELS[case])(**tensors(batch(case, STEPS - 1), "cpu"))["loss"].sum()
    assert abs(expected[-1] - untrained.item() / int((its.targets != IGNORED).sum())) > 1e-4
    removed = sum(int((each == 0).sum()) for name, each in trained.items() if ".lora_E." in name)
    assert removed == (4 * (4 - 2) if case == "adalora" else 0)
    resumed = {f"{other} after {stage}" for stage, other in RESUMED.items()}
    assert set(found[case]) == {*(ALL_STAGES if case == "lora" else STAGES), *resumed}
    for name, its in found[case].items():
        assert its["trained"] == sorted(trained), name
        assert its["losses"] == pytest.approx(expected[HALF:] if name in resumed else expected, abs=1e-5), name


def test_every_stage_is_run():
    assert {*STAGES, *RESUMED.values()} == set(ALL_STAGES)
