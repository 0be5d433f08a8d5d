"""Search the texts of a corpus for a phrase or a regular expression.

The search reads the texts; there is no index. What is searched is what `inspect` shows: the edited text, in which
everything is hidden that the corpus's own pii steps find.
"""

import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import islice

import pyarrow as pa
import pyarrow.compute as pc

from gristmill.errors import UserError
from gristmill.storage.location import Location
from pipelines.contracts.lineage import Corpus, open_corpus, select_rows
from pipelines.contracts.parts import Part
from pipelines.stages.pii.display_redaction import without_personal_data


@dataclass(frozen=True)
class Query:
    """What to search for: a phrase, or with `regex` a regular expression in RE2's syntax, whose time is linear in the
    text. `context` is the number of characters shown before and after a hit.
    """

    text: str
    regex: bool = False
    ignore_case: bool = False
    context: int = 60

    def check(self) -> None:
        """Raise UserError for a query that cannot be run."""
        if not self.text:
            raise UserError("search: got an empty text; give a phrase, or a regular expression with --regex")
        if self.context < 0:
            raise UserError(f"--context: got {self.context}, expected 0 or more")
        try:
            pc.count_substring_regex(pa.array([""]), self.pattern)
        except pa.ArrowInvalid as error:
            raise UserError(
                f"--regex: {self.text!r}: {str(error).removeprefix('Invalid regular expression: ')}"
            ) from None

    @property
    def pattern(self) -> str:
        """The query as a regular expression."""
        pattern = self.text if self.regex else re.escape(self.text)
        return f"(?i){pattern}" if self.ignore_case else pattern

    def count(self, texts: pa.Array) -> pa.Array:
        """Return the number of hits in each text, which do not overlap."""
        if self.regex or self.ignore_case:
            return pc.count_substring_regex(texts, self.pattern)
        return pc.count_substring(texts, self.text)

    def excerpt(self, text: str) -> tuple[str, str, str]:
        """Return the first hit in a text that has one: what is before it, the hit, and what follows."""
        before, after = pc.split_pattern_regex(pa.scalar(text), self.pattern, max_splits=1).as_py()
        found = text[len(before) : len(text) - len(after)]
        return before[max(0, len(before) - self.context) :], found, after[: self.context]


@dataclass(frozen=True)
class SearchHit:
    """A document with `count` hits, and the first of them with its context. `rule` dropped the document; null if it is
    kept.
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
    """The number of documents with a hit and of hits, and the first documents in the order of the corpus."""

    documents: int
    hits: int
    first: list[SearchHit]


def search_corpus(
    corpus: Location, query: Query, sources: Sequence[str] = (), dropped: bool = False, limit: int = 20
) -> SearchResult:
    """Search the documents that a corpus keeps, of all sources or some; with `dropped`, also those that it dropped.

    Raises UserError for a query that cannot be run, and for an unknown source.
    """
    query.check()
    opened = open_corpus(corpus)
    for source in sources:
        opened.check_source(source, "--sources")
    documents = hits = 0
    first: list[SearchHit] = []
    parts = [part for source in sources or opened.manifest.sources for part in opened.parts(source)]
    with ThreadPoolExecutor() as pool:
        for part, found in zip(parts, pool.map(partial(_search_part, opened, query, dropped), parts), strict=True):
            documents, hits = documents + len(found), hits + sum(count for _, count in found)
            rows = [row for row, _ in islice(found, max(0, limit - len(first)))]
            first += _excerpts(opened, query, part, rows) if rows else []
    return SearchResult(documents, hits, first)


def _search_part(corpus: Corpus, query: Query, dropped: bool, part: Part) -> list[tuple[int, int]]:
    """Return (row, number of hits) of each document with a hit."""
    rows = pa.array(range(part.rows), pa.int64()) if dropped else part.kept_rows()
    texts = part.table(("edited_text",), rows)["edited_text"].combine_chunks()
    rows = rows.filter(pc.greater(query.count(texts), 0)).to_pylist()
    if not rows:
        return []
    shown = _shown(corpus, part, rows).table(("edited_text",))["edited_text"].combine_chunks()
    counts = query.count(shown).to_pylist()
    return [(row, count) for row, count in zip(rows, counts, strict=True) if count]


def _shown(corpus: Corpus, part: Part, rows: Sequence[int]) -> Part:
    return without_personal_data(corpus, select_rows(part, rows))


def _excerpts(corpus: Corpus, query: Query, part: Part, rows: Sequence[int]) -> Iterator[SearchHit]:
    shown = _shown(corpus, part, rows)
    docs = shown.table(("id", "edited_text"))
    texts = docs["edited_text"].combine_chunks()
    values = zip(
        docs["id"].to_pylist(), texts.to_pylist(), shown.drop().to_pylist(), query.count(texts).to_pylist(), strict=True
    )
    for identifier, text, rule, count in values:
        yield SearchHit(corpus.printed_id(identifier), part.source, rule, count, *query.excerpt(text))
