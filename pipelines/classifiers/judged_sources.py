"""Measure, for each source, how well a model agrees with a judge, and how well a model trained without that
source does. The comparison shows whether the model learned the score or the source. Also count the kept
documents that have no score.
"""

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
    """Judged documents that are held out to evaluate models. `judged` contains their scores, float64 [n], and
    `sources` the indexes of their sources in `names`, int64 [n]. Documents with a score of `threshold` or
    more are good. `probabilities` says whether a model predicts the probability that a document is good.
    """

    judged: np.ndarray
    sources: np.ndarray
    names: Sequence[str]
    threshold: float
    probabilities: bool

    def agreement(self, predicted: np.ndarray, rows: np.ndarray | None = None) -> dict[str, Any]:
        """Return measures of how well predictions, float64 [n], agree with the judged scores. `rows`, bool
        [n], selects the documents to measure (default: all).
        """
        chosen = np.ones(len(self.judged), bool) if rows is None else rows
        return agreement(predicted[chosen], self.judged[chosen], self.threshold, self.probabilities)


def agreement_by_source(
    documents: JudgedDocuments, predicted: np.ndarray, without: Callable[[int], np.ndarray | None]
) -> list[dict[str, Any]]:
    """Return an entry for each source that says how well two models agree with the judge on its held-out
    documents: the model itself, and one trained without the source.

    `predicted`, float64 [n], are the model's predictions for `documents`. `without` takes the index of a
    source and returns what a model trained without that source predicts for `documents`, float64 [n], or None
    if too few documents are left to train on.

    Every entry has `source` and `held_out`. With at least MIN_DOCUMENTS held-out documents, it also has
    `mean_judged`, `mean_score`, `calibration_error`, `spearman` and `f1`. If, in addition, there are several
    sources and `without` does not return None, it has `spearman_left_out` and `f1_left_out`.
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
    """Return what the model learned: "unknown", "nothing", "source" or "class". `by_source` is the result of
    `agreement_by_source`.

    The verdict compares two means over the sources, weighted by their numbers of held-out documents. The
    first is the mean of `spearman`, the model's rank correlation with the judge. The second is the mean of
    `spearman_left_out`, the correlation of a model trained without the source; None counts as 0. Sources that
    lack either correlation are ignored.

    - "unknown": no source has both correlations
    - "nothing": the mean of `spearman` is not above 0
    - "source": the mean of `spearman_left_out` is less than half the mean of `spearman`
    - "class": otherwise
    """
    measured = [each for each in by_source if each.get("spearman") is not None and "spearman_left_out" in each]
    if not measured:
        return "unknown"
    weights = [each["held_out"] for each in measured]
    whole, left_out = (
        float(np.average([each[name] or 0.0 for each in measured], weights=weights))
        for name in ("spearman", "spearman_left_out")
    )
    if whole <= 0:
        return "nothing"
    return "source" if left_out < whole / 2 else "class"


def count_unjudged(corpora: Sequence[str], scores: Labels) -> tuple[int, int]:
    """Return how many kept documents of `corpora` have no score, and how many kept documents there are in
    all.
    """
    judged, without, total = pa.array(list(scores), ID), 0, 0
    for corpus, source in open_sources(corpora, "corpora"):
        for part in corpus.parts(source):
            docs = part.table((DROP, "id"))
            kept = docs.filter(pc.is_null(docs[DROP]))["id"]
            total += len(kept)
            without += len(kept) - (pc.sum(pc.is_in(kept, value_set=judged)).as_py() or 0)
    return without, total


def unjudged_warnings(corpora: Sequence[str], scores: Labels) -> list[str]:
    """Return a list with one warning if any kept document has no score, else an empty list."""
    without, total = count_unjudged(corpora, scores)
    if not without:
        return []
    return [
        f"{without:,} of {total:,} kept documents of `corpora` have no score and are not used; the measures hold for all of "
        "them only if the judged ones were chosen at random"
    ]
