"""The Python interface to corpora. `open_corpus` opens a corpus. Every other function does what the command
of the same name does (`whatif` for `what_if`), but returns the result as a value.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa

from gristmill.budget import take_account
from gristmill.storage.location import Location
from gristmill.storage.parsing import parse_location
from gristmill.storage.paths import local_path
from pipelines.building.build_budget import processor_seconds
from pipelines.building.build_plan import BuildPlan, plan_build
from pipelines.building.earlier_builds import find_earlier, is_build_name
from pipelines.building.rehearsal import rehearsal
from pipelines.building.run_build import run_build
from pipelines.contracts.columns import DROP
from pipelines.contracts.lineage import Corpus
from pipelines.contracts.lineage import open_corpus as open_published
from pipelines.contracts.parts import Part
from pipelines.contracts.reads import EDITED_TEXT, TEXT, Column
from pipelines.contracts.shard_set import Shard, choose_shard_set, open_shard
from pipelines.contracts.stage import CorpusStage, PartStage
from pipelines.explore.comparison.compare_corpora import CorpusComparison, compare_corpora
from pipelines.explore.document_history import DocumentHistory, document_history
from pipelines.explore.searching.index_corpus import IndexReport, index_corpus
from pipelines.explore.searching.query import Query
from pipelines.explore.searching.search_corpus import CorpusSearch, SearchResult, search_corpus
from pipelines.explore.whatif import Impact
from pipelines.explore.whatif import what_if as ask_what_if
from pipelines.export.exported_documents import (
    chosen_columns,
    export_schema,
    kept_documents,
    redact_fields,
    scalar_columns,
)
from pipelines.planning.corpus import load_corpus_config
from pipelines.planning.installed_stages import StageClass
from pipelines.reading.entries.archives import Entry
from pipelines.reading.entries.records import Bad, TextRecord
from pipelines.reading.sources.source import Source
from tokenizer.encode import Encoder

__all__ = [
    "EDITED_TEXT", "TEXT", "Bad", "Column", "CorpusStage", "Entry", "OpenCorpus", "PartStage", "Source", "TextRecord", "build",
    "diff", "index", "open_corpus", "plan", "search", "what_if",
]  # fmt: skip

Place = str | os.PathLike[str]


@dataclass(frozen=True)
class OpenCorpus:
    """A published corpus, opened for reading. `documents` and `verdicts` return Arrow readers, which DuckDB,
    Polars and pandas (`DataFrame.from_arrow`) accept directly.
    """

    corpus: Corpus

    @property
    def sources(self) -> list[str]:
        """The names of the corpus's sources."""
        return list(self.corpus.manifest.sources)

    @property
    def columns(self) -> pa.Schema:
        """The schema of the columns that `documents` and `verdicts` accept as `columns`: all scalar columns
        that steps wrote, except `drop`, `split`, and binary hashes and ids.
        """
        return scalar_columns(self.corpus)

    def documents(self, columns: Sequence[str] = (), sources: Sequence[str] | None = None) -> pa.RecordBatchReader:
        """Read the kept documents as `export` writes them, with edited text and redacted `url` and `meta`.
        The columns are `id`, `text`, `source`, `url`, `meta`, `split` if a source gives one, and those named
        in `columns`.

        Raises UserError for an unknown source, an empty list of sources, or a column that is not in the
        property `columns`.
        """
        schema = export_schema(self.corpus, columns, (), "columns")
        return _reader(schema, self._parts(sources), lambda part: kept_documents(self.corpus, part, schema))

    def verdicts(self, columns: Sequence[str] = (), sources: Sequence[str] | None = None) -> pa.RecordBatchReader:
        """Read the verdict on every document, kept or dropped, without its text. The columns are `id`,
        `source`, `drop` (the rule that dropped the document, null if it is kept) and those named in
        `columns`. Columns derived from a URL with personal data are null, as in `documents`.

        Raises UserError for an unknown source, an empty list of sources, or a column that is not in the
        property `columns`.
        """
        annotated = chosen_columns(self.corpus, columns, "columns")
        schema = pa.schema([*(pa.field(name, pa.string()) for name in ("id", "source", DROP)), *annotated])

        def table(part: Part) -> pa.Table:
            ids, source = self.corpus.printed_ids(part), [part.source] * part.rows
            read = redact_fields(part, part.table([field.name for field in annotated])) if annotated else pa.table({})
            return pa.table([pa.array(ids), pa.array(source), part.drop(), *read.columns], schema=schema)

        return _reader(schema, self._parts(sources), table)

    def inspect(self, document: str) -> DocumentHistory:
        """Return the history of a document or quarantined record: its origin, the columns that each step
        wrote, and whether and why it was dropped. `document` is its id, as `source/path#record` or in hex.

        Raises UserError if the id is malformed or the corpus has no such document.
        """
        return document_history(self.corpus, document)

    def search(
        self,
        text: str,
        *,
        regex: bool = False,
        ignore_case: bool = False,
        words: bool = False,
        sources: Sequence[str] | None = None,
        dropped: bool = False,
        limit: int = 20,
    ) -> SearchResult:
        """Search the texts of the kept documents and, with `dropped`, also of the dropped ones, for a phrase,
        a regular expression (RE2) or, with `words`, an n-gram. Return the totals and the first `limit`
        documents with a hit, in the order of the sources. The indexes that a search opens stay open for later
        searches.

        Raises UserError for a query that cannot be run, an unknown source, or an empty list of sources.
        Raises CorruptFileError for a damaged index.
        """
        return self._search.search(Query(text, regex, ignore_case, words=words), sources, dropped, limit)

    @cached_property
    def _search(self) -> CorpusSearch:
        return CorpusSearch(self.corpus)

    def shards(
        self, shard_set: str | None = None, split: str = "train", sources: Sequence[str] | None = None
    ) -> Iterator[Shard]:
        """Yield the token shards of a split, memory-mapped. `sources` defaults to all sources. `shard_set` is
        required if the corpus has several shard sets.

        Raises UserError for an unknown source, an empty list of sources, or an unknown or missing shard set.
        """
        _, chosen = choose_shard_set(self.corpus.manifest.shard_sets, shard_set, "shard_set")
        wanted = self.corpus.choose_sources(sources)
        for record in chosen.shards:
            if record.split == split and record.source in wanted and record.documents:
                yield open_shard(self.corpus.directory, record.file)

    def decoded(
        self, shard_set: str | None = None, split: str = "train", sources: Sequence[str] | None = None
    ) -> Iterator[tuple[str, str]]:
        """Yield (id, text) for each document in the token shards of a split: its id as 32 hex digits, and the
        text decoded from its tokens. If the tokenizer is lossless, as byte-level tokenizers are, this is
        exactly the text that was encoded. The arguments and errors are those of `shards`.
        """
        _, chosen = choose_shard_set(self.corpus.manifest.shard_sets, shard_set, "shard_set")
        encoder = Encoder.load(str(self.corpus.directory.verify(chosen.tokenizer.file)))
        for shard in self.shards(shard_set, split, sources):
            for row, identifier in enumerate(shard.doc_ids.to_pylist()):
                yield identifier.hex(), encoder.decode(shard.tokens[shard.offsets[row] : shard.offsets[row + 1]])

    def _parts(self, sources: Sequence[str] | None) -> Iterator[Part]:
        names = self.corpus.choose_sources(sources)
        return (part for name in names for part in self.corpus.parts(name))


def _reader(schema: pa.Schema, parts: Iterator[Part], table: Callable[[Part], pa.Table]) -> pa.RecordBatchReader:
    batches = (batch for part in parts for batch in table(part).to_batches())
    return pa.RecordBatchReader.from_batches(schema, batches)


def _location(place: Place) -> Location:
    return parse_location(os.fspath(place))


def open_corpus(location: Place) -> OpenCorpus:
    """Open a published corpus, given its directory or the path of its manifest. Raises UserError if there is
    none, and CorruptFileError if a step is missing, differs from what the corpus manifest recorded, or may
    hold forgotten documents.
    """
    return OpenCorpus(open_published(_location(location)))


def diff(old: Place, new: Place, *, ngrams: int = 0) -> CorpusComparison:
    """Compare two published corpora: figures for each source, an Arrow table of the documents that differ,
    and distributions of columns.

    `old` is a location, or names an earlier build of `new`: "previous", or the first 6 or more digits of its
    fingerprint. If `ngrams` is positive (at most 5), n-grams of up to `ngrams` words are also compared, in
    sampled texts of both corpora. Raises UserError if the corpora have no source in common, if there is no
    such earlier build, or if `ngrams` is out of range.
    """
    after, name = _location(new), os.fspath(old)
    before = find_earlier(after, name) if is_build_name(name) else _location(old)
    return compare_corpora(before, after, ngrams)


def index(corpus: Place, *, sources: Sequence[str] | None = None) -> IndexReport:
    """Index the texts of a corpus, or only those of `sources`, to make searches faster. Parts whose index is
    up to date are skipped. Returns the numbers of parts indexed and skipped, and the sizes of the texts and
    indexes.

    Raises UserError for an unknown source or an unfinished `forget`, and ConflictError if documents are
    forgotten in the meantime.
    """
    return index_corpus(_location(corpus), sources)


def search(
    corpus: Place,
    text: str,
    *,
    regex: bool = False,
    ignore_case: bool = False,
    words: bool = False,
    sources: Sequence[str] | None = None,
    dropped: bool = False,
    limit: int = 20,
) -> SearchResult:
    """Open a corpus for a single search. Arguments and result are those of `OpenCorpus.search`."""
    query = Query(text, regex, ignore_case, words=words)
    return search_corpus(_location(corpus), query, sources, dropped, limit)


def plan(
    config: Place,
    overrides: Sequence[str] = (),
    *,
    stages: Mapping[str, StageClass] | None = None,
    rates: Sequence[Place] = (),
) -> BuildPlan:
    """Plan a build without running anything. The plan lists the steps, says which of them are finished and
    why the others will run, gives warnings, and estimates the time, memory and disk space that the build will
    take.

    `config`, `overrides` and `stages` are those of `build`. `rates` are local output directories of other
    corpora, whose builds also inform the estimates. Raises UserError or a subclass if the corpus file is
    invalid, if the sources cannot be read as configured, or if the output directory belongs to another
    corpus.
    """
    loaded = load_corpus_config(local_path(os.fspath(config)), overrides, stages)
    return plan_build(loaded, [local_path(os.fspath(each)) for each in rates])


def what_if(
    config: Place,
    changes: Sequence[str],
    overrides: Sequence[str] = (),
    *,
    stages: Mapping[str, StageClass] | None = None,
    full: bool = False,
) -> dict[str, Impact]:
    """Estimate the effect of changed filters without building anything: the number of documents that they
    would newly drop and newly keep, for each source that they apply to. Deduplication is not repeated.

    A change looks like `filter.word_count.at_least=100`. `config`, `overrides` and `stages` are those of
    `build`. The estimate comes from the sample published with the corpus; with `full`, every document is
    counted.

    Raises UserError if a change is invalid, if the changes have no effect on the rules, if the corpus was
    built with other steps, or if a filter reads columns that newly kept documents lack.
    """
    loaded = load_corpus_config(local_path(os.fspath(config)), overrides, stages)
    return ask_what_if(loaded, changes).run(full=full)


def build(
    config: Place,
    overrides: Sequence[str] = (),
    *,
    stages: Mapping[str, StageClass] | None = None,
    workers: int | None = None,
    in_process: bool = False,
    address: str | None = None,
    quarantine_poison: bool = False,
    memory: int | None = None,
    sample: float | None = None,
) -> OpenCorpus:
    """Build the corpus that a corpus file describes, and open it. `overrides` (`a.b=value`) change fields of
    the file.

    `stages` maps the names of your own stages in the corpus file to their classes. The build runs on Ray: on
    the cluster at `address` (default: RAY_ADDRESS in the environment) or, if neither is given, on this
    machine with `workers` workers (default: its number of cores). Without `address`, `in_process` makes every
    task run in this process. If no cluster is given, this may also happen when the remaining steps would take
    less time than starting Ray.

    A document that breaks a stage or the reader ends the build with PoisonError; with `quarantine_poison`, it
    is set aside instead. `memory` is the number of bytes that a task may use. `sample`, above 0 and below 1,
    makes the build a rehearsal with this share of the records, in a separate directory whose `report.json`
    has the estimates.
    """
    loaded = load_corpus_config(local_path(os.fspath(config)), overrides, stages)
    if sample is not None:
        loaded = rehearsal(loaded, sample)
    take_account()  # of what this process has done so far
    run_build(
        loaded,
        workers,
        address,
        in_process=in_process,
        quarantine=quarantine_poison,
        memory=memory,
        before=processor_seconds(),
    )
    return OpenCorpus(open_published(loaded.place))
