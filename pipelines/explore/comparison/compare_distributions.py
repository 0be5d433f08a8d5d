"""Compare how the values of columns are distributed in two corpora, counting only kept documents. The
distributions come from the histograms that builds publish.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipelines.contracts.lineage import Corpus
from pipelines.report.bins import quantile

LEAST_DISTANCE = 0.005
"""Tables and pages leave out distributions with a smaller distance."""
_QUANTILES = (0.1, 0.5, 0.9)


@dataclass(frozen=True)
class DistributionChange:
    """The distributions of one column of a source in two corpora, over the kept documents with a value. `old`
    and `new` are histograms as `Histogram.facts` returns them, but their bins count only kept documents.
    `distance` is the Kolmogorov-Smirnov distance, from 0 to 1: the largest difference between the two
    cumulative shares, taken at the ends of the bins.
    """

    source: str
    column: str
    distance: float
    old: Mapping[str, Any]
    new: Mapping[str, Any]

    def as_json(self) -> dict[str, Any]:
        """Return the change as JSON data, with the number of documents and the 10, 50 and 90 % quantiles in
        both corpora.
        """
        sides = {
            name: {
                "documents": sum(count for _, count, _ in side["bins"]),
                "quantiles": [quantile(side, share) for share in _QUANTILES],
            }
            for name, side in (("old", self.old), ("new", self.new))
        }
        return {"source": self.source, "column": self.column, "distance": self.distance, **sides}


def compare_distributions(old: Corpus, new: Corpus) -> list[DistributionChange]:
    """Compare the distributions of each source's columns in two corpora, and return them with the largest
    distance first. A column is left out unless both corpora have a histogram of it that counts kept
    documents.
    """
    before, after = _histograms(old), _histograms(new)
    changes = [
        DistributionChange(*key, _distance(histogram, after[key]), histogram, after[key])
        for key, histogram in before.items()
        if key in after
    ]
    return sorted(changes, key=lambda change: (-change.distance, change.column, change.source))


def _histograms(corpus: Corpus) -> dict[tuple[str, str], dict[str, Any]]:
    """Return the histogram of each column over kept documents, keyed by (source, column)."""
    steps = [step for step in corpus.steps if step.label == "funnel"]
    found = {}
    for source, columns in steps[0].manifest.facts["distributions"].items() if steps else ():
        for column, histogram in columns.items():
            bins = [[floor, kept, kept] for floor, _, kept in histogram["bins"] if kept]
            if bins:
                found[source, column] = {**histogram, "bins": bins}
    return found


def _distance(old: Mapping[str, Any], new: Mapping[str, Any]) -> float:
    counts = [{floor: count for floor, count, _ in side["bins"]} for side in (old, new)]
    floors = sorted(counts[0].keys() | counts[1].keys())
    shares = [np.cumsum([side.get(floor, 0) for floor in floors]) / sum(side.values()) for side in counts]
    return round(float(np.abs(shares[0] - shares[1]).max()), 6)
