"""Correlate the gold similarities of pairs of texts with the cosine similarities of a model's pooled states.
Nothing is trained, as in the evaluation on STS-B by Reimers and Gurevych (2019, section 4.1).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gristmill.errors import ConfigError, UserError
from trainers.evaluation.probing.features import Pooling, pooled
from trainers.evaluation.probing.hidden_states import StateReader
from trainers.tasks.examples import Examples
from trainers.tasks.scores import METRICS
from trainers.tasks.scores.outcomes import Outcomes
from trainers.tasks.scores.resampling import Score, score

COUNTS = "counts"
"""The name of the row that needs no model: it uses the cosine of the token counts of the two texts."""
_DOCUMENTS = 256  # documents in memory at once with the states of all their tokens


@dataclass(frozen=True)
class LayerSimilarity:
    """Spearman's and Pearson's correlations between gold similarities and the cosine similarities of a
    layer's pooled states. For the layer `COUNTS`, the cosine similarities are those of token counts, and
    `pooling` is empty.
    """

    layer: str
    pooling: str
    spearman: Score
    pearson: Score

    def plain(self) -> dict[str, Any]:
        """Return the scores as JSON data."""
        scores = {"spearman": self.spearman, "pearson": self.pearson}
        found = {name: {"value": s.value, "low": s.low, "high": s.high, "n": s.n} for name, s in scores.items()}
        return {"layer": self.layer, "pooling": self.pooling, **found}


def layer_similarities(
    reader: StateReader, examples: Examples, layers: Sequence[str], poolings: Sequence[Pooling]
) -> list[LayerSimilarity]:
    """Return how well the cosine similarities of pairs of texts correlate with their gold similarities: first
    for the token counts of the texts, then for their states at each layer with each pooling. Raises
    ConfigError for a task that does not rate the similarity of two texts, and UserError if its gold is
    hidden.
    """
    task = examples.task
    if task.kind != "regress" or len(examples.texts) != 2:
        what = f"kind {task.kind}" if task.kind != "regress" else "one text"
        raise ConfigError(
            f"task: {task.name} has {what}; similarity needs numbers for pairs of texts (regress), such as stsb"
        )
    gold = examples.values
    if gold is None or np.isnan(gold).any():
        raise UserError(f"{task.name}: {examples.split}: its gold is hidden; name another split")
    documents = [reader.encode(texts.to_pylist()) for texts in examples.texts]
    found = [_correlated(COUNTS, "", gold, _count_cosines(*documents))]
    first, second = (_states(reader, its, layers, poolings) for its in documents)
    for number, layer in enumerate(layers):
        for place, pooling in enumerate(poolings):
            found.append(_correlated(layer, pooling, gold, cosines(first[place, number], second[place, number])))
    return found


def _correlated(layer: str, pooling: str, gold: np.ndarray, predicted: np.ndarray) -> LayerSimilarity:
    outcomes = Outcomes(gold=gold, predicted=predicted)
    return LayerSimilarity(layer, pooling, *(score(METRICS[name], outcomes) for name in ("spearman", "pearson")))


def cosines(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return the cosine of each pair of corresponding rows of two arrays [n, width], as float64 [n]; 0 where
    either row is all zeros.
    """
    first, second = first.astype(np.float64), second.astype(np.float64)
    norms = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
    return np.divide((first * second).sum(1), norms, out=np.zeros(len(first)), where=norms > 0)


def _count_cosines(first: Sequence[np.ndarray], second: Sequence[np.ndarray]) -> np.ndarray:
    found = []
    for one, other in zip(first, second, strict=True):
        tokens, place = np.unique(np.concatenate([one, other]), return_inverse=True)
        counts = [np.bincount(part, minlength=len(tokens)) for part in (place[: len(one)], place[len(one) :])]
        found.append(cosines(counts[0][None], counts[1][None])[0])
    return np.array(found)


def _states(
    reader: StateReader, documents: Sequence[np.ndarray], layers: Sequence[str], poolings: Sequence[Pooling]
) -> np.ndarray:
    """Return the pooled states of documents, float32 [poolings, layers, n, width]."""
    parts = []
    for start in range(0, len(documents), _DOCUMENTS):
        states = reader.read(documents[start : start + _DOCUMENTS], layers)
        parts.append(np.stack([[pooled(each, pooling) for each in states] for pooling in poolings]))
    return np.concatenate(parts, axis=1).swapaxes(1, 2)


def similarity_lines(found: Sequence[LayerSimilarity]) -> Iterator[Sequence[str]]:
    """Yield a header, and then a row for each entry of `found`."""
    yield ("layer", "pooling", "spearman", "95 % interval", "pearson")
    for each in found:
        rho = each.spearman
        interval = f"[{rho.low:.3f}, {rho.high:.3f}]"
        yield (each.layer, each.pooling or "-", f"{rho.value:.4f}", interval, f"{each.pearson.value:.4f}")
