"""Uniform sampling: keep a share of the documents, chosen by a hash of their ids."""

from dataclasses import dataclass

import pyarrow as pa

from pipelines.contracts.columns import DROP
from pipelines.contracts.reads import Input
from pipelines.contracts.stage import PartStage
from pipelines.stages.decide.uniform_numbers import check_seed, drop_column, uniform_numbers

REASON = "sample"


@dataclass(frozen=True)
class UniformSample(PartStage):
    """Keep a share of the documents at random, for example of a source that is too large, or of all sources as a rehearsal.

    The choice depends on the seed and the document's id alone, so documents that a smaller share keeps are also kept by a
    larger one. For different shares of several sources, use the stage once for each, limited by `sources`.
    """

    share: float
    """The probability with which each document is kept, above 0 to 1."""
    seed: int = 0
    """Changes the random choice; 0 or more."""

    def reads(self) -> tuple[Input, ...]:
        """Return nothing beyond the id."""
        return ()

    def writes(self) -> pa.Schema:
        """Return `drop`: sample."""
        return pa.schema([(DROP, pa.string())])

    def check(self) -> None:
        """Validate ranges."""
        if not 0 < self.share <= 1:
            raise ValueError(f"share: got {self.share}, expected a number above 0, at most 1")
        check_seed(self.seed)

    def annotate(self, docs: pa.Table) -> pa.Table:
        """Return the `drop` of each document."""
        keep = uniform_numbers(docs["id"], self.seed, REASON.encode()) < self.share
        return pa.table([drop_column(keep, REASON)], schema=self.writes())
