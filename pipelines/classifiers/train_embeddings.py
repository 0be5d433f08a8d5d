"""`classifier train` with `kind: embeddings`: train a linear model on document vectors and measure it on
held-out documents.

For two classes, the model is a logistic regression. For a judge's scores, it is a ridge regression;
FineWeb-Edu also fits a linear regression (Penedo et al. 2024, arXiv 2406.17557, section 4).
"""

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from gristmill.config import plain
from gristmill.storage.store import file_checksum
from pipelines.classifiers.class_sources import check_split
from pipelines.classifiers.classifier_metrics import calibration_by_source, evaluate
from pipelines.classifiers.column_examples import ColumnExamples, contrast_examples, labelled_examples, read_labels
from pipelines.classifiers.column_training import fit_logistic, fit_ridge
from pipelines.classifiers.fasttext_training import LABELS, MIN_DOCUMENTS, verdict
from pipelines.classifiers.judge_scores import read_judge_scores
from pipelines.classifiers.judged_sources import JudgedDocuments, agreement_by_source, graded_verdict, unjudged_warnings
from pipelines.classifiers.train_columns import (
    RowBalance,
    check_sizes,
    class_facts,
    document_weights,
    leave_one_source_out,
    size_warnings,
)
from pipelines.contracts.parts import Part
from pipelines.kernels.search.cosine import on_one_thread
from pipelines.stages.score.column_model import MODEL_FILE
from pipelines.stages.score.embedding_model import EmbeddingModel, save_embedding_model
from pipelines.stages.score.embedding_values import vector_width, vectors_of

_CONSTANT = (
    1e-9  # of the largest number: a deviation up to it is that of rounding, and the number the same in all documents
)


@dataclass(frozen=True)
class EmbeddingClassifierConfig:
    """The YAML configuration of a classifier with `kind: embeddings`: a linear model of the vectors that a
    step such as `transformer_embeddings` wrote into built corpora. Its training documents are given by a
    contrast of sources, by files of labelled ids, or by files of a judge's scores.
    """

    output: str
    """Output directory, relative to the working directory."""
    kind: Literal["embeddings"] = "embeddings"
    """Distinguishes the kinds of classifiers."""
    embedding: str = "embedding"
    """The column with the vectors."""
    positive: tuple[str, ...] = ()
    """Built corpora, as `DIRECTORY` or `DIRECTORY:SOURCE`, whose kept documents are the positive examples of a contrast."""
    negative: tuple[str, ...] = ()
    """Built corpora with the negative examples of a contrast, in the same form."""
    labels: tuple[str, ...] = ()
    """Files of labels, plain or .gz, with one label per line: {"id": "web/a.jsonl#17", "label": "positive"},
    or "negative".
    """
    scores: tuple[str, ...] = ()
    """Files of a judge's scores: .jsonl, .csv (both also .gz) or .parquet, with the fields `id` and `score_field`."""
    score_field: str = "score"
    """The field that holds the score."""
    threshold: float | None = None
    """Only with `scores`: documents with this score or more are the good ones when F1 is measured and when
    `balance` weights two classes. FineWeb-Edu uses 3 on a scale of 0 to 5. Training uses the scores themselves.
    """
    corpora: tuple[str, ...] = ()
    """The built corpora with the documents of `labels` or `scores`, in the same form as `positive`."""
    documents_per_class: int = 50_000
    """Maximum number of documents per class of a contrast, sampled by a hash of seed and id. Training needs
    about 24 bytes of memory for each number of a vector: 1 GB for 100,000 documents with 384 numbers each.
    """
    held_out: float = 0.1
    """Share of the documents used for measuring instead of training, chosen by a hash of their vectors, so that copies of a
    text are all on one side."""
    seed: int = 0
    """Determines the sample and the split."""
    balance: RowBalance = "none"
    """How training documents are weighted. none: all have the same weight. classes: both classes have the
    same total weight. sources: in addition, all sources of a class have the same total weight.
    """
    l2: float = 1.0
    """L2 penalty, above 0. With `scores`, this times the sum of the squared weights of the standardised
    numbers is added to the sum of the squared errors. Otherwise half of it is added to the sum of the
    logistic losses.
    """

    def check(self) -> None:
        """Raise ValueError if a value is out of range or options do not fit together. Exactly one of these
        pairs must be given: `positive` and `negative`; `labels` and `corpora`; `scores` and `corpora`.
        `threshold` is required with `scores` and not allowed without.
        """
        given = {name for name in ("positive", "negative", "labels", "scores", "corpora") if getattr(self, name)}
        if given not in ({"positive", "negative"}, {"labels", "corpora"}, {"scores", "corpora"}):
            got = ", ".join(sorted(given)) or "none of them"
            raise ValueError(
                "positive: expected `positive` and `negative`, or `labels` and `corpora`, or `scores` and `corpora`; "
                f"got {got}"
            )
        if (self.threshold is None) is bool(self.scores):
            raise ValueError(f"threshold: got {self.threshold}, expected a number with `scores`, and none without")
        if self.documents_per_class < 1:
            raise ValueError(f"documents_per_class: got {self.documents_per_class}, expected 1 or more")
        check_split(self.held_out, self.seed)
        if not 0 < self.l2 < float("inf"):
            raise ValueError(f"l2: got {self.l2}, expected a number above 0")


@dataclass(frozen=True)
class _Embeddings:
    name: str

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name,)

    def knob(self, name: str) -> str:
        return f"embedding: {name}"

    def check(self, name: str, kind: pa.DataType, definitions: int) -> str:
        if vector_width(kind) is None:
            return f"holds {kind} in it, expected vectors; name the column of `transformer_embeddings`"
        return (
            "was measured in another way than in the sources before it; vectors compare only if one encoder made all"
            * (definitions > 1)
        )

    def read(self, part: Part, rows: pa.Array) -> np.ndarray:
        column = part.table((self.name,), rows)[self.name]
        known = np.flatnonzero(column.is_valid().to_numpy())
        values = np.full((len(column), column.type.list_size), np.nan)
        values[known] = vectors_of(column.take(pa.array(known)))
        return values


def gather_embeddings(config: EmbeddingClassifierConfig) -> ColumnExamples:
    """Return the documents of both classes that have an embedding, with the embeddings as `values`. Raises
    UserError if a class has too few of them.
    """
    numbers, split = _Embeddings(config.embedding), (config.seed, config.held_out)
    if config.scores:
        scores = read_judge_scores(config.scores, config.score_field)
        assert config.threshold is not None
        examples = labelled_examples(config.corpora, scores, numbers, *split, config.threshold)
    elif config.labels:
        examples = labelled_examples(config.corpora, read_labels(config.labels), numbers, *split)
    else:
        classes = {label: getattr(config, label) for label in LABELS}
        examples = contrast_examples(classes, numbers, config.documents_per_class, *split)
    known = ~np.isnan(examples.values).any(1)
    arrays = ("values", "targets", "positive", "held_out", "sources")
    examples = replace(examples, **{name: getattr(examples, name)[known] for name in arrays})
    check_sizes(examples)
    return examples


def fit_embeddings(examples: ColumnExamples, rows: np.ndarray, config: EmbeddingClassifierConfig) -> EmbeddingModel:
    """Fit a model to the documents that `rows` (bool [n]) selects, which must include both classes: a ridge
    regression if the config has `scores`, otherwise a logistic regression.
    """
    values, positive = examples.values[rows], examples.positive[rows]
    weights = document_weights(examples, rows, config.balance)
    with on_one_thread():
        center = weights @ values / weights.sum()
        scales = np.sqrt(weights @ (values - center) ** 2 / weights.sum())
        scales[scales <= _CONSTANT * np.abs(values).max()] = 1
        standard = (values - center) / scales
        if config.scores:
            fitted = fit_ridge(standard, examples.targets[rows], weights, config.l2)
        else:
            fitted = fit_logistic(standard, positive, weights, (0,) * values.shape[1], config.l2)
        axis = values[positive].mean(0) - values[~positive].mean(0)
    length = float(np.sqrt((axis * axis).sum()))
    arrays = {
        "center": center, "weights": fitted[1:] / scales, "intercept": fitted[:1],
        "axis": axis / length if length > 0 else np.zeros(len(axis)),
    }  # fmt: skip
    return EmbeddingModel("ridge" if config.scores else "logistic", examples.columns[0], arrays)


def train_embeddings(config: EmbeddingClassifierConfig, examples: ColumnExamples, output: Path) -> dict[str, Any]:
    """Train a classifier on embeddings, measure it on held-out documents, and write the model into `output`.
    Return the facts for metrics.json and the card.
    """
    model = fit_embeddings(examples, ~examples.held_out, config)
    with tempfile.TemporaryDirectory(dir=output) as directory:
        trained = Path(directory) / MODEL_FILE
        save_embedding_model(model, trained)
        checksum, size = file_checksum(trained), trained.stat().st_size
        trained.rename(output / MODEL_FILE)
    classes = class_facts(examples)
    facts = {
        "model": {"path": MODEL_FILE, "bytes": size, "xxh3_128": checksum, "labels": list(LABELS)},
        "method": model.method,
        "width": model.width,
        "embedding": {"column": model.column.name, "definition": model.column.definitions[0]},
        "config": plain(config),
        "classes": classes,
        "warnings": _warnings(config, classes),
    }
    measured = _measure_graded if config.scores else _measure_classes
    return facts | measured(config, examples, model)


def _warnings(config: EmbeddingClassifierConfig, classes: dict[str, dict[str, Any]]) -> list[str]:
    if config.scores:
        return unjudged_warnings(config.corpora, read_judge_scores(config.scores, config.score_field))
    return size_warnings(classes, config.balance)


def _scores(model: EmbeddingModel, examples: ColumnExamples, rows: np.ndarray) -> np.ndarray:
    return model.score(examples.values[rows])[0]


def _measure_classes(
    config: EmbeddingClassifierConfig, examples: ColumnExamples, model: EmbeddingModel
) -> dict[str, Any]:
    scores, positive = _scores(model, examples, examples.held_out), examples.positive[examples.held_out]
    measures = evaluate(scores, positive)
    left_out = leave_one_source_out(examples, lambda rows: fit_embeddings(examples, rows, config), _scores)
    return {
        "held_out": measures,
        "calibration_by_source": calibration_by_source(scores, positive, examples.owners(examples.held_out)),
        "leave_one_source_out": left_out,
        "learned": verdict(measures["roc_auc"], left_out),
    }


def _measure_graded(
    config: EmbeddingClassifierConfig, examples: ColumnExamples, model: EmbeddingModel
) -> dict[str, Any]:
    assert config.threshold is not None
    held_out = examples.held_out
    predicted = _scores(model, examples, held_out)
    documents = JudgedDocuments(
        examples.targets[held_out], examples.sources[held_out], examples.names, config.threshold, False
    )

    def without(number: int) -> np.ndarray | None:
        rows = ~held_out & (examples.sources != number)
        if min((rows & examples.positive).sum(), (rows & ~examples.positive).sum()) < MIN_DOCUMENTS:
            return None
        return _scores(fit_embeddings(examples, rows, config), examples, held_out)

    by_source = agreement_by_source(documents, predicted, without)
    return {
        "held_out": documents.agreement(predicted),
        "by_source": by_source,
        "learned": graded_verdict(by_source),
    }
