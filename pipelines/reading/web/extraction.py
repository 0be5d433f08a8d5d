"""Extract the text of one page or piece of HTML. `page_worker` calls these functions in a child process; the
kernel's limits on that process guard against what the checks here miss.
"""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any, ClassVar

from pipelines.reading.web.charset import decode_page, is_undecodable
from pipelines.reading.web.choice.best_extraction import extract_best, read_page
from pipelines.reading.web.page_fields import page_fields
from pipelines.reading.web.page_markdown import extract_markdown
from pipelines.reading.web.page_measures import page_letters, page_measures
from pipelines.reading.web.page_reservations import page_reservations


@dataclass(frozen=True)
class PageLimits:
    """Settings and limits of the worker process that extracts text. `extract` and the last four fields are
    those of Source.

    - `parser`: the function that parses a record, as MODULE:NAME below `pipelines.reading`.
    - `nodes` and `depth`: the maximum number and nesting depth of a page's elements.
    - `text_bytes`: the maximum size of the text of a document that is not a page.
    - `html_bytes`: the maximum size of each member of a zip package, such as a chapter of an EPUB.
    - `decoded_bytes`: the maximum decoded size of a whole package.
    - `cpu_seconds`: the maximum processor time for each record.
    - `memory_bytes`: the maximum memory of the worker, in addition to its libraries.
    """

    parser: str
    extract: str
    html_bytes: int
    nodes: int
    depth: int
    text_bytes: int
    decoded_bytes: int
    cpu_seconds: int
    memory_bytes: int
    markup: str = "text"
    page_fields: bool = False
    page_measures: bool = False
    comments: bool = False

    def to_json(self) -> str:
        """Return the settings as JSON for the command line of the worker."""
        return json.dumps(asdict(self))


def page_text(data: bytes, label: str, limits: PageLimits) -> tuple[dict[str, object], str]:
    """Extract the text of an HTML page. Return (head without "page", text), as in `page_worker`'s protocol.
    `label` is the charset in the HTTP header, or "" if there is none.
    """
    html, charset, replaced = decode_page(data, label)
    head, text = _extract(html, limits)
    if text and replaced and is_undecodable(text):
        return {"reason": "undecodable"}, ""
    return head | ({"meta": {"charset": charset, "replaced": replaced}} if text else {}), text


def field_page(data: bytes, label: str, limits: PageLimits) -> tuple[dict[str, object], str]:
    """Extract the text of an HTML page held in a field of a record. Return (head without "page", text), as in
    `page_worker`'s protocol. `data` is UTF-8.
    """
    head, text = _extract(data.decode(), limits)
    return head | ({"meta": {}} if text else {}), text


def field_fragment(data: bytes, label: str, limits: PageLimits) -> tuple[dict[str, object], str]:
    """Extract the whole text of a piece of HTML held in a field of a record. Return ({"meta": {}}, text), or
    ({"reason": ...}, "") if the HTML has too many elements or they nest too deeply. `data` is UTF-8; `label`
    is not used.
    """
    head, text = fragment_text(data.decode(), limits)
    return head or {"meta": {}}, text


def _extract(html: str, limits: PageLimits) -> tuple[dict[str, object], str]:
    from resiliparse.parse.html import HTMLTree

    tree = HTMLTree.parse(html)
    if reason := excess(tree, limits):
        return {"reason": reason}, ""
    head: dict[str, Any] = {"reservations": page_reservations(tree)}
    if limits.page_fields:
        head["fields"] = page_fields(tree)
    letters = page_letters(tree) if limits.page_measures else None  # before an extractor changes the tree
    text = EXTRACTORS[limits.extract](html, tree, limits.markup, limits.comments)
    if not text or text.isspace():
        return {"reason": "no_text_extracted"}, ""
    if letters is not None:
        head["fields"] = head.get("fields", {}) | page_measures(letters, text)
    return head, text


def fragment_text(html: str, limits: PageLimits) -> tuple[dict[str, object], str]:
    """Extract the whole text of a piece of HTML. Return ({}, text), or ({"reason": ...}, "") if it has too
    many elements or they nest too deeply.
    """
    from resiliparse.extract.html2text import extract_plain_text
    from resiliparse.parse.html import HTMLTree

    tree = HTMLTree.parse(html)
    if reason := excess(tree, limits):
        return {"reason": reason}, ""
    if limits.markup == "markdown":
        return {}, extract_markdown(tree, main_content=False)
    return {}, extract_plain_text(tree, alt_texts=False)


def excess(tree: Any, limits: PageLimits) -> str | None:
    """Return `html_nodes` if a parsed page has too many elements, `html_depth` if they nest too deeply, else
    None.
    """
    nodes = len(tree.document.get_elements_by_tag_name("*"))
    if nodes > limits.nodes:
        return "html_nodes"
    if nodes > limits.depth and tree.document.query_selector(_deeper_than(limits.depth)) is not None:
        return "html_depth"
    return None


@cache
def _deeper_than(depth: int) -> str:
    """Return a CSS selector for first children with at least `depth` ancestors. It matches something if any
    element has that many ancestors, because siblings are equally deep.
    """
    return ">".join([*("*" * depth), ":first-child"])


def extract_with_resiliparse(html: str, tree: Any = None, markup: str = "text", comments: bool = False) -> str:
    """Extract the main content of a page with resiliparse. `tree` is its HTMLTree of the page. Markdown
    output requires `tree`, and changes it.

    The options passed to the library were chosen by F1 on the pages that trafilatura is evaluated on
    (benchmarks/extraction.py).
    """
    from resiliparse.extract.html2text import extract_plain_text

    if markup == "markdown":
        return extract_markdown(tree, main_content=True, comments=comments)
    return extract_plain_text(html if tree is None else tree, main_content=True, alt_texts=False, comments=comments)


def extract_with_trafilatura(
    html: str, tree: Any = None, markup: str = "text", comments: bool = False, options: Any = None
) -> str:
    """Extract the main content of a page with trafilatura, without links. `tree` is not used. `options`, an
    Extractor of trafilatura, replace `markup` and `comments`.
    """
    import trafilatura

    _CACHES.make_room(len(html))
    text = trafilatura.extract(
        html,
        output_format="markdown" if markup == "markdown" else "txt",
        include_comments=comments,
        include_tables=True,
        deduplicate=False,
        options=options,
    )
    return text or ""


@cache
def rules_alone(markup: str, comments: bool) -> Any:
    """Return options that make trafilatura run its own rules exactly once, without fallback extractors.

    trafilatura considers a second run for more recall only if the focus is named `balanced`, so another name
    is set. Considering and making second runs took a fifth of trafilatura's time, and changed 9 of 990 pages
    (docs/benchmarks.md).
    """
    from trafilatura.settings import Extractor

    form = "markdown" if markup == "markdown" else "txt"
    options = Extractor(output_format=form, fast=True, comments=comments, tables=True, dedup=False)
    options.focus = "balanced, once"
    return options


def extract_best_of_both(html: str, tree: Any, markup: str = "text", comments: bool = False) -> str:
    """Extract the main content of a page: lines chosen from resiliparse's text or, if that choice is
    uncertain, from the texts of resiliparse and trafilatura. Markdown output changes `tree`.
    """
    markdown = markup == "markdown"
    page = read_page(tree, lambda: extract_with_resiliparse(html, tree, markup, comments), markdown)
    return extract_best(page, lambda: extract_with_trafilatura(html, options=rules_alone(markup, comments)))


class _Caches:
    """Clears trafilatura's caches, which hold lines of pages, before they hold lines from more than `limit`
    characters of pages. Clearing takes 20 ms. It does not affect the extracted text, because trafilatura is
    called with `deduplicate=False`.
    """

    limit: ClassVar[int] = 8 << 20  # characters of pages whose lines may be cached

    def __init__(self) -> None:
        self._cached = 0

    def make_room(self, size: int) -> None:
        self._cached += size
        if self._cached > self.limit:
            from trafilatura.meta import reset_caches

            reset_caches()
            self._cached = size


_CACHES = _Caches()


EXTRACTORS: dict[str, Callable[[str, Any, str, bool], str]] = {
    "resiliparse": extract_with_resiliparse,
    "trafilatura": extract_with_trafilatura,
    "best": extract_best_of_both,
}
"""For each value of `extract`, a function of (HTML, resiliparse's HTMLTree of it, `markup`, `comments`) that returns the
main text.
"""
