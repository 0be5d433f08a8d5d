"""Search the texts of a corpus for a phrase or a regular expression. The search covers what `inspect` shows:
the edited text, in which personal data found by the source's pii steps is redacted.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gristmill.storage.location import Location
from pipelines.contracts.columns import EDITS_COLUMN
from pipelines.contracts.lineage import Corpus, open_corpus, select_rows
from pipelines.contracts.parts import Part
from pipelines.contracts.search_index.index_units import INDEX_FOLDER, unit_names
from pipelines.explore.searching.part_index import PartIndex, open_part_index
from pipelines.explore.searching.query import Query
from pipelines.stages.pii.display_redaction import pii_steps, without_personal_data


@dataclass(frozen=True)
class SearchHit:
    """A document with `count` hits; the first is `found`, between the excerpts `before` and `after`. `rule`
    is the rule that dropped the document, or None if it was kept.
    """

    document: str
    source: str
    rule: str | None
    count: int
    before: str
    found: str
    after: str


@dataclass(frozen=True)
class SearchResult:
    """The result of a search: the number of documents with a hit, the number of hits, and the first documents
    with a hit, in the order in which the parts were searched. `parts` is the number of parts searched, and
    `read` the number of those whose texts had to be read because they have no current index.
    """

    documents: int
    hits: int
    first: list[SearchHit]
    parts: int
    read: int


@dataclass(frozen=True)
class CorpusSearch:
    """A corpus that is open for searches. Each index is opened and verified by the first search that needs
    it, and stays open.
    """

    corpus: Corpus

    def search(
        self, query: Query, sources: Sequence[str] | None = None, dropped: bool = False, limit: int = 20
    ) -> SearchResult:
        """Search the kept documents and, with `dropped`, also the dropped ones. The result lists up to
        `limit` documents with their first hits. Raises UserError for an unknown source or a query that cannot
        be run, and CorruptFileError for a damaged index.
        """
        query.check()
        documents = hits = read = 0
        first: list[SearchHit] = []
        names = self.corpus.choose_sources(sources, "--sources")
        parts = [part for name in names for part in self._parts[name]]
        found = self._pool.map(partial(self._search, query, dropped), parts)
        for part, (rows, counts) in zip(parts, found, strict=True):
            documents, hits = documents + len(rows), hits + int(counts.sum())
            shown = max(0, limit - len(first))
            first += self._excerpts(query, part, rows[:shown], counts[:shown])
            read += self._index(part) is None
        return SearchResult(documents, hits, first, len(parts), read)

    def _search(self, query: Query, dropped: bool, part: Part) -> tuple[np.ndarray, np.ndarray]:
        index = self._index(part)
        if index is not None:
            return index.search(query, None if dropped else self._kept(part))
        rows = pa.array(range(part.rows), pa.int64()) if dropped else part.kept_rows()
        counts = query.count(shown_texts(self.corpus, part, rows))
        hit = pc.greater(counts, 0)
        return np.asarray(rows.filter(hit), np.int64), np.asarray(counts.filter(hit), np.int64)

    def _excerpts(self, query: Query, part: Part, rows: np.ndarray, counts: np.ndarray) -> Iterator[SearchHit]:
        if not len(rows):
            return
        index, taken = self._index(part), pa.array(rows)
        texts = shown_texts(self.corpus, part, taken) if index is None else index.texts.take(taken)
        ids, rules = part.table(("id",), taken)["id"].to_pylist(), part.drop().take(taken).to_pylist()
        for identifier, text, rule, count in zip(ids, texts.to_pylist(), rules, counts.tolist(), strict=True):
            printed = self.corpus.printed_id(identifier)
            yield SearchHit(printed, part.source, rule, count, *query.excerpt(text))

    def _index(self, part: Part) -> PartIndex | None:
        key = part.source, part.index
        if key not in self._indexes:
            self._indexes[key] = open_part_index(self.corpus.directory / INDEX_FOLDER / self._names[key])
        return self._indexes[key]

    def _kept(self, part: Part) -> np.ndarray:
        key = part.source, part.index
        if key not in self._kept_documents:
            self._kept_documents[key] = np.asarray(pc.is_null(part.drop()), bool)
        return self._kept_documents[key]

    @cached_property
    def _pool(self) -> ThreadPoolExecutor:
        """The thread pool that all searches share. Starting one takes longer than searching a small corpus."""
        return ThreadPoolExecutor()

    @cached_property
    def _parts(self) -> dict[str, list[Part]]:
        return {name: list(self.corpus.parts(name)) for name in self.corpus.manifest.sources}

    @cached_property
    def _names(self) -> dict[tuple[str, int], str]:
        return unit_names(self.corpus)

    @cached_property
    def _indexes(self) -> dict[tuple[str, int], PartIndex | None]:
        return {}

    @cached_property
    def _kept_documents(self) -> dict[tuple[str, int], np.ndarray]:
        return {}


def search_corpus(
    corpus: Location, query: Query, sources: Sequence[str] | None = None, dropped: bool = False, limit: int = 20
) -> SearchResult:
    """Open a corpus and search it once, as `CorpusSearch.search` does."""
    return CorpusSearch(open_corpus(corpus)).search(query, sources, dropped, limit)


def shown_texts(corpus: Corpus, part: Part, rows: pa.Array) -> pa.Array:
    """Return the edited texts of the given rows, with personal data redacted as in the output of `inspect`.

    Only these texts may be searched, even to preselect documents: otherwise a query such as `<EMAIL|jane`
    could reveal the value behind a placeholder.
    """
    edited = replace(part, annotations=tuple(each for each in part.annotations if EDITS_COLUMN in each.schema))
    if pii_steps(corpus, edited):
        edited, rows = without_personal_data(corpus, select_rows(edited, rows.to_pylist())), None
    return edited.table(("edited_text",), rows)["edited_text"].combine_chunks()
