"""Print the output of `diff`."""

from rich.markup import escape
from rich.table import Table

from gristmill.console import Page, wide_console
from gristmill.terminal import printable, quantity
from pipelines.explore.comparison.compare_corpora import CorpusComparison, Kind, SourceChange
from pipelines.explore.comparison.compare_distributions import LEAST_DISTANCE
from pipelines.report.bins import quantile
from pipelines.report.corpus_charts import short

TITLES: dict[Kind, str] = {"out": "went out", "in": "came in", "changed": "with another text"}

_DISTRIBUTIONS, _NGRAMS = 10, 5  # printed: distributions, and n-grams of each length and direction


def show_corpora(comparison: CorpusComparison, samples: int) -> None:
    """Print a comparison of two corpora. For each source and reason, list up to `samples` ids of documents
    that differ.
    """
    console = wide_console()
    old, new = comparison.old.manifest, comparison.new.manifest
    console.print(
        f"old [bold]{escape(str(comparison.old.directory))}[/bold] {old.fingerprint[:12]}\n"
        f"new [bold]{escape(str(comparison.new.directory))}[/bold] {new.fingerprint[:12]}\n"
    )
    console.print(_sources(comparison.sources))
    page = Page()
    for kind, title in TITLES.items():
        rows = [(source, *row) for source, change in comparison.sources.items() for row in change_rows(change, kind)]
        if not rows:
            continue
        page.heading(f"{quantity(sum(number for _, _, number in rows), 'document')} {title}")
        for source, reason, number in rows:
            page.line(f"  {number:>12,}  {printable(source)}  {printable(_words(kind, reason))}")
            for identifier in comparison.samples(source, kind, reason, samples):
                page.line(f"                  {printable(identifier)}")
    _show_distributions(page, comparison)
    _show_ngrams(page, comparison)
    if not len(comparison.documents):
        console.print("\nboth keep the same documents with the same texts")


def _show_distributions(page: Page, comparison: CorpusComparison) -> None:
    changes = [change for change in comparison.distributions if change.distance >= LEAST_DISTANCE][:_DISTRIBUTIONS]
    if changes:
        page.heading("Distributions of kept documents that differ most")
    for change in changes:
        before, now = (short(quantile(side, 0.5), change.column) for side in (change.old, change.new))
        page.line(f"  {change.distance:>12.3f}  {printable(change.source)}  {change.column}: median {before} -> {now}")


def _show_ngrams(page: Page, comparison: CorpusComparison) -> None:
    if comparison.ngrams is None:
        return
    for more, title in ((True, "new"), (False, "old")):
        page.heading(f"N-grams over-represented in the {title} corpus, with their score and counts")
        if not any(comparison.ngrams.of(change.words, more) for change in comparison.ngrams.ngrams):
            page.line("  none differs by more than chance")
        for words in sorted({change.words for change in comparison.ngrams.ngrams}):
            for change in comparison.ngrams.of(words, more)[:_NGRAMS]:
                page.line(f"  {change.score:>+12.1f}  {printable(change.text)}  {change.old:,} -> {change.new:,}")


def change_rows(change: SourceChange, kind: Kind) -> list[tuple[str | None, int]]:
    """Return the numbers of a source's documents that went out, came in or changed, as pairs (reason,
    number). The reason says why the new corpus (for `out`) or the old one (for `in`) does not keep them. For
    `changed`, there is at most one pair, whose reason is None.
    """
    if kind == "changed":
        return [(None, change.changed)] if change.changed else []
    return list((change.went_out if kind == "out" else change.came_in).items())


def _words(kind: Kind, reason: str | None) -> str:
    return "" if reason is None else f"{'now' if kind == 'out' else 'before'}: {reason}"


def _sources(changes: dict[str, SourceChange]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("source", no_wrap=True)
    for heading in ("kept before", "kept now", "same", "other text", "out", "in"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("tokens", overflow="fold")
    for name, change in changes.items():
        table.add_row(escape(name), *_figures([change]), _tokens(change))
    if len(changes) > 1:
        table.add_row("[bold]all[/bold]", *_figures(list(changes.values())), "")
    return table


def _figures(changes: list[SourceChange]) -> list[str]:
    rows = [
        (
            change.kept_before, change.kept_now, change.same, change.changed,
            sum(change.went_out.values()), sum(change.came_in.values()),
        )
        for change in changes
    ]  # fmt: skip
    return [f"{sum(column):,}" for column in zip(*rows, strict=True)]


def _tokens(change: SourceChange) -> str:
    def number(tokens: int | None) -> str:
        return "none" if tokens is None else f"{tokens:,}"

    return "; ".join(
        f"{escape(name)}: {number(before)} -> {number(now)}" if before != now else f"{escape(name)}: {number(now)}"
        for name, (before, now) in change.tokens.items()
    )
