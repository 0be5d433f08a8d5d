"""The formats that a corpus file may name: built-in ones and those of installed packages. A built-in reader
is imported only when a file of its format is read.
"""

import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from gristmill.config import near_match
from gristmill.errors import ConfigError
from gristmill.libraries.provenance import provenance
from gristmill.plugins import load_installed
from pipelines.reading.sources.record_field import ColumnType

GROUP = "gristmill.formats"


@dataclass(frozen=True)
class Format:
    """How the files of a format are read.

    - `reader`: a function below `pipelines.reading`, as MODULE:NAME, or the function of an installed package.
    - `record`: what a record is, in the words of the corpus file's reference.
    - `libraries`: the distributions that decode the format; the step `read` depends on their versions.
    - `module`: the module of the optional dependency that the format needs, if any.
    - `parser`: the function that extracts the text of raw records in a child process, as MODULE:NAME.
    - `pages`: the raw records are HTML pages, and the source chooses their extractor.
    - `repositories`: each file is a git repository, which is a directory; its members are the files of a commit.
    - `licences`: the licence files of a source are listed even if `include` does not match them.
    - `shared`: a class, as MODULE:NAME, that finds the licences that apply to the entries of a file.
    - `markup`: the text may be HTML, whose structure a source can keep as Markdown.
    - `text_field`: the text is a field of the record, and may be HTML.
    - `lines`: the bytes are divided at line feeds before they are decoded.
    - `joined`: no record is complete before the whole file has been read.
    - `zip_name`, `zip_suffix`: a zip is a file of the format, not an archive, if the name of its first member
      matches the regular expression `zip_name` or its own name ends in `zip_suffix`.
    - `holds_tar`: a tar is a file of the format. If the source sets `members`, a tar is instead an archive of files of
      the format, which may themselves be tars.
    - `suffixes`: the endings of file names, in lower case and without compression suffixes, by which `init`
      recognises the format.
    - `columns`: fields that the reader puts into `meta`, with their types, which `init` proposes as columns.
    - `only_utf8`: the reason, for an error message, why a source must not set an encoding other than UTF-8.
    """

    reader: str | Callable[..., Any]
    record: str
    libraries: tuple[str, ...] = ()
    module: str = ""
    parser: str = ""
    pages: bool = False
    markup: bool = False
    text_field: bool = False
    joined: bool = False
    zip_name: str = ""
    zip_suffix: str = ""
    holds_tar: bool = False
    repositories: bool = False
    licences: bool = False
    shared: str = ""
    lines: bool = False
    suffixes: tuple[str, ...] = ()
    columns: tuple[tuple[str, ColumnType], ...] = ()
    only_utf8: str = ""

    def load_reader(self) -> Callable[..., Any]:
        """Import and return the reader: a function that takes an Entry and a Source and returns an iterator
        with one TextRecord, Bad or RawRecord per record, in order. The iterator may raise BrokenInput.
        """
        if not isinstance(self.reader, str):
            return self.reader
        reader: Callable[..., Any] = pkgutil.resolve_name(f"pipelines.reading.{self.reader}")
        return reader

    def load_shared(self) -> Callable[..., Any]:
        """Import and return `shared`, which takes a Source and returns a function. That function takes a
        SourceFile and the path of an entry, and returns the value for `Entry.shared`. If the format does not
        set `shared`, the value is always None.
        """
        if not self.shared:
            return lambda source: lambda file, path: None
        shared: Callable[..., Any] = pkgutil.resolve_name(f"pipelines.reading.{self.shared}")
        return shared


_CODE = (
    ".c", ".cc", ".cpp", ".cs", ".css", ".go", ".h", ".hpp", ".java", ".js", ".jl", ".kt", ".lua", ".m", ".php", ".pl", ".py",
    ".r", ".rb", ".rs", ".scala", ".sh", ".sql", ".swift", ".ts",
)  # fmt: skip
_OWN_ENCODING = "files of this format say themselves how they are encoded"
FORMATS = {
    "text": Format("formats.plain:read_text", "a file", suffixes=(".txt", ".text", ".rst")),
    "jsonl": Format(
        "formats.json_lines:read_jsonl", "a line", ("orjson",), text_field=True, lines=True,
        suffixes=(".jsonl", ".ndjson"),
    ),
    "parquet": Format("formats.parquet:read_parquet", "a row", ("pyarrow",), text_field=True, suffixes=(".parquet",)),
    "message": Format("formats.plain:read_message", "a file: header lines, an empty line, and the body, which is the text"),
    "arrow": Format(
        "formats.arrow:read_arrow", "a row of an Arrow IPC file or stream", ("pyarrow",), text_field=True,
        suffixes=(".arrow", ".feather"),
    ),
    "csv": Format(
        "formats.csv_rows:read_csv", "a row of a CSV or TSV file whose first row names the fields", text_field=True, lines=True,
        suffixes=(".csv", ".tsv"),
    ),
    "json": Format(
        "formats.json_document:read_json", "an element of an array of objects, or one object", ("orjson",), text_field=True,
        only_utf8="JSON documents are UTF-8 (RFC 8259, section 8.1)",
        suffixes=(".json",),
    ),
    "code": Format(
        "code.source_code:read_code", "a file of a repository, whose language and licence go to `meta`", licences=True,
        shared="code.repository_licences:RepositoryLicences",
        suffixes=_CODE, columns=(("language", "string"), ("licence", "string"), ("generated", "bool"), ("vendored", "bool")),
    ),
    "git": Format(
        "code.source_code:read_code",
        "a file of a commit in a git repository, bare or with a work tree, whose language and licence go to `meta`",
        repositories=True, shared="code.repository_licences:RepositoryLicences",
    ),
    "markdown": Format(
        "formats.markdown:read_markdown", "a file, whose YAML front matter goes to `meta`", ("pyyaml",),
        suffixes=(".md", ".markdown"),
    ),
    "mediawiki": Format(
        "formats.dumps.mediawiki:read_mediawiki", "a page of a MediaWiki XML dump, whose wikitext becomes plain text"
    ),
    "hf_dataset": Format(
        "formats.arrow:read_arrow", "a row of what `save_to_disk` of Hugging Face datasets wrote", ("pyarrow",), text_field=True
    ),
    "warc": Format(
        "web.warc:read_warc",
        "a record of a WARC, WET or ARC file; HTTP responses with HTML, and plain text taken from them, become documents",
        parser="web.extraction:page_text", pages=True, markup=True,
        suffixes=(".warc", ".wet", ".arc"),
    ),
    "html": Format(
        "web.warc:read_html", "a file, which is a page", parser="web.extraction:page_text", pages=True, markup=True,
        suffixes=(".html", ".htm"),
    ),
    "stack_exchange": Format(
        "formats.dumps.stack_exchange:read_stack_exchange",
        "a question with its answers, of Posts.xml in a Stack Exchange data dump", ("resiliparse",),
        parser="rich.threads:thread_text", markup=True, joined=True, only_utf8="dumps are UTF-8",
        suffixes=("posts.xml",), columns=(("score", "int"), ("created", "date"), ("answer_count", "int")),
    ),
    "subtitles": Format(
        "rich.subtitles:read_subtitles", "a SubRip (.srt) or WebVTT (.vtt) file, whose cues are the text",
        suffixes=(".srt", ".vtt"), columns=(("cues", "int"), ("seconds", "float")),
    ),
    "gutenberg": Format(
        "rich.gutenberg:read_gutenberg", "a plain text file of Project Gutenberg, whose book is the text",
        only_utf8="a file that is not UTF-8 is read in the encoding that it declares",
    ),
    "latex": Format(
        "rich.whole_file:read_whole",
        "a LaTeX file, or a tar with the files of a paper, whose main file is the text, with those that it includes",
        parser="rich.latex:latex_text", holds_tar=True, only_utf8="a file that is not UTF-8 is read as Windows-1252",
        suffixes=(".tex",), columns=(("files", "int"),),
    ),
    "pdf": Format(
        "rich.whole_file:read_whole", "a PDF, whose text layer is the text", ("pypdfium2",), module="pypdfium2",
        parser="rich.pdf:pdf_text", only_utf8=_OWN_ENCODING,
        suffixes=(".pdf",), columns=(("pages", "int"), ("created", "date")),
    ),
    "epub": Format(
        "rich.whole_file:read_whole", "an EPUB, whose chapters in reading order are the text", ("resiliparse",),
        parser="rich.epub:epub_text", markup=True, zip_name=r"mimetype", zip_suffix=".epub", only_utf8=_OWN_ENCODING,
        suffixes=(".epub",), columns=(("language", "string"),),
    ),
    "mail": Format(
        "rich.whole_file:read_whole", "a file with a MIME message, such as .eml and those of a Maildir", ("resiliparse",),
        parser="rich.mail_text:mail_text", markup=True, only_utf8=_OWN_ENCODING,
        suffixes=(".eml",), columns=(("date", "date"),),
    ),
    "mbox": Format(
        "rich.mbox:read_mbox", "a message of an mbox file", ("resiliparse",), parser="rich.mail_text:mail_text",
        markup=True, only_utf8=_OWN_ENCODING,
        suffixes=(".mbox",), columns=(("date", "date"), ("list", "string")),
    ),
    "docx": Format(
        "rich.whole_file:read_whole", "a Word document (.docx)", parser="rich.docx:docx_text",
        zip_name=r"\[Content_Types\]\.xml|(_rels|word|docProps|customXml)/.*\.(xml|rels)", zip_suffix=".docx",
        only_utf8=_OWN_ENCODING,
        suffixes=(".docx",), columns=(("created", "date"), ("language", "string")),
    ),
}  # fmt: skip
"""Every built-in format, by its name in a corpus file."""


def format_of(name: str) -> Format:
    """Return a built-in format, or a format of an installed package. An installed format is named
    PACKAGE:FORMAT, after an entry point in the group `gristmill.formats`. Raises ConfigError for an unknown
    name, and for an entry point that is not a function.
    """
    if name in FORMATS:
        return FORMATS[name]
    if ":" not in name:
        near = near_match(name, list(FORMATS))
        raise ConfigError(f"format: got {name!r}, expected one of {', '.join(FORMATS)}{near}")
    return _installed_format(name)


def format_code(name: str) -> dict[str, str]:
    """Return the `provenance` of a format's reader: the versions of its packages and a digest of their code.
    It is empty for built-in formats.
    """
    reader = format_of(name).reader
    return provenance(reader) if callable(reader) else {}


@lru_cache(maxsize=64)
def _installed_format(name: str) -> Format:
    try:
        reader = load_installed(GROUP, name, "format")
    except ConfigError as error:
        raise ConfigError(f"format: got {name!r}: {error}") from None
    if not callable(reader) or isinstance(reader, type):
        raise ConfigError(f"format: got {name!r}: is {reader!r}, expected a function (Entry, Source) -> records")
    return Format(reader, "what its package says", text_field=True)
