"""Print the output of `search`."""

from gristmill.console import Page
from gristmill.terminal import printable, quantity
from pipelines.explore.searching.search_corpus import SearchResult


def show_found(found: SearchResult) -> None:
    """Print the documents found, each with its first hit, the totals, and a hint if some parts have no
    current index.
    """
    page = Page()
    for hit in found.first:
        page.line(
            printable(hit.document) + (f"  dropped by {printable(hit.rule)}" if hit.rule is not None else ""), "bold"
        )
        more = f"  ({hit.count:,} hits)" if hit.count > 1 else ""
        page.line(f"  {_one_line(hit.before)}[{_one_line(hit.found)}]{_one_line(hit.after)}{more}")
    left = found.documents - len(found.first)
    if left and found.first:
        page.line(f"{quantity(left, 'more document')}; --limit {found.documents} shows all", "dim")
    page.line(f"{quantity(found.hits, 'hit')} in {quantity(found.documents, 'document')}")
    if found.read:
        page.line(
            f"{found.read:,} of {quantity(found.parts, 'part')} have no current index and were read as a whole; "
            "`python -m pipelines index` writes one",
            "dim",
        )


def _one_line(text: str) -> str:
    return printable(text.replace("\n", " ").replace("\t", " "))
