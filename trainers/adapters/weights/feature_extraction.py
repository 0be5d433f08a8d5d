"""Feature extraction (Peters et al., 2018; Devlin et al., 2019, section 5.3): the head reads the hidden
states of a frozen base.
"""

from dataclasses import dataclass
from types import MethodType
from typing import Any, ClassVar, Literal

from trainers.adapters.shared.blocks import stack_modules
from trainers.adapters.shared.training_method import Encode, TrainingMethod, freeze
from trainers.adapters.weights.head_only import require_head


@dataclass(frozen=True)
class FeatureExtraction(TrainingMethod):
    """Freeze the base and train the head on `layers`: the last layer, the last four concatenated, or a
    learned scalar mix of all layers (ELMo).

    The base runs without dropout, so that the features of a text are always the same.
    """

    kind: Literal["features"] = "features"
    layers: Literal["last", "last_four", "scalar_mix"] = "last"

    mergeable: ClassVar[bool] = True
    needs_transformer: ClassVar[bool] = False

    def insert(self, network: Any, architecture: str, family: str, encode: Encode | None) -> None:
        """Freeze the base and keep it in evaluation mode. Raises ConfigError if the task has no head."""
        require_head(network, self.kind)
        freeze(network)
        for stack in stack_modules(network, architecture):
            stack.eval()
            stack.train = MethodType(lambda its, mode=True: its, stack)

    def merge(self, network: Any) -> None:
        """Leave the model unchanged: the base was not trained."""
