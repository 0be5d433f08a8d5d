"""Random samples of documents: a share of them, or a number of them or of their words, of all documents or of each group."""

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
    """Keep a random sample of the documents: a `share` of them, a number of `documents`, or as many as a `total` allows.
    With `per`, this holds for each group of documents that have the same values in some columns: `{documents: 1000, per:
    [url_domain]}` keeps at most 1,000 documents of each domain, `{share: 0.01, per: [source, language]}` a stratified sample.

    Documents are kept in the order of a hash of the seed and their id, until their group has enough. So a sample depends on
    neither parts nor workers, and a smaller one is part of a larger one. A plain `share` keeps each document with that
    probability, whatever becomes of the others. All other samples are of the documents that no earlier step dropped, and exact:
    `share` with `per` keeps the share of each group, rounded up, and so at least one document of each.

    A `total` ends before the first document with which it would be exceeded. A missing value counts as 0. For a number of
    tokens, take `n_bytes` of `quality_signals`, divided by the bytes per token of your tokenizer.

    The documents that have no value in a column of `per` are a group, too.
    """

    share: float | None = None
    """The share of the documents to keep, above 0 to 1."""
    documents: int | None = None
    """The number of documents to keep."""
    total: Mapping[str, int] = field(default_factory=dict)
    """A column of whole numbers, such as `word_count`, and the most that its values may add up to: `{word_count: 1e9}`."""
    per: tuple[str, ...] = ()
    """The columns whose values are groups, such as `url_domain`, `source`, or a field of records."""
    seed: int = 0
    """Changes the random choice; 0 or more."""

    def check(self) -> None:
        """Validate ranges, and that there is one limit."""
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
        """Whether every document is chosen by itself."""
        return self.share is not None and not self.per

    @property
    def extrapolates(self) -> bool:
        """Whether a sample estimates its effect: only that of a plain share, which decides about every document by itself."""
        return self.is_plain

    def reads(self) -> tuple[Input, ...]:
        """Return the columns of groups and of the total, and earlier drops; only the id for a plain share."""
        return () if self.is_plain else (Drop(), *map(column_named, dict.fromkeys([*self.per, *self.total])))

    def writes(self) -> pa.Schema:
        """Return `drop`: sample."""
        return pa.schema([(DROP, pa.string())])

    def check_types(self, types: pa.Schema) -> None:
        """Raise ConfigError for a total of anything but whole numbers, and for groups of lists or objects."""
        for name in (name for name in self.total if name in types.names):
            if not pa.types.is_integer(types.field(name).type):
                raise ConfigError(
                    f"sample: total.{name}: the column holds {types.field(name).type}, expected whole numbers"
                )
        for name in (name for name in self.per if name in types.names):
            kind = types.field(name).type
            if pa.types.is_nested(kind) or pa.types.is_binary(kind):
                raise ConfigError(
                    f"sample: per: {name} holds {kind}, expected a column of texts, numbers, dates or booleans"
                )

    def run(self, parts: Sequence[Part], out: StepOutput, cluster: Cluster) -> dict[str, Any]:
        """Decide about every document. The facts have the number of documents, and of those that the sample keeps."""
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
    """Commit the `drop` of the documents of a part; return its counts."""
    receipt = task.out.receipt(task.part.unit)
    if receipt is None:
        assert task.stage.share is not None
        keep = uniform_numbers(task.part.table(("id",))["id"], task.stage.seed, REASON.encode()) < task.stage.share
        table = pa.table([drop_column(keep, REASON)], schema=task.stage.writes())
        receipt = task.out.commit(
            task.part.unit, {f"parts/{task.part.unit}.arrow": write_table(table)}, count_drops(table).facts()
        )
    return dict(receipt.counts)
