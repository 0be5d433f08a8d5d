"""Pareto sampling, as for GPT-3's data: keep documents at random, with a probability that grows with their
score.
"""

from dataclasses import dataclass

import pyarrow as pa

from gristmill.errors import ConfigError
from pipelines.contracts.columns import DROP
from pipelines.contracts.reads import Input, column_named
from pipelines.contracts.stage import PartStage
from pipelines.stages.decide.uniform_numbers import check_seed, drop_column, uniform_numbers

REASON = "pareto_sampling"


@dataclass(frozen=True)
class ParetoSampling(PartStage):
    """Keep a document if a Pareto random number is greater than 1 - score (Brown et al. 2020, "Language
    Models are Few-Shot Learners", appendix A, where alpha is 9).

    numpy's pareto(alpha) exceeds x with probability (1 + x) ** -alpha, so a document is kept with probability
    (2 - score) ** -alpha: 1 at a score of 1, 0.026 at 0.5, 0.002 at 0. The random number is a hash of the
    seed and the document's id only, so a kept document stays kept if its score rises. A document with a null
    score is kept.
    """

    score: str
    """The column of the score, 0 to 1, such as `classifier_score`."""
    alpha: float = 9.0
    """How fast the probability falls with the score; above 0."""
    seed: int = 0
    """Changes the random choice; 0 or more."""

    def reads(self) -> tuple[Input, ...]:
        return (column_named(self.score),)

    def writes(self) -> pa.Schema:
        return pa.schema([(DROP, pa.string())])

    def check(self) -> None:
        if self.alpha <= 0:
            raise ValueError(f"alpha: got {self.alpha}, expected a number above 0")
        check_seed(self.seed)

    def check_types(self, types: pa.Schema) -> None:
        kind = types.field(self.score).type
        if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
            raise ConfigError(f"pareto_sampling: score: {self.score} holds {kind}, expected numbers")

    def annotate(self, docs: pa.Table) -> pa.Table:
        import numpy as np

        uniform = uniform_numbers(docs["id"], self.seed)
        scores = docs[self.score].to_numpy().astype(np.float64)
        keep = np.isnan(scores) | (uniform < (2 - np.clip(scores, 0, 1)) ** -self.alpha)
        return pa.table([drop_column(keep, REASON)], schema=self.writes())
