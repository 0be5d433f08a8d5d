"""Agreement with a judge by source, and of models that never saw a source: whether the score or the source was learned."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.classifiers.class_sources import open_sources
from pipelines.classifiers.column_examples import Labels
from pipelines.classifiers.fasttext_training import MIN_DOCUMENTS
from pipelines.classifiers.graded_metrics import agreement
from pipelines.contracts.columns import DROP
from pipelines.contracts.document import ID

_COMPARED = ("spearman", "f1")


@dataclass(frozen=True)
class JudgedDocuments:
    """Held-out documents: their judged scores, float64 [n], and sources, int64 [n], which index `names`. Good are scores of
    `threshold` or more; `probabilities` says whether a model predicts the probability of that, or a score.
    """

    judged: np.ndarray
    sources: np.ndarray
    names: Sequence[str]
    threshold: float
    probabilities: bool

    def agreement(self, predicted: np.ndarray, rows: np.ndarray | None = None) -> dict[str, Any]:
        """Return the measures of predictions, float64 [n], for all documents or some, bool [n]."""
        chosen = np.ones(len(self.judged), bool) if rows is None else rows
        return agreement(predicted[chosen], self.judged[chosen], self.threshold, self.probabilities)


def agreement_by_source(
    documents: JudgedDocuments, predicted: np.ndarray, without: Callable[[int], np.ndarray | None]
) -> list[dict[str, Any]]:
    """Return, for each source, the agreement of the model on its held-out documents, and that of a model trained without it.

    `without` returns the predictions, float64 [n], of a model trained without a source, or None if too little is left to
    train on. An entry has `source`, `held_out`, and unless documents are too few `mean_judged`, `mean_score`,
    `calibration_error`, `spearman` and `f1`; with several sources `spearman_left_out` and `f1_left_out`.
    """
    entries: list[dict[str, Any]] = []
    several = len(documents.names) > 1
    for number, name in enumerate(documents.names):
        rows = documents.sources == number
        entry: dict[str, Any] = {"source": name, "held_out": int(rows.sum())}
        if entry["held_out"] >= MIN_DOCUMENTS:
            measures = documents.agreement(predicted, rows)
            entry |= {"mean_judged": float(documents.judged[rows].mean()), "mean_score": float(predicted[rows].mean())}
            entry |= {each: measures[each] for each in ("calibration_error", *_COMPARED)}
            if several and (other := without(number)) is not None:
                measures = documents.agreement(other, rows)
                entry |= {f"{each}_left_out": measures[each] for each in _COMPARED}
        entries.append(entry)
    return entries


def graded_verdict(by_source: Sequence[Mapping[str, Any]]) -> str:
    """Say what was learned: `unknown`, `class` or `source`.

    It is `source` if the rank correlation within a source, averaged over the sources with their held-out documents as
    weights, falls by more than a half when the source is left out; `unknown` if no source could be measured. Predictions that
    are all the same count as a correlation of 0.
    """
    measured = [each for each in by_source if each.get("spearman") is not None and "spearman_left_out" in each]
    if not measured:
        return "unknown"
    weights = [each["held_out"] for each in measured]
    whole, left_out = (
        float(np.average([each[name] or 0.0 for each in measured], weights=weights))
        for name in ("spearman", "spearman_left_out")
    )
    return "source" if left_out < whole / 2 else "class"


def count_unjudged(corpora: Sequence[str], scores: Labels) -> tuple[int, int]:
    """Return how many kept documents of some corpora have no score, and how many are kept."""
    judged, without, total = pa.array(list(scores), ID), 0, 0
    for corpus, source in (each for name in corpora for each in open_sources(name, "corpora")):
        for part in corpus.parts(source):
            docs = part.table((DROP, "id"))
            kept = docs.filter(pc.is_null(docs[DROP]))["id"]
            total += len(kept)
            without += len(kept) - (pc.sum(pc.is_in(kept, value_set=judged)).as_py() or 0)
    return without, total


def unjudged_warnings(corpora: Sequence[str], scores: Labels) -> list[str]:
    """Return a warning about kept documents without a score."""
    without, total = count_unjudged(corpora, scores)
    if not without:
        return []
    return [
        f"{without:,} of {total:,} kept documents of `corpora` have no score and are not used; the measures hold for all of "
        "them only if the judged ones were chosen at random"
    ]
