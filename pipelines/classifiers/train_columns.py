"""`classifier train` with `kind: columns`: train a model of columns, with metrics and a model card. No text
is read.
"""

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from gristmill.config import plain
from gristmill.errors import UserError
from gristmill.storage.store import file_checksum
from pipelines.classifiers.class_sources import check_split
from pipelines.classifiers.classifier_metrics import calibration_by_source, evaluate, roc_auc
from pipelines.classifiers.column_examples import (
    ColumnExamples,
    NumberColumns,
    contrast_examples,
    labelled_examples,
    read_labels,
)
from pipelines.classifiers.column_training import BoostedKnobs, Fit, RegressionKnobs
from pipelines.classifiers.fasttext_training import LABELS, MAX_RATIO, MIN_DOCUMENTS, verdict
from pipelines.stages.score.column_model import MODEL_FILE, ColumnModel, Method, probability, save_model

RowBalance = Literal["none", "classes", "sources"]


@dataclass(frozen=True)
class ColumnClassifierConfig:
    """The YAML configuration of a classifier with `kind: columns`. Its model predicts the class of a
    document, positive or negative, from columns that the steps of built corpora wrote. The classes are given
    either by files of labelled ids, or by a contrast of sources that needs no labels, such as reference texts
    against a crawl.
    """

    output: str
    """Output directory, relative to the working directory."""
    method: Method
    """regression: logistic regression on standardised columns. boosted: gradient-boosted trees.
    scikit-learn (extra `probe`) is needed to train them, but not to use the model.
    """
    columns: Mapping[str, int]
    """The columns, and the direction in which each may act: 1 if a higher value may only raise the score, -1 if it may only
    lower it, 0 for either."""
    kind: Literal["columns"] = "columns"
    """Distinguishes the kinds of classifiers."""
    positive: tuple[str, ...] = ()
    """Built corpora, as `DIRECTORY` or `DIRECTORY:SOURCE`, whose kept documents are the positive examples of a contrast."""
    negative: tuple[str, ...] = ()
    """Built corpora with the negative examples of a contrast, in the same form."""
    labels: tuple[str, ...] = ()
    """Files of labels instead of a contrast, plain or .gz, with one label per line: {"id": "web/a.jsonl#17",
    "label": "positive"}, or "negative". Documents that a step dropped may also have labels.
    """
    corpora: tuple[str, ...] = ()
    """The built corpora with the labelled documents, in the same form as `positive`."""
    documents_per_class: int = 1_000_000
    """Maximum number of documents per class of a contrast, sampled by a hash of seed and id."""
    held_out: float = 0.1
    """Share of the documents used for measuring instead of training, chosen by a hash of their columns, so that documents
    with the same values are all on one side."""
    seed: int = 0
    """Determines the sample and the split, and is the seed of boosted trees."""
    balance: RowBalance = "none"
    """How training documents are weighted. none: all have the same weight. classes: both classes have the
    same total weight. sources: in addition, all sources of a class have the same total weight.
    """
    regression: RegressionKnobs = field(default_factory=RegressionKnobs)
    """Arguments of the method `regression`."""
    boosted: BoostedKnobs = field(default_factory=BoostedKnobs)
    """Arguments of the method `boosted`."""

    def check(self) -> None:
        """Raise ValueError if `columns` is empty, a value is out of range, or the classes are not given by
        exactly one of two pairs: `positive` and `negative`, or `labels` and `corpora`.
        """
        if not self.columns:
            raise ValueError(
                "columns: got none, expected the columns and their signs: {classifier_score: 1, n_words: 0}"
            )
        for name, sign in self.columns.items():
            if sign not in (-1, 0, 1):
                raise ValueError(f"columns.{name}: got {sign}, expected 1, -1 or 0")
        given = {name for name in ("positive", "negative", "labels", "corpora") if getattr(self, name)}
        if given not in ({"positive", "negative"}, {"labels", "corpora"}):
            got = ", ".join(sorted(given)) or "none of them"
            raise ValueError(f"positive: expected `positive` and `negative`, or `labels` and `corpora`; got {got}")
        if self.documents_per_class < 1:
            raise ValueError(f"documents_per_class: got {self.documents_per_class}, expected 1 or more")
        check_split(self.held_out, self.seed)


def gather_examples(config: ColumnClassifierConfig) -> ColumnExamples:
    """Return the documents of both classes. Raises UserError if a class has too few, or if a column has fewer
    than two different values in the training documents.
    """
    numbers, split = NumberColumns(tuple(config.columns)), (config.seed, config.held_out)
    if config.labels:
        examples = labelled_examples(config.corpora, read_labels(config.labels), numbers, *split)
    else:
        classes = {label: getattr(config, label) for label in LABELS}
        examples = contrast_examples(classes, numbers, config.documents_per_class, *split)
    check_sizes(examples)
    for name, column in zip(numbers.names, examples.values[~examples.held_out].T, strict=True):
        different = np.unique(column[~np.isnan(column)])
        if len(different) < 2:
            value = f"is {different[0]:g} in all" if len(different) else "has no value in any of the"
            raise UserError(f"columns.{name}: {value} {len(column):,} training documents; leave it out")
    return examples


def check_sizes(examples: ColumnExamples) -> None:
    """Raise UserError if a class has fewer than `MIN_DOCUMENTS` training documents or held-out documents."""
    for label in LABELS:
        train, held_out = (int(examples.of(label == "positive", side).sum()) for side in (False, True))
        if min(train, held_out) < MIN_DOCUMENTS:
            raise UserError(
                f"{label}: {train} documents for training and {held_out} held out, expected at least {MIN_DOCUMENTS} of "
                "each; add documents, or change `held_out`"
            )


def train_columns(config: ColumnClassifierConfig, examples: ColumnExamples, output: Path) -> dict[str, Any]:
    """Train a classifier on columns, measure it on held-out documents, and write the model into `output`.
    Return the facts for metrics.json and the card.
    """
    signs = tuple(config.columns.values())
    fit = Fit(config.method, examples.columns, signs, config.regression, config.boosted, config.seed)
    model = _train(fit, examples, ~examples.held_out, config)
    scores, contributions = _scores(model, examples, examples.held_out)
    positive = examples.positive[examples.held_out]
    measures = evaluate(scores, positive)
    with tempfile.TemporaryDirectory(dir=output) as directory:
        trained = Path(directory) / MODEL_FILE
        save_model(model, trained)
        checksum, size = file_checksum(trained), trained.stat().st_size
        trained.rename(output / MODEL_FILE)
    left_out = leave_one_source_out(examples, lambda rows: _train(fit, examples, rows, config), _score_rows)
    classes = class_facts(examples)
    strength = dict(zip(model.names, np.abs(contributions).mean(0).tolist(), strict=True))
    return {
        "model": {"path": MODEL_FILE, "bytes": size, "xxh3_128": checksum, "labels": list(LABELS)},
        "columns_fingerprint": model.fingerprint,
        "config": plain(config),
        "classes": classes,
        "contributions": strength,
        "held_out": measures,
        "calibration_by_source": calibration_by_source(scores, positive, examples.owners(examples.held_out)),
        "leave_one_source_out": left_out,
        "learned": verdict(measures["roc_auc"], left_out),
        "warnings": size_warnings(classes, config.balance),
    }


def class_facts(examples: ColumnExamples) -> dict[str, dict[str, Any]]:
    """Return the entry of each class in metrics.json: its numbers of documents, and its sources."""
    classes = {}
    for label in LABELS:
        train, held_out = (int(examples.of(label == "positive", side).sum()) for side in (False, True))
        classes[label] = {"train": train, "held_out": held_out, "sources": examples.facts[label]}
    return classes


def _train(fit: Fit, examples: ColumnExamples, rows: np.ndarray, config: ColumnClassifierConfig) -> ColumnModel:
    weights = document_weights(examples, rows, config.balance)
    return fit.train(examples.values[rows], examples.positive[rows], weights)


def document_weights(examples: ColumnExamples, rows: np.ndarray, balance: RowBalance) -> np.ndarray:
    """Return the training weight of each document selected by `rows` (bool [n]), as float64 with a mean of 1.
    `balance` is that of `ColumnClassifierConfig`.
    """
    positive, sources = examples.positive[rows], examples.sources[rows]
    weights = np.ones(len(positive))
    if balance != "none":
        groups = positive * len(examples.names) + sources if balance == "sources" else positive.astype(np.int64)
        number, inverse, counts = np.unique(groups, return_inverse=True, return_counts=True)
        of_class = number // len(examples.names) if balance == "sources" else number
        shares = 1.0 / np.bincount(of_class)[of_class]  # each class counts the same, and so do its groups
        weights = (shares / counts)[inverse]
        weights *= len(weights) / weights.sum()
    return weights


def _scores(model: ColumnModel, examples: ColumnExamples, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    odds, contributions = model.evaluate(examples.values[rows])
    return probability(odds), contributions


def _score_rows(model: ColumnModel, examples: ColumnExamples, rows: np.ndarray) -> np.ndarray:
    return _scores(model, examples, rows)[0]


def leave_one_source_out(
    examples: ColumnExamples,
    train: Callable[[np.ndarray], Any],
    score: Callable[[Any, ColumnExamples, np.ndarray], np.ndarray],
) -> list[dict[str, Any]]:
    """For every class with several sources, leave out each source in turn, train a model on the rest, and
    measure how well the model separates the held-out documents of that source from those of the other class.
    Return an entry for each source, as `fasttext_training.leave_one_source_out` does; its `roc_auc` is None
    if there are too few documents.

    `train` takes a bool [n] array that selects training documents, and returns a model. `score` takes the
    model, `examples` and a bool [n] array that selects the documents to score.
    """
    entries: list[dict[str, Any]] = []
    for label in LABELS:
        here = examples.positive == (label == "positive")
        numbers = np.unique(examples.sources[here])
        for number in numbers.tolist() if len(numbers) > 1 else ():
            without = here & (examples.sources == number)
            rows, measured = ~examples.held_out & ~without, examples.held_out & (without | ~here)
            count = int((without & examples.held_out).sum())
            entry = {"class": label, "source": examples.names[number], "held_out": count, "roc_auc": None}
            if min(int((rows & here).sum()), count) >= MIN_DOCUMENTS:
                entry["roc_auc"] = roc_auc(score(train(rows), examples, measured), examples.positive[measured])
            entries.append(entry)
    return entries


def size_warnings(classes: Mapping[str, Mapping[str, Any]], balance: str) -> list[str]:
    """Return a list with one warning if `balance` is `none` and one class has at least MAX_RATIO times as
    many training documents as the other; otherwise an empty list.
    """
    (large, most), (small, least) = sorted(
        ((label, c["train"]) for label, c in classes.items()), key=lambda each: -each[1]
    )
    if balance != "none" or most < MAX_RATIO * least:
        return []
    return [
        f"{most:,} {large} documents train and {least:,} {small} ones, {most / least:.0f} to 1: scores lean towards {large}; "
        "`balance: classes` gives both the same weight"
    ]
