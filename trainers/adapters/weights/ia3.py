"""IA3 (Liu et al., 2022), with peft's layers: learned vectors rescale keys, values and the inner activations
of the feed-forward layers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from trainers.adapters.shared.blocks import Part, pattern
from trainers.adapters.shared.peft_layers import PeftMethod
from trainers.adapters.shared.training_method import Encode


@dataclass(frozen=True)
class IA3(PeftMethod):
    """Rescale each dimension of the keys, the values and the hidden layer of the feed-forward blocks by a
    trained factor, initially 1.

    If a single matrix computes queries, keys and values, the queries are also rescaled, as in peft.
    """

    kind: Literal["ia3"] = "ia3"

    config_name: ClassVar[str] = "IA3Config"

    @property
    def parts(self) -> Sequence[Part]:
        return ("key", "value", "down")

    def settings(self, architecture: str) -> Mapping[str, Any]:
        return {
            "feedforward_modules": pattern(architecture, ("down",)),
            "fan_in_fan_out": architecture in ("gpt", "gpt2"),
        }

    def insert(self, network: Any, architecture: str, family: str, encode: Encode | None) -> None:
        """Insert peft's layers and exempt the factors from weight decay, which would pull them to 0."""
        super().insert(network, architecture, family, encode)
        for name, parameter in network.named_parameters():
            if ".ia3_l." in name:
                parameter.undecayed = True
