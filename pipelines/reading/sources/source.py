"""A source in a corpus file: where to find files of text and how to read them. The fields of `Source` are
documented in docs/corpus_file.md, which is generated from the class.
"""

import codecs
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from gristmill.config import ADDED
from gristmill.errors import ConfigError
from gristmill.storage.paths import is_url
from gristmill.storage.remote import Remote, check_url, has_query, holds_credentials, shown
from pipelines.contracts.given_split import FieldSplit, IdSplit, WholeSplit
from pipelines.reading.git.git_refs import check_revision
from pipelines.reading.sources.globs import compile_glob
from pipelines.reading.sources.record_field import ColumnType, RecordField, check_columns
from pipelines.reading.sources.record_text import RecordText
from pipelines.reading.sources.registry import FORMATS, format_of

# No dot: it separates the fields of `sources.NAME.root=...`, a step from its source, and the units of stages from parts.
SOURCE_NAME = r"[A-Za-z][A-Za-z0-9_-]*"
_REMOTE = Remote()


@dataclass(frozen=True)
class Source:
    """Where one kind of text comes from and how it is read."""

    name: str
    """Letters, digits, `_` and `-`, a letter first, such as `CC-MAIN-2024-10`; part of every document id.
    Dots are not allowed, because a dot would end the name in `sources.NAME.root=...`. Two names may not
    differ in case alone, because both become names of directories."""
    root: str
    """Directory that holds the documents, or a single file, relative to the working directory. Or a URL, such
    as `s3://bucket/prefix`; gs and hf work like s3. http and https work for a single file, or with a list of
    `files`. The query of such a URL may be a signature, so it is neither shown nor stored. The root is not
    part of any id.
    """
    format: str
    """How a file is divided into records: one of the formats below, or PACKAGE:FORMAT, one of an installed package
    (docs/own_stages.md)."""
    remote: Remote = _REMOTE
    """Which URLs may be opened, and how."""
    identity: Literal["content", "listing"] = "content"
    """content: files are identified by checksums. listing: remote files that are too large to fetch before
    reading are identified by the size and the ETag, hash or time that the store lists.
    """
    include: tuple[str, ...] = ("**",)
    """Globs relative to root; `**` crosses directories. Each must match at least one file."""
    exclude: tuple[str, ...] = ()
    """Globs relative to root of files to leave out."""
    files: str | None = field(default=None, metadata=ADDED)
    """File or URL with a list of the files to read: one path per line, relative to root. The list may be compressed. The root
    itself is then not listed. `root: https://data.commoncrawl.org` and
    `files: https://data.commoncrawl.org/crawl-data/CC-MAIN-2024-10/wet.paths.gz`
    read a crawl. Without `include`, every line is read; `include` and `exclude` choose among them."""
    members: tuple[str, ...] = ()
    """Globs over the names of the members of tar, zip and wheel archives and of the files in git repositories; empty means all.
    Members are streamed, never extracted."""
    revision: str = field(default="HEAD", metadata=ADDED)
    """With `format: git`: the branch, tag or full commit id that is read of every repository. The commit, not its name, decides
    whether the source is read again."""
    encoding: str = "utf-8"
    """Encoding of the bytes. Decoding is strict: a record that cannot be decoded is quarantined."""
    text_field: str = "text"
    """Field, or column, of a record that holds the text."""
    text: RecordText | None = field(default=None, metadata=ADDED)
    """Instead of `text_field`: several fields, nested ones too, or the turns of a conversation as the text:
    `{fields: [title, post.body]}`, `{turns: messages, template: "{role}: {content}"}`; or a text and its translation:
    `{fields: [en], target: de}`."""
    url_field: str = "url"
    """Field of a record that holds its URL; records may lack it. All other fields are kept in `meta`."""
    columns: Mapping[str, ColumnType | RecordField] | None = field(default=None, hash=False, metadata=ADDED)
    """Fields of the records to read as columns, with their types: `{score: int, created: date, licence: string}`, or, for a
    field with another name or inside an object, as in `record_fields`: `{stars: {field: stats.stars, type: int}}`. Rules, orders
    of preference and groups use the columns. A missing field is null; a record with a value of another type is set aside."""
    unicode_form: Literal["NFC", "none"] = "NFC"
    """Unicode normalisation of the stored text. Regardless of this field, line ends, form feeds and vertical
    tabs become line feeds, U+0080 to U+009F become the characters of the same code in Windows-1252, as in
    HTML, and other control characters except tab are removed."""
    normalisation: Literal["none", "tweets"] = field(default="none", metadata=ADDED)
    """tweets: user names become `@USER`, and URLs `HTTPURL`, as in BERTweet (Nguyen et al. 2020, section 2). A URL begins with
    `http://`, `https://` or `www.`; e-mail addresses stay (`pii` replaces them). The manifest counts both as `replaced`."""
    max_document_bytes: int = 64 << 20
    """A longer document is quarantined or split, as `oversized` says."""
    oversized: Literal["quarantine", "split"] = "quarantine"
    """What happens to a document over `max_document_bytes`; `split` cuts it, at line ends where possible."""
    extract: Literal["resiliparse", "trafilatura", "best"] = "resiliparse"
    """The library that extracts the main text of HTML. resiliparse is tens of times faster; trafilatura is an
    extra that must be installed. best: the lines of both, chosen one by one; trafilatura runs where resiliparse leaves doubt."""
    text_is: Literal["text", "html", "html_page"] = field(default="text", metadata=ADDED)
    """What the text of a record is, in a format of records such as jsonl or parquet. text: text. html: a piece of HTML, such as
    the body of a post, all of which is text. html_page: a page, whose main text is extracted as `extract` says."""
    markup: Literal["text", "markdown"] = field(default="text", metadata=ADDED)
    """What becomes of the structure of HTML. text: only line breaks, and the marks of lists, are kept. markdown: headings, lists,
    tables, code and formulas are kept as Markdown, without links; trafilatura also keeps emphasis."""
    page_fields: bool = field(default=False, metadata=ADDED)
    """Record what a page declares of itself in `meta`: `page_title`, `page_date` (when it was published), `page_author`,
    `page_language`."""
    page_measures: bool = field(default=False, metadata=ADDED)
    """Record in `meta` what share of a page's text is within links (`page_link_density`), and what share is not in the
    extracted text (`page_boilerplate`)."""
    comments: bool = field(default=False, metadata=ADDED)
    """Whether readers' comments are part of the main text of a page, where the extractor recognises them."""
    max_html_bytes: int = 16 << 20
    """A longer page is quarantined as `html_bytes`; so are a longer question with its answers, and an EPUB or Word document with
    a longer member. (Common Crawl cuts pages at 5 MiB.)"""
    max_html_nodes: int = 1_000_000
    """A page with more elements is quarantined, as `html_nodes`."""
    max_html_depth: int = 4096
    """A page whose elements nest deeper is quarantined, as `html_depth`. Chromium flattens beyond 512; the time that
    resiliparse takes grows with the square, and 4,096 levels take 0.3 s."""
    page_cpu_seconds: int = 60
    """CPU time for one page or document, in seconds. Reading stops at a page that takes more, and names it. Wall-clock
    time has no influence."""
    page_memory_bytes: int = 2 << 30
    """Memory for parsing one page or document; reading stops at a page that takes more, and names it."""
    max_file_bytes: int = field(default=256 << 20, metadata=ADDED)
    """A longer PDF, EPUB, LaTeX file, Word document or mail message is quarantined, as `file_bytes`; the others are held in
    memory."""
    max_decoded_bytes: int = 64 << 30
    """Bytes that one file may decompress to; the rest of a larger file is quarantined. Regardless of this
    field, a file may not decompress to more than 1 GiB and more than 1,000 times its size."""
    part_bytes: int = 128 << 20
    """About how many bytes of text, URLs and `meta` a part holds at most; a larger document is a part by itself. This bounds the
    memory of every later task."""
    max_quarantined: float = 0.5
    """Share of records that may be set aside. A larger share among the first 1,000 records stops `plan` and
    `build`, and a larger share of all records stops the build after reading. Records that are never documents
    are not counted, such as a crawler's requests, responses that are not HTML, redirects and links
    (STRUCTURAL in pipelines/reading/entries/reasons.py).
    """
    allow_empty: bool = False
    """Continue if no record of the source becomes a document, which otherwise stops the build."""
    sample: float = field(default=1.0, metadata=ADDED)
    """Share of the records to read, above 0 to 1, chosen by hash of their ids; pages and documents outside it are not parsed.
    `build --sample` sets it, and the report then estimates the whole. To keep a sample of a corpus that is read as a whole,
    use the stage `sample`."""
    tokenizer_share: float = 1.0
    """Weight of this source, relative to the others, in the text that tokenizers are trained on."""
    split: WholeSplit | FieldSplit | IdSplit | None = field(default=None, metadata=ADDED)
    """The published split of the source: `train`, `validation` or `test` for all of it, or one of the forms below. Documents of a
    source without it are split by hash (`shards`)."""
    licence: str = "unknown"
    """Licence of the texts, for the corpus card."""
    origin: str = ""
    """Where the texts come from, for the corpus card; published unchanged."""

    def check(self) -> None:
        """Raise ValueError if a field is invalid. The message begins with the name of the field."""
        if not re.fullmatch(SOURCE_NAME, self.name):
            raise ValueError(f"name: got {self.name!r}, expected letters, digits, - and _, a letter first")
        most = ("max_document_bytes", "part_bytes", "max_html_bytes", "max_file_bytes")
        for name in (*most, "max_decoded_bytes", "page_memory_bytes"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: got {getattr(self, name)}, expected a positive number of bytes")
        for name in ("max_html_nodes", "max_html_depth", "page_cpu_seconds"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: got {getattr(self, name)}, expected at least 1")
        for name in most:
            if getattr(self, name) > 1 << 30:  # URLs and meta have 32-bit offsets, and tasks hold whole parts in memory
                raise ValueError(f"{name}: got {getattr(self, name)}, expected at most 1 GiB")
        if not 0 <= self.max_quarantined <= 1:
            raise ValueError(f"max_quarantined: got {self.max_quarantined}, expected 0 to 1")
        if not 0 < self.sample <= 1:
            raise ValueError(f"sample: got {self.sample}, expected a share above 0, at most 1")
        if self.tokenizer_share < 0:
            raise ValueError(f"tokenizer_share: got {self.tokenizer_share}, expected 0 or more")
        if not self.include:
            raise ValueError("include: got an empty list, expected at least one glob; leave it out to take every file")
        for name in ("include", "exclude", "members"):
            for pattern in getattr(self, name):
                try:
                    compile_glob(pattern)
                except ValueError as error:
                    raise ValueError(f"{name}: {error}") from None
        check_url("root", self.root)
        if self.files is not None:
            check_url("files", self.files)
            for place in (self.root, self.files):
                if has_query(place):
                    raise ValueError(
                        f"files: got {shown(place)!r}, expected URLs without a query for the list and for `root`"
                    )
        if holds_credentials(self.origin):
            raise ValueError("origin: holds a password, key or signature, and would be published with the corpus")
        if self.identity == "listing" and not is_url(self.root):
            raise ValueError("identity: got 'listing', which is for files behind a URL; leave it out for local ones")
        texts = (self.text_field,) if self.text is None else self.text.names()
        for name in (*texts, self.url_field):
            if getattr(self.split, "field", None) == name:
                raise ValueError(
                    f"split: field: got {name!r}, the text or the URL of a record; name one of its other fields"
                )
        if self.columns is not None:
            check_columns(self.columns)
        for name, each in self.typed_fields():
            if each.field in (*texts, self.url_field):
                raise ValueError(
                    f"columns.{name}: got {each.field!r}, the text or the URL of a record; name one of its other fields"
                )
        check_format(self)

    def typed_fields(self) -> list[tuple[str, RecordField]]:
        """Return (column name, RecordField) for each entry of `columns`, even if it gives only a type."""
        columns = self.columns or {}
        return [(n, each if isinstance(each, RecordField) else RecordField(n, each)) for n, each in columns.items()]


def check_format(source: Source) -> None:
    """Raise ValueError("field: ...") if the source's format is unknown, or if other fields do not fit the
    format.
    """
    try:
        kind = format_of(source.format)
    except ConfigError as error:
        raise ValueError(str(error)) from None
    try:
        newline = "\n".encode(source.encoding)
        "".encode(source.encoding).decode(source.encoding)
    except LookupError:
        raise ValueError(f"encoding: got {source.encoding!r}, expected a text encoding that Python knows") from None
    if kind.lines and newline != b"\n":
        raise ValueError(
            f"encoding: got {source.encoding!r}, in which a line feed is not one byte; {source.format} is divided into "
            "lines before it is decoded, so convert the files to UTF-8"
        )
    is_utf8 = codecs.lookup(source.encoding).name == "utf-8"
    if kind.only_utf8 and not is_utf8:
        raise ValueError(f"encoding: got {source.encoding!r}; {kind.only_utf8}")
    if kind.pages and not is_utf8:
        raise ValueError(
            f"encoding: got {source.encoding!r}; in format {source.format} every page has its own encoding, detected "
            "from its declarations and its bytes, so leave `encoding` out"
        )
    if kind.repositories:
        if is_url(source.root):
            raise ValueError(
                f"root: got a URL, {shown(source.root)!r}; format {source.format} reads repositories on a disk: fetch it with "
                "`git clone --mirror`"
            )
        try:
            check_revision(source.revision)
        except ValueError as error:
            raise ValueError(f"revision: got {source.revision!r}, {error}") from None
    elif source.revision != "HEAD":
        raise ValueError(f"revision: got {source.revision!r}; only format git reads repositories, not {source.format}")
    check_html(source)


def check_html(source: Source) -> None:
    """Raise ValueError("field: ...") if the source's fields about text and HTML do not fit its format or each
    other.
    """
    kind = format_of(source.format)
    if source.text is not None:
        check_text(source)
    if source.text_is != "text" and not kind.text_field:
        names = ", ".join(name for name, each in FORMATS.items() if each.text_field)
        raise ValueError(
            f"text_is: got {source.text_is!r}; records of format {source.format} have no field with the text, only "
            f"those of {names} do"
        )
    if source.text_is != "text" and source.oversized == "split":
        raise ValueError(f"oversized: got 'split' with text_is: {source.text_is}, but HTML cannot be cut anywhere")
    pages = kind.pages or source.text_is == "html_page"
    holders = " and ".join(name for name, each in FORMATS.items() if each.pages)
    if source.extract != "resiliparse" and not pages:
        raise ValueError(
            f"extract: got {source.extract!r}; format {source.format} holds no pages to extract text from, only {holders} do, "
            "and records with `text_is: html_page`"
        )
    for name in ("page_fields", "page_measures", "comments"):
        if getattr(source, name) and not pages:
            raise ValueError(
                f"{name}: got true; format {source.format} holds no pages, only {holders} do, and records with "
                "`text_is: html_page`"
            )
    if source.markup != "text" and not (kind.markup or source.text_is != "text"):
        names = ", ".join(name for name, each in FORMATS.items() if each.markup)
        raise ValueError(
            f"markup: got {source.markup!r}; the text of format {source.format} is no HTML, only that of {names} is, and records "
            "with `text_is: html` or `html_page`"
        )


def check_text(source: Source) -> None:
    """Raise ValueError("field: ...") if other fields of the source do not fit `text`, which must be set."""
    names = [name for name, each in FORMATS.items() if each.text_field]
    if source.format not in names:
        raise ValueError(
            f"text: records of format {source.format} have no fields with texts, only those of {', '.join(names)} do"
        )
    if source.text_field != Source.text_field:
        raise ValueError(f"text_field: got {source.text_field!r} with `text`; name it among `fields` of `text`")
    if source.oversized == "split":
        raise ValueError("oversized: got 'split' with `text`, but a text of several fields is not cut")
    if source.text is not None and source.text.target and source.text_is != "text":
        raise ValueError(f"text_is: got {source.text_is!r} with a `target` of `text`, whose two sides must be text")
