"""Weights of domains in the loss that change while a run trains."""

from dataclasses import dataclass
from typing import Literal

from trainers.config.architecture import require

WEIGHTS_FILE = "domain_weights.yaml"
"""The file in a run's directory that holds its mean weights, in the form that `data.weights` takes."""


@dataclass(frozen=True)
class GroupDRO:
    """Group DRO as in DoReMi (Xie et al., 2023, algorithm 1): the loss of a step is the sum over domains of weight x nats
    per target, and the weights grow where the model is worst compared with a `reference`.

    Before each step, the excess loss of a domain is the mean over its targets of max(0, nats of this model - nats of the
    reference). Weights start uniform. They are multiplied by exp(`step_size` x excess loss) and normalised, and
    `smoothing` of them is replaced by uniform weights. A domain without a target in a step keeps its last excess loss.
    A skipped step changes no weight.

    The order of the data does not change: `data.weights` say how often each domain is read. The paper reads all equally
    (`data.weights: uniform`). At the end, the mean of the weights over all steps is written to `RUN/domain_weights.yaml`,
    which other runs take as `data.weights`. Both models read every batch once more, without gradients, so a step takes
    about 5/3 of its time.

    `reference` is the export of a run with the same tokenizer and objective. `reference_digest` is computed; it says
    which checkpoint was exported.
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
