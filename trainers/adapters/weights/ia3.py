"""IA3 (Liu et al., 2022): keys, values and the inner states of the feed-forward are rescaled by learned vectors."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from trainers.adapters.shared.blocks import pattern
from trainers.adapters.shared.peft_layers import PeftMethod
from trainers.adapters.shared.training_method import Encode


@dataclass(frozen=True)
class IA3(PeftMethod):
    """Train one factor, 1 at first, per dimension of keys, values and the inner layer of the feed-forward.

    Where one matrix computes queries, keys and values, queries are rescaled too, as in peft.
    """

    kind: Literal["ia3"] = "ia3"

    config_name: ClassVar[str] = "IA3Config"

    @property
    def parts(self) -> Sequence[str]:
        """Keys and values are scaled after their matrix, inner states before that of `down`."""
        return ("key", "value", "down")

    def settings(self, architecture: str) -> Mapping[str, Any]:
        """Which matrices are scaled before."""
        return {
            "feedforward_modules": pattern(architecture, ("down",)),
            "fan_in_fan_out": architecture in ("gpt", "gpt2"),
        }

    def insert(self, network: Any, architecture: str, family: str, encode: Encode | None) -> None:
        """As peft, without weight decay, which would pull the factors to 0."""
        super().insert(network, architecture, family, encode)
        for name, parameter in network.named_parameters():
            if ".ia3_l." in name:
                parameter.undecayed = True
