"""Split chunks that are not plain (see `tokens`) into datatrove's word tokens.

Tokens are split off the front of a chunk, then off its back. What remains is divided further, unless it looks
like a web address.
"""

import numpy as np

from gristmill.compilation import kernel
from pipelines.kernels.signals.token_tables import (
    CURRENCY,
    DIGIT,
    ENDS_SENTENCE,
    FRONT,
    HAS_LETTER,
    IS_PUNCTUATION,
    IS_SYMBOL,
    LETTER,
    LOWER,
    MARK,
    NEEDS_RULES,
    NUMBER,
    OPENS_CHUNK,
    PICTURE,
    PUNCTUATION,
    QUOTE,
    SYMBOL,
    TERMINAL,
    UPPER,
    WITH_STOP,
    token_classes,
)
from pipelines.kernels.text.characters import character_size, code_point
from pipelines.kernels.text.tables import LETTER as CLASS_LETTER
from pipelines.kernels.text.words import Spans

_FULL_STOP, _PLUS, _PERCENT, _COMMA, _HYPHEN, _APOSTROPHE, _CARET, _STAR, _SLASH = 46, 43, 37, 44, 45, 39, 94, 42, 47
_COLON, _QUESTION, _HASH, _AT, _UNDERSCORE, _TILDE = 58, 63, 35, 64, 95, 126
_EN_DASH, _EM_DASH, _ELLIPSIS, _SQUARED = 0x2013, 0x2014, 0x2026, 0xB2
_PACKED_WITH_STOP = np.array(sorted(int.from_bytes(word.encode(), "little") for word in WITH_STOP.split()), np.uint64)
_PACKED_WITH_STOP.flags.writeable = False


def apply_rules(data: np.ndarray, classes: np.ndarray, spans: Spans, kinds: np.ndarray) -> tuple[Spans, np.ndarray]:
    """Split every chunk of a block that needs rules, and return (spans, kinds) of all tokens of the block."""
    most = len(data) + 1
    starts, ends, out = np.empty(most, np.int32), np.empty(most, np.int32), np.empty(most, np.uint8)
    counts = np.zeros(len(spans.offsets), np.int64)
    _apply(data, classes, token_classes(), _PACKED_WITH_STOP, *spans, kinds, starts, ends, out, counts)
    count = counts[-1]
    return Spans(starts[:count], ends[:count], counts), out[:count]


@kernel()
def _point(data: np.ndarray, i: int, end: int) -> int:
    """Return the code point at i, or -1 if i is at or after `end`."""
    if i >= end:
        return -1
    lead = np.int64(data[i])
    if lead < 0x80:
        return lead
    return code_point(data, i, character_size(data, i, end))


@kernel()
def _previous_character(data: np.ndarray, begin: int, i: int) -> int:
    """Return the position of the character before i; -1 at the beginning."""
    if i <= begin:
        return -1
    i -= 1
    while i > begin and data[i] & 0xC0 == 0x80:
        i -= 1
    return i


@kernel()
def _count_dots(data: np.ndarray, i: int, end: int) -> int:
    count = 0
    while i + count < end and data[i + count] == _FULL_STOP:
        count += 1
    return count


@kernel()
def _front_token(data: np.ndarray, begin: int, end: int, table: np.ndarray) -> int:
    """Return the length in bytes of the token to split off the front of a chunk, or 0 if there is none."""
    dots = _count_dots(data, begin, end)
    if dots > 1:
        return dots
    if data[begin] == _PLUS:
        return not (begin + 1 < end and table[data[begin + 1]] & DIGIT)
    return character_size(data, begin, end) if table[_point(data, begin, end)] & FRONT else 0


@kernel()
def _keeps_full_stop(data: np.ndarray, begin: int, end: int, with_stop: np.ndarray) -> bool:
    if end - begin > 8:
        return False
    packed = np.uint64(0)
    for k in range(end - begin):
        packed |= np.uint64(data[begin + k]) << np.uint64(8 * k)
    low, high = 0, len(with_stop)
    while low < high:
        middle = (low + high) // 2
        if with_stop[middle] < packed:
            low = middle + 1
        else:
            high = middle
    return low < len(with_stop) and with_stop[low] == packed


@kernel()
def _clitic(data: np.ndarray, begin: int, end: int) -> int:
    """Return the length in bytes of the clitic (n't, 're, 've, 'll, 's, 'm or 'd) at the end of a chunk, or 0
    if there is none or nothing precedes it. Case is ignored, and the apostrophe may be ' or U+2019.
    """
    last = data[end - 1] | 0x20
    before = data[end - 2] | 0x20 if end - 2 >= begin else 0
    letters = 0
    if (last == 115) | (last == 109) | (last == 100):  # s m d
        letters = 1
    elif (last == 101 and (before == 114 or before == 118)) or (last == 108 and before == 108):  # re ve ll
        letters = 2
    elif last == 116:  # t, after n and the apostrophe
        letters = 1
    if letters == 0:
        return 0
    at = end - letters - 1
    if at >= begin and data[at] == _APOSTROPHE:
        size = letters + 1
    elif at - 2 >= begin and data[at] == 0x99 and data[at - 1] == 0x80 and data[at - 2] == 0xE2:
        size = letters + 3
    else:
        return 0
    if last == 116:
        size += 1
        if end - size < begin or data[end - size] | 0x20 != 110:
            return 0
    return size if end - begin > size else 0


@kernel()
def _back_token(data: np.ndarray, begin: int, end: int, table: np.ndarray, with_stop: np.ndarray) -> int:
    """Return the length in bytes of the token to split off the end of a chunk, or 0 if there is none."""
    at = _previous_character(data, begin, end)
    last = _point(data, at, end)
    second = _previous_character(data, begin, at)
    before = _point(data, second, at) if second >= 0 else -1
    kind, kind_before = np.int64(table[last]), np.int64(table[before]) if second >= 0 else 0
    if last == _FULL_STOP:
        if before == _FULL_STOP:
            count = 2
            while end - count > begin and data[end - count - 1] == _FULL_STOP:
                count += 1
            return count
        if second < 0 or _keeps_full_stop(data, begin, end, with_stop):
            return 0
        if kind_before & (DIGIT | LOWER | MARK):
            return 1
        if (before == _PERCENT) | (before == _SQUARED) | (before == _HYPHEN) | (before == _PLUS):
            return 1
        third = _previous_character(data, begin, second)
        return kind_before & UPPER and third >= 0 and table[_point(data, third, second)] & UPPER != 0
    if kind & (MARK | PICTURE) or 0x2013 <= last <= 0x2014:  # – —
        return end - at
    if kind_before & DIGIT and ((last == _PLUS) | (last == _PERCENT) | (kind & CURRENCY != 0)):
        return end - at
    return _clitic(data, begin, end)


@kernel()
def _host_end(data: np.ndarray, i: int, end: int, table: np.ndarray) -> int:
    while i < end:
        point = _point(data, i, end)
        named = (point == _HYPHEN) | (point == _UNDERSCORE) | (point == _FULL_STOP) | (point == _PLUS)
        if not named and not table[point] & (LETTER | NUMBER):
            return i
        i += character_size(data, i, end)
    return end


@kernel()
def _is_address(data: np.ndarray, begin: int, end: int, table: np.ndarray) -> bool:
    """Return whether a chunk is [letters://][user@]host, followed by nothing or by one of `:/?#` and any
    text. The host must end in a dot and two or more letters, none of them a capital. What precedes the first
    `://` must be letters only, so `a.com/?u=http://b.com` is no address.
    """
    dot = begin
    while dot < end and data[dot] != _FULL_STOP:
        dot += 1
    if dot == end:
        return False
    start = begin
    i, letters = begin, True
    while i + 2 < end:
        if data[i] == _COLON and data[i + 1] == _SLASH and data[i + 2] == _SLASH:
            if not letters:
                return False
            start = i + 3
            break
        letters = letters and table[_point(data, i, end)] & LETTER != 0
        i += character_size(data, i, end)
    stop = _host_end(data, start, end, table)
    if stop < end and data[stop] == _AT:
        start = stop + 1
        stop = _host_end(data, start, end, table)
    if stop < end:
        after = data[stop]
        if not ((after == _COLON) | (after == _SLASH) | (after == _QUESTION) | (after == _HASH)):
            return False
    dot = stop - 1
    while dot > start and data[dot] != _FULL_STOP:
        dot -= 1
    if dot <= start:
        return False
    i, letters_after = dot + 1, 0
    while i < stop:
        if not table[_point(data, i, stop)] & LOWER:
            return False
        i += character_size(data, i, stop)
        letters_after += 1
    return letters_after > 1


@kernel()
def _inner_token(data: np.ndarray, begin: int, i: int, end: int, table: np.ndarray) -> int:
    """Return the length in bytes of a token at i that splits the text around it; 0 if there is none."""
    point = _point(data, i, end)
    kind = np.int64(table[point])
    if kind & (LETTER | DIGIT):
        return 0
    dots = _count_dots(data, i, end)
    if dots > 1:
        return dots
    size = character_size(data, i, end)
    if kind & PICTURE or point == _ELLIPSIS:
        return size
    before = np.int64(table[_point(data, _previous_character(data, begin, i), i)])
    if (point == _HYPHEN) | (point == _EN_DASH) | (point == _EM_DASH) | (point == _TILDE):
        most = 3 if point == _HYPHEN else (2 if point == _EM_DASH else 1)
        length = 1
        while length < most and _point(data, i + length * size, end) == point:
            length += 1
        after = _point(data, i + length * size, end)
        if after >= 0 and table[after] & LETTER and before & (LETTER | DIGIT):
            return length * size
    after = _point(data, i + size, end)
    if after < 0:
        return 0
    kind_after = np.int64(table[after])
    if (point == _PLUS) | (point == _HYPHEN) | (point == _STAR) | (point == _CARET):
        return size if before & DIGIT and (kind_after & DIGIT or after == _HYPHEN) else 0
    if point == _FULL_STOP:
        return size if before & (LOWER | QUOTE) and kind_after & (UPPER | QUOTE) else 0
    if point == _COMMA:
        return size if before & LETTER and kind_after & LETTER else 0
    if (point == _COLON) | (point == _SLASH) | (60 <= point <= 62):  # : / < = >
        return size if before & (LETTER | DIGIT) and kind_after & LETTER else 0
    return 0


@kernel()
def _kind(data: np.ndarray, begin: int, end: int, table: np.ndarray) -> int:
    """Return the kind bits of the token data[begin:end]: HAS_LETTER alone if it has a letter."""
    every, i, characters = 0xFFFF, begin, 0
    while i < end:
        kind = np.int64(table[_point(data, i, end)])
        if kind & LETTER:
            return HAS_LETTER
        every &= kind
        i += character_size(data, i, end)
        characters += 1
    bits = IS_SYMBOL if every & SYMBOL else 0
    bits |= ENDS_SENTENCE if every & TERMINAL and characters == 1 else 0
    return bits | (IS_PUNCTUATION if every & PUNCTUATION else 0)


@kernel()
def _split_chunk(
    data: np.ndarray, classes: np.ndarray, begin: int, end: int, table: np.ndarray, with_stop: np.ndarray, token: int,
    starts: np.ndarray, ends: np.ndarray, kinds: np.ndarray,
) -> int:  # fmt: skip
    """Write the tokens of a chunk from index `token` on, and return the index after the last. Tokens split
    off the back wait at the end of the arrays until the others are written.
    """
    first, last = token, len(starts)
    while begin < end:
        taken = _front_token(data, begin, end, table)
        if not taken:
            break
        starts[token], ends[token] = begin, begin + taken
        token += 1
        begin += taken
    while begin < end:
        taken = _back_token(data, begin, end, table, with_stop)
        if not taken:
            break
        last -= 1
        starts[last], ends[last] = end - taken, end
        end -= taken
    if begin < end and not _is_address(data, begin, end, table):
        middle, i = begin, begin + character_size(data, begin, end)
        while i < end:
            if classes[i] & CLASS_LETTER:  # set for every byte of a letter
                i += 1
                continue
            taken = _inner_token(data, middle, i, end, table)
            if not taken:
                i += character_size(data, i, end)
                continue
            if begin < i:
                starts[token], ends[token] = begin, i
                token += 1
            starts[token], ends[token] = i, i + taken
            token += 1
            i += taken
            begin = i
    if begin < end:
        starts[token], ends[token] = begin, end
        token += 1
    for waiting in range(last, len(starts)):
        starts[token], ends[token] = starts[waiting], ends[waiting]
        token += 1
    for k in range(first, token):
        kinds[k] = _kind(data, starts[k], ends[k], table)
    return token


@kernel()
def _apply(
    data: np.ndarray, classes: np.ndarray, table: np.ndarray, with_stop: np.ndarray, old_starts: np.ndarray,
    old_ends: np.ndarray, old_counts: np.ndarray, old_kinds: np.ndarray, starts: np.ndarray, ends: np.ndarray,
    kinds: np.ndarray, counts: np.ndarray,
) -> None:  # fmt: skip
    token = 0
    for d in range(len(old_counts) - 1):
        for old in range(old_counts[d], old_counts[d + 1]):
            begin, end, kind = old_starts[old], old_ends[old], old_kinds[old]
            if not kind & NEEDS_RULES:
                starts[token], ends[token], kinds[token] = begin, end, kind
                token += 1
                continue
            first = token
            token = _split_chunk(
                data, classes, np.int64(begin), np.int64(end), table, with_stop, token, starts, ends, kinds
            )
            kinds[first] |= kind & OPENS_CHUNK
        counts[d + 1] = token
