"""Search the texts of a corpus for a phrase or a regular expression.

The search reads the texts; there is no index. What is searched is what `inspect` shows: the edited text, in which
everything is hidden that the corpus's own pii steps find.
"""

import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from gristmill.errors import UserError
from gristmill.storage.location import Location
from pipelines.contracts.columns import EDITS_COLUMN
from pipelines.contracts.lineage import Corpus, open_corpus, select_rows
from pipelines.contracts.parts import Part
from pipelines.stages.pii.display_redaction import pii_steps, without_personal_data


@dataclass(frozen=True)
class Query:
    """What to search for: a phrase, or with `regex` a regular expression in RE2's syntax, whose time is linear in the
    text. `context` is the number of characters shown before and after a hit.

    Hits are counted one after the other, each in the rest of the text: `^`, `\\A` and `\\b` also match right after a hit.
    """

    text: str
    regex: bool = False
    ignore_case: bool = False
    context: int = 60

    def check(self) -> None:
        """Raise UserError for a query that cannot be run."""
        if not self.text:
            raise UserError("search: got an empty text; give a phrase, or a regular expression with --regex")
        if self.text != self.text.encode(errors="replace").decode():
            raise UserError("search: the text is not valid UTF-8; check the encoding of the terminal")
        if self.context < 0:
            raise UserError(f"--context: got {self.context}, expected 0 or more")
        try:
            pieces = [(text, self._split(text)) for text in ("", "ab c")]
        except pa.ArrowInvalid as error:
            raise UserError(
                f"--regex: {self.text!r}: {str(error).removeprefix('Invalid regular expression: ')}"
            ) from None
        if any(len(pair) == 2 and "".join(pair) == text for text, pair in pieces):
            raise UserError(
                f"--regex: {self.text!r} also matches nothing at all; expected one with a character in any hit"
            )

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
        before, after = self._split(text)
        found = text[len(before) : len(text) - len(after)]
        return before[max(0, len(before) - self.context) :], found, after[: self.context]

    def _split(self, text: str) -> list[str]:
        """Return what is before and after the first hit, or the text if there is none."""
        try:
            pieces: list[str] = pc.split_pattern_regex(pa.scalar(text), self.pattern, max_splits=1).as_py()
        except UnicodeDecodeError:
            raise UserError(f"--regex: {self.text!r}: matches a part of a character; leave out \\C") from None
        return pieces


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
    corpus: Location, query: Query, sources: Sequence[str] | None = None, dropped: bool = False, limit: int = 20
) -> SearchResult:
    """Search the documents that a corpus keeps, of all sources or some; with `dropped`, also those that it dropped.

    Raises UserError for a query that cannot be run, and for an unknown source.
    """
    query.check()
    opened = open_corpus(corpus)
    documents = hits = 0
    first: list[SearchHit] = []
    parts = [part for source in opened.choose_sources(sources, "--sources") for part in opened.parts(source)]
    with ThreadPoolExecutor() as pool:
        for part, found in zip(parts, pool.map(partial(_search_part, opened, query, dropped), parts), strict=True):
            documents, hits = documents + len(found), hits + sum(count for _, count in found)
            shown = found[: max(0, limit - len(first))]
            first += _excerpts(opened, query, part, shown) if shown else []
    return SearchResult(documents, hits, first)


def _search_part(corpus: Corpus, query: Query, dropped: bool, part: Part) -> list[tuple[int, int]]:
    """Return (row, number of hits) of each document with a hit."""
    rows = pa.array(range(part.rows), pa.int64()) if dropped else part.kept_rows()
    counts = query.count(shown_texts(corpus, part, rows))
    hit = pc.greater(counts, 0)
    return list(zip(rows.filter(hit).to_pylist(), counts.filter(hit).to_pylist(), strict=True))


def shown_texts(corpus: Corpus, part: Part, rows: pa.Array) -> pa.Array:
    """Return the texts of some rows as `inspect` shows them.

    Only these may be searched: a search of the texts before redaction, even to preselect documents, would let a query
    such as `<EMAIL|jane` test for the value behind a placeholder.
    """
    edited = replace(part, annotations=tuple(each for each in part.annotations if EDITS_COLUMN in each.schema))
    if pii_steps(corpus, edited):
        edited, rows = without_personal_data(corpus, select_rows(edited, rows.to_pylist())), None
    return edited.table(("edited_text",), rows)["edited_text"].combine_chunks()


def _excerpts(corpus: Corpus, query: Query, part: Part, found: Sequence[tuple[int, int]]) -> Iterator[SearchHit]:
    rows = pa.array([row for row, _ in found], pa.int64())
    texts, rules = shown_texts(corpus, part, rows).to_pylist(), part.drop().take(rows).to_pylist()
    ids = part.table(("id",), rows)["id"].to_pylist()
    for identifier, text, rule, (_, count) in zip(ids, texts, rules, found, strict=True):
        yield SearchHit(corpus.printed_id(identifier), part.source, rule, count, *query.excerpt(text))
