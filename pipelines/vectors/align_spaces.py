"""`vectors align`: map one space of word vectors onto another with an orthogonal matrix.

Vectors are normalised to length 1, centred and normalised again (Artetxe, Labaka and Agirre 2016, "Learning
principled bilingual mappings of word embeddings while preserving monolingual invariance", sections 2.2 and
2.3). The map is fitted on pairs of words and refined: the words that are mutually nearest by CSLS become the
pairs for the next fit (Conneau et al. 2018, arXiv 1710.04087, sections 2.2 and 2.3).
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Literal

import numpy as np
import xxhash

from gristmill.errors import UserError
from gristmill.storage.disk import LocalPath
from pipelines.kernels.search.cosine import unit_rows
from pipelines.vectors.orthogonal_map import fit_rotation, mean_similarity, mutual_pairs, retrieve
from pipelines.vectors.word_vectors import WordVectors, text_lines

RANKS = (1, 5, 10)
Seeds = Literal["identical", "numerals"]
LEAST_PAIRS = 10
"""Minimum number of pairs to fit a map on, and of held-out pairs. Shares of fewer held-out words would
mean little.
"""
REFINED_WORDS = 15_000
"""The number of most frequent words of each space among which refinement looks for pairs, as in the authors'
code (facebookresearch/MUSE, `dico_max_rank`).
"""


@dataclass(frozen=True)
class Retrieval:
    """The result of looking up the translations of `words` held-out source words. `at[k]` is the number of
    these words with a translation among the k nearest target words.
    """

    words: int
    at: Mapping[int, int]

    def share(self, rank: int) -> float:
        """Return the share of words with a translation among the `rank` nearest target words. `rank` is one
        of RANKS.
        """
        return self.at[rank] / self.words

    def error(self, rank: int) -> float:
        """Return the binomial standard error of `share(rank)`."""
        return sqrt(self.share(rank) * (1 - self.share(rank)) / self.words)


@dataclass(frozen=True)
class MapFit:
    """How well a map fitted on `pairs` pairs of words finds the translations of held-out words, by CSLS and
    by cosine.
    """

    pairs: int
    csls: Retrieval
    cosine: Retrieval


@dataclass(frozen=True)
class Alignment:
    """Two aligned spaces: `source`, which has been mapped by `rotation`, and `target`. The vectors of both
    were centred and then scaled to length 1. `seeds` and `refined` measure the map before and after
    refinement.
    """

    source: WordVectors
    target: WordVectors
    rotation: np.ndarray  # float32 [d, d]
    seeds: MapFit
    refined: MapFit


def align_spaces(
    source: WordVectors,
    target: WordVectors,
    pairs: Sequence[tuple[str, str]],
    *,
    held_out: float = 0.2,
    refinements: int = 5,
    seed: int = 0,
) -> Alignment:
    """Map `source` onto `target` with an orthogonal matrix that is fitted to `pairs` of words and then
    refined `refinements` times. A share of about `held_out` of the source words in `pairs` is kept out of the
    fit and used to measure the map; refinement may still find these pairs by itself.

    Raises UserError if the spaces differ in their number of dimensions, if a word in a pair has no vector, or
    if fewer than LEAST_PAIRS pairs are left for fitting or for measuring.
    """
    if source.matrix.shape[1] != target.matrix.shape[1]:
        raise UserError(
            f"vectors of {source.matrix.shape[1]} and of {target.matrix.shape[1]} dimensions: expected the same number"
        )
    train, measured = split_pairs(pairs, held_out, seed)
    if len(train) < LEAST_PAIRS or len(measured) < LEAST_PAIRS:
        raise UserError(
            f"{len(train)} pairs of words to fit and {len(measured)} held out, expected at least {LEAST_PAIRS} of each: "
            "give a dictionary, change the share that is held out, or train vectors of more words"
        )
    before, after = _centred(source.matrix), _centred(target.matrix)
    wanted: dict[int, set[int]] = defaultdict(set)
    for a, b in measured:
        wanted[source.row(a)].add(target.row(b))
    rows = np.array([(source.row(a), target.row(b)) for a, b in train])
    rotation = fit_rotation(before[rows[:, 0]], after[rows[:, 1]])
    seeds = refined = _measure(len(rows), before @ rotation, after, wanted)
    for _ in range(refinements):
        forth, back = mutual_pairs(before[:REFINED_WORDS] @ rotation, after[:REFINED_WORDS])
        rotation = fit_rotation(before[forth], after[back])
    mapped = before @ rotation
    if refinements:
        refined = _measure(len(forth), mapped, after, wanted)
    return Alignment(WordVectors(source.words, mapped), WordVectors(target.words, after), rotation, seeds, refined)


def seed_pairs(source: WordVectors, target: WordVectors, kind: Seeds) -> list[tuple[str, str]]:
    """Return each word that is in both spaces, paired with itself. If `kind` is `numerals`, only numerals are
    used (Artetxe, Labaka and Agirre 2017, "Learning bilingual word embeddings with (almost) no bilingual
    data", section 4.2): words made of digits and, here, also `.` and `,`.
    """
    common = [word for word in source.words if word in target.rows]
    if kind == "numerals":
        common = [word for word in common if word.replace(".", "").replace(",", "").isdecimal()]
    return [(word, word) for word in common]


def read_dictionary(path: LocalPath, source: WordVectors, target: WordVectors) -> list[tuple[str, str]]:
    """Return the distinct pairs of a bilingual dictionary in MUSE's format, omitting those in which either
    word has no vector. Raises UserError for a malformed line.
    """
    pairs = []
    for where, line in text_lines(path):
        words = line.split()
        if len(words) != 2:
            raise UserError(f"{where}: got {len(words)} words, expected a word and its translation")
        if words[0] in source.rows and words[1] in target.rows:
            pairs.append((words[0], words[1]))
    return list(dict.fromkeys(pairs))


def split_pairs(
    pairs: Sequence[tuple[str, str]], held_out: float, seed: int
) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Return (pairs to fit, held-out pairs). About the share `held_out` of the source words is held out, each
    word with all its pairs.
    """
    limit = int(held_out * (1 << 64))
    sides: tuple[list[tuple[str, str]], list[tuple[str, str]]] = ([], [])
    for pair in pairs:
        sides[xxhash.xxh3_64_intdigest(pair[0].encode(), seed) < limit].append(pair)
    return sides


def _centred(matrix: np.ndarray) -> np.ndarray:
    unit = unit_rows(matrix)
    return unit_rows(unit - unit.mean(axis=0))


def _measure(pairs: int, mapped: np.ndarray, after: np.ndarray, wanted: Mapping[int, set[int]]) -> MapFit:
    """Measure a map by CSLS and by cosine. `wanted` maps the source row of each held-out word to the target
    rows of its translations.
    """
    penalties = mean_similarity(after, mapped), np.zeros(len(after), np.float32)
    retrievals = []
    for penalty in penalties:
        nearest = retrieve(mapped[list(wanted)], after, penalty, max(RANKS)).tolist()
        found = list(zip(wanted.values(), nearest, strict=True))
        hits = {rank: sum(not rows.isdisjoint(best[:rank]) for rows, best in found) for rank in RANKS}
        retrievals.append(Retrieval(len(wanted), hits))
    return MapFit(pairs, *retrievals)
