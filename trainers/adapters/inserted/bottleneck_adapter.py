"""Bottleneck adapters (Houlsby et al., 2019): small layers inside the blocks of a frozen model."""

from dataclasses import dataclass
from typing import Any, Literal

from gristmill.errors import ConfigError
from trainers.adapters.shared.blocks import Part, part_modules, refuse_parts, stack_modules
from trainers.adapters.shared.training_method import Encode, TrainingMethod, freeze


@dataclass(frozen=True)
class BottleneckAdapter(TrainingMethod):
    """Train bottleneck layers in every block. Their inner width is the model's width divided by `reduction`.
    `placement` says where they are inserted. The output of a bottleneck is added to the output of the matrix
    or layer that it is attached to.

    - `houlsby`: after the output matrices of every attention layer and feed-forward layer, before dropout.
      The norms of the blocks are trained too.
    - `pfeiffer` (Pfeiffer et al., 2021): after the feed-forward layer alone.
    - `parallel` (He et al., 2022): in parallel with the feed-forward layer, scaled by 4.
    """

    kind: Literal["adapter"] = "adapter"
    placement: Literal["houlsby", "pfeiffer", "parallel"] = "houlsby"
    reduction: int = 16

    def check(self) -> None:
        if self.reduction < 1:
            raise ValueError(f"reduction: got {self.reduction}, allowed 1 or more")

    def refusal(self, architecture: str) -> str | None:
        parts: tuple[Part, ...] = ("output", "down") if self.placement == "houlsby" else ("down",)
        return super().refusal(architecture) or refuse_parts(self.kind, architecture, parts)

    def insert(self, network: Any, architecture: str, family: str, encode: Encode | None) -> None:
        from trainers.adapters.inserted.bottleneck_layers import Bottleneck, add_after, add_beside

        freeze(network)
        width = network.config.hidden_size
        if width < self.reduction:
            raise ConfigError(f"method.reduction: got {self.reduction}, allowed 1 to {width}, the width of the model")
        parallel = self.placement == "parallel"
        sizes = (width, width // self.reduction, self.placement != "houlsby", 4.0 if parallel else 1.0, parallel)
        downs = part_modules(network, architecture, ("down",))
        if parallel:
            for (_, first), (_, last) in zip(_first_of_feed_forward(network, architecture), downs, strict=True):
                add_beside(first, last, Bottleneck(*sizes))
            return
        outputs = part_modules(network, architecture, ("output",)) if self.placement == "houlsby" else []
        for _, matrix in [*outputs, *downs]:
            add_after(matrix, Bottleneck(*sizes))
        if self.placement == "houlsby":
            for stack in stack_modules(network, architecture):
                _train_norms(stack)


def _first_of_feed_forward(network: Any, architecture: str) -> list[tuple[str, Any]]:
    """Return (name, matrix) for the first matrix of every feed-forward layer. In a gated layer, this is one
    of the two matrices that read the input.
    """
    ups = part_modules(network, architecture, ("up",))
    return [(name, module) for name, module in ups if not name.endswith((".up_proj", ".wi_1"))]


def _train_norms(stack: Any) -> None:
    for name, module in stack.named_modules():
        if "Norm" in type(module).__name__ and any(part.isdigit() for part in name.split(".")):
            module.requires_grad_(True)
