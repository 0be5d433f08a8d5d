"""Normalise text when it is read: unify line ends, remove control characters and, by default, bring the text
to NFC. Normalising a text twice gives the same result as normalising it once. Also masks the user names and
URLs of tweets, and cuts UTF-8 into pieces.
"""

import re
import unicodedata
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from pipelines.contracts.document import TARGET_MARK

_LINE_BREAKS = b"\v\f"
_REMOVED_ASCII = bytes(code for code in (*range(32), 127) if chr(code) not in "\t\n\v\f\r")
_TO_LINE_FEED = bytes.maketrans(_LINE_BREAKS, b"\n\n")
_C1 = re.compile(rb"\xc2[\x80-\x9f]")  # U+0080 to U+009F in UTF-8; \xc2 is never a continuation byte
_NEL = "\x85".encode()
_SEPARATORS = ("\u2028", "\u2029")  # line separator, paragraph separator
_LEADS = (0xC2, 0xE2)  # first bytes of C1 characters and of separators


def _windows_1252() -> dict[bytes, bytes]:
    """Map each C1 character, in UTF-8, to the Windows-1252 character with the same code, or to b"" if there
    is none.
    """
    return {chr(code).encode(): bytes([code]).decode("cp1252", "ignore").encode() for code in range(0x80, 0xA0)}


_C1_REPLACEMENTS = _windows_1252()

TWEETS_VERSION = "1"
USER_NAME, URL = b"@USER", b"HTTPURL"
# A URL ends at white space, without punctuation that ends a sentence or closes a bracket. A user name has ASCII letters, digits
# and underscores, and does not follow a letter, digit or underscore (an e-mail address), "@" or "/" (a path without scheme).
_URL = r"(?<!\w)(?ai:https?://|www\.)\S*[^\s.,;:!?'\")\]}>\u2026\u00bb\u201d\u2019]"
_USER_NAME = r"(?<![\w@/])@[A-Za-z0-9_]+(?![A-Za-z0-9_@])"
_IN_TWEETS = re.compile(f"(?P<url>{_URL})|{_USER_NAME}")

# What a UTF-8 byte may indicate. Bytes below 0xcc encode only code points below U+0300, which compose with
# nothing.
_CONTROL, _LEAD, _COMBINING = 1, 2, 4
_BELOW_COMBINING = bytes((*range(0xCC), 0xE2))  # with the first byte of U+2000 to U+2FFF
_CLASSES = bytes(
    (_CONTROL if byte in _REMOVED_ASCII + _LINE_BREAKS + b"\r" else 0)
    | (_LEAD if byte in _LEADS else 0)
    | (_COMBINING if byte >= 0xCC else 0)
    for byte in range(256)
)


def normalise(text: str, unicode_form: str = "NFC", bordered: bool = False) -> tuple[bytes, int]:
    """Return the UTF-8 of the normalised text, and the number of control characters (Unicode category Cc,
    except tab and the usual line ends) that were removed or replaced.

    - CR LF, CR, vertical tab, form feed, U+2028 and U+2029 become LF.
    - U+0080 to U+009F become the Windows-1252 characters of the same code, as the HTML standard reads
      `&#146;` ("numeric character reference end state"). The five codes that Windows-1252 does not define are
      removed. U+0085, also the line end of mainframe texts, becomes LF if the text has no other line break and
      no other character in this range; otherwise it becomes the ellipsis.
    - All other control characters except tab and LF are removed.
    - The text is brought to NFC, unless `unicode_form` is "none".
    - A `bordered` text keeps U+2029, the mark between the source and the target of a pair.

    Raises UnicodeEncodeError for a lone surrogate.
    """
    data = before = text.encode("utf-8")
    if b"\r" in data:
        data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    plain, controls = data.translate(_TO_LINE_FEED, _REMOVED_ASCII), 0
    if plain != data:
        controls = len(data) - len(plain) + data.count(b"\v") + data.count(b"\f")
        data = plain
    if text.isascii():
        return data, controls
    if b"\xe2\x80" in data:
        for separator in _separators(bordered):
            data = data.replace(separator.encode(), b"\n")
    if b"\xc2" in data:
        data, further = _replace_c1(data)
        controls += further
    if unicode_form != "none" and _may_compose(data):
        kept = text if data == before else data.decode("utf-8")
        if not unicodedata.is_normalized("NFC", kept):
            data = unicodedata.normalize("NFC", kept).encode("utf-8")
    return data, controls


def normalise_tweet(data: bytes) -> tuple[bytes, dict[str, int]]:
    """Replace each user name in a normalised UTF-8 text with `@USER` and each URL with `HTTPURL`, as in
    BERTweet (Nguyen et al., 2020, section 2). Return the new text, and how many `user_names` and `urls` were
    replaced.
    """
    counts = {"user_names": 0, "urls": 0}
    if b"@" not in data and b"://" not in data and b"www." not in data.lower():
        return data, counts

    def replace(match: re.Match[str]) -> str:
        name, placeholder = ("urls", URL) if match["url"] else ("user_names", USER_NAME)
        counts[name] += match[0] != placeholder.decode()
        return placeholder.decode()

    return _IN_TWEETS.sub(replace, data.decode()).encode(), counts


def _separators(bordered: bool) -> tuple[str, ...]:
    return tuple(mark for mark in _SEPARATORS if not (bordered and mark == TARGET_MARK))


def _may_compose(data: bytes) -> bool:
    """Return whether UTF-8 text has characters from U+0300 on, other than the punctuation from U+2002 to
    U+203F. Text without them is in NFC.
    """
    return (
        bool(data.translate(None, _BELOW_COMBINING))
        or data.count(b"\xe2") != data.count(b"\xe2\x80")
        or b"\xe2\x80\x80" in data
        or b"\xe2\x80\x81" in data
    )


def _replace_c1(data: bytes) -> tuple[bytes, int]:
    found = set(_C1.findall(data))
    if found == {_NEL} and b"\n" not in data:
        return data.replace(_NEL, b"\n"), data.count(_NEL)
    return _C1.subn(lambda match: _C1_REPLACEMENTS[match[0]], data) if found else (data, 0)


class Normalised(NamedTuple):
    """Normalised texts. `data` is their concatenation in UTF-8, `lengths` holds the length of each in bytes,
    and `controls` is the total number of control characters that were removed or replaced.
    """

    data: bytes | memoryview
    lengths: list[int]
    controls: int


def normalise_all(texts: Sequence[str], unicode_form: str = "NFC", bordered: bool = False) -> Normalised:
    """Apply `normalise` to each of one or more texts and return the results together."""
    _, offset_buffer, data_buffer = pa.array(texts, pa.large_string()).buffers()
    offsets = np.frombuffer(offset_buffer, np.int64)[: len(texts) + 1]
    lengths = np.diff(offsets)
    if not lengths.all():  # reduceat has no empty segments
        return _join([normalise(text, unicode_form, bordered) for text in texts])
    data = memoryview(data_buffer)[: offsets[-1]]
    classes = np.bitwise_or.reduceat(np.frombuffer(bytes(data).translate(_CLASSES), np.uint8), offsets[:-1])
    pieces: list[bytes | memoryview] = []
    controls = copied = 0
    for row in np.flatnonzero(classes).tolist():
        start, end = offsets[row : row + 2].tolist()
        if _is_normal(texts[row], data[start:end], int(classes[row]), unicode_form, bordered):
            continue
        piece, count = normalise(texts[row], unicode_form, bordered)
        pieces += [data[copied:start], piece]
        copied = end
        lengths[row] = len(piece)
        controls += count
    whole = b"".join([*pieces, data[copied:]]) if pieces else data
    return Normalised(whole, lengths.tolist(), controls)


def _is_normal(text: str, data: memoryview, classes: int, unicode_form: str, bordered: bool) -> bool:
    """Return whether `normalise` would leave a text unchanged. `data` is its UTF-8, and `classes` are the
    flags of the bytes in it that may need a change.
    """
    if classes & _CONTROL:
        return False
    if classes & _LEAD and (_C1.search(data) or any(mark in text for mark in _separators(bordered))):
        return False
    if not classes & _COMBINING or unicode_form == "none" or not _may_compose(bytes(data)):
        return True
    return unicodedata.is_normalized("NFC", text)


def _join(texts: list[tuple[bytes, int]]) -> Normalised:
    data = [text for text, _ in texts]
    return Normalised(b"".join(data), [len(text) for text in data], sum(count for _, count in texts))


def cut(data: bytes, limit: int) -> list[bytes]:
    """Cut UTF-8 bytes into pieces of at most `limit` bytes, or of one code point if that is longer.
    Concatenated, the pieces give `data` again.

    Each piece but the last ends after the last line feed that fits or, if there is none, after the last code
    point that fits.
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
