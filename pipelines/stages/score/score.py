"""Score: combine many columns into one, by ranks over the corpus or by a trained model. No text is read."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import pyarrow as pa

from gristmill.errors import ConfigError
from pipelines.contracts.columns import DROP, EDITS_COLUMN
from pipelines.contracts.document_counts import count_drops
from pipelines.contracts.manifest import StepOutput, write_table
from pipelines.contracts.parts import DOCUMENT_COLUMNS, Part
from pipelines.contracts.reads import Column, Input
from pipelines.contracts.stage import Cluster, CorpusStage, gather
from pipelines.stages.score.classifier import recorded_checksum
from pipelines.stages.score.column_model import MODEL_FILE, ColumnModel, load_model, model_file, probability
from pipelines.stages.score.column_values import column_values, is_number
from pipelines.stages.score.rank_sum import Ranked, rank_parts


@dataclass(frozen=True)
class ColumnScore(CorpusStage):
    """Combine columns that earlier steps wrote (signals, language scores, perplexities, classifier scores,
    numbers of `meta` by `record_fields`) into one number from 0 to 1, for rules with bounds or quantiles and
    for `pareto_sampling`.

    - `rank_sum` needs no labels. A value's rank is the share of the column's values that are lower plus half of the share
      that are equal, from 0 to 1. The score is the mean of the ranks with `columns` as weights; a negative weight
      reverses the ranks. All documents of the step are ranked, including dropped ones, so that a changed filter changes
      no score. The ranks are exact, and the columns are read twice (three times beyond 4 million documents). A column
      without two different values cannot rank documents, and is an error.
    - `regression` and `boosted` give the probability of the positive class according to a model that `python -m pipelines
      classifier train` wrote with `kind: columns`. The model records its columns and their definitions: the stage,
      version, knobs and models of the steps that wrote them. Columns with any other definition are refused when
      the build is planned.

    A value is missing if it is null, NaN or infinite, or if no step writes the column for the source. For
    `rank_sum`, a missing value has the middle rank, 0.5. In a regression, it counts as the mean of the
    training documents. In boosted trees, it follows the branch that training documents without a value took
    or, if there were none, the branch that most documents took. The score of a document whose values are all
    missing is null.

    COLUMN_contributions holds the contribution of each column, and `inspect --doc` shows it. The
    contributions of a document sum to its score minus 0.5 for `rank_sum`, and to its log-odds minus a
    constant of the model for the other methods. The contributions of boosted trees follow Saabas 2014,
    "Interpreting random forests".
    """

    method: Literal["rank_sum", "regression", "boosted"]
    """How columns become a score."""
    columns: Mapping[str, float] = field(default_factory=dict)
    """For `rank_sum`, the columns and their weights: `{classifier_score: 1, perplexity: -0.5}`."""
    model: str = ""
    """For `regression` and `boosted`, a directory written by `classifier train`, or a file model.safetensors; relative to the
    working directory."""
    column: str = "score"
    """Name of the column."""

    paths: ClassVar[tuple[str, ...]] = ("model",)

    def check(self) -> None:
        if not self.column.isidentifier() or self.column in (*DOCUMENT_COLUMNS, DROP, EDITS_COLUMN):
            raise ValueError(
                f"column: got {self.column!r}, expected letters, digits and underscores, and no column of a document"
            )
        if self.method != "rank_sum":
            self._check_model()
            return
        if self.model:
            raise ValueError(f"model: got {self.model!r} with the method rank_sum, which has none; remove it")
        if not self.columns:
            raise ValueError("columns: got none, expected the columns to rank and their weights: {classifier_score: 1}")
        for name, weight in self.columns.items():
            if not math.isfinite(weight) or weight == 0:
                raise ValueError(f"columns.{name}: got {weight}, expected a weight above or below 0")

    def _check_model(self) -> None:
        if self.columns:
            raise ValueError(
                f"columns: got some with the method {self.method}, whose model names its columns; remove them"
            )
        if self._file.suffix != ".safetensors" or not self._file.is_file():
            raise ValueError(
                f"model: got {self.model!r}, expected a directory with {MODEL_FILE}, or such a file: `python -m pipelines "
                "classifier train` writes one with `kind: columns`"
            )
        if self._model.method != self.method:
            raise ValueError(f"method: got {self.method!r}, but the model in {self.model} is {self._model.method!r}")

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns that are combined."""
        return tuple(self.columns) if self.method == "rank_sum" else self._model.names

    @property
    def extrapolates(self) -> bool:
        """Whether a random sample can estimate the effect of the stage. Always True: even with `rank_sum`, a
        value has about the same rank in a sample as in the whole corpus.
        """
        return True

    def reads(self) -> tuple[Input, ...]:
        return tuple(map(Column, self.names))

    def writes(self) -> pa.Schema:
        parts = pa.struct([(name, pa.float32()) for name in self.names])
        return pa.schema([(self.column, pa.float64()), (f"{self.column}_contributions", parts)])

    def depends(self) -> dict[str, str]:
        return {} if self.method == "rank_sum" else {"model xxh3_128": self._checksum}

    def accepts(self) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        if self.method == "rank_sum":
            return {}
        return {column.name: column.definitions for column in self._model.columns}

    def check_types(self, types: pa.Schema) -> None:
        for name in self.names:
            if name in types.names and not is_number(types.field(name).type):
                raise ConfigError(
                    f"score: the column {name} holds {types.field(name).type}, expected numbers or booleans; remove it"
                )

    def run(self, parts: Sequence[Part], out: StepOutput, cluster: Cluster) -> dict[str, Any]:
        """Score every part, and return the facts of the step."""
        ranked = rank_parts(parts, self.names, out, cluster) if self.method == "rank_sum" else None
        tasks = [_Task(self, out, part, number, ranked) for number, part in enumerate(parts)]
        empty = gather(cluster, write_scores, tasks, lambda task: f"{out.name}: part {task.part.name}")
        facts = {"documents": sum(part.rows for part in parts), "without_score": sum(empty)}
        return facts if self.method == "rank_sum" else {**facts, "columns_fingerprint": self._model.fingerprint}

    def combine(self, values: np.ndarray, ranks: np.ndarray | None) -> pa.Table:
        """Return the columns that the step writes. `values` holds the values of the columns `names`, float64
        [n, columns], NaN where they are missing. `ranks` holds their ranks if the method is `rank_sum`,
        otherwise it is None.
        """
        if ranks is None:
            odds, contributions = self._model.evaluate(values)
            scores = probability(odds)
        else:
            weights = np.array(list(self.columns.values()), np.float64)
            contributions = (ranks - 0.5) * (weights / np.abs(weights).sum())
            scores = 0.5 + contributions.sum(1)
        missing = np.isnan(values).all(1)
        schema = self.writes()
        kind = schema.field(1).type
        each = [pa.array(column.astype(np.float32)) for column in contributions.T]
        parts = pa.StructArray.from_arrays(each, fields=list(kind), mask=pa.array(missing))
        return pa.table([pa.array(scores, mask=missing), parts], schema=schema)

    @property
    def _file(self) -> Path:
        return model_file(self.model)

    @cached_property
    def _checksum(self) -> str:
        """The xxh3_128 of the model file, computed on first use, when the build is planned."""
        return recorded_checksum(self._file, self.model, "score")

    @property
    def _model(self) -> ColumnModel:
        return load_model(self._file, self._checksum)


@dataclass(frozen=True)
class _Task:
    stage: ColumnScore
    out: StepOutput
    part: Part
    number: int
    ranked: Ranked | None


def write_scores(task: _Task) -> int:
    """Commit the scores of a part, unless this has been done, and return how many of its documents have no
    score.
    """
    receipt = task.out.receipt(task.part.unit)
    if receipt is None:
        values = column_values(task.part, task.stage.names)
        ranks = None if task.ranked is None else task.ranked.ranks_of(task.number, values)
        table = task.stage.combine(values, ranks)
        counts = {**count_drops(table).facts(), "without_score": table[task.stage.column].null_count}
        receipt = task.out.commit(task.part.unit, {f"parts/{task.part.unit}.arrow": write_table(table)}, counts)
    return int(receipt.counts["without_score"])
