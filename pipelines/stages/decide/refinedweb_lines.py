"""RefinedWeb's line-wise corrections as edits, which remove or shorten lines that are not sentences, such as
buttons, counters and headings.

Penedo et al. 2023 (arXiv 2306.01116), appendix G.2: a line is discarded if it is mainly upper case, only
numbers, a counter such as "3 likes", or a single word; a line of at most ten words loses certain patterns at
its beginning, at its end or within. A document is discarded if the flagged lines hold more than 5 % of its
words.
"""

import re
from dataclasses import dataclass

import pyarrow as pa

from pipelines.contracts.columns import DROP, EDITS_COLUMN
from pipelines.contracts.edits import EDITS, edits_column
from pipelines.contracts.reads_text import MeasuresText
from pipelines.contracts.stage import PartStage

REMOVED = "refinedweb_removed_word_ratio"
_SHORT = 10  # maximum number of words: "short (<= 10 words) and matches a pattern"
_MAINLY = 0.5  # share of a line's letters; the paper says "mainly composed of uppercase characters"
_COUNTED = (
    "likes?|shares?|comments?|retweets?|reposts?|quotes?|bookmarks?|upvotes?|downvotes?|downloads?|views?|followers?"
)
_COUNTER = re.compile(rf"\W*\d[\d.,]*(\s?[km])?\s+({_COUNTED})\W*", re.IGNORECASE)
# The paper gives one example of each pattern, and only these are used here.
_BEGINS = re.compile(r"sign[ -]?in\b\W*", re.IGNORECASE)
_ENDS = re.compile(r"\bread more\W*\Z", re.IGNORECASE)
_WITHIN = re.compile(r"\bitems in cart\b", re.IGNORECASE)
_LINE = re.compile(r"[^\n]*\n|[^\n]+")


@dataclass(frozen=True)
class RefinedwebLines(MeasuresText, PartStage):
    """Remove or shorten lines by `edits`, according to RefinedWeb's line-wise corrections, and measure the
    share of a document's words that are in these lines.

    An edit's rule is `refinedweb.` and the first test that the line meets: uppercase, numeric, counter,
    one_word, pattern. A document without remaining lines is dropped as `STEP.empty`. To apply the paper's
    bound, use `filter: [{signal: refinedweb_removed_word_ratio, at_most: 0.05}]`.

    | column | unit | definition |
    |---|---|---|
    | refinedweb_removed_word_ratio | 1 | words of the lines that meet a test / all words, separated by white space; null if \
    the document has no words |

    The tests apply to a line without white space at its ends. uppercase: more than half of its letters are
    upper case. numeric: at least one digit and no letter. counter: nothing but a number and one of
    likes, shares, comments, views and so on, such as "3 likes". one_word: one word. pattern: at most ten
    words, with "sign in" at the beginning, "read more" at the end, or "items in cart" anywhere; only the
    pattern is removed.
    """

    def writes(self) -> pa.Schema:
        return pa.schema(
            [(DROP, pa.string()), (EDITS_COLUMN, EDITS), *self.named(pa.schema([(REMOVED, pa.float32())]))]
        )

    def judges(self) -> frozenset[str]:
        return frozenset(("lines", "words"))

    def annotate(self, docs: pa.Table) -> pa.Table:
        edits, shares = [], []
        for text in docs[self.text].to_pylist():
            line_edits, flagged, words = _edits(text)
            edits.append(line_edits)
            shares.append(flagged / words if words else None)
        drop = pa.nulls(docs.num_rows, pa.string())
        return pa.table([drop, edits_column(edits), pa.array(shares, pa.float32())], schema=self.writes())


def _edits(text: str) -> tuple[list[tuple[int, int, str, str]], int, int]:
    """Return the edits of a text (positions in bytes), the number of words in lines that meet a test, and the
    number of all words.
    """
    edits: list[tuple[int, int, str, str]] = []
    at = flagged = total = 0
    for line in _LINE.findall(text):
        words = len(line.split())
        total += words
        rule, cuts = judge(line.strip(), words) if words else ("", [])
        if rule:
            flagged += words
            indent = len(line) - len(line.lstrip())
            spans = [(indent + low, indent + high) for low, high in cuts] or [(0, len(line))]
            for low, high in spans:
                start = at + len(line[:low].encode())
                edits.append((start, start + len(line[low:high].encode()), "", f"refinedweb.{rule}"))
        at += len(line.encode())
    return edits, flagged, total


def judge(line: str, words: int) -> tuple[str, list[tuple[int, int]]]:
    """Return the name of the first of RefinedWeb's tests that a line meets, or "" if it meets none, and the
    character ranges [start, end) to remove from the line. `line` is stripped and has `words` words. If it
    meets a test and there are no ranges, the whole line is to be removed.
    """
    letters = sum(map(str.isalpha, line))
    if sum(map(str.isupper, line)) > _MAINLY * letters:
        return "uppercase", []
    if not letters and any(map(str.isdigit, line)):
        return "numeric", []
    if _COUNTER.fullmatch(line):
        return "counter", []
    if words == 1:
        return "one_word", []
    if words > _SHORT:
        return "", []
    begin, end = _BEGINS.match(line), _ENDS.search(line)
    spans = [match.span() for match in (begin, *_WITHIN.finditer(line)) if match]
    spans += [(len(line[: end.start()].rstrip()), len(line))] if end else []
    low, cuts = 0, []
    for start, stop in spans:  # in order, without overlaps
        if stop > max(start, low):
            cuts.append((max(start, low), stop))
            low = stop
    return ("pattern", cuts) if cuts else ("", [])
