"""Find the encoding of a page and decode it.

A byte order mark, or a first tag that is written in UTF-16 (XML 1.0, appendix F.1), decides. Otherwise, valid
UTF-8 with at least _CONTINUATION_BYTES continuation bytes is decoded as UTF-8, even if the page declares
another charset: declarations are often wrong, and text in another encoding is hardly ever valid UTF-8 by
chance. Other valid UTF-8 is decoded as UTF-8 if it is all ASCII or no charset is declared, unless it has ESC
or NUL bytes, which suggest ISO-2022-JP or UTF-16.

For all other pages, these candidates are tried in turn:

- the charset of the HTTP header;
- the charset in the page's `<meta>` or XML declaration;
- the encoding that resiliparse detects, with KOI8-U in place of KOI8-R: it has Ukrainian letters instead of eight
  box-drawing characters;
- EUC-KR, which resiliparse mistakes for UTF-8 (benchmarks/charsets.py), if the page then has mostly Hangul apart
  from ASCII;
- windows-1252, if at least _ALONE_SHARE of the non-ASCII bytes are isolated, as accented letters are.

A candidate is accepted if decoding inserts no more U+FFFD than _BAD_SHARE of the non-ASCII bytes. If none is
accepted, the candidate with the fewest U+FFFD is used. If windows-1252 is declared and is the first
candidate, it is skipped if the page has at least _ENOUGH non-ASCII bytes and fewer than _ALONE_SHARE of them
are isolated: nearly every byte is valid in windows-1252, and servers declare it by default.

Labels have the meaning that https://encoding.spec.whatwg.org gives them (`latin1` is windows-1252, `gb2312`
is gb18030). Invalid bytes become U+FFFD; `Decoded.replaced` counts these, and `is_undecodable` says whether a
text has too many.
"""

import codecs
import re
from collections.abc import Iterator
from itertools import chain
from typing import NamedTuple

_CONTINUATION_BYTES = 4
_BAD_SHARE = 0.1
# Share of non-ASCII bytes between ASCII bytes. In five sentences each of nine languages in the Latin alphabet
# it is 0.43 or more, but for one sample; in Cyrillic, Greek, Arabic, Hebrew, Thai, Korean, Chinese and
# Japanese 0.10 or less; in Big5, whose second bytes may be ASCII, up to 0.35.
_ALONE_SHARE = 0.25
_HANGUL_SHARE = 0.75  # of a Korean page's non-ASCII characters; the others are punctuation and hanja
_ENOUGH = 64  # non-ASCII bytes; fewer say little about the language
_PRESCAN_BYTES = 4096  # browsers look for a declaration in the first 1,024 bytes; pages with scripts first need more
_DETECTION_BYTES = 1 << 17
_MARK = "\ufffd"
_SEVEN_BIT = re.compile(rb"[\x1b\0]")  # ISO-2022-JP and UTF-16 encode other characters in ASCII bytes
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

# Python's codecs for these labels decode fewer characters than the decoders of the WHATWG standard, so wider ones are used.
_WIDER = {
    "gbk": "gb18030", "big5": "big5hkscs", "shift_jis": "cp932", "euc_kr": "cp949", "iso8859-11": "cp874",
}  # fmt: skip


class Decoded(NamedTuple):
    """A page's text, the Python name of its encoding, and the number of U+FFFD characters that decoding
    inserted for invalid bytes.
    """

    text: str
    charset: str
    replaced: int


def decode_page(data: bytes, http_charset: str = "") -> Decoded:
    """Decode a page. `http_charset` is the label in its HTTP header, empty if there is none."""
    for bom, encoding in _BOMS:
        if data.startswith(bom):
            return decode(data[len(bom) :], encoding)
    for tag, encoding in _TAGS:
        if tag.match(data):
            return decode(data, encoding)
    try:
        text = data.decode()
        continuation = len(data) - len(text)
        if continuation >= _CONTINUATION_BYTES:
            return Decoded(text, "utf-8", 0)
    except UnicodeDecodeError:
        text, continuation = None, 0
    declared = list(_declared_codecs(data, http_charset))
    if text is not None and not ((continuation and declared) or _SEVEN_BIT.search(data)):
        return Decoded(text, "utf-8", 0)
    return _decode_best(data, declared)


def codec_of_label(label: str) -> str | None:
    """Return the name of the Python codec for a label of the WHATWG encoding standard. Return None for a
    label that is unknown or that browsers refuse.
    """
    from resiliparse.parse.encoding import map_encoding_to_html5

    label = label.strip().lower()
    if label == "x-mac-cyrillic":
        return "mac_cyrillic"
    codec = map_encoding_to_html5(label, False)
    return _WIDER.get(codec, codec) if codec else None


def _declared_codecs(data: bytes, http_charset: str) -> Iterator[str]:
    """Yield the Python codecs of the charsets that the HTTP header and the page declare, without duplicates.
    A declaration of UTF-16 counts as UTF-8 if the first _PRESCAN_BYTES bytes contain no NUL.
    """
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
    """Return whether more than a tenth of a text's characters, not counting white space, are U+FFFD."""
    return text.count(_MARK) > _BAD_SHARE * sum(map(len, text.split()))


def _decode_best(data: bytes, declared: list[str]) -> Decoded:
    high = len(data.translate(None, _ASCII))
    latin = len(_ALONE.findall(data)) >= _ALONE_SHARE * high
    best: Decoded | None = None
    for codec in chain(declared, _likely_codecs(data, latin)):
        if codec == "cp1252" and not latin and high >= _ENOUGH and best is None and codec in declared:
            continue
        candidate = decode(data, codec)
        if candidate.replaced <= _BAD_SHARE * high:
            return candidate
        if best is None or candidate.replaced < best.replaced:
            best = candidate
    return best or decode(data, declared[0])


def _likely_codecs(data: bytes, latin: bool) -> Iterator[str]:
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
    """Decode with the Python codec named `codec`. Invalid bytes are replaced with U+FFFD, and the
    replacements counted.
    """
    try:
        return Decoded(data.decode(codec), codec, 0)
    except UnicodeDecodeError:
        text = data.decode(codec, "replace")
        return Decoded(text, codec, text.count(_MARK) - data.decode(codec, "ignore").count(_MARK))
