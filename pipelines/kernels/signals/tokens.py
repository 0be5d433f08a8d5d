"""Split text into datatrove's word tokens: those of spaCy's blank English tokenizer, except that rules which
hardly matter in ordinary text are left out.

`tests/pipelines/kernels/reference_signals.py` states the rules and documents how closely they agree with
spaCy. Most chunks between white space are plain: a run of letters and numbers, with or without marks around
it. Plain chunks are split here; `token_rules` splits the others.
"""

from typing import NamedTuple

import numpy as np

from gristmill.compilation import kernel
from pipelines.kernels.signals.token_rules import apply_rules
from pipelines.kernels.signals.token_tables import (
    ENDS_SENTENCE,
    FRONT,
    HAS_LETTER,
    IS_PUNCTUATION,
    IS_SYMBOL,
    MARK,
    NEEDS_RULES,
    OPENS_CHUNK,
    PUNCTUATION,
    SYMBOL,
    TERMINAL,
    token_classes,
)
from pipelines.kernels.text.eight_bytes import count_before_first, load_eight
from pipelines.kernels.text.tables import LETTER as CLASS_LETTER
from pipelines.kernels.text.tables import SPACE as CLASS_SPACE
from pipelines.kernels.text.words import NO_SPANS, Spans

_ONES, _ALL = np.uint64(0x0101010101010101), np.uint64(0xFFFFFFFFFFFFFFFF)
_FULL_STOP, _APOSTROPHE = 46, 39


class Tokens(NamedTuple):
    """The tokens of a block of documents: their byte spans and kinds."""

    spans: Spans
    kinds: np.ndarray  # uint8 [tokens], kind bits of token_tables


NO_TOKENS = Tokens(NO_SPANS, np.empty(0, np.uint8))


def find_tokens(offsets: np.ndarray, data: np.ndarray, classes: np.ndarray) -> Tokens:
    """Return the tokens of a block of documents. `classes` is the result of `characters.classify`."""
    most = len(data) + 1
    # np.empty commits pages only as they are written, so room for the worst case costs nothing on ordinary
    # text.
    starts, ends, kinds = np.empty(most, np.int32), np.empty(most, np.int32), np.empty(most, np.uint8)
    counts = np.zeros(len(offsets), np.int64)
    all_plain = _scan(offsets, data, classes, token_classes(), starts, ends, kinds, counts)
    count = counts[-1]
    tokens = Tokens(Spans(starts[:count], ends[:count], counts), kinds[:count])
    return tokens if all_plain else Tokens(*apply_rules(data, classes, *tokens))


@kernel(inline="always")
def _plain_bytes(kinds: np.uint64) -> np.uint64:
    """Return eight bytes, one for each class byte in `kinds`. Their lowest bit is 1 for letters and numbers;
    the other bits have no meaning. Letters and numbers have the class bit WORD (0) but not EXTEND (7); those
    with CLOSE (6) also have LETTER (1).
    """
    return kinds & ~(kinds >> np.uint64(7)) & ~((kinds >> np.uint64(6)) & ~(kinds >> np.uint64(1)))


@kernel(inline="always")
def _mark_kind(bits: int) -> int:
    """Return the kind bits of a token that is a single punctuation mark or symbol, from that character's
    class bits.
    """
    kind = IS_SYMBOL if bits & SYMBOL else 0
    kind |= ENDS_SENTENCE if bits & TERMINAL else 0
    return kind | (IS_PUNCTUATION if bits & PUNCTUATION else 0)


@kernel(inline="always")
def _plain_ending(data: np.ndarray, begin: int, plain: int, end: int, table: np.ndarray) -> tuple[int, int]:
    """Return the start of each of the one or two tokens that follow a chunk's letters and numbers, which end
    at `plain`. If only one token follows, the second start is `end`. Return (-1, -1) if only `token_rules`
    can split the chunk.
    """
    if end - plain > 2:
        return -1, -1
    closing = data[end - 1] | 0x20
    if end - plain == 2 and data[plain] == _APOSTROPHE and ((closing == 115) | (closing == 109) | (closing == 100)):
        return plain, end  # 's 'm 'd
    marks = data[end - 1] < 0x80 and table[data[end - 1]] & MARK != 0
    rest = end - marks
    if rest == plain:
        return plain, end
    last, before = data[rest - 1], data[rest - 2]
    if rest - plain == 1 and last < 0x80:
        if table[last] & MARK:
            return rest - 1, rest
        # Words that keep their full stop have at most 7 letters and begin with a capital or have another full
        # stop; the exceptions are "co." and "vs.".
        loses = 97 <= before <= 122 and (rest - begin > 8 or (97 <= data[begin] <= 122 and rest - begin > 3))
        if last == _FULL_STOP and (loses or (48 <= data[begin] <= 57 and 48 <= before <= 57)):
            return rest - 1, rest
    return -1, -1


@kernel(inline="always")
def _plain_run(data: np.ndarray, classes: np.ndarray, i: int, end: int) -> tuple[int, int, bool]:
    """Return (end of the run of letters and numbers at i, end of the chunk, whether the run has a letter)."""
    begin, plain, letter = i, 0, np.uint64(0)
    while i + 8 <= len(data):
        eight = load_eight(classes, i)
        before_space = min(count_before_first((eight >> np.uint64(2)) & _ONES), end - i)
        if plain == i - begin:
            run = min(before_space, count_before_first(~_plain_bytes(eight) & _ONES))
            plain += run
            letter |= eight & (_ALL >> np.uint64(64 - 8 * run) if run else np.uint64(0))
        i += before_space
        if before_space < 8:
            break
    while len(data) - 8 < i < end and not classes[i] & CLASS_SPACE:
        if plain == i - begin and _plain_bytes(np.uint64(classes[i])) & np.uint64(1):
            plain += 1
            letter |= np.uint64(classes[i])
        i += 1
    return begin + plain, i, letter & (_ONES * np.uint64(CLASS_LETTER)) != 0


@kernel()
def _scan(
    offsets: np.ndarray, data: np.ndarray, classes: np.ndarray, table: np.ndarray, starts: np.ndarray, ends: np.ndarray,
    kinds: np.ndarray, counts: np.ndarray,
) -> bool:  # fmt: skip
    """Write the tokens of all documents to `starts`, `ends` and `kinds`, and the number of tokens up to the
    end of each document to `counts`. A plain chunk is split completely. Any other chunk is split into the
    ASCII marks at its front and a single token for the rest, which is marked NEEDS_RULES. Return whether all
    chunks are plain.
    """
    token, all_plain = 0, True
    for d in range(len(offsets) - 1):
        i, end = offsets[d], offsets[d + 1]
        while i < end:
            if classes[i] & CLASS_SPACE:
                i += 1
                continue
            first = token
            while i < end and data[i] < 0x80 and table[data[i]] & FRONT:
                starts[token], ends[token], kinds[token] = i, i + 1, _mark_kind(table[data[i]])
                token += 1
                i += 1
            begin = i
            plain, i, letter = _plain_run(data, classes, begin, end)
            if begin < i:
                back, last = i, i
                if plain < i:
                    back, last = _plain_ending(data, begin, plain, i, table)
                if plain == begin or back < 0 or (not letter and data[begin] >= 0x80):
                    back, last, all_plain = i, i, False
                    kinds[token] = NEEDS_RULES
                else:
                    kinds[token] = HAS_LETTER if letter else 0
                starts[token], ends[token] = begin, back
                token += 1
                if back < last:
                    starts[token], ends[token] = back, last
                    kinds[token] = _mark_kind(table[data[back]]) if last - back == 1 else HAS_LETTER
                    token += 1
                if last < i:
                    starts[token], ends[token], kinds[token] = last, i, _mark_kind(table[data[last]])
                    token += 1
            kinds[first] |= OPENS_CHUNK
        counts[d + 1] = token
    return all_plain
