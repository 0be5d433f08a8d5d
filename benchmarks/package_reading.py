"""Benchmark the reading of EPUBs and Word documents against direct calls of libraries on the same bytes.

    GRISTMILL_DATA=... python -m benchmarks.package_reading [--files 300] [--pairs 5]

Each file holds eight textbook texts, with a paragraph for each line. Word documents are written once with
bare paragraphs, and once with the revision marks and the paragraph and run properties that Word writes. The
peer for EPUB opens the zip, decodes every chapter and takes all of its text with resiliparse. The peer for
Word opens the zip, parses the document with ElementTree and joins the texts of each paragraph. Both peers run
in this process, without limits, lists, tables, notes or metadata. Our reader sends the file to the parser
process, normalises, and writes documents into Arrow. Figures are medians over pairs of consecutive runs;
processor time is that of this process and its children. Each run starts the parser process once, which takes
about as long as reading 15 files.
"""

import argparse
import gzip
import html
import io
import itertools
import json
import os
import statistics
import tempfile
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path
from xml.etree import ElementTree

from benchmarks.extraction import timed
from benchmarks.signals import machine
from pipelines.reading.documents import read_documents
from pipelines.reading.entries.listing import list_files
from pipelines.reading.sources.source import Source

CHAPTERS = 8  # in an EPUB
W = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
CONTAINER = """<container xmlns="urn:oasis:names:tc:opendocument:xmlns:container"><rootfiles>
<rootfile full-path="content.opf" media-type="application/oebps-package+xml"/></rootfiles></container>"""
TYPES = '<Types xmlns="http://schemas.openxmlformats.org/package/2006/content-types"/>'


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=300, help="files of each kind")
    parser.add_argument("--pairs", type=int, default=5, help="pairs of timed runs")
    options = parser.parse_args()
    path = Path(os.environ["GRISTMILL_DATA"]) / "prose/textbooks.jsonl.gz"
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        texts = [json.loads(line)["text"] for line in lines]
    print(machine())
    kinds = (
        ("epub", write_epub, bare_epub, "EPUB"),
        ("docx", write_docx, bare_docx, "bare paragraphs"),
        ("docx", write_word, bare_docx, "as Word writes them"),
    )
    for kind, write, peer, title in kinds:
        with tempfile.TemporaryDirectory() as scratch:
            chosen = itertools.cycle(texts)
            for number in range(options.files):
                write(Path(scratch) / f"{number}.{kind}", [next(chosen) for _ in range(CHAPTERS)])
            compare(kind, title, Path(scratch), peer, options.pairs)


def write_epub(path: Path, texts: list[str]) -> None:
    names = [f"c{number}.xhtml" for number in range(len(texts))]
    items = "".join(f'<item id="{name}" href="{name}" media-type="application/xhtml+xml"/>' for name in names)
    order = "".join(f'<itemref idref="{name}"/>' for name in names)
    package = f'<package xmlns="http://www.idpf.org/2007/opf"><metadata/><manifest>{items}</manifest><spine>{order}</spine></package>'
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("mimetype", "application/epub+zip", zipfile.ZIP_STORED)
        archive.writestr("META-INF/container.xml", CONTAINER)
        archive.writestr("content.opf", package)
        for name, text in zip(names, texts, strict=True):
            body = "".join(f"<p>{html.escape(line)}</p>\n" for line in text.split("\n"))
            head = '<html xmlns="http://www.w3.org/1999/xhtml"><head><title>t</title></head>'
            archive.writestr(name, f"{head}<body>{body}</body></html>")


def write_docx(path: Path, texts: list[str]) -> None:
    lines = "\n".join(texts).split("\n")
    write_body(path, (f'<w:p><w:r><w:t xml:space="preserve">{html.escape(line)}</w:t></w:r></w:p>' for line in lines))


def write_word(path: Path, texts: list[str]) -> None:
    """Write a Word document as Word does, with properties, revision marks and up to two runs per paragraph."""
    fonts = '<w:rFonts w:ascii="Calibri" w:hAnsi="Calibri"/><w:sz w:val="22"/><w:lang w:val="en-US"/>'
    shape = '<w:pPr><w:spacing w:after="160" w:line="259" w:lineRule="auto"/><w:jc w:val="both"/></w:pPr>'

    def paragraph(number: int, line: str) -> str:
        middle, mark = line.rfind(" ", 0, len(line) // 2) + 1, f"{number:08X}"
        runs = "".join(
            f'<w:r w:rsidRPr="{mark}"><w:rPr>{fonts}</w:rPr><w:t xml:space="preserve">{html.escape(text)}</w:t></w:r>'
            for text in (line[:middle], line[middle:])
            if text
        )
        return f'<w:p w:rsidR="{mark}" w:rsidRDefault="{mark}">{shape}{runs}</w:p>'

    write_body(path, itertools.starmap(paragraph, enumerate("\n".join(texts).split("\n"))))


def write_body(path: Path, paragraphs: Iterable[str]) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("[Content_Types].xml", TYPES)
        body = "".join(paragraphs)
        archive.writestr("word/document.xml", f'<w:document xmlns:w="{W[1:-1]}"><w:body>{body}</w:body></w:document>')


def bare_epub(data: bytes) -> str:
    from resiliparse.extract.html2text import extract_plain_text
    from resiliparse.parse.html import HTMLTree

    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        pages = [archive.read(name).decode() for name in archive.namelist() if name.endswith(".xhtml")]
    return "\n\n".join(extract_plain_text(HTMLTree.parse(page), main_content=False) for page in pages)


def bare_docx(data: bytes) -> str:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        root = ElementTree.fromstring(archive.read("word/document.xml"))
    return "\n\n".join("".join(text.text or "" for text in each.iter(f"{W}t")) for each in root.iter(f"{W}p"))


def compare(kind: str, title: str, root: Path, peer: Callable[[bytes], str], pairs: int) -> None:
    source = Source(name="benchmark", root=str(root), format=kind)
    files = list_files(source)

    def reader() -> int:
        return sum(
            len(text)
            for part in read_documents(source, files, source.part_bytes)
            for text in part.documents["text"].to_pylist()
        )

    def bare() -> int:
        return sum(len(peer(Path(file.location).read_bytes())) for file in files)

    ours, theirs = reader(), bare()
    times = [(timed(reader)[1], timed(bare)[1]) for _ in range(pairs)]
    own, other = (statistics.median(pair[side] for pair in times) for side in (0, 1))
    ratio = statistics.median(pair[1] / pair[0] for pair in times)
    print(
        f"{title}: {len(files)} files, {ours / 1e6:.1f} M characters ({theirs / 1e6:.1f} M by the peer); reader "
        f"{ours / own / 1e6:.1f} M/s of processor time, peer {theirs / other / 1e6:.1f} M/s; rate, reader / peer {ratio:.2f}"
    )


if __name__ == "__main__":
    main()
