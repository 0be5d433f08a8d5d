"""Transformer classifier: score documents with a Hugging Face sequence classification model, on CPU or GPU."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import pyarrow as pa

from gristmill.errors import UserError
from pipelines.stages.score.transformer_stage import TransformerStage


@dataclass(frozen=True)
class TransformerClassifier(TransformerStage):
    """Write the probability of one label as a column. For a model with a single output, write that number
    itself (such as the grade of an educational-value model).

    Only the beginning of a document is scored: the first `max_tokens` tokens, including special ones, of its
    first 32 x `max_tokens` characters. Batches have a fixed number of rows, and their lengths are rounded up
    to a power of two, up to `max_tokens`; an incomplete batch is filled with padding. So a score does not
    depend on neighbouring documents. Scores on CPU and GPU differ in their last digits.
    """

    label: str = ""
    """The label whose probability is computed, as named in config.json; empty for a model with a single output."""
    column: str = "transformer_score"
    """Name of the column."""

    stage: ClassVar[str] = "transformer_classifier"
    auto_class: ClassVar[str] = "AutoModelForSequenceClassification"

    def writes(self) -> pa.Schema:
        return pa.schema([(self.column, pa.float32())])

    def never_null(self) -> tuple[str, ...]:
        return (self.column,)

    def check(self) -> None:
        super().check()
        if not self.column.isidentifier():
            raise ValueError(f"column: got {self.column!r}, expected letters, digits and underscores")

    def setup(self) -> None:
        super().setup()
        _ = self._output

    @cached_property
    def _output(self) -> tuple[int, str]:
        """The index of the label's output, and how outputs become scores: `number`, `softmax` or `sigmoid`."""
        config: Any = self.loaded.model.config
        if config.num_labels == 1 and not self.label:
            return 0, "number"
        names = {str(name): int(index) for index, name in config.id2label.items()}
        if self.label not in names or config.num_labels == 1:
            raise UserError(
                f"{self.stage}: {self.model}: label: got {self.label!r}, the model has {config.num_labels}: "
                f"{', '.join(names)}"
            )
        return names[self.label], "sigmoid" if config.problem_type == "multi_label_classification" else "softmax"

    def annotate(self, docs: pa.Table) -> pa.Table:
        import numpy as np

        index, kind = self._output
        scores = np.zeros(docs.num_rows, np.float32)
        for rows, outputs, _ in self.outputs(docs[self.text]):
            logits = outputs.logits.float()
            if kind == "softmax":
                logits = logits.softmax(-1)
            elif kind == "sigmoid":
                logits = logits.sigmoid()
            scores[rows] = logits[: len(rows), index].cpu().numpy()
        return pa.table([pa.array(scores)], schema=self.writes())
