"""LoHa, with peft's layers: add the low-rank Hadamard product of FedPara (Hyeon-Woo et al., 2022) to a
matrix.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from trainers.adapters.weights.low_rank import LowRankMethod


@dataclass(frozen=True)
class LoHa(LowRankMethod):
    """Add to each matrix of `targets` the elementwise product of two matrices of rank `rank`, scaled by alpha
    / rank.

    The product has a rank of up to rank^2 and takes twice as many parameters as LoRA of the same `rank`.
    """

    kind: Literal["loha"] = "loha"

    config_name: ClassVar[str] = "LoHaConfig"
    takes_conv1d: ClassVar[bool] = False

    def settings(self, architecture: str) -> Mapping[str, Any]:
        return {"r": self.rank, "alpha": self.alpha}
