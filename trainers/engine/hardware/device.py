"""The device on which models run outside training: the first GPU, or the CPU if there is none."""

from typing import Any


def compute_device() -> Any:
    """Return the `torch.device` of this process: the first GPU that it sees, else the CPU."""
    import torch

    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
