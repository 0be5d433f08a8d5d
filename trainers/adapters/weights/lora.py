"""LoRA (Hu et al., 2022), with peft's layers: add to a matrix the product of two small ones."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from trainers.adapters.shared.blocks import Part
from trainers.adapters.shared.peft_layers import PeftMethod, check_rank


@dataclass(frozen=True)
class LoRA(PeftMethod):
    """Add B A of rank `rank` to the matrices of `targets`, scaled by alpha / rank, or with `rank_stabilized`
    by alpha / sqrt(rank) (Kalajdzievski, 2023). With `dora`, the norms of the sum's columns are trained
    separately from their directions (Liu et al., 2024).

    A is initialised as in `torch.nn.Linear`, and B with 0. `dropout` is applied to the input of A.
    """

    kind: Literal["lora"] = "lora"
    rank: int = 8
    alpha: float = 16.0
    dropout: float = 0.0
    targets: tuple[Part, ...] = ("query", "value")
    rank_stabilized: bool = False
    dora: bool = False

    config_name: ClassVar[str] = "LoraConfig"

    def check(self) -> None:
        """Validate ranges."""
        check_low_rank(self.rank, self.alpha, self.targets)
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout: got {self.dropout}, allowed 0 to below 1")

    @property
    def parts(self) -> Sequence[str]:
        """The parts that are adapted."""
        return self.targets

    def settings(self, architecture: str) -> Mapping[str, Any]:
        """Return rank, scale, dropout and variant."""
        return {
            "r": self.rank,
            "lora_alpha": self.alpha,
            "lora_dropout": self.dropout,
            "use_rslora": self.rank_stabilized,
            "use_dora": self.dora,
            "fan_in_fan_out": architecture in ("gpt", "gpt2"),
        }

    def check_modules(self, modules: Sequence[tuple[str, Any]]) -> None:
        """Raise ConfigError if the rank exceeds that of a matrix."""
        check_rank(self.rank, modules)


def check_low_rank(rank: int, alpha: float, targets: Sequence[str]) -> None:
    """Raise ValueError unless rank and alpha are positive and there is at least one target."""
    if rank < 1:
        raise ValueError(f"rank: got {rank}, allowed 1 or more")
    if alpha <= 0:
        raise ValueError(f"alpha: got {alpha}, allowed above 0")
    if not targets:
        raise ValueError("targets: got none, allowed one or more of query, key, value, output, up, down")
