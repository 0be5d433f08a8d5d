"""Where models run outside training: on a GPU where there is one."""

from typing import Any


def compute_device() -> Any:
    """The `torch.device` of this process: the first GPU that it sees, else the CPU."""
    import torch

    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
