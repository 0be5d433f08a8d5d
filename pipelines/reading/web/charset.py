"""The characters of a page: which encoding its bytes are in, and the text they spell.

In this order: a byte order mark, or a first tag in UTF-16, by which XML 1.0, appendix F.1, tells UTF-16 without a mark; the
charset of the HTTP header; the charset that the page's own `<meta>` or XML
declaration names; detection from the bytes. Labels mean what https://encoding.spec.whatwg.org says they mean (`latin1` is
windows-1252, `gb2312` is gb18030). Two rules correct what is declared, because declarations are often wrong:

- Bytes that are valid UTF-8 with at least _CONTINUATION_BYTES continuation bytes are UTF-8, and with fewer where nothing is
  declared. Text of another encoding has that form by accident about as often as noise has it.
- An encoding for which more than _BAD_SHARE of the bytes beyond ASCII have no meaning is passed over for the next one in
  the order. So is windows-1252, which gives every byte a meaning and which servers declare for whatever they send, where fewer
  than _ALONE_SHARE of at least _ENOUGH bytes beyond ASCII stand alone, as letters with accents do.

Detection is resiliparse's, which is right for most encodings (benchmarks/charsets.py) and knows no EUC-KR: it takes that for
UTF-8. Where its answer does not fit, the bytes are Korean if most of what they spell as such are Hangul, and windows-1252 if
enough of them stand alone. KOI8-R is read as KOI8-U, which has Ukrainian letters at the place of eight box-drawing characters.

Where nothing fits, the encoding with the fewest replacements is taken. Bytes without a meaning become U+FFFD. `replaced` counts
these marks; `is_undecodable` says where they are too many.
"""

import codecs
import re
from collections.abc import Iterator
from itertools import chain
from typing import NamedTuple

_CONTINUATION_BYTES = 4
_BAD_SHARE = 0.1
# Of five sentences of nine languages of the Latin alphabet 0.43 and more stand alone, but for one sample. In Cyrillic, Greek,
# Arabic, Hebrew, Thai, Korean, Chinese and Japanese 0.10 and fewer do; in Big5, with second bytes from ASCII, up to 0.35.
_ALONE_SHARE = 0.25
_HANGUL_SHARE = 0.75  # of the characters that a Korean page spells beyond ASCII; the others are punctuation and hanja
_ENOUGH = 64  # bytes beyond ASCII; fewer say little about the language
_PRESCAN_BYTES = 4096  # browsers look for a declaration in the first 1,024 bytes; pages with scripts first need more
_DETECTION_BYTES = 1 << 17
_MARK = "\ufffd"
_SEVEN_BIT = re.compile(rb"[\x1b\0]")  # ISO-2022-JP and UTF-16 spell other characters with bytes of ASCII
_ASCII = bytes(range(128))
_ALONE = re.compile(rb"(?<![\x80-\xff])[\x80-\xff](?![\x80-\xff])")
_HANGUL = re.compile("[\uac00-\ud7a3]")
_BOMS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))
_TAGS = (
    (re.compile(rb"(?:[\t\n\f\r ]\0)*<\0[!-~]\0"), "utf-16-le"),
    (re.compile(rb"(?:\0[\t\n\f\r ])*\0<\0[!-~]"), "utf-16-be"),
)
_META = re.compile(rb"<meta\b[^>]*?charset\s*+=\s*+[\"']?+\s*+([\w.:-]+)", re.IGNORECASE)
_XML = re.compile(rb"\s*<\?xml\b[^>]*?encoding\s*=\s*[\"']([\w.:-]+)", re.IGNORECASE)

# Where Python's codec of that name is narrower than the decoder that the standard prescribes.
_WIDER = {
    "gbk": "gb18030", "big5": "big5hkscs", "shift_jis": "cp932", "euc_kr": "cp949", "iso8859-11": "cp874",
}  # fmt: skip


class Decoded(NamedTuple):
    """A page's text, the Python name of the encoding it was in, and the replacement marks that were put in."""

    text: str
    charset: str
    replaced: int


def decode_page(data: bytes, http_charset: str = "") -> Decoded:
    """The text of a page. `http_charset`: the label in its HTTP header, empty where there is none."""
    for bom, encoding in _BOMS:
        if data.startswith(bom):
            return decode(data[len(bom) :], encoding)
    for tag, encoding in _TAGS:
        if tag.match(data):
            return decode(data, encoding)
    declared = list(_declared(data, http_charset))
    try:
        text = data.decode()
        continuation = len(data) - len(text)
        if continuation >= _CONTINUATION_BYTES or not ((continuation and declared) or _SEVEN_BIT.search(data)):
            return Decoded(text, "utf-8", 0)
    except UnicodeDecodeError:
        pass
    return _best(data, declared)


def codec_of_label(label: str) -> str | None:
    """The Python codec for a label of the standard; None for an unknown one and for those that browsers refuse."""
    from resiliparse.parse.encoding import map_encoding_to_html5

    label = label.strip().lower()
    if label == "x-mac-cyrillic":
        return "mac_cyrillic"
    codec = map_encoding_to_html5(label, False)
    return _WIDER.get(codec, codec) if codec else None


def _declared(data: bytes, http_charset: str) -> Iterator[str]:
    """The codecs that are declared, in order. UTF-16 needs NUL bytes to be believed: declarations of it are read as ASCII."""
    seen = set()
    head = data[:_PRESCAN_BYTES]
    inside = _META.search(head) or _XML.match(head)
    for label in (http_charset, inside[1].decode("ascii") if inside and inside[1].isascii() else ""):
        codec = codec_of_label(label) if label else None
        if codec and codec.startswith("utf-16") and b"\0" not in head:
            codec = "utf-8"
        if codec and codec not in seen:
            seen.add(codec)
            yield codec


def is_undecodable(text: str) -> bool:
    """Whether more than a tenth of the characters of a text, white space aside, are replacement marks."""
    return text.count(_MARK) > _BAD_SHARE * sum(map(len, text.split()))


def _best(data: bytes, declared: list[str]) -> Decoded:
    high = len(data.translate(None, _ASCII))
    latin = len(_ALONE.findall(data)) >= _ALONE_SHARE * high
    best: Decoded | None = None
    for codec in chain(declared, _detected(data, latin)):
        if codec == "cp1252" and not latin and high >= _ENOUGH and best is None and codec in declared:
            continue
        found = decode(data, codec)
        if found.replaced <= _BAD_SHARE * high:
            return found
        if best is None or found.replaced < best.replaced:
            best = found
    return best or decode(data, declared[0])


def _detected(data: bytes, latin: bool) -> Iterator[str]:
    """What the bytes may be in, the likeliest first."""
    from resiliparse.parse.encoding import detect_encoding

    codec = codec_of_label(detect_encoding(data[:_DETECTION_BYTES]) or "") or "cp1252"
    yield "koi8-u" if codec == "koi8-r" else codec
    korean = data.decode("cp949", "replace")
    beyond = len(korean) - len(korean.encode("ascii", "ignore"))
    if len(_HANGUL.findall(korean)) >= _HANGUL_SHARE * beyond:
        yield "cp949"
    if latin:
        yield "cp1252"


def decode(data: bytes, codec: str) -> Decoded:
    """Decode by a Python codec, with bytes that have no meaning replaced."""
    try:
        return Decoded(data.decode(codec), codec, 0)
    except UnicodeDecodeError:
        text = data.decode(codec, "replace")
        return Decoded(text, codec, text.count(_MARK) - data.decode(codec, "ignore").count(_MARK))
