"""User-defined regular expressions: count their matches, and replace or remove the matches by edits.

The engine is RE2, as built into Arrow. Arrow returns the replaced texts but no positions, so each match and
its replacement are put between marks, which give the position.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from gristmill.errors import UserError
from pipelines.contracts.columns import DROP, EDITS_COLUMN
from pipelines.contracts.edits import EDITS, edits_column
from pipelines.contracts.reads_text import ReadsText
from pipelines.contracts.stage import PartStage, library_versions

_MARKED = re.compile(rb"\x01([^\x02]*)\x02([^\x03]*)\x03")  # a match, and what replaces it
_MARKS = "[\x01\x02\x03]"
_REFERENCE = re.compile(r"\\(.?)", re.DOTALL)
_PROBES = ("", "ab c", "a\nb", "1 A.")  # texts on which an expression that matches nothing at all does so
_PART_OF_CHARACTER = re.compile(r"(?<!\\)(?:\\\\)*\\C")

_Edit = tuple[int, int, str, str]


@dataclass(frozen=True)
class PatternRule:
    """A regular expression, and what to do with its matches: count, replace or remove them."""

    name: str
    """Letters, digits and underscores, not beginning with a digit. The column is NAME_count, and the rule of the edits
    is `patterns.NAME`.
    """
    pattern: str
    """The expression, in RE2's syntax. Without `(?s)` at the beginning, `.` does not match a line feed;
    without `(?m)`, `^` and `$` match only at the ends of the text.
    """
    replacement: str | None = None
    """The text that replaces a match; `\\1` is the first group of the match, `\\0` the whole match. An empty text removes the
    match. Without `replacement`, matches are only counted."""
    ignore_case: bool = False
    """Whether to ignore case."""

    @property
    def expression(self) -> str:
        """The RE2 expression of this rule, whose first group is the whole match."""
        return f"{'(?i)' if self.ignore_case else ''}({self.pattern})"

    @property
    def marked(self) -> str:
        """The RE2 rewrite that writes a match and its replacement, delimited by control characters."""
        shifted = _REFERENCE.sub(
            lambda found: f"\\{int(found[1]) + 1}" if found[1].isdigit() else found[0], self.replacement or ""
        )
        return f"\x01\\1\x02{shifted}\x03"

    def check(self) -> None:
        """Raise ValueError for an invalid name, expression or replacement."""
        if not self.name.isidentifier():
            raise ValueError(f"name: got {self.name!r}, expected letters, digits and underscores")
        if _PART_OF_CHARACTER.search(self.pattern):
            raise ValueError(f"pattern: got {self.pattern!r}; \\C matches a part of a character, use `.`")
        replacement = self.replacement or ""
        if any(unicodedata.category(each) == "Cc" and each not in "\n\t" for each in replacement):
            raise ValueError(f"replacement: got {replacement!r}, expected no control characters but tab and line feed")
        if any((not each.isdigit() and each != "\\") or each == "9" for each in _REFERENCE.findall(replacement)):
            raise ValueError(
                f"replacement: got {replacement!r}, expected \\0 to \\8 for a group, or \\\\ for a backslash"
            )
        try:
            pc.match_substring_regex(pa.array(_PROBES), self.pattern)  # else `a)(b` is valid within the parentheses
            texts = pc.replace_substring_regex(pa.array(_PROBES), self.expression, self.marked).to_pylist()
        except (pa.ArrowInvalid, UnicodeDecodeError) as error:
            said = str(error).removeprefix("Invalid regular expression: ").splitlines()[0]
            raise ValueError(f"pattern: got {self.pattern!r}, with replacement {self.replacement!r}: {said}") from None
        if any("\x01\x02" in text for text in texts):
            raise ValueError(
                f"pattern: got {self.pattern!r}, which also matches nothing at all; let it match a character at least"
            )


@dataclass(frozen=True)
class Patterns(ReadsText, PartStage):
    """Count the matches of regular expressions, and replace or remove them by `edits`.

    | column | unit | definition |
    |---|---|---|
    | NAME_count | matches | non-overlapping, non-empty matches of the rule's expression |

    No rule sees the edits of the other rules. If matches of two rules with a replacement overlap, only the
    match of the earlier rule is replaced. A document that the edits empty is dropped as
    `STEP.empty`. Rules of `filter` use the columns: `{signal: NAME_count, at_most: 3}`.
    """

    rules: tuple[PatternRule, ...] = ()
    """The expressions, each with what to do with its matches."""

    list_knob: ClassVar[str | None] = "rules"

    def writes(self) -> pa.Schema:
        edits = [(DROP, pa.string()), (EDITS_COLUMN, EDITS)] if self._edits else []
        return pa.schema([*edits, *((f"{rule.name}_count", pa.int32()) for rule in self.rules)])

    def never_null(self) -> tuple[str, ...]:
        return tuple(f"{rule.name}_count" for rule in self.rules)

    def depends(self) -> dict[str, str]:
        """Return the version of Arrow, which includes RE2 and its Unicode tables."""
        return library_versions("pyarrow")

    def check(self) -> None:
        if not self.rules:
            raise ValueError(
                "rules: got an empty list, expected at least one rule, such as {name: footnote, pattern: '\\[[0-9]+\\]'}"
            )
        twice = [name for name, number in Counter(rule.name for rule in self.rules).items() if number > 1]
        if twice:
            raise ValueError(f"rules: two are named {twice[0]}; rename one")
        super().check()

    @property
    def _edits(self) -> bool:
        return any(rule.replacement is not None for rule in self.rules)

    def annotate(self, docs: pa.Table) -> pa.Table:
        """Return the columns of `writes`. Raises UserError if a text contains one of the marks U+0001 to
        U+0003.
        """
        texts = docs[self.text].combine_chunks()
        if pc.any(pc.match_substring_regex(texts, _MARKS)).as_py():
            raise UserError(
                "patterns: a text holds U+0001, U+0002 or U+0003, which an earlier step has inserted; let it not"
            )
        counts = [[0] * docs.num_rows for _ in self.rules]
        edits: list[list[_Edit]] = [[] for _ in range(docs.num_rows)]
        for rule, count in zip(self.rules, counts, strict=True):
            for row, found in _matches(rule, texts):
                count[row] = len(found)
                if rule.replacement is not None:
                    edits[row] = _merged(edits[row], found)
        columns = [pa.array(count, pa.int32()) for count in counts]
        if self._edits:
            columns = [pa.nulls(docs.num_rows, pa.string()), edits_column(edits), *columns]
        return pa.table(columns, schema=self.writes())


def _matches(rule: PatternRule, texts: pa.Array) -> Iterator[tuple[int, list[_Edit]]]:
    """Yield the row of each text with a match, and its matches as edits. Empty matches are left out."""
    rows = pc.indices_nonzero(pc.match_substring_regex(texts, rule.expression))
    marked = pc.replace_substring_regex(texts.take(rows), rule.expression, rule.marked).cast(pa.large_binary())
    for row, data in zip(rows.to_pylist(), marked.to_pylist(), strict=True):
        found, added = [], 0  # bytes of marks and replacements so far
        for match in _MARKED.finditer(data):
            start, length = match.start() - added, len(match[1])
            added += len(match[0]) - length
            if length:
                found.append((start, start + length, match[2].decode(), f"patterns.{rule.name}"))
        yield row, found


def _merged(held: list[_Edit], more: list[_Edit]) -> list[_Edit]:
    """Return the edits of `held` together with those of `more` that overlap none of `held`, sorted."""
    if not held:
        return more
    merged = list(held)
    at = 0
    for edit in more:
        while at < len(held) and held[at][1] <= edit[0]:
            at += 1
        if at == len(held) or edit[1] <= held[at][0]:
            merged.append(edit)
    return sorted(merged)
