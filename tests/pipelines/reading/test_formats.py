"""Formats give the same records from a plain file, from a compressed file and from an archive; and the
registry of formats.
"""

import bz2
import gzip
import io
import lzma
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable

import pyarrow as pa
import pytest
import zstandard

from pipelines.planning.inventory import Read
from pipelines.reading.sources.registry import FORMATS
from pipelines.reading.sources.source import Source


def arrow() -> bytes:
    sink = io.BytesIO()
    table = pa.table({"text": ["one", "two"]})
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


POSTS = """<posts><row Id="1" PostTypeId="1" Title="one" /><row Id="2" PostTypeId="2" ParentId="1" Body="a" />
<row Id="3" PostTypeId="1" Title="two" Body="&lt;p&gt;b" /></posts>"""
PAGE = "<page><title>{0}</title><ns>0</ns><revision><text>{0}</text></revision></page>"
FILES = {
    "text": ("a.txt", b"one", ["one"]),
    "message": ("a.msg", b"Subject: x\n\none", ["one"]),
    "jsonl": ("a.jsonl", b'{"text": "one"}\n{"text": "two"}\n', ["one", "two"]),
    "json": ("a.json", b'[{"text": "one"}, {"text": "two"}]', ["one", "two"]),
    "csv": ("a.csv", b"n,text\n1,one\n2,two\n", ["one", "two"]),
    "markdown": ("a.md", b"---\ntitle: x\n---\none", ["one"]),
    "mediawiki": ("a.xml", f"<mediawiki>{PAGE.format('one')}{PAGE.format('two')}</mediawiki>".encode(), ["one", "two"]),
    "arrow": ("a.arrow", arrow(), ["one", "two"]),
    "code": ("a.py", b"one", ["one"]),
    "gutenberg": ("a.txt", b"*END*THE SMALL PRINT!*END*\n\none\n\nEnd of Project Gutenberg's A", ["one"]),
    "subtitles": ("a.srt", b"1\n00:00:01,000 --> 00:00:02,000\none\n", ["one"]),
    "stack_exchange": ("Posts.xml", POSTS.encode(), ["Q: one\n\nA: a", "Q: two\n\nb"]),
}


def zipped(name: str, data: bytes) -> bytes:
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(f"in/{name}", data)
    return sink.getvalue()


def tarred(name: str, data: bytes) -> bytes:
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w:gz") as archive:
        member = tarfile.TarInfo(f"in/{name}.xz")
        packed = lzma.compress(data)
        member.size = len(packed)
        archive.addfile(member, io.BytesIO(packed))
    return sink.getvalue()


PACKED: dict[str, Callable[[str, bytes], bytes]] = {
    "": lambda name, data: data,
    ".gz": lambda name, data: gzip.compress(data),
    ".bz2": lambda name, data: bz2.compress(data),
    ".xz": lambda name, data: lzma.compress(data),
    ".zst": lambda name, data: zstandard.compress(data),
    ".zip": zipped,
    ".tar.gz": tarred,
}


@pytest.mark.long
@pytest.mark.parametrize("kind", FILES)
@pytest.mark.parametrize("suffix", PACKED)
def test_formats_under_compression_and_in_archives(read: Callable, kind: str, suffix: str) -> None:
    name, data, texts = FILES[kind]
    found = read(name + suffix, PACKED[suffix](name, data), format=kind)
    assert (found.texts, found.bad) == (texts, [])


@pytest.mark.parametrize("kind", FORMATS)
def test_every_format_has_a_reader_and_names_what_it_depends_on(kind: str) -> None:
    assert FORMATS[kind].load_reader().__name__.startswith("read_")
    depends = Read(Source(name="s", root=".", format=kind)).depends()
    extractor = ("resiliparse", "reservations") if FORMATS[kind].pages else ()
    shared = ("licences",) if FORMATS[kind].shared else ()
    assert set(depends) == {"unicode", *FORMATS[kind].libraries, *extractor, *shared}


def test_a_suffix_belongs_to_one_format() -> None:
    suffixes = [suffix for kind in FORMATS.values() for suffix in kind.suffixes]
    assert len(suffixes) == len(set(suffixes)) > 30


@pytest.mark.long
def test_planning_imports_no_reader() -> None:
    code = "import sys, pipelines.planning.plan; print([m for m in sys.modules if m.startswith('pipelines.reading.formats.')])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True).stdout == "[]\n"
