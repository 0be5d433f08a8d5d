"""The formats that a corpus file may name. No reader is imported before a file of its format is read."""

import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal


@dataclass(frozen=True)
class Format:
    """How the files of a format are read.

    `reader` is a function below `pipelines.reading`, as MODULE:NAME. `record` says what a record is, in the reference of
    the corpus file. `libraries` are the distributions that decode the format: the step `read` depends on their versions.
    `module`: the optional module that they need. `parser` is the function that extracts the text of raw records in a child
    process, as MODULE:NAME; `pages`: these are HTML pages, and the source chooses their extractor. `joined`: no record is known
    before the whole file is read. `lines`: the bytes are divided at line feeds before they are
    decoded. `only_utf8` gives the reason why no other encoding is possible.
    """

    reader: str
    record: str
    libraries: tuple[str, ...] = ()
    module: str = ""
    parser: str = ""
    pages: bool = False
    joined: bool = False
    lines: bool = False
    only_utf8: str = ""

    def load_reader(self) -> Callable[..., Any]:
        """Import the reader: (Entry, Source) -> a TextRecord, Bad or RawRecord per record, in order.

        It raises BrokenInput if the bytes end early.
        """
        reader: Callable[..., Any] = pkgutil.resolve_name(f"pipelines.reading.{self.reader}")
        return reader


FORMATS = {
    "text": Format("formats.plain:read_text", "a file"),
    "jsonl": Format("formats.json_lines:read_jsonl", "a line", ("orjson",), lines=True),
    "parquet": Format("formats.parquet:read_parquet", "a row", ("pyarrow",)),
    "message": Format("formats.plain:read_message", "a file: header lines, an empty line, and the body, which is the text"),
    "arrow": Format("formats.arrow:read_arrow", "a row of an Arrow IPC file or stream", ("pyarrow",)),
    "csv": Format("formats.csv_rows:read_csv", "a row of a CSV or TSV file whose first row names the fields", lines=True),
    "json": Format(
        "formats.json_document:read_json", "an element of an array of objects, or one object", ("orjson",),
        only_utf8="JSON documents are UTF-8 (RFC 8259, section 8.1)",
    ),
    "markdown": Format("formats.markdown:read_markdown", "a file, whose YAML front matter goes to `meta`", ("pyyaml",)),
    "mediawiki": Format(
        "formats.mediawiki:read_mediawiki", "a page of a MediaWiki XML dump, whose wikitext becomes plain text"
    ),
    "hf_dataset": Format(
        "formats.arrow:read_arrow", "a row of what `save_to_disk` of Hugging Face datasets wrote", ("pyarrow",)
    ),
    "warc": Format(
        "web.warc:read_warc",
        "a record of a WARC, WET or ARC file; HTTP responses with HTML, and plain text taken from them, become documents",
        parser="web.extraction:page_text", pages=True,
    ),
    "html": Format(
        "web.warc:read_html", "a file, which is a page", parser="web.extraction:page_text", pages=True,
    ),
    "stack_exchange": Format(
        "formats.stack_exchange:read_stack_exchange",
        "a question with its answers, of Posts.xml in a Stack Exchange data dump", ("resiliparse",),
        parser="rich.threads:thread_text", joined=True, only_utf8="dumps are UTF-8",
    ),
}  # fmt: skip
"""Every format, by its name in a corpus file."""

if TYPE_CHECKING:
    FormatName = str
else:  # type checkers do not support a computed Literal; the parser of configurations does
    FormatName = Literal[tuple(FORMATS)]
