"""`vectors moved`: find the words whose vectors differ most between two corpora, such as the texts of two
years (Hamilton, Leskovec and Jurafsky 2016, "Diachronic Word Embeddings Reveal Statistical Laws of Semantic
Change", sections 2.2 and 3.1).

Distances tend to be larger for rarer words. They are above 0 even between vectors trained on two halves of
one corpus, so use the distances between two such halves as a baseline.
"""

from dataclasses import dataclass

import numpy as np

from gristmill.errors import UserError
from pipelines.vectors.align_spaces import LEAST_PAIRS
from pipelines.vectors.orthogonal_map import fit_rotation
from pipelines.vectors.word_vectors import WordVectors, neighbours


@dataclass(frozen=True)
class MovedWord:
    """A word, its cosine distance between the two spaces, and its nearest words in the old and the new space."""

    word: str
    distance: float
    before: list[str]
    now: list[str]


@dataclass(frozen=True)
class Displacement:
    """How far each word that two spaces share has moved. `words` are in the order of `new`. `distances`,
    float32 [words], are the cosine distances between each word's vectors in the two spaces, after a rotation
    of `old` onto `new`.
    """

    words: list[str]
    distances: np.ndarray
    old: WordVectors
    new: WordVectors

    def quantiles(self, *shares: float) -> list[float]:
        """Return the quantiles of the distances at the levels `shares`, each from 0 to 1."""
        return [float(each) for each in np.quantile(self.distances, shares)]

    def farthest(self, count: int, near: int = 5) -> list[MovedWord]:
        """Return the `count` words that moved farthest, the farthest first, each with its `near` nearest
        words in each space.
        """
        order = np.argsort(-self.distances, kind="stable")[:count]
        return [
            MovedWord(
                self.words[k], float(self.distances[k]),
                *([each.word for each in neighbours(space, self.words[k], near)] for space in (self.old, self.new)),
            )
            for k in order
        ]  # fmt: skip


def find_moved_words(old: WordVectors, new: WordVectors, most: int) -> Displacement:
    """Return how far the words that two spaces share have moved from `old` to `new`. Only the first `most`
    words of each space are considered.

    Raises UserError if the spaces differ in dimensions or share fewer than LEAST_PAIRS of these words.
    """
    old, new = old.first(most), new.first(most)
    if old.matrix.shape[1] != new.matrix.shape[1]:
        raise UserError(f"vectors of {old.matrix.shape[1]} and of {new.matrix.shape[1]} dimensions: expected the same")
    common = [word for word in new.words if word in old.rows]
    if len(common) < LEAST_PAIRS:
        raise UserError(f"{len(common)} words are in both, expected at least {LEAST_PAIRS}")
    before = old.unit[[old.rows[word] for word in common]]
    now = new.unit[[new.rows[word] for word in common]]
    distances = 1 - np.einsum("wd,wd->w", before @ fit_rotation(before, now), now)
    return Displacement(common, distances, old, new)
