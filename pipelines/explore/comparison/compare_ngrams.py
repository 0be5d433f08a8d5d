"""Find the word n-grams that are over- or under-represented in one corpus compared with another.

The measure is the log-odds ratio with an informative Dirichlet prior, divided by its standard deviation
(Monroe, Colaresi and Quinn 2008, "Fightin' Words", Political Analysis 16(4), equations 15, 16, 20 and 22).
The prior of an n-gram is its count in both samples together, so that rare n-grams, whose ratios are extreme
by chance, get small scores. The samples are the same share of the kept documents of each corpus, drawn by a
hash of the id. A document that both corpora keep is therefore in both samples or in neither; if its text is
the same, it adds the same counts to both.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa
import xxhash

from pipelines.contracts.lineage import Corpus
from pipelines.contracts.parts import Part
from pipelines.explore.searching.search_corpus import shown_texts

MOST_WORDS = 5
"""The number of words in the longest n-grams that can be compared."""
SAMPLE_BYTES = 32 << 20
"""The approximate number of bytes of text in the sample of the larger corpus, unless the corpus has less text."""
_SHOWN = 20  # n-grams of each length and direction
_LEAST_SCORE = 1.96  # standard deviations: a difference of fewer may be chance, at a level of 5 %


@dataclass(frozen=True)
class NgramChange:
    """An n-gram of `words` words, in lower case, with its counts in the old and the new sample. `score` is
    positive if the n-gram is over-represented in the new corpus.
    """

    text: str
    words: int
    old: int
    new: int
    score: float


@dataclass(frozen=True)
class NgramComparison:
    """The n-grams whose frequencies differ most between samples of two corpora, ordered by length and then by
    score, the highest first. `share` is the share of the kept documents that was sampled. `documents` and
    `words` are the sizes of the old and the new sample.
    """

    share: float
    documents: tuple[int, int]
    words: tuple[int, int]
    ngrams: list[NgramChange]

    def of(self, words: int, more: bool) -> list[NgramChange]:
        """Return the n-grams of `words` words that are over-represented in the new corpus if `more`,
        otherwise in the old corpus, with the strongest first.
        """
        chosen = [change for change in self.ngrams if change.words == words and (change.score > 0) == more]
        return sorted(chosen, key=lambda change: -abs(change.score))


@dataclass(frozen=True)
class _Block:
    """A block of sampled documents and their words. `data` is the text in UTF-8. Word k is
    data[starts[k]:ends[k]]. `borders` holds the index of the first word of every document after the first.
    """

    data: np.ndarray
    starts: np.ndarray
    ends: np.ndarray
    hashes: np.ndarray
    borders: np.ndarray
    documents: int

    def keys(self, words: int) -> tuple[np.ndarray, np.ndarray]:
        """Return, for each n-gram of `words` words within a document, its key (a hash of its words) and the
        index of its first word.
        """
        from pipelines.kernels.signals.ngrams import ngram_keys

        if len(self.hashes) < words:
            return np.empty(0, np.uint64), np.empty(0, np.int64)
        inside = np.ones(len(self.hashes) - words + 1, bool)
        for back in range(1, words):
            across = self.borders - back
            inside[across[(across >= 0) & (across < len(inside))]] = False
        return ngram_keys(self.hashes, words)[inside], np.flatnonzero(inside)

    def text(self, first: int, words: int) -> str:
        spans = zip(self.starts[first : first + words], self.ends[first : first + words], strict=True)
        return " ".join(self.data[start:end].tobytes().decode() for start, end in spans).lower()


def compare_ngrams(old: Corpus, new: Corpus, most_words: int) -> NgramComparison:
    """Return the n-grams of 1 to `most_words` words whose frequencies differ most between two corpora. They
    are counted in a sample of the kept documents of each corpus, after redaction of personal data.
    """
    larger = max(sum(map(_kept_bytes, corpus.parts())) for corpus in (old, new))
    share = min(1.0, SAMPLE_BYTES / max(larger, 1))
    samples = [_sample(corpus, share) for corpus in (old, new)]
    ngrams: list[NgramChange] = []
    for words in range(1, most_words + 1):
        ngrams += _extremes(samples, words)
    documents = [sum(block.documents for block in blocks) for blocks in samples]
    counted = [sum(len(block.hashes) for block in blocks) for blocks in samples]
    return NgramComparison(round(share, 6), (documents[0], documents[1]), (counted[0], counted[1]), ngrams)


def log_odds_scores(old: np.ndarray, new: np.ndarray) -> np.ndarray:
    """Return the score of each n-gram, float64 [n]: its log-odds ratio divided by the ratio's standard
    deviation (see the module's docstring). `old` and `new`, each [n], are the n-grams' counts in two samples.
    The score is positive if the n-gram is over-represented in `new`. Every n-gram must occur in at least one
    sample.
    """
    old, new = old.astype(np.float64), new.astype(np.float64)
    prior = old + new
    odds = [
        np.log((counts + prior) / (counts.sum() + prior.sum() - counts - prior).clip(min=1)) for counts in (old, new)
    ]
    return (odds[1] - odds[0]) / np.sqrt(1 / (old + prior) + 1 / (new + prior))


def _kept_bytes(part: Part) -> int:
    return part.text_bytes * (part.drop().null_count) // max(part.rows, 1)


def _sample(corpus: Corpus, share: float) -> list[_Block]:
    with ThreadPoolExecutor() as pool:
        return [block for blocks in pool.map(partial(_part_blocks, corpus, share), corpus.parts()) for block in blocks]


def _part_blocks(corpus: Corpus, share: float, part: Part) -> list[_Block]:
    rows = part.kept_rows()
    if share < 1:
        ids = part.table(("id",), rows)["id"].to_pylist()
        hashes = np.fromiter((xxhash.xxh3_64_intdigest(identifier) for identifier in ids), np.uint64, len(ids))
        rows = rows.filter(pa.array(hashes < np.uint64(share * 2**64)))
    return list(_blocks(shown_texts(corpus, part, rows))) if len(rows) else []


def _blocks(texts: pa.Array) -> Iterator[_Block]:
    from pipelines.kernels.signals.ngrams import hash_words
    from pipelines.kernels.text.buffers import blocks, text_buffers
    from pipelines.kernels.text.characters import classify
    from pipelines.kernels.text.words import find_words

    for _, _, local, data in blocks(*text_buffers(texts)):
        words = find_words(local, data, classify(local, data))
        yield _Block(
            data.copy(), words.starts.copy(), words.ends.copy(), hash_words(data, words), words.offsets[1:-1].copy(),
            len(local) - 1,
        )  # fmt: skip


def _extremes(samples: Sequence[Sequence[_Block]], words: int) -> list[NgramChange]:
    counted = []
    for blocks in samples:
        every = [np.empty(0, np.uint64), *(block.keys(words)[0] for block in blocks)]
        counted.append(np.unique(np.concatenate(every), return_counts=True))
    keys = np.union1d(counted[0][0], counted[1][0])
    old, new = (np.zeros(len(keys), np.int64) for _ in range(2))
    for counts, (present, numbers) in zip((old, new), counted, strict=True):
        counts[np.searchsorted(keys, present)] = numbers
    if not old.any() or not new.any():
        return []
    scores = log_odds_scores(old, new)
    order = np.lexsort((keys, -scores))
    chosen = [
        k for k in (*order[:_SHOWN], *order[max(_SHOWN, len(order) - _SHOWN) :]) if abs(scores[k]) >= _LEAST_SCORE
    ]
    texts = _texts([block for blocks in samples for block in blocks], keys[chosen], words)
    return [
        NgramChange(texts[int(keys[k])], words, int(old[k]), int(new[k]), round(float(scores[k]), 3)) for k in chosen
    ]


def _texts(blocks: Sequence[_Block], wanted: np.ndarray, words: int) -> dict[int, str]:
    texts: dict[int, str] = {}
    for block in blocks:
        missing = np.setdiff1d(wanted, np.fromiter(texts, np.uint64, len(texts)))
        if not len(missing):
            break
        keys, firsts = block.keys(words)
        here = np.flatnonzero(np.isin(keys, missing))
        for key, place in zip(*np.unique(keys[here], return_index=True), strict=True):
            texts[int(key)] = block.text(int(firsts[here[place]]), words)
    return texts
