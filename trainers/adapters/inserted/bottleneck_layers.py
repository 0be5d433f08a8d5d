"""Bottleneck layers, attached to matrices of a frozen model."""

from typing import Any

import torch


class Bottleneck(torch.nn.Module):
    """A bottleneck adapter: a projection down to `inner` units, an activation, and a projection back up. The
    result is multiplied by `scale`. The activation is ReLU (He et al., 2022; Pfeiffer et al., 2021) or GELU
    (Houlsby et al., 2019).
    """

    def __init__(self, width: int, inner: int, relu: bool, scale: float, start_at_zero: bool) -> None:
        """Draw the weights from a normal distribution with standard deviation 0.01 (Houlsby et al., 2019,
        section 3.6). With `start_at_zero`, the up-projection, and therefore the output, is initially 0.
        """
        super().__init__()
        self.down, self.up = torch.nn.Linear(width, inner), torch.nn.Linear(inner, width)
        self.activation = torch.nn.ReLU() if relu else torch.nn.GELU()
        self.scale = scale
        for layer in (self.down, self.up):
            torch.nn.init.normal_(layer.weight, std=0.01)
            torch.nn.init.zeros_(layer.bias)
        if start_at_zero:
            torch.nn.init.zeros_(self.up.weight)

    def forward(self, states: Any) -> Any:
        """Return the adapter's output, [..., width], for states [..., width]."""
        return self.up(self.activation(self.down(states))) * self.scale


def add_after(matrix: Any, adapter: Bottleneck) -> None:
    """Insert `adapter` after `matrix`, whose output `y` becomes `y + adapter(y)`."""
    matrix.adapter = adapter
    matrix.register_forward_hook(lambda module, given, states: states + module.adapter(states))


def add_beside(first: Any, last: Any, adapter: Bottleneck) -> None:
    """Insert `adapter` in parallel to the modules from `first` to `last`: what it computes from the input of
    `first` is added to the output of `last`. In a forward pass, `first` must run before `last`.
    """
    first.adapter = adapter

    def read(module: Any, given: tuple[Any, ...]) -> None:
        last.beside = module.adapter(given[0])

    def add(module: Any, given: tuple[Any, ...], states: Any) -> Any:
        added, module.beside = module.beside, None
        return states + added

    first.register_forward_pre_hook(read)
    last.register_forward_hook(add)
