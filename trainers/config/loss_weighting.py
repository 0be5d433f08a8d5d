"""Online weighting (Group DRO and ADO): each domain has a weight in the loss, which is updated during
training.
"""

from dataclasses import dataclass
from typing import Literal

from trainers.config.architecture import require

WEIGHTS_FILE = "domain_weights.yaml"
"""The file in a run's directory with the mean weights of its domains, in the form that `data.weights` takes."""


@dataclass(frozen=True)
class GroupDRO:
    """Group DRO as in DoReMi (Xie et al., 2023, algorithm 1): the loss of a step is the sum over domains of
    weight x nats per target, and the weights grow where the model is worst compared with a `reference`.

    Before each step, the excess loss of a domain is the mean over its targets of max(0, nats of this model -
    nats of the reference). Weights start uniform. They are multiplied by exp(`step_size` x excess loss),
    normalised and mixed with uniform weights, whose share in the mix is `smoothing`. A domain without a
    target in a step keeps its last excess loss. A skipped step changes no weight.

    The order of the data does not change: `data.weights` say how often each domain is read. The paper reads
    all domains equally (`data.weights: uniform`). At the end, the mean of the weights over all steps is
    written to `RUN/domain_weights.yaml`. Other runs can take this mean as `data.weights`. Before each step,
    both models read the batch without gradients, so a step takes about 5/3 of its usual time.

    `reference` is the export of a run with the same tokenizer, objective and model family. `reference_digest`
    is computed; it identifies the checkpoint that was exported.
    """

    reference: str
    kind: Literal["group_dro"] = "group_dro"
    step_size: float = 1.0
    smoothing: float = 1e-3
    reference_digest: str | None = None

    def check(self) -> None:
        """Validate ranges."""
        require(0 < self.step_size < float("inf"), f"step_size: got {self.step_size}, allowed above 0")
        require(0 <= self.smoothing <= 1, f"smoothing: got {self.smoothing}, allowed 0 to 1")


@dataclass(frozen=True)
class ADO:
    """Adaptive data optimization (Jiang et al., 2024): a domain gets more weight while its loss still falls
    fast.

    A law is fitted to the learning curve of each domain: loss = floor + coefficient x n ^ -exponent, where n
    counts the domain's targets, each multiplied by its factor in the loss. A domain's speed is how steeply
    its law falls at the present n. The preference for a domain is proportional to prior x credit ^
    `credit_exponent` x speed; for a domain without a fitted law, it is the prior. The prior is the domain's
    share of all targets read so far, which follows `data.weights`. The credit is the moving average of the
    domain's weight, with rate `credit_rate`. The weights are `policy_rate` x preference + (1 - `policy_rate`)
    x the mean of the weights since the warm-up, mixed with uniform weights, whose share in the mix is
    `smoothing`.

    During the warm-up, which is the first `warmup_fraction` of the steps (at least 2 steps), the weights are
    the prior. The learning curves begin halfway through the warm-up. The laws are refitted whenever the
    number of steps has grown by 2 %.

    The paper draws domains by these weights. Here, domains are drawn by `data.weights`, so that the order of
    the data is known before the run. Instead, the loss of a target is multiplied by its domain's weight
    divided by the prior, which gives the gradient the same expectation. A skipped step changes no weight. At
    the end, the mean of the weights over all steps is written to `RUN/domain_weights.yaml`. Other runs can
    take this mean as `data.weights`.

    The default rates and exponent are the paper's. `smoothing` replaces the paper's minimum probability of
    0.01, and the length of the warm-up is our choice.
    """

    kind: Literal["ado"] = "ado"
    credit_exponent: float = 0.5
    credit_rate: float = 0.1
    policy_rate: float = 0.1
    smoothing: float = 0.01
    warmup_fraction: float = 0.05

    def check(self) -> None:
        """Validate ranges."""
        for name in ("credit_exponent", "credit_rate", "policy_rate", "smoothing"):
            value = getattr(self, name)
            require(0 <= value <= 1, f"{name}: got {value}, allowed 0 to 1")
        require(
            0 < self.warmup_fraction < 1, f"warmup_fraction: got {self.warmup_fraction}, allowed above 0 and below 1"
        )


OnlineWeighting = GroupDRO | ADO
