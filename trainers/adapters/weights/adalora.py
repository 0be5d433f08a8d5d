"""AdaLoRA (Zhang et al., 2023), with peft's layers: LoRA in the form of a singular value decomposition, whose
ranks are allocated by importance during training.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from trainers.adapters.shared.blocks import part_modules
from trainers.adapters.shared.training_method import Encode
from trainers.adapters.weights.low_rank import LowRankMethod, check_rank


@dataclass(frozen=True)
class AdaLoRA(LowRankMethod):
    """Add P diag(E) Q, scaled by alpha / initial_rank, to each matrix of `targets`. The rank of this product
    is `initial_rank` at first.

    After the first `warmup` share of the steps, the least important ranks are removed every `interval` steps.
    During the last `final` share of the steps, the average rank per matrix is `rank`, and ranks no longer
    change. `betas` are the smoothing factors of the importance and of its deviation. `orthogonality` is the
    weight of the penalty that keeps P and Q orthogonal.
    """

    kind: Literal["adalora"] = "adalora"
    initial_rank: int = 12
    alpha: float = 16.0
    warmup: float = 0.1
    final: float = 0.5
    interval: int = 10
    betas: tuple[float, ...] = (0.85, 0.85)
    orthogonality: float = 0.5

    config_name: ClassVar[str] = "AdaLoraConfig"

    def check(self) -> None:
        super().check()
        if self.initial_rank < self.rank:
            raise ValueError(f"initial_rank: got {self.initial_rank}, allowed rank ({self.rank}) or more")
        if min(self.warmup, self.final) < 0 or self.warmup + self.final >= 1:
            raise ValueError(f"warmup: got {self.warmup} with final {self.final}, allowed 0 or more, together below 1")
        if self.interval < 1:
            raise ValueError(f"interval: got {self.interval}, allowed 1 or more")
        if len(self.betas) != 2 or not all(0 < beta < 1 for beta in self.betas):
            raise ValueError(f"betas: got {list(self.betas)}, allowed two numbers above 0 and below 1")
        if self.orthogonality < 0:
            raise ValueError(f"orthogonality: got {self.orthogonality}, allowed 0 or more")

    def settings(self, architecture: str) -> Mapping[str, Any]:
        """Return the arguments of peft's configuration. `total_step`, which peft requires, has no effect
        here.
        """
        return {
            "init_r": self.initial_rank,
            "target_r": self.rank,
            "lora_alpha": self.alpha,
            "total_step": 10,
            "fan_in_fan_out": architecture in ("gpt", "gpt2"),
        }

    def insert(self, network: Any, architecture: str, family: str, encode: Encode | None) -> None:
        """Insert peft's layers, add the orthogonality penalty, and set `network.rank_budget` to this method,
        from which the engine allocates ranks.
        """
        from trainers.adapters.weights.orthogonality import penalise

        super().insert(network, architecture, family, encode)
        layers = [module for _, module in part_modules(network, architecture, self.targets)]
        sizes = network.config
        calls = sizes.num_hidden_layers // sizes.num_hidden_groups if architecture == "albert" else 1
        for layer in layers:
            penalise(layer, self.orthogonality, 2 * len(layers), calls)
        network.rank_budget = self

    def check_modules(self, modules: Sequence[tuple[str, Any]]) -> None:
        check_rank(self.initial_rank, modules)
