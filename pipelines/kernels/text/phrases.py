"""Find the phrases, opening braces and citation markers of C4's rules in a block of documents. The case of
ASCII letters is ignored in phrases, but not in markers.
"""

from typing import NamedTuple

import numpy as np

from gristmill.compilation import kernel

JAVASCRIPT, LOREM, POLICY, CURLY, MARKER = 1, 2, 4, 8, 16

# (kind, phrase, offset of its anchor); an anchor is the rarest three letters that begin with one of five
# letters.
_PHRASES = (
    (JAVASCRIPT, "javascript", 0),
    (LOREM, "lorem ipsum", 6),
    (POLICY, "terms of use", 3),
    (POLICY, "privacy policy", 3),
    (POLICY, "cookie policy", 1),
    (POLICY, "uses cookies", 6),
    (POLICY, "use of cookies", 8),
    (POLICY, "use cookies", 5),
)
_MARKERS = ("[edit]", "[citation needed]")  # and [, digits, ]
_J, _A, _I, _P, _S, _O, _K, _V, _C, _M, _SPACE, _BRACE, _BRACKET, _BRACKET_END = 106, *b"aipsokvcm {[]"


class Hits(NamedTuple):
    """The phrases, opening braces and citation markers found in a block, in the order of the text."""

    places: np.ndarray  # int32, into the block's bytes; within a phrase, or at a brace or marker
    ends: np.ndarray  # int32, the byte after a marker
    kinds: np.ndarray  # uint8
    offsets: np.ndarray  # int64 [documents + 1]


def _pack_words(words: tuple[str, ...]) -> np.ndarray:
    table = np.zeros((len(words), 1 + max(map(len, words))), np.uint8)
    for row, word in zip(table, words, strict=True):
        row[0] = len(word)
        row[1 : len(word) + 1] = list(word.encode())
    table.flags.writeable = False
    return table


_PHRASE_ROWS = _pack_words(tuple(phrase for _, phrase, _ in _PHRASES))
_PHRASE_FACTS = np.array([(kind, anchor) for kind, _, anchor in _PHRASES], np.int64)
_PHRASE_FACTS.flags.writeable = False
_MARKER_ROWS = _pack_words(_MARKERS)


def find_phrases(offsets: np.ndarray, data: np.ndarray) -> Hits:
    """Find the phrases, opening braces and citation markers in a block of documents."""
    most = len(data) + 1
    places, ends, kinds = np.empty(most, np.int32), np.empty(most, np.int32), np.empty(most, np.uint8)
    counts = np.zeros(len(offsets), np.int64)
    _find(offsets, data, _candidates(data), _PHRASE_ROWS, _PHRASE_FACTS, _MARKER_ROWS, places, ends, kinds, counts)
    count = counts[-1]
    return Hits(places[:count], ends[:count], kinds[:count], counts)


@kernel()
def _candidates(data: np.ndarray) -> np.ndarray:
    """Mark the bytes that may be an opening brace, an opening bracket or an anchor of `_PHRASES`. Return
    uint8 [bytes], with 1 for these bytes and 0 for all others. The loop has no branches, so that LLVM can
    vectorise it.
    """
    out = np.ones(len(data), np.uint8)
    n = max(len(data) - 2, 0)
    first, second, third = data[:n], data[1 : n + 1], data[2 : n + 2]
    for k in range(n):
        a, b, c = first[k] | 0x20, second[k] | 0x20, third[k] | 0x20
        found = (a == _BRACE) | ((a == _J) & (b == _A) & (c == _V)) | ((a == _I) & (b == _P) & (c == _S))
        found |= (a == _O) & (b == _O) & (c == _K)
        found |= ((a == _V) & (b == _A) & (c == _C)) | ((a == _M) & (b == _S) & (c == _SPACE))
        out[k] = found
    return out


@kernel()
def _matches(data: np.ndarray, begin: int, start: int, end: int, row: np.ndarray) -> bool:
    size = np.int64(row[0])
    if start < begin or start + size > end:
        return False
    for k in range(size):
        byte = data[start + k]
        if 65 <= byte <= 90:
            byte |= 0x20
        if byte != row[k + 1]:
            return False
    return True


@kernel()
def _marker_end(data: np.ndarray, begin: int, i: int, end: int, markers: np.ndarray) -> int:
    """Return the end of the citation marker at i, or i if there is none. Case matters."""
    at = i + 1
    while at < end and 48 <= data[at] <= 57:
        at += 1
    if at < end and data[at] == _BRACKET_END:
        return at + 1
    for row in markers:
        size = np.int64(row[0])
        same = i + size <= end
        for k in range(size):
            same = same and data[i + k] == row[k + 1]
        if same:
            return i + size
    return i


@kernel()
def _find(
    offsets: np.ndarray, data: np.ndarray, candidates: np.ndarray, phrases: np.ndarray, facts: np.ndarray,
    markers: np.ndarray, places: np.ndarray, ends: np.ndarray, kinds: np.ndarray, counts: np.ndarray,
) -> None:  # fmt: skip
    hit = 0
    for d in range(len(offsets) - 1):
        begin, end = offsets[d], offsets[d + 1]
        i = begin
        while i < end:
            if not candidates[i]:
                i += 1
                continue
            kind, stop = 0, i + 1
            if data[i] == _BRACE:
                kind = CURLY
            elif data[i] == _BRACKET:
                stop = _marker_end(data, begin, i, end, markers)
                kind = MARKER if stop > i else 0
            else:
                for p in range(len(phrases)):
                    if not kind and _matches(data, begin, i - facts[p, 1], end, phrases[p]):
                        kind = facts[p, 0]
            if kind:
                places[hit], ends[hit], kinds[hit] = i, stop, kind
                hit += 1
            i += 1
        counts[d + 1] = hit
