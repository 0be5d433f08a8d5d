"""Formats that a corpus file may name, and the reader of each."""

import codecs
from collections.abc import Callable, Iterator

from pipelines.reading.entries.archives import Entry
from pipelines.reading.entries.records import Bad, TextRecord, WebPage
from pipelines.reading.entries.source import BrokenInput, SourceSpec
from pipelines.reading.formats.arrow import read_arrow
from pipelines.reading.formats.csv_rows import read_csv
from pipelines.reading.formats.json_document import read_json
from pipelines.reading.formats.json_lines import read_jsonl
from pipelines.reading.formats.markdown import read_markdown
from pipelines.reading.formats.mediawiki import read_mediawiki
from pipelines.reading.formats.parquet import read_parquet
from pipelines.reading.formats.plain import read_message, read_text
from pipelines.reading.web.warc import read_html, read_warc

FORMATS: dict[str, Callable[[Entry, SourceSpec], Iterator[TextRecord | Bad | WebPage]]] = {
    "text": read_text,
    "jsonl": read_jsonl,
    "parquet": read_parquet,
    "message": read_message,
    "arrow": read_arrow,
    "hf_dataset": read_arrow,
    "csv": read_csv,
    "json": read_json,
    "markdown": read_markdown,
    "mediawiki": read_mediawiki,
    "warc": read_warc,
    "html": read_html,
}
"""Each reader yields a TextRecord, a Bad or a WebPage per record, in order, and lets BrokenInput propagate.
"""

PAGES = ("warc", "html")
"""The formats whose records can be pages."""


def read_records(entry: Entry, source: SourceSpec) -> Iterator[TextRecord | Bad | WebPage]:
    """The records of an entry. If its stream breaks, the records before the break are kept and one Bad
    follows them.
    """
    try:
        yield from FORMATS[source.format](entry, source)
    except BrokenInput as broken:
        yield Bad(broken.reason)


def check_format(source: SourceSpec) -> None:
    """Raise ValueError("field: ...") for a combination of fields with which no file can be read."""
    if source.format not in FORMATS:
        raise ValueError(f"format: got {source.format!r}, expected one of {', '.join(FORMATS)}")
    try:
        newline = "\n".encode(source.encoding)
        "".encode(source.encoding).decode(source.encoding)
    except LookupError:
        raise ValueError(f"encoding: got {source.encoding!r}, which is no text encoding that Python knows") from None
    if source.format in ("jsonl", "csv") and newline != b"\n":
        raise ValueError(
            f"encoding: got {source.encoding!r}, in which a line feed is not one byte; {source.format} is divided into "
            "lines before it is decoded, so convert the files to UTF-8"
        )
    if source.format == "json" and codecs.lookup(source.encoding).name != "utf-8":
        raise ValueError(f"encoding: got {source.encoding!r}; JSON documents are UTF-8 (RFC 8259, section 8.1)")
    if source.format in PAGES:
        if codecs.lookup(source.encoding).name != "utf-8":
            raise ValueError(
                f"encoding: got {source.encoding!r}; in format {source.format} every page has its own encoding, detected "
                "from its declarations and its bytes, so leave `encoding` out"
            )
    elif source.extract != "resiliparse":
        raise ValueError(
            f"extract: got {source.extract!r}; format {source.format} holds no pages to extract text from, only "
            f"{' and '.join(PAGES)} do"
        )
