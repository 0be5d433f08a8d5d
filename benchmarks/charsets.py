"""Benchmark charset detection against two other detectors: the shares of pages decoded correctly, set aside,
and decoded wrongly.

    python -m benchmarks.charsets [--pages 40]        data: $GRISTMILL_DATA/lid, $GRISTMILL_DATA/prose

A page is 1 or 20 sentences of one language in paragraphs, in one encoding. Its HTTP header declares no
charset, UTF-8, or ISO-8859-1. A page is "right" if its text, after normalisation, equals the text that was
encoded. It is "set aside" as `undecodable` if more than a tenth of its characters are replacement marks. All
other pages are "wrong". The other detectors get each page without a declaration. Traditional Chinese pages
are lines of Wikipedia that Big5 can encode and GB 2312 cannot. All other pages are lingua's test sentences.
"""

import argparse
import gzip
import json
import os
import re
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.signals import machine
from pipelines.reading.entries.normalise import normalise
from pipelines.reading.web.charset import decode_page, is_undecodable

LANGUAGES = {
    "ko": ("cp949",), "zh": ("gb18030",), "zh-Hant": ("big5",), "ja": ("cp932", "euc_jp", "iso2022_jp"),
    "ru": ("cp1251", "koi8-r", "iso8859-5", "cp866", "mac_cyrillic", "utf-8"), "uk": ("cp1251", "koi8-u"), "bg": ("cp1251",),
    "el": ("cp1253",), "he": ("cp1255",), "ar": ("cp1256",), "th": ("cp874",), "tr": ("cp1254",), "pl": ("cp1250", "iso8859-2"),
    "cs": ("cp1250",), "hu": ("cp1250",), "lt": ("cp1257",), "de": ("cp1252", "utf-8"), "fr": ("cp1252",), "pt": ("cp1252",),
    "sv": ("cp1252",),
}  # fmt: skip
DECLARED = ("", "utf-8", "iso-8859-1")
_TAG = re.compile(r"<[^<>]*>")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pages", type=int, default=40, help="pages of each language, encoding and length")
    options = parser.parse_args()
    if "GRISTMILL_DATA" not in os.environ:
        raise SystemExit("error: set GRISTMILL_DATA to the folder of shared data")
    root = Path(os.environ["GRISTMILL_DATA"])
    print(machine())
    print("Shares of pages right / set aside / wrong; of the detectors, right. ms: CPU time of a page.")
    for length in (1, 20):
        print(f"\n{length} sentence{'s' * (length > 1)}\n")
        print(
            "| text | undeclared | declared UTF-8 | declared ISO-8859-1 | ms | resiliparse | ms | charset-normalizer | ms |"
        )
        print("|" + "---|" * 9)
        for language, encodings in LANGUAGES.items():
            lines = list(traditional(root) if language == "zh-Hant" else sentences(root, language))
            for encoding in encodings:
                pages = list(pages_of(lines, encoding, length, options.pages))
                if pages:
                    print(row(f"{language} {encoding}", pages, encoding), flush=True)


def sentences(root: Path, language: str) -> Iterator[str]:
    with tarfile.open(root / "lid" / "lingua_testdata.tar.gz") as archive:
        member = archive.extractfile(f"lingua_testdata/{language}.txt")
        assert member is not None
        yield from filter(None, member.read().decode().split("\n"))


def traditional(root: Path) -> Iterator[str]:
    with gzip.open(root / "prose" / "wiki_zh.jsonl.gz", "rt", encoding="utf-8") as source:
        for record in source:
            for line in json.loads(record)["text"].split("\n"):
                if len(line) > 30 and encodable(line[:200], "big5") and not encodable(line[:200], "gb2312"):
                    yield line[:200]


def encodable(text: str, encoding: str) -> bool:
    try:
        return not text.encode(encoding).isascii() or encoding == "iso2022_jp"
    except UnicodeError:
        return False


def pages_of(lines: list[str], encoding: str, length: int, most: int) -> Iterator[bytes]:
    usable = [line for line in lines if encodable(line, encoding)]
    for number in range(min(most, len(usable) // length)):
        body = "\n".join(f"<p>{line}</p>" for line in usable[number * length : (number + 1) * length])
        yield f"<html><head><title>x</title></head><body>\n{body}\n</body></html>".encode(encoding)


def row(name: str, pages: list[bytes], encoding: str) -> str:
    cells = []
    for label in DECLARED:
        right = aside = 0
        begun = time.process_time()
        for page in pages:
            found = decode_page(page, label)
            right += is_right(found.text, page, encoding)
            aside += bool(found.replaced) and is_undecodable(_TAG.sub(" ", found.text))
        spent = time.process_time() - begun
        cells.append(f"{right / len(pages):.2f} / {aside / len(pages):.2f} / {1 - (right + aside) / len(pages):.2f}")
    cells.append(f"{spent / len(pages) * 1000:.1f}")
    for detect in (by_resiliparse, by_charset_normalizer):
        right, begun = 0, time.process_time()
        for page in pages:
            right += is_right(detect(page), page, encoding)
        cells += [f"{right / len(pages):.2f}", f"{(time.process_time() - begun) / len(pages) * 1000:.1f}"]
    return f"| {name} | {' | '.join(cells)} |"


def is_right(text: str, page: bytes, encoding: str) -> bool:
    return normalise(text)[0] == normalise(page.decode(encoding))[0]


def by_resiliparse(page: bytes) -> str:
    from resiliparse.parse.encoding import bytes_to_str, detect_encoding

    return str(bytes_to_str(page, detect_encoding(page)))


def by_charset_normalizer(page: bytes) -> str:
    from charset_normalizer import from_bytes

    return str(from_bytes(page).best() or "")


if __name__ == "__main__":
    main()
