"""Judge lines by C4's rules, as stated in its paper and as implemented in tfds and datatrove.

The first test that a line fails decides its verdict. In tfds and datatrove, a line that an earlier test has
dropped therefore cannot drop its page. The variants also differ in the tests that they apply, in the marks
that may end a line, and in what counts as a line; `tests/pipelines/kernels/reference_signals.py` states them
in plain Python.

Citation markers ([1], [edit], [citation needed]) are removed before a line is judged. Only the test for long
words, and datatrove's test for few words, still see them.
"""

from typing import NamedTuple

import numpy as np

from gristmill.compilation import kernel
from pipelines.kernels.signals.token_tables import ENDS_SENTENCE, IS_PUNCTUATION, OPENS_CHUNK
from pipelines.kernels.signals.tokens import NO_TOKENS, Tokens, find_tokens
from pipelines.kernels.text.characters import classify
from pipelines.kernels.text.line_variants import BY_BREAKS, BY_FEEDS, StrippedLines
from pipelines.kernels.text.phrases import CURLY, JAVASCRIPT, LOREM, MARKER, POLICY, Hits, find_phrases
from pipelines.kernels.text.segment import Segments, count_sentences
from pipelines.kernels.text.tables import SPACE
from pipelines.kernels.text.words import NO_SPANS, Spans, find_words

VARIANTS = ("paper", "tfds", "datatrove")
_PAPER, _TFDS, _DATATROVE = range(3)
# Verdicts on a line.
NO_LINE, KEPT, NO_END_MARK, FEW_WORDS, LONG_WORD, SAYS_JAVASCRIPT, SAYS_POLICY, DROPS_LOREM, DROPS_CURLY = range(9)
DROPPED = {  # the tests that drop a line
    NO_END_MARK: "terminal_punctuation",
    FEW_WORDS: "few_words",
    LONG_WORD: "long_word",
    SAYS_JAVASCRIPT: "javascript",
    SAYS_POLICY: "policy",
}
CITATION = 9
TESTS = {  # tests that can be disabled, with their bit in `without`
    **{name: test for test, name in DROPPED.items()},
    "lorem_ipsum": DROPS_LOREM,
    "curly_bracket": DROPS_CURLY,
    "citation": CITATION,
}
_LONGEST_WORD = 1000  # c4_utils.py, c4_filters.py
_MOST_WORDS = 5
_LEAST_WORDS = (5, 5, 3)  # "at least 5 words" (paper, tfds); datatrove has 3


class LineVerdicts(NamedTuple):
    """The verdict on each line (row) and the number of sentences in each kept line. The columns are in the
    order of VARIANTS.
    """

    rows: StrippedLines
    verdicts: np.ndarray  # uint8 [rows, 3]
    sentences: np.ndarray  # int64 [rows, 3]


def count_paper_pages(segments: Segments, hits: Hits) -> dict[str, np.ndarray]:
    """Return the counts that the paper's page rules need, keyed by name, int64 [documents] each: the
    sentences in kept lines, the lines with "lorem ipsum" and the lines with an opening curly bracket. The
    last two include dropped lines.
    """
    lines, documents = segments.lines, len(segments.offsets) - 1
    of_document = np.repeat(np.arange(documents, dtype=np.int32), np.diff(lines.offsets))
    rows = StrippedLines(lines.starts, lines.ends, of_document, np.full(len(lines.starts), BY_FEEDS, np.uint8))
    judged = judge(segments.data, segments.classes, segments.words, NO_TOKENS, hits, rows)
    lorem, curly = count_page_lines(segments, hits)
    sentences = _sum_by_document(rows, judged.sentences[:, _PAPER], documents)
    return {"c4_sentences_paper": sentences, "c4_lorem_ipsum_paper": lorem, "c4_curly_paper": curly}


def count_peer_pages(
    data: np.ndarray, classes: np.ndarray, tokens: Tokens, hits: Hits, rows: StrippedLines, documents: int
) -> dict[str, np.ndarray]:
    """Return the counts that the page rules of tfds and datatrove need, keyed by name, int64 [documents]
    each. There are three for each of the two variants: the sentences in kept lines, the lines with "lorem
    ipsum", and the lines with an opening curly bracket. The last two leave out lines that an earlier test has
    dropped.

    `rows` is the first result of `line_variants.find_stripped_lines`.
    """
    rows = rows._replace(kinds=np.full(len(rows.kinds), BY_BREAKS, np.uint8))
    judged = judge(data, classes, NO_SPANS, tokens, hits, rows)
    counts = {}
    for column in (_TFDS, _DATATROVE):
        verdicts, variant = judged.verdicts[:, column], VARIANTS[column]
        counts[f"c4_sentences_{variant}"] = _sum_by_document(rows, judged.sentences[:, column], documents)
        counts[f"c4_lorem_ipsum_{variant}"] = _sum_by_document(rows, verdicts == DROPS_LOREM, documents)
        counts[f"c4_curly_{variant}"] = _sum_by_document(rows, verdicts == DROPS_CURLY, documents)
    return counts


def count_page_lines(segments: Segments, hits: Hits) -> tuple[np.ndarray, np.ndarray]:
    """Count, for each document, the lines with "lorem ipsum" and the lines with an opening curly bracket,
    int64 [documents] each.
    """
    counts = np.zeros((len(segments.offsets) - 1, 2), np.int64)
    _count_page_lines(*segments.lines, hits.places, hits.kinds, counts)
    return counts[:, 0], counts[:, 1]


def _sum_by_document(rows: StrippedLines, values: np.ndarray, documents: int) -> np.ndarray:
    return np.bincount(rows.documents, values, documents).astype(np.int64)


def judge(
    data: np.ndarray,
    classes: np.ndarray,
    words: Spans,
    tokens: Tokens,
    hits: Hits,
    rows: StrippedLines,
    without: int = 0,
) -> LineVerdicts:
    """Return the verdicts on the lines `rows` of a block. Bit k of `without` disables the test with number k
    in TESTS.

    Only rows of the kind BY_FEEDS need `words`, and only rows of the kind BY_BREAKS need `tokens`.
    """
    count = len(rows.starts)
    chunks, phrases = np.zeros(count, np.int32), np.zeros(count, np.uint8)
    judged = LineVerdicts(rows, np.zeros((count, 3), np.uint8), np.zeros((count, 3), np.int64))
    _judge(data, classes, chunks, False, phrases, words, tokens, hits, judged, without)
    which = np.flatnonzero(phrases & MARKER)
    if len(which) and not without >> CITATION & 1:
        marked = StrippedLines(*(column[which] for column in rows))
        _judge_unmarked(data, marked, chunks[which], hits, judged, which, without)
    return judged


def _judge_unmarked(
    block: np.ndarray,
    rows: StrippedLines,
    chunks: np.ndarray,
    hits: Hits,
    judged: LineVerdicts,
    which: np.ndarray,
    without: int,
) -> None:
    """Remove the citation markers from rows, judge the rows again, and write the results to the rows `which`
    of `judged`. `chunks` holds the result of `_count_chunks` for each row before the removal.
    """
    data = np.empty(int((rows.ends - rows.starts).sum()), np.uint8)
    offsets = np.zeros(len(rows.starts) + 1, np.int64)
    _remove_markers(block, *rows[:2], *hits[:3], data, offsets)
    data = data[: offsets[-1]]
    data.flags.writeable = offsets.flags.writeable = False
    classes = classify(offsets, data)
    starts, ends = offsets[:-1].astype(np.int32), offsets[1:].astype(np.int32)
    clean = LineVerdicts(
        rows._replace(starts=starts, ends=ends),
        np.zeros((len(which), 3), np.uint8),
        np.zeros((len(which), 3), np.int64),
    )
    words, tokens = find_words(offsets, data, classes), find_tokens(offsets, data, classes)
    phrases = np.zeros(len(which), np.uint8)
    _judge(data, classes, chunks, True, phrases, words, tokens, find_phrases(offsets, data), clean, without)
    judged.verdicts[which], judged.sentences[which] = clean.verdicts, clean.sentences


def _judge(
    data: np.ndarray, classes: np.ndarray, chunks: np.ndarray, given: bool, phrases: np.ndarray, words: Spans,
    tokens: Tokens, hits: Hits, judged: LineVerdicts, without: int,
) -> None:  # fmt: skip
    # Kernels trim copies: a row ends in white space if a marker was removed there.
    rows = judged.rows
    starts, ends = rows.starts.copy(), rows.ends.copy()
    _verdicts(
        data,
        classes,
        rows.ends,
        starts,
        ends,
        rows.kinds,
        chunks,
        given,
        phrases,
        words.starts,
        *tokens.spans[:2],
        tokens.kinds,
        hits.places,
        hits.kinds,
        judged.verdicts,
        judged.sentences,
        without,
    )
    kept = judged.verdicts[:, :_DATATROVE] == KEPT
    either = np.flatnonzero(kept.any(axis=1))
    if len(either):
        sentences = count_sentences(starts[either], ends[either], data, classes)
        judged.sentences[either, :_DATATROVE] = sentences[:, None] * kept[either]


@kernel()
def _count_page_lines(
    starts: np.ndarray, ends: np.ndarray, offsets: np.ndarray, places: np.ndarray, hit_kinds: np.ndarray,
    out: np.ndarray,
) -> None:  # fmt: skip
    hit = 0
    for d in range(len(offsets) - 1):
        for line in range(offsets[d], offsets[d + 1]):
            phrases = 0
            while hit < len(places) and places[hit] < ends[line]:
                phrases |= hit_kinds[hit]
                hit += 1
            out[d, 0] += phrases & LOREM != 0
            out[d, 1] += phrases & CURLY != 0


@kernel()
def _remove_markers(
    data: np.ndarray, starts: np.ndarray, ends: np.ndarray, places: np.ndarray, marker_ends: np.ndarray,
    hit_kinds: np.ndarray, out: np.ndarray, offsets: np.ndarray,
) -> None:  # fmt: skip
    hit, at = 0, 0
    for row in range(len(starts)):
        i = starts[row]
        while hit < len(places) and places[hit] < i:
            hit += 1
        while i < ends[row]:
            stop = ends[row]
            while hit < len(places) and places[hit] < ends[row] and not hit_kinds[hit] & MARKER:
                hit += 1
            if hit < len(places) and places[hit] < ends[row]:
                stop = places[hit]
            for k in range(i, stop):
                out[at] = data[k]
                at += 1
            i = stop
            if stop < ends[row]:
                i = marker_ends[hit]
                hit += 1
        offsets[row + 1] = at


@kernel()
def _ends_line(data: np.ndarray, start: int, end: int, variant: int) -> bool:
    if end <= start:
        return False
    last = data[end - 1]
    if (last == 33) | (last == 63) | (last == 34):  # ! ? "
        return True
    if variant == _PAPER:
        curly = end - start > 2 and data[end - 3] == 0xE2 and data[end - 2] == 0x80 and last == 0x9D
        return last == 46 or curly
    if last == 46:
        return not (end - start > 2 and data[end - 2] == 46 and data[end - 3] == 46)
    return variant == _DATATROVE and last == 39


@kernel()
def _verdict(variant: int, ends_well: bool, long: bool, words: int, phrases: int, without: int) -> int:
    if long and variant != _PAPER and not without >> LONG_WORD & 1:
        return LONG_WORD
    if not ends_well and not without >> NO_END_MARK & 1:
        return NO_END_MARK
    if words < _LEAST_WORDS[variant] and not without >> FEW_WORDS & 1:
        return FEW_WORDS
    if phrases & LOREM and variant != _PAPER and not without >> DROPS_LOREM & 1:
        return DROPS_LOREM
    if phrases & JAVASCRIPT and not without >> SAYS_JAVASCRIPT & 1:
        return SAYS_JAVASCRIPT
    if phrases & CURLY and variant != _PAPER and not without >> DROPS_CURLY & 1:
        return DROPS_CURLY
    return SAYS_POLICY if phrases & POLICY and not without >> SAYS_POLICY & 1 else KEPT


@kernel()
def _count_chunks(
    data: np.ndarray, starts: np.ndarray, ends: np.ndarray, kinds: np.ndarray, token: int, begin: int, end: int
) -> int:
    """Count the white-space-separated chunks of the row data[begin:end], up to _MOST_WORDS. The count is
    negated if a chunk has more than _LONGEST_WORD characters. `token` is the index of the row's first token.
    """
    count, sign, last = 0, 1, len(starts)
    while token < last and starts[token] < end and (count < _MOST_WORDS or end - begin > _LONGEST_WORD):
        opened = starts[token]
        count += count < _MOST_WORDS
        token += 1
        while token < last and not kinds[token] & OPENS_CHUNK:
            token += 1
        if ends[token - 1] - opened > _LONGEST_WORD:
            chars = 0
            for i in range(opened, ends[token - 1]):
                chars += data[i] & 0xC0 != 0x80
            if chars > _LONGEST_WORD:
                sign = -1
    return count * sign


@kernel()
def _count_sentences(starts: np.ndarray, kinds: np.ndarray, token: int, end: int) -> int:
    sentences, ended = 1, False
    while token < len(starts) and starts[token] < end:
        if kinds[token] & ENDS_SENTENCE:
            ended = True
        elif ended and not kinds[token] & IS_PUNCTUATION:
            sentences, ended = sentences + 1, False
        token += 1
    return sentences


@kernel()
def _verdicts(
    data: np.ndarray, classes: np.ndarray, raw_ends: np.ndarray, starts: np.ndarray, ends: np.ndarray,
    kinds: np.ndarray, original_chunks: np.ndarray, given: bool, phrases: np.ndarray, word_starts: np.ndarray,
    token_starts: np.ndarray, token_ends: np.ndarray, token_kinds: np.ndarray, places: np.ndarray,
    hit_kinds: np.ndarray, verdicts: np.ndarray, sentences: np.ndarray, without: int,
) -> None:  # fmt: skip
    """Fill `verdicts`, `phrases` and datatrove's column of `sentences`, and trim white space from the rows by
    moving `starts` and `ends`.

    `original_chunks` holds the result of `_count_chunks` for each row before its citation markers are
    removed. With `given`, the markers have been removed and the caller has filled `original_chunks`;
    otherwise, this function fills `original_chunks`.
    """
    word, token, hit = 0, 0, 0
    for row in range(len(starts)):
        raw_start, raw_end = starts[row], raw_ends[row]
        while ends[row] > raw_start and classes[ends[row] - 1] & SPACE:
            ends[row] -= 1
        while starts[row] < ends[row] and classes[starts[row]] & SPACE:
            starts[row] += 1
        while hit < len(places) and places[hit] < raw_start:
            hit += 1
        while hit < len(places) and places[hit] < raw_end:
            phrases[row] |= hit_kinds[hit]
            hit += 1
        while word < len(word_starts) and word_starts[word] < raw_start:
            word += 1
        while token < len(token_starts) and token_starts[token] < raw_start:
            token += 1
        chunks = _count_chunks(data, token_starts, token_ends, token_kinds, token, raw_start, raw_end)
        if not given:
            original_chunks[row] = chunks
        long = original_chunks[row] < 0
        if kinds[row] & BY_FEEDS:
            fifth = word + _LEAST_WORDS[_PAPER] - 1
            words = _LEAST_WORDS[_PAPER] if fifth < len(word_starts) and word_starts[fifth] < raw_end else 0
            well = _ends_line(data, starts[row], ends[row], _PAPER)
            verdicts[row, _PAPER] = _verdict(_PAPER, well, long, words, phrases[row], without)
        if kinds[row] & BY_BREAKS:
            well = _ends_line(data, raw_start, raw_end, _TFDS)
            verdicts[row, _TFDS] = _verdict(_TFDS, well, long, abs(chunks), phrases[row], without)
            well = _ends_line(data, raw_start, raw_end, _DATATROVE)
            verdicts[row, _DATATROVE] = _verdict(
                _DATATROVE, well, long, abs(original_chunks[row]), phrases[row], without
            )
        if verdicts[row, _DATATROVE] == KEPT:
            sentences[row, _DATATROVE] = _count_sentences(token_starts, token_kinds, token, raw_end)
