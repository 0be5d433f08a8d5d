"""Classifier: score a document, or its lines or sentences, with a supervised fastText model."""

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

import pyarrow as pa

from gristmill.config import ADDED
from gristmill.errors import UserError
from gristmill.storage.disk import LocalPath
from gristmill.storage.store import file_checksum, read_json
from pipelines.contracts.reads_text import ReadsText
from pipelines.contracts.stage import PartStage
from pipelines.stages.score.fasttext_model import check_fasttext

if TYPE_CHECKING:
    import numpy as np

    from pipelines.stages.score.fasttext_model import FastTextModel

MODEL, METRICS = "model.bin", "metrics.json"


def recorded_checksum(file: Path, model: str, stage: str) -> str:
    """Return the xxh3_128 of a model file. Raises UserError if `classifier train` recorded another checksum
    in the directory `model`.
    """
    checksum = file_checksum(file)
    metrics = LocalPath(model) / METRICS
    if metrics.is_file() and (recorded := read_json(metrics)["model"]["xxh3_128"]) != checksum:
        raise UserError(
            f"{stage}: {file}: its xxh3_128 is {checksum}, but {METRICS} next to it is for {recorded}; train "
            "again with --overwrite, or name the file itself to use it without this check"
        )
    return checksum


@dataclass(frozen=True)
class Classifier(ReadsText, PartStage):
    """Write the score that a supervised fastText model gives a document: the probability of a label, 0 to 1,
    or the expected value of the labels.

    The text is read as the fastText library reads a line, which `python -m pipelines classifier train` also
    relies on: white space, including line ends, separates tokens, and nothing else is changed. Tokens that
    begin with `__label__` are ignored, and a token `</s>` ends the text. For a fixed threshold as in DCLM (Li
    et al. 2024, section 4.4), or for a quantile, use a rule of `filter`; for a random choice as in GPT-3, use
    `pareto_sampling`. A toxicity model is a classifier too: give its label, and score lines or sentences
    (docs/classifiers.md).
    """

    model: str
    """A model file (.bin or .ftz), or a directory written by `classifier train`; relative to the working directory."""
    label: str = "positive"
    """The label whose probability is computed, without `__label__`; usually `positive` in models trained here."""
    column: str = "classifier_score"
    """Name of the column."""
    unit: Literal["document", "line", "sentence"] = "document"
    """What is scored. For lines and sentences, the column is the highest probability of any of them, and
    COLUMN_mean is the mean, weighted by bytes. Both are null if the document has none.
    """

    best_label: bool = field(default=False, metadata=ADDED)
    """Write the most probable label as COLUMN_label, such as a topic by which `shards` groups. The score
    column is then the probability of this label, and `label` is not used. The label is null and the score 0
    where the model gives no label, as for a text without features.
    """

    expected_value: bool = field(default=False, metadata=ADDED)
    """Labels are numbers, such as the bins of a judge's scores (`classifier train` with `bins`). The score
    column is the mean of the labels, weighted by their probabilities, and `label` is not used. It is null
    where the model gives no label, as for a text without features.
    """

    paths: ClassVar[tuple[str, ...]] = ("model",)

    def writes(self) -> pa.Schema:
        names = [self.column] if self.unit == "document" else [self.column, f"{self.column}_mean"]
        label = [(f"{self.column}_label", pa.string())] if self.best_label else []
        return pa.schema([*((name, pa.float32()) for name in names), *label])

    def never_null(self) -> tuple[str, ...]:
        return (self.column,) if self.unit == "document" and not self.expected_value else ()

    def depends(self) -> dict[str, str]:
        from pipelines.kernels.text.tables import unicode_version

        model = {"model xxh3_128": self._checksum}
        return model if self.unit == "document" else model | unicode_version()

    def check(self) -> None:
        if not self._file.is_file():
            raise ValueError(
                f"model: got {self.model!r}, expected a fastText model file, or a directory with {MODEL}: "
                "`python -m pipelines classifier train` writes one"
            )
        check_fasttext(self._file, "model")
        if not self.column.isidentifier():
            raise ValueError(f"column: got {self.column!r}, expected letters, digits and underscores")
        if self.best_label and self.unit != "document":
            raise ValueError(
                f"best_label: got true with unit: {self.unit}, but the labels of a document's {self.unit}s differ"
            )
        if self.expected_value and (self.best_label or self.unit != "document"):
            other = "best_label: true" if self.best_label else f"unit: {self.unit}"
            raise ValueError(f"expected_value: got true with {other}; it is the score of a whole document")
        super().check()

    def setup(self) -> None:
        _ = self._fasttext

    @property
    def _file(self) -> Path:
        path = Path(self.model)
        return path / MODEL if path.is_dir() else path

    @cached_property
    def _checksum(self) -> str:
        """The xxh3_128 of the model, computed on first use, when the build is planned."""
        return recorded_checksum(self._file, self.model, "classifier")

    @cached_property
    def _fasttext(self) -> "FastTextModel":
        from pipelines.stages.score.fasttext_model import load_fasttext

        model = load_fasttext(self._file, self._checksum, "classifier")
        some = ", ".join(model.labels[:20])
        if self.expected_value:
            try:
                _ = model.label_values
            except ValueError:
                raise UserError(
                    f"classifier: {self._file}: expected_value needs labels that are numbers; its labels: {some}"
                ) from None
        elif not self.best_label and self.label not in model.labels:
            raise UserError(f"classifier: {self._file}: has no label {self.label!r}; its labels: {some}")
        return model

    def annotate(self, docs: pa.Table) -> pa.Table:
        from pipelines.kernels.text.buffers import text_buffers

        offsets, data = text_buffers(docs[self.text])
        if self.unit != "document":
            return self._by_unit(offsets, data, self.unit)
        if self.expected_value:
            expected = self._fasttext.expected(data, offsets[:-1], offsets[1:])
            return pa.table([pa.array(expected.astype("float32"), from_pandas=True)], schema=self.writes())
        if self.best_label:
            indices, best = self._fasttext.best(data, offsets[:-1], offsets[1:])
            labels = pa.array(self._fasttext.labels, pa.string()).take(pa.array(indices, mask=indices < 0))
            return pa.table([pa.array(best), labels], schema=self.writes())
        scores = self._fasttext.score(data, offsets[:-1], offsets[1:], self.label)
        return pa.table([pa.array(scores)], schema=self.writes())

    def _by_unit(self, offsets: "np.ndarray", data: "np.ndarray", unit: Literal["line", "sentence"]) -> pa.Table:
        import numpy as np

        from pipelines.kernels.text.text_units import text_units

        rows, starts, ends = text_units(offsets, data, unit)
        scores = self._fasttext.score(data, starts, ends, self.label)
        count = len(offsets) - 1
        highest, sizes = np.zeros(count, np.float32), (ends - starts).astype(np.float64)
        np.maximum.at(highest, rows, scores)
        total = np.bincount(rows, sizes, count)
        mean = np.bincount(rows, sizes * scores, count) / np.maximum(total, 1)
        columns = [pa.array(values.astype(np.float32), mask=total == 0) for values in (highest, mean)]
        return pa.table(columns, schema=self.writes())
