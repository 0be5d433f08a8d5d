"""`classifier train` with `kind: judged`: train a fastText model on the scores of a judge, such as a large
language model, and measure it on held-out documents.

From the text alone, fastText learns to recognise documents that the judge would score at `threshold` or more
or, with `bins`, to predict the bin of a document's score. DCLM also selects documents with fastText (Li et
al. 2024, arXiv 2406.11794, section 4.4). FineWeb-Edu uses a threshold of 3 on a scale of 0 to 5 (Penedo et
al. 2024, arXiv 2406.17557, section 4).
"""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import xxhash

from gristmill.config import plain
from gristmill.errors import UserError
from gristmill.storage.store import file_checksum
from pipelines.classifiers.class_sources import check_split, hash_id
from pipelines.classifiers.column_examples import add_source_facts, labelled_parts
from pipelines.classifiers.fasttext_training import (
    LABELS,
    MIN_DOCUMENTS,
    Balance,
    Example,
    FastTextKnobs,
    balance_classes,
    fit,
    to_fasttext_line,
)
from pipelines.classifiers.judge_scores import read_judge_scores
from pipelines.classifiers.judged_sources import (
    JudgedDocuments,
    agreement_by_source,
    graded_verdict,
    unjudged_warnings,
)
from pipelines.stages.score.classifier import MODEL
from pipelines.stages.score.fasttext_model import load_fasttext


@dataclass(frozen=True)
class JudgedClassifierConfig:
    """The YAML configuration of a classifier with `kind: judged`. From the edited text of documents in built
    corpora, fastText learns which documents a judge scored at least `threshold` or, with `bins`, which bin
    the score of each document is in.
    """

    output: str
    """Output directory, relative to the working directory."""
    corpora: tuple[str, ...]
    """The built corpora with the judged documents, as `DIRECTORY` or `DIRECTORY:SOURCE`."""
    scores: tuple[str, ...]
    """Files of scores: .jsonl, .csv (both also .gz) or .parquet, with the fields `id`, such as
    web/a.jsonl#17, and `score_field`. Documents that a step dropped may also have scores.
    """
    threshold: float
    """Documents with this score or more are the good ones."""
    kind: Literal["judged"] = "judged"
    """Distinguishes the kinds of classifiers."""
    score_field: str = "score"
    """The field that holds the score, a number."""
    bins: tuple[float, ...] = ()
    """Bounds between bins, ascending, such as [1, 2, 3]. fastText then learns which bin a score is in (a
    score that equals a bound is in the upper bin), and the model predicts a score. Without bins it predicts
    the probability that a document is good.
    """
    documents: int = 500_000
    """Maximum number of documents, sampled by a hash of seed and id. Their text is held in memory."""
    held_out: float = 0.1
    """Share of the documents used for measuring instead of training, chosen by a hash of the text, so that copies of a text
    are all on one side."""
    seed: int = 0
    """Determines the sample and the split."""
    balance: Balance = "none"
    """How the two classes, or the bins, are balanced for training. none: use every training document once.
    downsample: reduce all to the size of the smallest. repeat: repeat documents up to the size of the
    largest. sources: repeat documents until all classes or bins have the same size and, within each, all
    sources have the same size.
    """
    fasttext: FastTextKnobs = field(default_factory=FastTextKnobs)
    """Arguments of the training."""

    def check(self) -> None:
        """Raise ValueError if no corpus or no file of scores is given, if `bins` are not ascending, or for a
        value out of range.
        """
        for name in ("corpora", "scores"):
            if not getattr(self, name):
                raise ValueError(f"{name}: expected at least one")
        if any(low >= high for low, high in pairwise(self.bins)):
            raise ValueError(f"bins: got {list(self.bins)}, expected ascending bounds")
        if self.documents < 1:
            raise ValueError(f"documents: got {self.documents}, expected 1 or more")
        check_split(self.held_out, self.seed)


@dataclass(frozen=True)
class JudgedTexts:
    """Judged documents, sorted by a hash of their ids. `scores` is float64 [n] and `held_out` bool [n]. The
    `source` of an example is an index into `names`. `facts` maps each class to the entries of its sources in
    metrics.json, which also count judged documents that were not sampled.
    """

    examples: Sequence[Example]
    scores: np.ndarray
    held_out: np.ndarray
    names: tuple[str, ...]
    facts: dict[str, list[dict[str, Any]]]
    warnings: list[str]


def gather_judged(config: JudgedClassifierConfig) -> JudgedTexts:
    """Return at most `config.documents` judged documents, sampled by a hash of their ids. Raises UserError
    for invalid scores, and if a class or a bin has too few documents.
    """
    scores = read_judge_scores(config.scores, config.score_field)
    highest = sorted(hash_id(each, config.seed) for each in scores)[: config.documents][-1]
    examples: list[tuple[Example, float]] = []
    facts: dict[str, list[dict[str, Any]]] = {label: [] for label in LABELS}
    names: list[str] = []
    for (corpus, source), parts in labelled_parts(config.corpora, scores):
        judged = [scores[each][0] for _, _, ids in parts for each in ids]
        add_source_facts(facts, corpus, source, np.array(judged) >= config.threshold)
        for part, rows, ids in parts:
            orders = [hash_id(each, config.seed) for each in ids]
            some = [at for at, order in enumerate(orders) if order <= highest]
            texts = part.table(("edited_text",), rows.take(pa.array(some, pa.int64())))["edited_text"].to_pylist()
            for at, text in zip(some, texts, strict=True):
                split = xxhash.xxh3_64_intdigest(text.encode(), config.seed)
                example = Example(orders[at], split, to_fasttext_line(text), len(names))
                examples.append((example, scores[ids[at]][0]))
        names.append(f"{corpus.manifest.corpus}:{source}")
    examples.sort(key=lambda each: (each[0].order, each[0].split))
    bound = int(config.held_out * (1 << 64))
    texts = JudgedTexts(
        [example for example, _ in examples],
        np.array([score for _, score in examples]),
        np.array([example.split < bound for example, _ in examples]),
        tuple(names),
        facts,
        unjudged_warnings(config.corpora, scores),
    )
    _check_sizes(config, texts)
    return texts


def _check_sizes(config: JudgedClassifierConfig, texts: JudgedTexts) -> None:
    good = texts.scores >= config.threshold
    for name, rows in (("at or above", good), ("below", ~good)):
        train, held_out = (int((rows & (texts.held_out == side)).sum()) for side in (False, True))
        if min(train, held_out) < MIN_DOCUMENTS:
            raise UserError(
                f"threshold: {train} documents for training and {held_out} held out have scores {name} {config.threshold:g}, "
                f"expected at least {MIN_DOCUMENTS} of each; change `threshold` or `held_out`, or judge more documents"
            )
    counts = np.bincount(_bins_of(config, texts.scores[~texts.held_out]), minlength=len(config.bins) + 1)
    if config.bins and counts.min() < MIN_DOCUMENTS:
        low, high = (-np.inf, *config.bins)[counts.argmin()], (*config.bins, np.inf)[counts.argmin()]
        raise UserError(
            f"bins: {counts.min()} training documents have scores from {low:g} to {high:g}, expected at least {MIN_DOCUMENTS}; "
            "remove a bound"
        )


def _bins_of(config: JudgedClassifierConfig, scores: np.ndarray) -> np.ndarray:
    """Return the bin of each score, int64 [n]. Without `bins`, good scores are in bin 0 and all others in bin
    1.
    """
    if config.bins:
        return np.searchsorted(np.array(config.bins), scores, side="right")
    return (scores < config.threshold).astype(np.int64)


def _labelled(config: JudgedClassifierConfig, texts: JudgedTexts, rows: np.ndarray) -> dict[str, list[Example]]:
    """Return the documents selected by `rows` (bool [n]), grouped by fastText label and balanced. The label
    of a document is its class or, with `bins`, the mean score of its bin.
    """
    bins = _bins_of(config, texts.scores)
    labelled = {}
    for number in np.unique(bins[rows]).tolist():
        inside = np.flatnonzero(rows & (bins == number)).tolist()
        label = repr(float(texts.scores[inside].mean())) if config.bins else LABELS[number]
        labelled[label] = [texts.examples[at] for at in inside]
    return balance_classes(labelled, config.balance)


def _predict(config: JudgedClassifierConfig, path: Path, texts: JudgedTexts) -> np.ndarray:
    """Return a model's predictions for the held-out documents, float64 [n]."""
    model = load_fasttext(path, file_checksum(path), "classifier")
    lines = [texts.examples[at].line.encode() for at in np.flatnonzero(texts.held_out).tolist()]
    bounds = np.cumsum([0, *map(len, lines)], dtype=np.int64)
    data = np.frombuffer(b"".join(lines), np.uint8)
    if not config.bins:
        return model.score(data, bounds[:-1], bounds[1:], LABELS[0]).astype(np.float64)
    expected = model.expected(data, bounds[:-1], bounds[1:])
    return np.where(np.isnan(expected), texts.scores[~texts.held_out].mean(), expected)


def train_judged(config: JudgedClassifierConfig, texts: JudgedTexts, output: Path) -> dict[str, Any]:
    """Train a classifier on judged documents, measure it on the held-out ones, and write the model into
    `output`. Return the facts for metrics.json and the card.
    """
    held_out = texts.held_out
    sources = np.array([example.source for example in texts.examples])
    documents = JudgedDocuments(
        texts.scores[held_out], sources[held_out], texts.names, config.threshold, not config.bins
    )
    with tempfile.TemporaryDirectory(dir=output) as directory:
        trained, scratch = Path(directory) / MODEL, Path(directory) / "without.bin"
        labelled = _labelled(config, texts, ~held_out)
        fit(config.fasttext, labelled, trained)
        predicted = _predict(config, trained, texts)

        def without(number: int) -> np.ndarray | None:
            rest = _labelled(config, texts, ~held_out & (sources != number))
            if len(rest) < 2 or min(map(len, rest.values())) < MIN_DOCUMENTS:
                return None
            fit(config.fasttext, rest, scratch)
            return _predict(config, scratch, texts)

        by_source = agreement_by_source(documents, predicted, without)
        checksum, size = file_checksum(trained), trained.stat().st_size
        trained.rename(output / MODEL)
    good = texts.scores >= config.threshold
    classes = {}
    for label, rows in zip(LABELS, (good, ~good), strict=True):
        train, measured = (int((rows & (held_out == side)).sum()) for side in (False, True))
        classes[label] = {"train": train, "held_out": measured, "sources": texts.facts[label]}
    return {
        "model": {"path": MODEL, "bytes": size, "xxh3_128": checksum, "labels": list(labelled)},
        "fasttext-numpy2": version("fasttext-numpy2"),
        "config": plain(config),
        "classes": classes,
        "trained_on": {label: len(chosen) for label, chosen in labelled.items()},
        "held_out": documents.agreement(predicted),
        "by_source": by_source,
        "learned": graded_verdict(by_source),
        "warnings": texts.warnings,
    }
