"""Names of clusters of documents: the words that distinguish the documents of a cluster from all others."""

from collections.abc import Collection, Sequence
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

LEAST_DOCUMENTS = 5
"""Minimum number of a cluster's sample documents that contain a word of its name, so that no name comes from
a few documents only.
"""
WORDS = 10
"""Maximum number of words listed for each cluster, the most characteristic first."""
_IN_NAME = 3
_LONGEST = 60  # characters of a name, percent-encoded; a domain's name may have 64 per level
_PRIOR = 100.0  # weight of the prior, in words: the a0 of Monroe et al.
_LEAST = 1.96  # z-score of a word that tells a cluster from the others: the bound of a two-sided test at 5 %
_CHARACTERS = 5000  # of a text that are read for its words


def words_of(texts: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Return the distinct words of each text, in lower case and sorted, list<string> [n].

    Words with anything but letters are left out, and so are ASCII words of one or two letters. Only the first
    5,000 characters of a text are read.
    """
    from pipelines.kernels.text.buffers import blocks, text_buffers
    from pipelines.kernels.text.characters import classify
    from pipelines.kernels.text.words import find_words

    found: list[list[str]] = []
    for _, _, offsets, data in blocks(*text_buffers(pc.utf8_slice_codeunits(texts, 0, _CHARACTERS))):
        words, content = find_words(offsets, data, classify(offsets, data)), data.tobytes()
        spans = list(zip(words.starts.tolist(), words.ends.tolist(), strict=True))
        for first, last in zip(words.offsets[:-1].tolist(), words.offsets[1:].tolist(), strict=True):
            # Joined before they are decoded: one call for a document instead of one for a word.
            text = b" ".join([content[start:end] for start, end in spans[first:last]]).decode().lower()
            found.append(sorted({word for word in text.split(" ") if word.isalpha() and _is_long(word)}))
    return pa.array(found, pa.list_(pa.string()))


def _is_long(word: str) -> bool:
    return len(word) > 2 or not word.isascii()


def telling_words(words: pa.Array, clusters: np.ndarray, count: int) -> list[list[str]]:
    """Return up to WORDS characteristic words for each of `count` clusters, the most characteristic first.
    `words` holds the distinct words of each document, list<string> [n], and `clusters` the index of its
    cluster, int64 [n].

    Words are ordered by the z-score of the log-odds ratio of their frequencies inside and outside the
    cluster, with the frequencies in all documents as prior (Monroe, Colaresi and Quinn 2008, "Fightin'
    Words", section 3.3). Words with a z-score below 1.96, or in fewer than 5 documents of the cluster, are
    excluded.
    """
    flat = words.flatten().dictionary_encode()
    lengths = pc.list_value_length(words).to_numpy(zero_copy_only=False)
    codes, owners = flat.indices.to_numpy(), np.repeat(clusters, lengths)
    totals = np.bincount(codes, minlength=len(flat.dictionary))
    common = np.flatnonzero(totals >= LEAST_DOCUMENTS)
    place = np.full(len(totals), -1, np.int64)
    place[common] = np.arange(len(common))
    used = place[codes] >= 0
    table = np.bincount(owners[used] * len(common) + place[codes[used]], minlength=count * len(common))
    counts = table.reshape(count, len(common)).astype(np.float64)
    names, all_counts = flat.dictionary.take(pa.array(common)).to_pylist(), counts.sum(0)
    prior = _PRIOR * all_counts / max(1.0, all_counts.sum())
    ranked = []
    for inside in counts:
        outside = all_counts - inside
        ratio = _log_odds(inside, prior) - _log_odds(outside, prior)
        scores = ratio / np.sqrt(1 / (inside + prior) + 1 / (outside + prior))
        fit = np.flatnonzero((inside >= LEAST_DOCUMENTS) & (scores >= _LEAST))
        order = sorted(fit.tolist(), key=lambda at: (-scores[at], names[at]))
        ranked.append([names[at] for at in order[:WORDS]])
    return ranked


def _log_odds(counts: np.ndarray, prior: np.ndarray) -> np.ndarray:
    """Return the log-odds of each word, with `prior` added to the counts."""
    own = counts + prior
    odds: np.ndarray = np.log(own) - np.log(np.maximum(own.sum() - own, 1e-9))
    return odds


def name_of(words: Sequence[str], number: int, taken: Collection[str]) -> str:
    """Return a name that is not in `taken`: up to three of the words, joined with `_`, or otherwise
    `topic_N`, where N is `number` + 1.
    """
    for skipped in range(max(1, len(words) - _IN_NAME + 1)):
        chosen: list[str] = []
        for word in [*words[: _IN_NAME - 1], *words[_IN_NAME - 1 + skipped :]]:
            if len(chosen) < _IN_NAME and len(quote("_".join([*chosen, word]), safe="")) <= _LONGEST:
                chosen.append(word)
        name = "_".join(chosen)
        if name and name not in taken:
            return name
    return f"topic_{number + 1}"
