"""`extract: best`: the lines of resiliparse and of trafilatura, chosen one by one.

The rule. A line is kept if a weighted sum of its features (`line_features`) is at least 0: a logistic regression that holds
it for content with a probability of one half or more. Lines between two kept ones are kept if both extractors have all of
them, and in Markdown headings, tables and code next to a kept line. The weights are in `line_weights.json`; they were fitted
to the pages and snippets of trafilatura's evaluation (`python -m benchmarks.line_choice`). docs/benchmarks.md has the
quality by cross-validation.

resiliparse is the cheap one. Its lines are judged alone first, by weights of their own. trafilatura does not run if that
judgement is sure, little of the page's prose is outside of resiliparse's text, and there is enough prose for a judgement.
Otherwise its own rules run once, without its fallbacks, whose work the lines of resiliparse do, and the lines of both are judged
together. A line that both have is written as trafilatura does: resiliparse writes a space after every link and emphasis.

If no line is kept, the text is that of trafilatura, or that of resiliparse if trafilatura has none.
"""

import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from pipelines.reading.web.choice.line_features import (
    BOTH_FEATURES,
    TEXT_FEATURES,
    Forms,
    both_features,
    find_prose,
    text_features,
)
from pipelines.reading.web.choice.merged_lines import Line, join_lines, letters_of, merge_lines, split_lines

_VERSION = "2"  # increase it when the same weights give another text
_MARKED = re.compile(r"[$`|]")  # formulas, code and tables of Markdown are as resiliparse's side writes them
_STRUCTURE, _BLOCK = re.compile(r"#{1,6} | *\||```"), re.compile(r" *\||```")
_WEIGHTS = Path(__file__).with_name("line_weights.json")
Weights = dict[str, list[float]]


@dataclass(frozen=True)
class Bounds:
    """When resiliparse alone decides. `unsure`: of the letters that it keeps, at most this share is expected to be judged
    wrongly. `missing`: at most this share of the letters of the page's prose is not in its text. `prose`: the page has at least
    so many letters of prose. Chosen on the pages that the weights are fitted to (docs/benchmarks.md).
    """

    unsure: float = 0.08
    missing: float = 0.06
    prose: int = 500


BOUNDS = Bounds()


@dataclass(frozen=True)
class PageEvidence:
    """What the rule needs of a page: the lines of resiliparse's text, the keys of the texts of its links, a function that
    returns those of its lines of prose, which not every page needs, and whether the lines are Markdown.
    """

    lines: list[Line]
    links: frozenset[str]
    prose: Callable[[], list[str]]
    markdown: bool = False


def rule_version() -> str:
    """Return what documents extracted by this rule depend on."""
    return f"{_VERSION}-{sha256(_WEIGHTS.read_bytes()).hexdigest()[:16]}"


@cache
def shipped_weights() -> Weights:
    """Return the weights of the file, in the order of the features."""
    found = json.loads(_WEIGHTS.read_text())
    names = {"alone": TEXT_FEATURES, "both": (*TEXT_FEATURES, *BOTH_FEATURES)}
    return {kind: [found[kind][name] for name in ("constant", *names[kind])] for kind in names}


def choose_lines(
    page: PageEvidence, extract_second: Callable[[], list[Line]], weights: Weights, bounds: Bounds = BOUNDS
) -> list[Line]:
    """Return the chosen lines of a page. `extract_second` returns the lines of trafilatura's text; it is called if they are
    needed.

    `weights` are `alone` for resiliparse's lines and `both` for the merged ones: the constant, then one for each feature.
    """
    forms: Forms = {}
    scores = _scores(text_features(page.lines, page.links, forms), weights["alone"])
    if _is_certain(page, scores, bounds):
        return _kept(page, page.lines, scores)
    second = extract_second()
    lines = merge_lines(page.lines, second, _MARKED if page.markdown else None)
    return _kept(page, lines, _scores(all_features(lines, page.links, forms), weights["both"])) or second or page.lines


def all_features(lines: list[Line], links: frozenset[str], forms: Forms | None = None) -> list[list[float]]:
    """Return TEXT_FEATURES and BOTH_FEATURES of each of the merged lines."""
    pairs = zip(text_features(lines, links, forms), both_features(lines), strict=True)
    return [text + both for text, both in pairs]


def _is_certain(page: PageEvidence, scores: Sequence[float], bounds: Bounds) -> bool:
    """Whether resiliparse's lines with these scores can do without trafilatura's."""
    letters = [len(line.key) for line in page.lines]
    kept = sum(size for size, score in zip(letters, scores, strict=True) if score >= 0)
    wrong = sum(size / (1 + math.exp(min(700, abs(score)))) for size, score in zip(letters, scores, strict=True))
    if wrong > bounds.unsure * kept:
        return False
    keys, there = page.prose(), {line.key for line in page.lines}
    prose = sum(map(len, keys))
    missing = sum(len(key) for key in keys if key not in there)
    return missing <= bounds.missing * prose and prose >= bounds.prose


def read_page(tree: Any, extract: Callable[[], str], markdown: bool) -> PageEvidence:
    """Return what the rule needs of resiliparse's HTMLTree. `extract` returns its main text. Markdown changes the tree, so that
    prose is looked for before.
    """
    from resiliparse.extract.html2text import extract_plain_text

    def prose() -> list[str]:
        return find_prose(extract_plain_text(tree, alt_texts=False))

    before = prose() if markdown else []
    links = tree.document.query_selector_all("a")[:]
    if tree.document.query_selector("a a") is not None:  # outer ones are left out, so that nothing is read twice
        links = [link for link in links if link.query_selector("a") is None]
    keys = frozenset(letters_of(link.text) for link in links)
    return PageEvidence(split_lines(extract(), markdown), keys, (lambda: before) if markdown else prose, markdown)


def extract_best(page: PageEvidence, extract_second: Callable[[], str]) -> str:
    """Return the text of the chosen lines. `extract_second` returns trafilatura's text."""
    return join_lines(choose_lines(page, lambda: split_lines(extract_second(), page.markdown), shipped_weights()))


def _kept(page: PageEvidence, lines: list[Line], scores: Sequence[float]) -> list[Line]:
    """Return the lines with a score of 0 or more, and those that are kept for their place: the scores know prose best."""
    keep = [score >= 0 for score in scores]
    _keep_agreed(lines, keep)
    if page.markdown:
        _keep_structure(lines, keep)
    return [line for line, kept in zip(lines, keep, strict=True) if kept]


def _keep_agreed(lines: list[Line], keep: list[bool]) -> None:
    """Keep what is between two kept lines if both extractors have all of it."""
    before = None  # the last kept line
    for number in [number for number, kept in enumerate(keep) if kept]:
        if before is not None and all(line.first and line.second for line in lines[before + 1 : number]):
            keep[before:number] = [True] * (number - before)
        before = number


def _keep_structure(lines: list[Line], keep: list[bool]) -> None:
    """Keep headings of Markdown before a kept line, and tables and code before or after one."""
    for number in reversed(range(len(lines) - 1)):
        keep[number] = keep[number] or (keep[number + 1] and _STRUCTURE.match(lines[number].text) is not None)
    for number in range(1, len(lines)):
        keep[number] = keep[number] or (keep[number - 1] and _BLOCK.match(lines[number].text) is not None)


def _scores(rows: list[list[float]], weights: list[float]) -> list[float]:
    """Return weights[0] + the weighted sum of each row. Exactly rounded, so that no processor decides about a line."""
    return [math.fsum([weights[0], *map(float.__mul__, weights[1:], row)]) for row in rows]
