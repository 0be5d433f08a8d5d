"""LoKr, with peft's layers: add a low-rank Kronecker product to a matrix (KronA, Edalati et al., 2022), as
implemented in LyCORIS (Yeh et al., 2024).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from trainers.adapters.weights.low_rank import LowRankMethod


@dataclass(frozen=True)
class LoKr(LowRankMethod):
    """Add the Kronecker product of a small and a larger matrix to the matrices of `targets`, scaled by alpha
    / rank.

    The larger matrix is a product of rank `rank` or, if `rank` is at least half of its longer side, a full
    matrix. Each side of an adapted matrix is split into two factors that are as close to each other as its
    divisors allow.
    """

    kind: Literal["lokr"] = "lokr"

    config_name: ClassVar[str] = "LoKrConfig"
    takes_conv1d: ClassVar[bool] = False

    def settings(self, architecture: str) -> Mapping[str, Any]:
        return {"r": self.rank, "alpha": self.alpha}
