"""A search query: what it matches, how hits are counted, and which excerpt is shown."""

import re
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa
import pyarrow.compute as pc

from gristmill.errors import UserError
from pipelines.explore.searching.required_literals import required_literals
from pipelines.explore.searching.word_borders import count_words, first_words


@dataclass(frozen=True)
class Query:
    """A search for a phrase or, with `regex`, for a regular expression in RE2's syntax. `context` is the
    maximum number of characters shown before and after a hit.

    With `words`, the phrase is an n-gram: a hit begins and ends at word borders, and overlapping hits all
    count. Otherwise hits do not overlap: each is found in the text that remains after the previous hit, so
    `^` also matches right after a hit.
    """

    text: str
    regex: bool = False
    ignore_case: bool = False
    context: int = 60
    words: bool = False

    def check(self) -> None:
        """Raise UserError for a query that cannot be run."""
        if not self.text:
            raise UserError("search: got an empty text; give a phrase, or a regular expression with --regex")
        if self.text != self.text.encode(errors="replace").decode():
            raise UserError("search: the text is not valid UTF-8; check the encoding of the terminal")
        if self.context < 0:
            raise UserError(f"--context: got {self.context}, expected 0 or more")
        if self.words and (self.regex or self.ignore_case):
            other = "--regex" if self.regex else "--ignore-case"
            raise UserError(f"--words: an n-gram is searched as it is written; leave out {other}")
        if self.words and self.text != self.text.strip():
            raise UserError(f"--words: got {self.text!r}, expected words without white space around them")
        if self.phrase is None:
            self._check_pattern()

    def _check_pattern(self) -> None:
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
    def phrase(self) -> bytes | None:
        """The phrase in UTF-8, or None if the query is a regular expression or ignores case."""
        return None if self.regex or self.ignore_case else self.text.encode()

    @cached_property
    def literals(self) -> list[bytes] | None:
        """UTF-8 literals such that every document with a hit contains at least one of them; None if none are
        known.
        """
        if self.phrase is not None:
            return [self.phrase]
        found = required_literals(self.pattern)
        return None if found is None else [literal.encode() for literal in found]

    @property
    def pattern(self) -> str:
        """The query as a regular expression."""
        pattern = self.text if self.regex else re.escape(self.text)
        return f"(?i){pattern}" if self.ignore_case else pattern

    def count(self, texts: pa.Array) -> pa.Array:
        """Return the number of hits in each text."""
        if self.words:
            return count_words(texts, self.text)
        if self.phrase is None:
            return pc.count_substring_regex(texts, self.pattern)
        return pc.count_substring(texts, self.text)

    def excerpt(self, text: str) -> tuple[str, str, str]:
        """Return the first hit in `text`, which must contain one, as (context before, hit, context after)."""
        if self.words:
            at = first_words(text, self.text)
            before, after = text[:at], text[at + len(self.text) :]
        elif self.phrase is None:
            before, after = self._split(text)
        else:
            before, _, after = text.partition(self.text)
        found = text[len(before) : len(text) - len(after)]
        return before[max(0, len(before) - self.context) :], found, after[: self.context]

    def _split(self, text: str) -> list[str]:
        """Return [text before the first hit, text after it], or [text] if there is no hit."""
        try:
            pieces: list[str] = pc.split_pattern_regex(pa.scalar(text), self.pattern, max_splits=1).as_py()
        except UnicodeDecodeError:
            raise UserError(f"--regex: {self.text!r}: matches a part of a character; leave out \\C") from None
        return pieces
