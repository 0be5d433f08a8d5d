"""Frozen dataclasses that mirror a corpus YAML, field for field. docs/corpus_file.md is generated from them."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from gristmill.config import load_yaml, near_match, override, parse, plain
from gristmill.errors import ConfigError
from gristmill.storage.location import Location
from gristmill.storage.parsing import expand_location, parse_local, parse_location
from gristmill.storage.paths import is_url
from gristmill.storage.remote import Remote, check_url, holds_credentials
from pipelines.contracts.stage import CorpusStage, PartStage
from pipelines.reading.registry import check_format
from pipelines.stages import STAGES

_NAME = re.compile(r"[a-z][a-z0-9_]*")
# No dot: it separates the fields of `sources.NAME.root=...`, a step from its source, and the units of stages from parts.
SOURCE_NAME = r"[A-Za-z][A-Za-z0-9_-]*"
_REMOTE = Remote()


@dataclass(frozen=True)
class Source:
    """Where one kind of text comes from and how it is read."""

    name: str
    """Letters, digits, `_` and `-`, a letter first, such as `CC-MAIN-2024-10`; part of every document id. A dot would end it in
    `sources.NAME.root=...`. Two names may not differ in case alone: both become names of directories."""
    root: str
    """Directory (or one file) that the documents lie under; relative to the working directory. Or a URL: `s3://bucket/prefix`,
    and so for gs and hf; http and https for one file, whose query, which may be a signature, is neither shown nor stored.
    Not part of any id."""
    format: Literal[
        "text",
        "jsonl",
        "parquet",
        "message",
        "arrow",
        "csv",
        "json",
        "markdown",
        "mediawiki",
        "hf_dataset",
        "warc",
        "html",
    ]
    """text: a file is a document. jsonl: a line is a record. parquet: a row is a record. message: header lines, an empty
    line, and the body, which is the text. arrow: a row of an Arrow IPC file or stream is a record. csv: a row of a CSV or
    TSV file whose first row names the fields. json: an element of one array of objects, or one object. markdown: a file is
    a document, its YAML front matter `meta`. mediawiki: a page of a MediaWiki XML dump is a record, its wikitext brought to
    plain text. hf_dataset: what save_to_disk of Hugging Face datasets wrote, a row is a record. warc: records of WARC, WET
    and ARC files, of which HTTP responses with HTML and plain-text conversions become documents. html: a file is a page."""
    remote: Remote = _REMOTE
    """Which URLs may be opened, and how."""
    identity: Literal["content", "listing"] = "content"
    """content: files are told apart by checksums. listing: remote files by the size and ETag, hash or time that the store
    lists, where they are too large to be fetched before they are read."""
    include: tuple[str, ...] = ("**",)
    """Globs relative to root; `**` crosses directories. Each must match at least one file."""
    exclude: tuple[str, ...] = ()
    """Globs relative to root of files to leave out."""
    members: tuple[str, ...] = ()
    """Globs over member names of tar, zip and wheel archives; empty means all. Members are streamed, never extracted."""
    encoding: str = "utf-8"
    """Encoding of the bytes, decoded strictly: what does not decode is quarantined."""
    text_field: str = "text"
    """Field, or column, of a record that holds the text."""
    url_field: str = "url"
    """Field of a record that holds its URL; records may lack it. All other fields are kept in `meta`."""
    unicode_form: Literal["NFC", "none"] = "NFC"
    """Unicode normalisation of the stored text. In any case line ends, form feeds and vertical tabs become line feeds,
    U+0080 to U+009F the characters that Windows-1252 has there, as in HTML, and other control characters but tab are removed."""
    max_document_bytes: int = 64 << 20
    """A longer document is quarantined or split, as `oversized` says."""
    oversized: Literal["quarantine", "split"] = "quarantine"
    """What happens to a document over `max_document_bytes`; split cuts it at line ends where it can."""
    extract: Literal["resiliparse", "trafilatura"] = "resiliparse"
    """What takes the main text out of HTML. resiliparse is tens of times faster; trafilatura is an extra to install."""
    max_html_bytes: int = 16 << 20
    """A longer page is quarantined, as `html_bytes`. (Common Crawl cuts pages at 5 MiB.)"""
    max_html_nodes: int = 1_000_000
    """A page with more elements is quarantined, as `html_nodes`."""
    max_html_depth: int = 4096
    """A page whose elements nest deeper is quarantined, as `html_depth`. Chromium flattens beyond 512; the time that
    resiliparse takes grows with the square, and 4,096 levels take 0.3 s."""
    page_cpu_seconds: int = 60
    """CPU time for one page; reading stops at a page that takes more, and names it. No clock decides about a page."""
    page_memory_bytes: int = 2 << 30
    """Memory for parsing one page; reading stops at a page that takes more, and names it."""
    max_decoded_bytes: int = 64 << 30
    """Bytes one file may decompress to; beyond, the rest of the file is quarantined. So it is beyond both 1 GiB and 1,000
    times the size of the file, whatever is said here."""
    part_bytes: int = 128 << 20
    """Bytes of text after which a part is closed; bounds the memory of every later task."""
    max_quarantined: float = 0.5
    """Share of records that may be set aside; more stops `plan` and `build`, which look at the first 1,000, and the build once
    all are read. Records that are no documents by their nature are not counted, such as a crawler's requests, responses
    that are not HTML, redirects and links (STRUCTURAL in pipelines/reading/entries/source.py)."""
    allow_empty: bool = False
    """Go on where no record becomes a document, which else stops the build."""
    tokenizer_share: float = 1.0
    """Weight of this source, relative to the others, in the text that tokenizers are trained on."""
    licence: str = "unknown"
    """Licence of the texts, for the corpus card."""
    origin: str = ""
    """Where the texts come from, for the corpus card: published as it stands."""

    def check(self) -> None:
        """Ranges."""
        if not re.fullmatch(SOURCE_NAME, self.name):
            raise ValueError(f"name: got {self.name!r}, expected letters, digits, - and _, a letter first")
        for field in ("max_document_bytes", "max_decoded_bytes", "part_bytes", "max_html_bytes", "page_memory_bytes"):
            if getattr(self, field) < 1:
                raise ValueError(f"{field}: got {getattr(self, field)}, expected a positive number of bytes")
        for field in ("max_html_nodes", "max_html_depth", "page_cpu_seconds"):
            if getattr(self, field) < 1:
                raise ValueError(f"{field}: got {getattr(self, field)}, expected at least 1")
        for field in ("max_document_bytes", "part_bytes", "max_html_bytes"):
            if (
                getattr(self, field) > 1 << 30
            ):  # URLs and meta have 32-bit offsets, and tasks hold whole parts in memory
                raise ValueError(f"{field}: got {getattr(self, field)}, expected at most 1 GiB")
        if not 0 <= self.max_quarantined <= 1:
            raise ValueError(f"max_quarantined: got {self.max_quarantined}, expected 0 to 1")
        if self.tokenizer_share < 0:
            raise ValueError(f"tokenizer_share: got {self.tokenizer_share}, expected 0 or more")
        if not self.include:
            raise ValueError("include: got an empty list, expected at least one glob; leave it out to take every file")
        check_url("root", self.root)
        if holds_credentials(self.origin):
            raise ValueError("origin: holds a password, key or signature, and would be published with the corpus")
        if self.identity == "listing" and not is_url(self.root):
            raise ValueError("identity: got 'listing', which is for files behind a URL; leave it out for local ones")
        check_format(self)


@dataclass(frozen=True)
class StepConfig:
    """One entry of `steps`: a stage with its knobs, and where it stands.

    `name` tells several steps of one stage apart (default: the stage's name); `sources` limits it to some sources; `where:
    STEP` annotates only documents that no step up to STEP dropped.
    """

    name: str
    stage: PartStage | CorpusStage
    stage_name: str
    sources: tuple[str, ...] | None = None
    where: str | None = None

    @cached_property
    def written(self) -> frozenset[str]:
        """Names of the columns that the stage writes. A plan asks for them once per step and column."""
        return frozenset(self.stage.writes().names)


@dataclass(frozen=True)
class CorpusConfig:
    """A whole corpus file."""

    name: str
    """The corpus; its output directory belongs to it alone."""
    output: str
    """Directory of everything that is built; relative to the working directory. Or a URL: `s3://bucket/prefix`."""
    sources: tuple[Source, ...]
    """At least one."""
    steps: tuple[StepConfig, ...]
    """Stages in order: `{STAGE: knobs}`, with `name`, `sources` and `where` beside it where wanted."""
    remote: Remote = _REMOTE
    """How the URL of `output` is opened, as `remote` of a source says for its own."""

    @property
    def place(self) -> Location:
        """Where the corpus is built."""
        return parse_location(self.output, self.remote)


def load_corpus_config(path: Path, assignments: Sequence[str] = ()) -> CorpusConfig:
    """Parse a corpus YAML with `a.b=value` overrides. ConfigError names file, path, value and the near match."""
    data = override(load_yaml(path), assignments)
    where = path.name
    steps = data.pop("steps", None)
    if not isinstance(steps, list) or not steps:
        raise ConfigError(
            f"{where}: steps: expected a list of at least one {{stage: knobs}}; stages: {', '.join(sorted(STAGES))}"
        )
    head = parse(_CorpusFile, data, where)
    parsed = tuple(_step(step, number, where) for number, step in enumerate(steps))
    # Here, in the one process that reads the file: workers on other machines may have other homes.
    sources = tuple(
        replace(source, root=expand_location(source.root, f"{where}: sources[{number}].root"))
        for number, source in enumerate(head.sources)
    )
    config = CorpusConfig(head.name, expand_location(head.output, f"{where}: output"), sources, parsed, head.remote)
    _check(config, where)
    return config


def plain_config(config: CorpusConfig) -> dict[str, Any]:
    """The configuration as plain YAML data: a valid corpus file."""
    steps = []
    for step in config.steps:
        entry: dict[str, Any] = {step.stage_name: _plain_knobs(step)}
        if step.name != step.stage_name:
            entry["name"] = step.name
        if step.sources is not None:
            entry["sources"] = list(step.sources)
        if step.where is not None:
            entry["where"] = step.where
        steps.append(entry)
    head = {"name": config.name, "output": config.output, "remote": plain(config.remote)}
    return {**head, "sources": plain(config.sources), "steps": steps}


@dataclass(frozen=True)
class _CorpusFile:
    name: str
    output: str
    sources: tuple[Source, ...]
    remote: Remote = _REMOTE

    def check(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ValueError(f"name: got {self.name!r}, expected lower-case letters, digits and underscores")
        check_url("output", self.output)
        if not self.sources:
            raise ValueError("sources: expected at least one source")
        seen: dict[str, str] = {}
        for source in self.sources:
            name, earlier = source.name, seen.get(source.name.lower())
            if earlier == name:
                raise ValueError(f"sources: the name {name!r} stands twice")
            if earlier is not None:
                raise ValueError(
                    f"sources: {earlier!r} and {name!r} differ in case alone, and would share directories where file names have "
                    "no case; rename one"
                )
            seen[name.lower()] = name


_PLACEMENT = ("name", "sources", "where")


def _step(entry: Any, number: int, where: str) -> StepConfig:
    at = f"steps[{number}]"
    if not isinstance(entry, Mapping):
        raise ConfigError(f"{where}: {at}: got {entry!r}, expected {{stage: knobs}}")
    stages = [key for key in entry if key not in _PLACEMENT]
    if len(stages) != 1:
        raise ConfigError(
            f"{where}: {at}: names {len(stages)} stages ({', '.join(map(str, stages))}), expected exactly one"
        )
    name = stages[0]
    if name not in STAGES:
        raise ConfigError(f"{where}: {at}.{name}: no such stage{near_match(str(name), list(STAGES))}")
    kind, knobs = STAGES[name], entry[name]
    if kind.list_knob is not None:
        knobs = {kind.list_knob: knobs}
    if isinstance(knobs, Mapping):
        found = {knob: knobs[knob] for knob in kind.paths if knob in knobs}
        at_home = {k: _paths(value, f"{where}: {at}.{name}.{k}", k in kind.places) for k, value in found.items()}
        knobs = {**knobs, **at_home}
    stage = parse(kind, knobs, f"{where}: {at}.{name}")
    placement = parse(_Placement, {key: entry[key] for key in _PLACEMENT if key in entry}, f"{where}: {at}")
    return StepConfig(placement.name or name, stage, name, placement.sources, placement.where)


def _paths(value: Any, where: str, may_be_url: bool) -> Any:
    """The value of a knob that names files, `~` expanded in them. Raises ConfigError for a URL where only
    local files may be named.

    Of a mapping with the field `file` that is the path; of others every value is one. `file:PATH` is the key
    of the stage pii.
    """
    if isinstance(value, str):
        if may_be_url:
            return (
                f"file:{expand_location(value[5:], where)}"
                if value.startswith("file:")
                else expand_location(value, where)
            )
        parse_local(value, where)  # refuses URLs
        return expand_location(value, where)
    if isinstance(value, Mapping):
        fields = ["file"] if "file" in value else list(value)
        return {**value, **{name: _paths(value[name], where, may_be_url) for name in fields}}
    return [_paths(entry, where, may_be_url) for entry in value] if isinstance(value, list) else value


@dataclass(frozen=True)
class _Placement:
    name: str | None = None
    sources: tuple[str, ...] | None = None
    where: str | None = None


def _plain_knobs(step: StepConfig) -> Any:
    knobs = plain(step.stage)
    return knobs if step.stage.list_knob is None else knobs[step.stage.list_knob]


def _check(config: CorpusConfig, where: str) -> None:
    sources = {source.name for source in config.sources}
    seen: list[str] = []
    for number, step in enumerate(config.steps):
        at = f"{where}: steps[{number}] ({step.name})"
        if not _NAME.fullmatch(step.name):
            raise ConfigError(f"{at}: name: got {step.name!r}, expected lower-case letters, digits and underscores")
        if step.name in seen or step.name == "read":
            raise ConfigError(f"{at}: the step name {step.name!r} stands twice; give this one a `name`")
        for source in step.sources or ():
            if source not in sources:
                raise ConfigError(f"{at}: sources: no source named {source!r}; there are: {', '.join(sorted(sources))}")
        if step.where is not None and step.where not in seen:
            raise ConfigError(
                f"{at}: where: got {step.where!r}, expected an earlier step: {', '.join(seen) or 'there is none'}"
            )
        if step.where is not None and isinstance(step.stage, CorpusStage):
            raise ConfigError(
                f"{at}: where: only stages that annotate parts can be limited so; this one reads `drop` itself"
            )
        seen.append(step.name)
