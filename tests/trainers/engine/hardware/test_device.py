"""Outside training, the device of a model is chosen in one place."""

import re
from pathlib import Path

import pytest
import torch

from trainers.engine.hardware.device import compute_device

TRAINERS = Path(__file__).parents[4] / "trainers"


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_without_a_gpu_it_is_the_cpu():
    assert compute_device() == torch.device("cpu")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no GPU")
def test_with_a_gpu_it_is_the_gpu():
    assert compute_device().type == "cuda"


@pytest.mark.parametrize(
    "name", ["evaluation/evaluate", "inference/generate", "inference/fill_mask", "evaluation/blame"]
)
def test_commands_that_run_a_model_name_no_device_of_their_own(name):
    code = (TRAINERS / f"{name}.py").read_text(encoding="utf-8")
    assert "compute_device()" in code
    assert not re.search(r"""["'](cpu|cuda)["']""", code)
