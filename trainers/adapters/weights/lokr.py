"""LoKr (Yeh et al., 2024, after KronA by Edalati et al., 2022), with peft's layers: add a low-rank Kronecker
product to a matrix.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from trainers.adapters.weights.low_rank import LowRankMethod


@dataclass(frozen=True)
class LoKr(LowRankMethod):
    """Add the Kronecker product of a small and a larger matrix, scaled by alpha / rank, to each matrix of
    `targets`.

    The larger matrix is itself a product of two matrices, of rank `rank`. If `rank` is at least half of its
    longer side, it is a full matrix instead. Each side of an adapted matrix is split into two factors that
    are as close to each other as its divisors allow.
    """

    kind: Literal["lokr"] = "lokr"

    config_name: ClassVar[str] = "LoKrConfig"
    takes_conv1d: ClassVar[bool] = False

    def settings(self, architecture: str) -> Mapping[str, Any]:
        return {"r": self.rank, "alpha": self.alpha}
