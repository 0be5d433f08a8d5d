"""`extract: best`: choose line by line from the texts of resiliparse and trafilatura.

A line is kept if a weighted sum of its features (`line_features`) is at least 0, that is, if logistic
regression gives it a probability of at least one half of being content. Lines between two kept lines are kept
if both extractors have all of them. In Markdown, headings before a kept line, and tables and code next to
one, are kept too. The weights in `line_weights.json` were fitted to the pages and snippets of trafilatura's
evaluation (`python -m benchmarks.line_choice`). docs/benchmarks.md reports the quality by cross-validation.

resiliparse is the cheaper of the two. Its lines are first judged alone, with weights for this purpose.
trafilatura does not run if that judgement is certain, resiliparse's text has most of the page's prose, and
there is enough prose to judge. Otherwise trafilatura's own rules run once, and the lines of both are judged
together. trafilatura's fallbacks are turned off, because resiliparse's lines take their place. A line that
both have is written as trafilatura writes it, because resiliparse writes a space after every link and
emphasis. In Markdown, however, a line with a formula, code or a table is written as resiliparse writes it.

If no line is kept, the text is trafilatura's, or resiliparse's if trafilatura finds none.
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
    """The bounds within which lines are chosen from resiliparse's text alone, without running trafilatura.
    They were set on the pages to which the weights are fitted (docs/benchmarks.md).

    `unsure` is the maximum number of letters expected to be judged wrongly, as a fraction of the letters
    kept. `missing` is the maximum share of the letters in the page's prose that resiliparse's text lacks.
    `prose` is the minimum number of letters in the page's prose.
    """

    unsure: float = 0.08
    missing: float = 0.06
    prose: int = 500


BOUNDS = Bounds()


@dataclass(frozen=True)
class PageEvidence:
    """What `choose_lines` needs to know about a page. `lines` are the lines of resiliparse's text, which is
    Markdown if `markdown` is set. `links` are the keys (`letters_of`) of the texts of the page's links.
    `prose` returns the keys of the page's lines of prose.
    """

    lines: list[Line]
    links: frozenset[str]
    prose: Callable[[], list[str]]
    markdown: bool = False


def rule_version() -> str:
    """Return the version of the rule, which includes a hash of its weights."""
    return f"{_VERSION}-{sha256(_WEIGHTS.read_bytes()).hexdigest()[:16]}"


@cache
def shipped_weights() -> Weights:
    """Return the weights from `line_weights.json`: `alone` for resiliparse's lines, and `both` for the merged
    lines of both extractors. Each list contains the constant, followed by one weight for each feature.
    """
    found = json.loads(_WEIGHTS.read_text())
    names = {"alone": TEXT_FEATURES, "both": (*TEXT_FEATURES, *BOTH_FEATURES)}
    return {kind: [found[kind][name] for name in ("constant", *names[kind])] for kind in names}


def choose_lines(
    page: PageEvidence, extract_second: Callable[[], list[Line]], weights: Weights, bounds: Bounds = BOUNDS
) -> list[Line]:
    """Return the chosen lines of a page. `extract_second` returns the lines of trafilatura's text; it is
    called only if they are needed.
    """
    forms: Forms = {}
    scores = _scores(text_features(page.lines, page.links, forms), weights["alone"])
    if _is_certain(page, scores, bounds):
        return _kept(page, page.lines, scores)
    second = extract_second()
    lines = merge_lines(page.lines, second, _MARKED if page.markdown else None)
    return _kept(page, lines, _scores(all_features(lines, page.links, forms), weights["both"])) or second or page.lines


def all_features(lines: list[Line], links: frozenset[str], forms: Forms | None = None) -> list[list[float]]:
    """Return, for each merged line, its TEXT_FEATURES followed by its BOTH_FEATURES."""
    pairs = zip(text_features(lines, links, forms), both_features(lines), strict=True)
    return [text + both for text, both in pairs]


def _is_certain(page: PageEvidence, scores: Sequence[float], bounds: Bounds) -> bool:
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
    """Return the evidence from which `choose_lines` chooses the lines of a page. `tree` is resiliparse's
    HTMLTree of the page. `extract` returns resiliparse's text of the page, as Markdown if `markdown` is set.

    Extracting Markdown changes the tree, so in that case the prose is collected first. Otherwise it is
    collected only when it is needed, and the tree must not change before that.
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
    """Return the text of the lines that `choose_lines` chooses with the shipped weights. `extract_second`
    returns trafilatura's text.
    """
    return join_lines(choose_lines(page, lambda: split_lines(extract_second(), page.markdown), shipped_weights()))


def _kept(page: PageEvidence, lines: list[Line], scores: Sequence[float]) -> list[Line]:
    keep = [score >= 0 for score in scores]
    _keep_agreed(lines, keep)
    if page.markdown:
        _keep_structure(lines, keep)
    return [line for line, kept in zip(lines, keep, strict=True) if kept]


def _keep_agreed(lines: list[Line], keep: list[bool]) -> None:
    before = None  # the last kept line
    for number in [number for number, kept in enumerate(keep) if kept]:
        if before is not None and all(line.first and line.second for line in lines[before + 1 : number]):
            keep[before:number] = [True] * (number - before)
        before = number


def _keep_structure(lines: list[Line], keep: list[bool]) -> None:
    for number in reversed(range(len(lines) - 1)):
        keep[number] = keep[number] or (keep[number + 1] and _STRUCTURE.match(lines[number].text) is not None)
    for number in range(1, len(lines)):
        keep[number] = keep[number] or (keep[number - 1] and _BLOCK.match(lines[number].text) is not None)


def _scores(rows: list[list[float]], weights: list[float]) -> list[float]:
    """Return the score of each row: `weights[0]` plus the dot product of the row and `weights[1:]`. The
    products are added without intermediate rounding, so that the choice of lines does not depend on the
    processor.
    """
    return [math.fsum([weights[0], *map(float.__mul__, weights[1:], row)]) for row in rows]
