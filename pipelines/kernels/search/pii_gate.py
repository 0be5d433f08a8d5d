"""Scan bytes for hits, the few positions where personal data is possible, and for chains of digits, such as
phone numbers. Only the text around them is examined closely (pipelines/stages/pii/windows.py).
"""

from collections.abc import Callable
from functools import cache
from typing import Literal, NamedTuple

import numpy as np
import regex

from gristmill.compilation import kernel

Kind = Literal["at", "quad", "colons", "iban", "wallet", "hardware", "fiscal", "userinfo", "secret", "private", "value"]

# Punctuation that phonenumbers allows between the digits of a number; it also allows x and X.
PHONE_PUNCTUATION = (
    "-\u2010\u2011\u2012\u2013\u2014\u2015\u2212\u30fc\uff0d\uff0e\uff0f \xa0\xad\u200b\u2060\u3000"
    "()\uff08\uff09\uff3b\uff3d.[]/~\u2053\u223c\uff5e"
)
PHONE_GAP = 4  # punctuation characters that phonenumbers allows between two digits
CODE_GAP = 1  # letters or separators between two digits in Presidio's patterns of identity numbers

_DIGIT, _PUNCTUATION, _HEX, _CAPITAL, _ALNUM, _LOCAL, _HOST, _LINK = 1, 2, 4, 8, 16, 32, 64, 128
_CODE_POINTS = 0x20000  # all decimal digits and phone punctuation are below
_CAPITALS, _SMALL, _DECIMALS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ", "abcdefghijklmnopqrstuvwxyz", "0123456789"
_AT, _DOT, _COLON, _HYPHEN, _SPACE, _ZERO, _ONE, _THREE, _NINE, _SLASH, _LOW, _EQUALS, _MORE, _TAB = b"@.:- 0139/_=>\t"
_NOT_IN_USERINFO = tuple(b"/?#\"'<>{}|\\^`")
_IN_VALUE, _QUOTES, _VALUE_LENGTH = tuple(b"+/=_.~-"), tuple(b"\"'`"), 16
_PRIVATE_KEY = np.frombuffer(b"PRIVATE KEY", np.uint8)


@cache
def _classes() -> np.ndarray:
    """Return the class bits of the code points below 0x20000, uint8 [0x20000]. Entries 128 to 255 also serve
    for the bytes of non-ASCII characters.
    """
    table: np.ndarray = np.zeros(_CODE_POINTS, np.uint8)
    every = "".join(map(chr, (*range(0xD800), *range(0xE000, _CODE_POINTS))))
    # Presidio matches with `regex`, phonenumbers with `re`; their Unicode versions differ.
    digits = {*regex.findall(r"\d", every), *(character for character in every if character.isdecimal())}
    for bit, characters in (
        (_DIGIT, digits),
        (_PUNCTUATION, PHONE_PUNCTUATION + "xX"),
        (_HEX, _DECIMALS + "abcdefABCDEF"),
        (_CAPITAL, _CAPITALS),
        (_ALNUM, _DECIMALS + _SMALL + _CAPITALS),
        (_LOCAL, "!#$%&'*+-/=?^_`{|}~" + _DECIMALS + _SMALL + _CAPITALS),
        (_HOST, "_" + _DECIMALS + _SMALL + _CAPITALS),
        # Long s and the Kelvin sign equal s and k if case is ignored.
        (_LINK, {*regex.findall(r"\s", every), *"-+:_\u017f\u212a", *_SMALL, *_CAPITALS}),
    ):
        for character in characters:
            table[ord(character)] |= bit
    table[128:256] |= _LOCAL | _HOST  # all kernels but _find_chains look up single bytes, of non-ASCII characters too
    table.flags.writeable = False
    return table


def find_hits(kind: Kind, offsets: np.ndarray, data: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the hits in text order: the index of each hit's document and its byte offset within it, both
    int64.

    `offsets` int64 [n + 1] and `data` uint8 are the buffers of a large_string array of UTF-8. The byte of a
    hit depends on its kind:

    - `at`: an @ with a character of an address on both sides.
    - `quad`: the third or a later dot, with one to three digits between the dots and a digit before the first.
    - `colons`: the first of two adjacent colons, or the sixth or a later colon, with groups of one to four
      hexadecimal digits between the colons.
    - `iban`: the second check digit after two capitals, if eight capitals or digits follow. The six bytes
      after it may include spaces and hyphens.
    - `wallet`: the 26th letter or digit of a run, counted from its first 1 or 3.
    - `hardware`: the fifth or a later separator after pairs of hexadecimal digits, or the second or a later
      dot after groups of four.
    - `fiscal`: in a run of letters, digits and non-ASCII characters, the first character at which the run is
      at least 16 characters long and has 9 or more ASCII characters; then every 16th character after it.
    - `userinfo`: the colon of ://, if a character precedes it and USER:PASSWORD@ follows.
    - `secret`: in a run of [A-Za-z0-9_.-], the first character at which the run is at least 20 characters
      long and has 10 or more letters or digits.
    - `private`: the P of PRIVATE KEY.
    - `value`: a colon or equals sign that is followed by 16 or more characters of [A-Za-z0-9+/=_.~-], among
      them both letters and digits. `>`, up to four blanks and a quotation mark may come before these characters.
    """
    positions = _collect(_KERNELS[kind], offsets, data)
    rows = np.asarray(np.searchsorted(offsets, positions, side="right") - 1)
    return rows, positions - offsets[rows]


class Chains(NamedTuple):
    """Chains of digits in text order, int64 [chains] each: the index of the document, the start and end as
    byte offsets within it, and the number of digits.
    """

    rows: np.ndarray
    starts: np.ndarray
    ends: np.ndarray
    digits: np.ndarray


def find_chains(offsets: np.ndarray, data: np.ndarray, least: int, codes: bool = False) -> Chains:
    """Find every maximal chain of at least `least` digits in which at most PHONE_GAP characters, all of them
    PHONE_PUNCTUATION, x or X, separate neighbouring digits. With `codes`, the gaps are those of identity
    numbers instead: nothing, a letter, a white-space character, or one of -+:_.
    """
    link, gap = (_LINK, CODE_GAP) if codes else (_PUNCTUATION, PHONE_GAP)
    starts, ends, digits = _collect(_find_chains, offsets, data, least, link, gap).reshape(-1, 3).T
    rows = np.asarray(np.searchsorted(offsets, starts, side="right") - 1)
    return Chains(rows, starts - offsets[rows], ends - offsets[rows], digits)


def _collect(kernel: Callable[..., int], offsets: np.ndarray, data: np.ndarray, *more: int) -> np.ndarray:
    """Return all numbers that a kernel finds, int64. A kernel returns how many there are, but writes only as
    many as its output array has room for. It is therefore run again with a larger array if there are more.
    """
    out: np.ndarray = np.empty(3 * max(1024, len(data) // 512), np.int64)
    while (count := kernel(offsets, data, _classes(), out, *more)) > len(out):
        out = np.empty(count, np.int64)
    return out[:count]


@kernel(nogil=True)
def _find_chains(
    offsets: np.ndarray, data: np.ndarray, classes: np.ndarray, out: np.ndarray, least: int, link: int, widest: int
) -> int:
    """Write the start, end and number of digits of each chain for which `out` has room. Return three times
    the number of all chains.
    """
    count = 0
    for row in range(len(offsets) - 1):
        at, end = offsets[row], offsets[row + 1]
        digits, gap, start, stop = 0, 0, at, at  # gap: characters since the last digit of the chain
        while at <= end:
            first = at
            code = np.int64(data[at]) if at < end else 0  # a NUL after the last character ends its chain
            at += 1
            if code >= 0xC0:
                more = 1 if code < 0xE0 else 2 if code < 0xF0 else 3
                code &= 0x3F >> more
                for _ in range(more):
                    code = code << 6 | np.int64(data[at] & 0x3F)
                    at += 1
            kind = classes[code] if code < _CODE_POINTS else 0
            if kind & _DIGIT:
                if digits == 0:
                    start = first
                digits += 1
                gap = 0
                stop = at
                continue
            gap += 1
            if digits and (gap > widest or not kind & link):
                if digits >= least:
                    if count + 2 < len(out):
                        out[count], out[count + 1], out[count + 2] = start, stop, digits
                    count += 3
                digits = 0
    return count


@kernel(nogil=True)
def _find_ats(offsets: np.ndarray, data: np.ndarray, classes: np.ndarray, out: np.ndarray) -> int:
    count = 0
    for row in range(len(offsets) - 1):
        for at in range(offsets[row] + 1, offsets[row + 1] - 1):
            if data[at] == _AT and classes[data[at - 1]] & _LOCAL and classes[data[at + 1]] & _HOST:
                if count < len(out):
                    out[count] = at
                count += 1
    return count


@kernel(nogil=True)
def _find_quads(offsets: np.ndarray, data: np.ndarray, classes: np.ndarray, out: np.ndarray) -> int:
    count = 0
    for row in range(len(offsets) - 1):
        start = offsets[row]
        for at in range(start, offsets[row + 1]):
            if data[at] != _DOT:
                continue
            back, dots = at, 1
            while dots < 3:
                digits = 0
                while back > start and _ZERO <= data[back - 1] <= _NINE:
                    back -= 1
                    digits += 1
                if not 0 < digits <= 3 or back == start or data[back - 1] != _DOT:
                    break
                back -= 1
                dots += 1
            if dots == 3 and back > start and _ZERO <= data[back - 1] <= _NINE:
                if count < len(out):
                    out[count] = at
                count += 1
    return count


@kernel(nogil=True)
def _find_colons(offsets: np.ndarray, data: np.ndarray, classes: np.ndarray, out: np.ndarray) -> int:
    count = 0
    for row in range(len(offsets) - 1):
        start, end = offsets[row], offsets[row + 1]
        for at in range(start, end):
            if data[at] != _COLON:
                continue
            back, colons = at, 1
            while colons < 6:
                digits = 0
                while back > start and digits < 5 and classes[data[back - 1]] & _HEX:
                    back -= 1
                    digits += 1
                if not 0 < digits <= 4 or back == start or data[back - 1] != _COLON:
                    break
                back -= 1
                colons += 1
            if colons == 6 or (at + 1 < end and data[at + 1] == _COLON):
                if count < len(out):
                    out[count] = at
                count += 1
    return count


@kernel(nogil=True)
def _find_ibans(offsets: np.ndarray, data: np.ndarray, classes: np.ndarray, out: np.ndarray) -> int:
    count = 0
    for row in range(len(offsets) - 1):
        end = offsets[row + 1]
        for at in range(offsets[row] + 3, end - 8):
            if not (_ZERO <= data[at] <= _NINE and _ZERO <= data[at - 1] <= _NINE):
                continue
            if not (classes[data[at - 2]] & _CAPITAL and classes[data[at - 3]] & _CAPITAL):
                continue
            next_, seen = at + 1, 0
            while seen < 8 and next_ < end:
                byte = data[next_]
                if classes[byte] & _CAPITAL or _ZERO <= byte <= _NINE:
                    seen += 1
                elif byte not in (_SPACE, _HYPHEN) or next_ - at > 6:
                    break
                next_ += 1
            if seen == 8:
                if count < len(out):
                    out[count] = at
                count += 1
    return count


@kernel(nogil=True)
def _find_wallets(offsets: np.ndarray, data: np.ndarray, classes: np.ndarray, out: np.ndarray) -> int:
    count = 0
    for row in range(len(offsets) - 1):
        run = 0  # letters and digits since the first 1 or 3 of the run
        for at in range(offsets[row], offsets[row + 1]):
            byte = data[at]
            if not classes[byte] & _ALNUM:
                run = 0
            elif run or byte in (_ONE, _THREE):
                run += 1
                if run == 26:
                    if count < len(out):
                        out[count] = at
                    count += 1
    return count


@kernel(nogil=True)
def _find_hardware(offsets: np.ndarray, data: np.ndarray, classes: np.ndarray, out: np.ndarray) -> int:
    count = 0
    for row in range(len(offsets) - 1):
        digits = 0  # length of the run of hexadecimal digits that ends here
        pairs, fours = 0, 0  # separators so far after groups of two, and of four
        for at in range(offsets[row], offsets[row + 1]):
            byte = data[at]
            if classes[byte] & _HEX:
                digits += 1
                continue
            paired = byte in (_COLON, _HYPHEN)
            pairs = (pairs + 1 if digits == 2 or pairs == 0 else 1) if paired and digits >= 2 else 0
            fours = (fours + 1 if digits == 4 or fours == 0 else 1) if byte == _DOT and digits >= 4 else 0
            if pairs >= 5 or fours >= 2:
                if count < len(out):
                    out[count] = at
                count += 1
            digits = 0
    return count


@kernel(nogil=True)
def _find_fiscals(offsets: np.ndarray, data: np.ndarray, classes: np.ndarray, out: np.ndarray) -> int:
    count = 0
    for row in range(len(offsets) - 1):
        run, ascii_ = 0, 0  # characters since the last hit of the run; ASCII letters and digits in the run
        for at in range(offsets[row], offsets[row + 1]):
            byte = data[at]
            if byte < 0x80 and not classes[byte] & _ALNUM:
                run, ascii_ = 0, 0
                continue
            run += byte < 0x80 or byte >= 0xC0
            ascii_ += byte < 0x80
            if run >= 16 and ascii_ >= 9 and (byte < 0x80 or byte >= 0xC0):
                if count < len(out):
                    out[count] = at
                count += 1
                run = 0
    return count


@kernel(nogil=True)
def _find_userinfos(offsets: np.ndarray, data: np.ndarray, classes: np.ndarray, out: np.ndarray) -> int:
    count = 0
    for row in range(len(offsets) - 1):
        end = offsets[row + 1]
        for at in range(offsets[row] + 1, end - 4):
            if data[at] != _COLON or data[at + 1] != _SLASH or data[at + 2] != _SLASH:
                continue
            i, colons = at + 3, 0
            while i < end and data[i] > _SPACE and data[i] != _AT and data[i] not in _NOT_IN_USERINFO:
                colons += data[i] == _COLON
                i += 1
            if colons and i < end and data[i] == _AT:
                if count < len(out):
                    out[count] = at
                count += 1
    return count


@kernel(nogil=True)
def _find_secrets(offsets: np.ndarray, data: np.ndarray, classes: np.ndarray, out: np.ndarray) -> int:
    count = 0
    for row in range(len(offsets) - 1):
        run, alnum = 0, 0
        for at in range(offsets[row], offsets[row + 1]):
            byte = data[at]
            if byte < 0x80 and classes[byte] & _ALNUM:
                alnum += 1
            elif byte not in (_HYPHEN, _LOW, _DOT):
                run, alnum = 0, 0
                continue
            run += 1
            if run >= 20 and alnum >= 10:
                if count < len(out):
                    out[count] = at
                count += 1
                run = -(1 << 62)  # one hit per run
    return count


@kernel(nogil=True)
def _find_private_keys(offsets: np.ndarray, data: np.ndarray, classes: np.ndarray, out: np.ndarray) -> int:
    count = 0
    for row in range(len(offsets) - 1):
        for at in range(offsets[row], offsets[row + 1] - len(_PRIVATE_KEY) + 1):
            same = 0
            while same < len(_PRIVATE_KEY) and data[at + same] == _PRIVATE_KEY[same]:
                same += 1
            if same == len(_PRIVATE_KEY):
                if count < len(out):
                    out[count] = at
                count += 1
    return count


@kernel(nogil=True)
def _find_values(offsets: np.ndarray, data: np.ndarray, classes: np.ndarray, out: np.ndarray) -> int:
    count = 0
    for row in range(len(offsets) - 1):
        end = offsets[row + 1]
        for at in range(offsets[row], end - _VALUE_LENGTH):
            if data[at] != _EQUALS and data[at] != _COLON:
                continue
            i, blanks = at + 1 + (data[at + 1] == _MORE), 0
            while i < end and blanks < 4 and (data[i] == _SPACE or data[i] == _TAB):
                i += 1
                blanks += 1
            i += i < end and data[i] in _QUOTES
            first, digits, letters = i, 0, 0
            while i < end and data[i] < 0x80 and (classes[data[i]] & _ALNUM or data[i] in _IN_VALUE):
                digit = _ZERO <= data[i] <= _NINE
                digits += digit
                letters += not digit and classes[data[i]] & _ALNUM != 0
                i += 1
            if i - first >= _VALUE_LENGTH and digits and letters:
                if count < len(out):
                    out[count] = at
                count += 1
    return count


_KERNELS: dict[str, Callable[..., int]] = {
    "at": _find_ats,
    "quad": _find_quads,
    "colons": _find_colons,
    "iban": _find_ibans,
    "wallet": _find_wallets,
    "hardware": _find_hardware,
    "fiscal": _find_fiscals,
    "userinfo": _find_userinfos,
    "secret": _find_secrets,
    "private": _find_private_keys,
    "value": _find_values,
}
