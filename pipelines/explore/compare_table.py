"""Print the output of `compare-rules`."""

from collections import Counter

from rich.markup import escape
from rich.table import Table

from gristmill.console import Page, wide_console
from gristmill.terminal import printable
from pipelines.explore.compare_rules import Comparison, describe_missing_columns

_REASONS = 4  # most frequent reasons shown per rule set
_COLUMNS = 3  # missing columns shown per rule set and stage


def show_comparison(comparison: Comparison, samples: int, pairs: int) -> None:
    """Print a comparison of rule sets, with the ids of up to `samples` documents that each set alone drops
    and up to `samples` that all sets drop. `pairs` limits the number of pairs of rule sets shown, those that
    disagree on the most documents first; 0 shows all.
    """
    console = wide_console()
    corpus, compared = comparison.corpus.manifest, comparison.compared
    documents = sum(tally.documents for tally in comparison.tallies.values())
    console.print(
        f"corpus [bold]{corpus.corpus}[/bold]: {_count(len(compared), 'rule set')} on {_count(documents, 'document')} of "
        f"{_count(len(comparison.tallies), 'source')}, whether or not this corpus keeps them\n"
    )
    console.print(_drops(comparison))
    if len(compared) > 1:
        console.print("\n[bold]how far they agree[/bold] [dim](Jaccard: dropped by both / dropped by either)[/dim]")
        console.print(_pairs(comparison, pairs or len(comparison.pairs)))
        more = len(comparison.pairs) - pairs if pairs else 0
        if more > 0:
            console.print(f"[dim]{_count(more, 'more pair')} with fewer differences; --pairs 0 shows all[/dim]")
        console.print(f"\n{_agreement(comparison)}")
    page = Page()
    for name in (*compared, "") if samples else ():
        entries = comparison.samples(name, samples)
        if entries and (name or len(compared) > 1):
            page.heading(f"dropped by {name} alone" if name else "dropped by all of them")
            for identifier, reason in entries:
                page.line(f"  {printable(identifier)}" + (f"  {reason}" if name else ""))
    lacking = [name for name in comparison.names if name not in compared and name in comparison.missing]
    if lacking:
        console.print("\n[bold]not compared[/bold], because this corpus lacks columns they read:")
        table = Table(box=None, pad_edge=False, show_header=False)
        table.add_column(no_wrap=True)
        table.add_column(overflow="fold")
        for name in lacking:
            table.add_row(f"  {escape(name)}", escape("; ".join(describe_missing_columns(comparison, name, _COLUMNS))))
        console.print(table)


def _drops(comparison: Comparison) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("rule set", no_wrap=True)
    for heading in ("documents", "dropped", "share", "only by it"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("first rule to fail", overflow="fold")
    several = len(comparison.tallies) > 1
    for name in comparison.compared:
        total, dropped = comparison.documents(name), comparison.dropped(name)
        table.add_row(
            f"[bold]{escape(name)}[/bold]", f"{total:,}", f"{dropped:,}", _share(dropped, total),
            f"{comparison.alone(name):,}", _top(name, comparison.reasons(name)),
        )  # fmt: skip
        for source, tally in comparison.tallies.items() if several else ():
            if name not in tally.sets:
                table.add_row(f"  {source}", f"{tally.documents:,}", "", "", "", "[dim]not measured here[/dim]")
                continue
            at = tally.sets.index(name)
            dropped = int(tally.both[at, at])
            table.add_row(
                f"  {source}", f"{tally.documents:,}", f"{dropped:,}", _share(dropped, tally.documents),
                f"{int(tally.alone[at]):,}", _top(name, tally.reasons[name]),
            )  # fmt: skip
    return table


def _pairs(comparison: Comparison, most: int) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("one", "other"):
        table.add_column(heading, no_wrap=True)
    for heading in ("both", "only one", "only other", "Jaccard"):
        table.add_column(heading, justify="right", no_wrap=True)
    for pair in sorted(comparison.pairs, key=lambda pair: -(pair.only_one + pair.only_other))[:most]:
        counts = (f"{count:,}" for count in (pair.both, pair.only_one, pair.only_other))
        jaccard = "-" if pair.jaccard is None else f"{pair.jaccard:.3f}"
        table.add_row(escape(pair.one), escape(pair.other), *counts, jaccard)
    return table


def _agreement(comparison: Comparison) -> str:
    measured = sum(tally.documents for tally in comparison.tallies.values() if tally.sets)
    counts = comparison.dropped_by
    union, shared = sum(count for times, count in counts.items() if times), counts[len(comparison.compared)]
    spread = ", ".join(f"{count:,} by {times}" for times, count in sorted(counts.items()) if times and count)
    line = (
        f"any of them drops {union:,} ({_share(union, measured)}), all of them {shared:,} ({_share(shared, measured)})"
    )
    return f"{line}\ndocuments by the number of sets that drop them: {spread or 'none'}"


def _top(name: str, reasons: Counter[str]) -> str:
    family, _, variant = name.partition("@")
    top = sorted(reasons.items(), key=lambda entry: (-entry[1], entry[0]))
    shown = ", ".join(
        f"{escape(rule.removeprefix(f'{family}.').removesuffix(f'_{variant}'))} {count:,}"
        for rule, count in top[:_REASONS]
    )
    rest = sum(count for _, count in top[_REASONS:])
    return f"{shown}, others {rest:,}" if rest else shown


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "-"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
