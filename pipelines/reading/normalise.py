"""Normalisation of text as it is read: line ends, control characters, Unicode form. Idempotent."""

import re
import unicodedata
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

_REMOVED_ASCII = bytes(code for code in (*range(32), 127) if chr(code) not in "\t\n\r")
_REMOVED_C1 = re.compile(rb"\xc2[\x80-\x9f]")  # U+0080 to U+009F in UTF-8; \xc2 is never a continuation byte

# What a byte of UTF-8 may be a sign of. Bytes below 0xcc spell only code points below U+0300, which compose with
# nothing.
_CONTROL, _C1_LEAD, _COMBINING = 1, 2, 4
_CLASSES = bytes(
    _CONTROL if byte in _REMOVED_ASCII + b"\r" else _C1_LEAD if byte == 0xC2 else _COMBINING if byte >= 0xCC else 0
    for byte in range(256)
)


def normalise(text: str, unicode_form: str = "NFC") -> tuple[bytes, int]:
    """UTF-8 of the normalised text, and the number of control characters removed.

    CR LF and CR become LF; then every control character (Unicode category Cc: NUL, escape, DEL, C1 and so on) but tab
    and line feed is removed; then the text is brought to `unicode_form`, "NFC" or "none". Format characters (direction
    marks, joiners of emoji) stay. Raises UnicodeEncodeError for a lone surrogate.
    """
    data = before = text.encode("utf-8")
    if b"\r" in data:
        data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    length = len(data)
    data = data.translate(None, _REMOVED_ASCII)
    removed = length - len(data)
    if text.isascii():
        return data, removed
    if b"\xc2" in data:
        data, further = _REMOVED_C1.subn(b"", data)
        removed += further
    if unicode_form != "none":
        kept = text if data == before else data.decode("utf-8")
        if not unicodedata.is_normalized("NFC", kept):
            data = unicodedata.normalize("NFC", kept).encode("utf-8")
    return data, removed


class Normalised(NamedTuple):
    """Several texts: their normalised UTF-8 end to end, the length of each, and control characters removed in all."""

    data: bytes | memoryview
    lengths: list[int]
    removed: int


def normalise_all(texts: Sequence[str], unicode_form: str = "NFC") -> Normalised:
    """What `normalise` gives for each of at least one text, at once: only texts with a suspicious byte are looked at
    alone.
    """
    _, offset_buffer, data_buffer = pa.array(texts, pa.large_string()).buffers()
    offsets = np.frombuffer(offset_buffer, np.int64)[: len(texts) + 1]
    lengths = np.diff(offsets)
    if not lengths.all():  # reduceat has no empty segments
        return _joined([normalise(text, unicode_form) for text in texts])
    data = memoryview(data_buffer)[: offsets[-1]]
    classes = np.bitwise_or.reduceat(np.frombuffer(bytes(data).translate(_CLASSES), np.uint8), offsets[:-1])
    pieces: list[bytes | memoryview] = []
    removed = copied = 0
    for row in np.flatnonzero(classes).tolist():
        start, end = offsets[row : row + 2].tolist()
        if _is_normal(texts[row], data[start:end], int(classes[row]), unicode_form):
            continue
        piece, count = normalise(texts[row], unicode_form)
        pieces += [data[copied:start], piece]
        copied = end
        lengths[row] = len(piece)
        removed += count
    whole = b"".join([*pieces, data[copied:]]) if pieces else data
    return Normalised(whole, lengths.tolist(), removed)


def _is_normal(text: str, data: memoryview, classes: int, unicode_form: str) -> bool:
    """Whether a text with suspicious bytes of these classes is normalised all the same."""
    if classes & _CONTROL or (classes & _C1_LEAD and _REMOVED_C1.search(data)):
        return False
    return not classes & _COMBINING or unicode_form == "none" or unicodedata.is_normalized("NFC", text)


def _joined(texts: list[tuple[bytes, int]]) -> Normalised:
    data = [text for text, _ in texts]
    return Normalised(b"".join(data), [len(text) for text in data], sum(removed for _, removed in texts))


def cut(data: bytes, limit: int) -> list[bytes]:
    """UTF-8 bytes in pieces of at most `limit` bytes that join to the whole.

    A piece ends after its last line feed; where it has none, at the last code point that fits. A code point longer than
    `limit` is a piece of its own.
    """
    pieces = []
    start = 0
    while len(data) - start > limit:
        end = data.rfind(b"\n", start, start + limit) + 1
        if end <= start:
            end = start + limit
            while end > start and data[end] & 0xC0 == 0x80:
                end -= 1
            if end == start:
                end = next((i for i in range(start + 1, len(data)) if data[i] & 0xC0 != 0x80), len(data))
        pieces.append(data[start:end])
        start = end
    if start < len(data):
        pieces.append(data[start:])
    return pieces
