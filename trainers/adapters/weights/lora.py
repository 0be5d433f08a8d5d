"""LoRA (Hu et al., 2022), with peft's layers: add the product of two small matrices to a matrix."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from trainers.adapters.weights.low_rank import LowRankMethod


@dataclass(frozen=True)
class LoRA(LowRankMethod):
    """Add the product B A of rank `rank` to the matrices of `targets`, scaled by alpha / rank or, with
    `rank_stabilized`, by alpha / sqrt(rank) (Kalajdzievski, 2023). With `dora`, the norm of the weights of
    each output is trained separately from their direction (Liu et al., 2024).

    A is initialised as in `torch.nn.Linear`, and B is initially 0. `dropout` is applied to the input of A.
    """

    kind: Literal["lora"] = "lora"
    alpha: float = 16.0
    dropout: float = 0.0
    rank_stabilized: bool = False
    dora: bool = False

    config_name: ClassVar[str] = "LoraConfig"

    def check(self) -> None:
        super().check()
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout: got {self.dropout}, allowed 0 to below 1")

    def settings(self, architecture: str) -> Mapping[str, Any]:
        return {
            "r": self.rank,
            "lora_alpha": self.alpha,
            "lora_dropout": self.dropout,
            "use_rslora": self.rank_stabilized,
            "use_dora": self.dora,
            "fan_in_fan_out": architecture in ("gpt", "gpt2"),
        }
