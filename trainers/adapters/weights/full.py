"""Full fine-tuning (Devlin et al., 2019, section 3.2): every parameter of the base is trained."""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal


@dataclass(frozen=True)
class Full:
    """Train all parameters of the base."""

    kind: Literal["full"] = "full"

    freezes: ClassVar[bool] = False
    virtual_tokens: ClassVar[int] = 0
    prefix_length: ClassVar[int] = 0

    def apply(self, network: Any, architecture: str, family: str, seed: int) -> None:
        """Leave the network as it is."""
