"""Random samples of documents, drawn from all documents or within each group."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import pyarrow as pa

from gristmill.errors import ConfigError
from pipelines.contracts.columns import DROP
from pipelines.contracts.document_counts import Counts, count_drops
from pipelines.contracts.manifest import StepOutput, write_table
from pipelines.contracts.parts import Part
from pipelines.contracts.reads import Drop, Input, column_named
from pipelines.contracts.stage import Cluster, CorpusStage, gather
from pipelines.stages.decide.sample_limits import Limits, limit_parts
from pipelines.stages.decide.uniform_numbers import check_seed, drop_column, uniform_numbers

REASON = "sample"


@dataclass(frozen=True)
class UniformSample(CorpusStage):
    """Keep a random sample of the documents: a `share` of them, a number of `documents`, or as many as a
    `total` allows. With `per`, the limit applies to each group of documents that have the same values in the
    columns of `per`. For example, `{documents: 1000, per: [url_domain]}` keeps at most 1,000 documents of
    each domain, and `{share: 0.01, per: [source, language]}` keeps a stratified sample.

    Documents are ranked by a hash of the seed and their id, and those with the lowest hashes are kept. So a
    sample does not depend on how the corpus is divided into parts or on the number of workers, and lowering
    the limit alone gives a subset of the sample. Two samples with the same seed prefer the same documents; to
    sample a sample, give it another seed.

    A `share` without `per` keeps each document with that probability, independently of all other documents
    and of earlier drops. All other samples are drawn from the documents that no earlier step dropped, and
    their limits are exact. A `share` with `per` is rounded up in each group, so every group keeps at least
    one document.

    With a `total`, the sample of a group ends before the first document that would exceed the total. A
    missing value in the column of the total counts as 0; a negative value is an error. To limit tokens, set a
    total of `n_bytes` (from `quality_signals`): the number of tokens times the bytes per token of your
    tokenizer.

    A missing value in a column of `per` counts as a value like any other, so such documents form groups too.
    """

    share: float | None = None
    """The share of the documents to keep, above 0 and at most 1."""
    documents: int | None = None
    """The number of documents to keep."""
    total: Mapping[str, int] = field(default_factory=dict)
    """A column of whole numbers, such as `word_count`, and the maximum sum of its values in the sample:
    `{word_count: 1e9}`.
    """
    per: tuple[str, ...] = ()
    """The columns whose values define the groups, such as `url_domain`, `source`, or a field of records."""
    seed: int = 0
    """Changes the random choice; 0 or more."""

    def check(self) -> None:
        given = [name for name in ("share", "documents", "total") if getattr(self, name) not in (None, {})]
        if len(given) != 1:
            raise ValueError(
                f"share: got {' and '.join(given) or 'no limit'}, expected one of `share`, `documents` and `total`"
            )
        if self.share is not None and not 0 < self.share <= 1:
            raise ValueError(f"share: got {self.share}, expected a number above 0, at most 1")
        if self.documents is not None and self.documents < 1:
            raise ValueError(f"documents: got {self.documents}, expected 1 or more")
        if len(self.total) > 1:
            raise ValueError(f"total: got {', '.join(self.total)}, expected one column; use the stage once for each")
        for name, most in self.total.items():
            if most < 1:
                raise ValueError(f"total.{name}: got {most}, expected 1 or more")
        check_seed(self.seed)

    @property
    def is_plain(self) -> bool:
        """Whether the sample is a `share` without `per`, which decides about each document independently."""
        return self.share is not None and not self.per

    @property
    def extrapolates(self) -> bool:
        return self.is_plain

    def reads(self) -> tuple[Input, ...]:
        return () if self.is_plain else (Drop(), *map(column_named, dict.fromkeys([*self.per, *self.total])))

    def writes(self) -> pa.Schema:
        return pa.schema([(DROP, pa.string())])

    def check_types(self, types: pa.Schema) -> None:
        for name in (name for name in self.total if name in types.names):
            if not pa.types.is_integer(types.field(name).type):
                raise ConfigError(
                    f"sample: total.{name}: the column holds {types.field(name).type}, expected whole numbers"
                )
        for name in (name for name in self.per if name in types.names):
            kind = types.field(name).type
            if pa.types.is_nested(kind) or pa.types.is_binary(kind) or pa.types.is_fixed_size_binary(kind):
                raise ConfigError(
                    f"sample: per: {name} holds {kind}, expected a column of texts, numbers, dates or booleans"
                )

    def run(self, parts: Sequence[Part], out: StepOutput, cluster: Cluster) -> dict[str, Any]:
        """Commit the `drop` of every document. Return the facts: the number of all documents, and the number
        that the sample does not drop. Both include documents that an earlier step dropped.
        """
        if not self.is_plain:
            limits = Limits(
                self.share, self.documents or sum(self.total.values()), self.per, "".join(self.total), self.seed
            )
            counts = limit_parts(parts, limits, REASON, out, cluster)
        else:
            tasks = [_Task(self, out, part) for part in parts]
            counts = gather(cluster, choose_documents, tasks, lambda task: f"{out.name}: part {task.part.name}")
        whole = reduce(Counts.__add__, map(Counts.parse, counts), Counts())
        return {"documents": whole.arrived, "kept": whole.kept}


@dataclass(frozen=True)
class _Task:
    stage: UniformSample
    out: StepOutput
    part: Part


def choose_documents(task: _Task) -> dict[str, Any]:
    """Commit the `drop` of the documents of a part, for a `share` without `per`. Return the document counts
    of the part.
    """
    receipt = task.out.receipt(task.part.unit)
    if receipt is None:
        assert task.stage.share is not None
        keep = uniform_numbers(task.part.table(("id",))["id"], task.stage.seed, REASON.encode()) < task.stage.share
        table = pa.table([drop_column(keep, REASON)], schema=task.stage.writes())
        receipt = task.out.commit(
            task.part.unit, {f"parts/{task.part.unit}.arrow": write_table(table)}, count_drops(table).facts()
        )
    return dict(receipt.counts)
