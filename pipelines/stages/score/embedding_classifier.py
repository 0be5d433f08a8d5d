"""Embedding classifier: score a document from its embedding with a linear model. No text is read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from gristmill.errors import ConfigError
from pipelines.contracts.columns import DROP, EDITS_COLUMN
from pipelines.contracts.parts import DOCUMENT_COLUMNS
from pipelines.contracts.reads import Column, Input
from pipelines.contracts.stage import PartStage
from pipelines.stages.score.classifier import recorded_checksum
from pipelines.stages.score.column_model import MODEL_FILE, model_file
from pipelines.stages.score.embedding_model import EmbeddingModel, load_embedding_model
from pipelines.stages.score.embedding_values import vector_width, vectors_of

CONTRIBUTIONS = ("between_means", "other_directions")


@dataclass(frozen=True)
class EmbeddingClassifier(PartStage):
    """Score each document by its embedding, which an earlier step `transformer_embeddings` wrote, with a
    linear model trained by `python -m pipelines classifier train` with `kind: embeddings`. No text is read.

    A logistic model gives the probability of the positive class, 0 to 1. A ridge regression, trained on a
    judge's scores, predicts the judge's score; a prediction may lie slightly outside the judge's scale. The
    model records which encoder wrote the vectors that it was trained on. Vectors of another encoder, or of
    the same encoder with other knobs, are refused when the build is planned. The score of a document without
    a vector is null.

    COLUMN_contributions holds two numbers whose sum is the log-odds (or the predicted score) minus a constant
    of the model, and `inspect --doc` shows them. `between_means` is the contribution along the line from the
    mean of the negative training documents to the mean of the positive ones; `other_directions` is everything
    else that the model learned. The individual numbers of a vector would mean nothing to a reader.
    """

    model: str
    """A directory written by `classifier train`, or a file model.safetensors; relative to the working directory."""
    column: str = "embedding_score"
    """Name of the column."""

    paths: ClassVar[tuple[str, ...]] = ("model",)

    def check(self) -> None:
        if not self.column.isidentifier() or self.column in (*DOCUMENT_COLUMNS, DROP, EDITS_COLUMN):
            raise ValueError(
                f"column: got {self.column!r}, expected letters, digits and underscores, and no column of a document"
            )
        if self._file.suffix != ".safetensors" or not self._file.is_file():
            raise ValueError(
                f"model: got {self.model!r}, expected a directory with {MODEL_FILE}, or such a file: `python -m pipelines "
                "classifier train` writes one with `kind: embeddings`"
            )
        _ = self._model

    def reads(self) -> tuple[Input, ...]:
        return (Column(self._model.column.name),)

    def writes(self) -> pa.Schema:
        parts = pa.struct([(name, pa.float32()) for name in CONTRIBUTIONS])
        return pa.schema([(self.column, pa.float32()), (f"{self.column}_contributions", parts)])

    def depends(self) -> dict[str, str]:
        return {"model xxh3_128": self._checksum}

    def accepts(self) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        return {self._model.column.name: self._model.column.definitions}

    def check_types(self, types: pa.Schema) -> None:
        name = self._model.column.name
        if name in types.names and vector_width(types.field(name).type) != self._model.width:
            raise ConfigError(
                f"embedding_classifier: the column {name} holds {types.field(name).type}, expected vectors of "
                f"{self._model.width} numbers"
            )

    def setup(self) -> None:
        _ = self._model

    def annotate(self, docs: pa.Table) -> pa.Table:
        column = docs[self._model.column.name]
        known = np.flatnonzero(column.is_valid().to_numpy())
        scores, contributions = self._model.score(vectors_of(column.take(pa.array(known))))
        result = np.zeros((docs.num_rows, 3), np.float32)
        result[known, 0], result[known, 1:] = scores, contributions
        missing = column.is_null().combine_chunks()
        schema = self.writes()
        each = [pa.array(values) for values in np.ascontiguousarray(result[:, 1:].T)]
        parts = pa.StructArray.from_arrays(each, fields=list(schema.field(1).type), mask=missing)
        return pa.table([pa.array(result[:, 0], mask=missing.to_numpy(zero_copy_only=False)), parts], schema=schema)

    @property
    def _file(self) -> Path:
        return model_file(self.model)

    @cached_property
    def _checksum(self) -> str:
        """The xxh3_128 of the model, computed on first use, when the build is planned."""
        return recorded_checksum(self._file, self.model, "embedding_classifier")

    @property
    def _model(self) -> EmbeddingModel:
        return load_embedding_model(self._file, self._checksum)
