"""Print the funnel at the end of `build`: how many documents, bytes and tokens were left after each step, by
source. After a build of a sample, also print estimates for the whole corpus.
"""

import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from gristmill.console import wide_console
from gristmill.terminal import human_bytes, human_count
from pipelines.contracts.given_split import SPLITS, TEST
from pipelines.contracts.manifest import CorpusManifest, bytes_per_token, without_validation
from pipelines.contracts.shard_set import ShardRecord
from pipelines.report.estimates import AT_MOST, ESTIMATE, estimate_notes

_DOMAINS = 20  # domains of a source that are listed
_GLUE = "\u00a0"  # no-break space


def show_funnel(manifest: CorpusManifest) -> None:
    """Print a table of documents, bytes and tokens. For each source, it shows what was read, what remained
    after every step that removes documents or text, and what each split and each domain of the shards holds.
    The tokens of steps are estimates. Below a row, print how many documents each rule dropped, or how many
    records were quarantined for each reason.

    After the table, name the domains without validation documents.
    """
    console = wide_console()
    density = bytes_per_token(manifest)
    rows: list[tuple[tuple[str, str, str, str], dict[str, int]]] = []
    for source, facts in manifest.sources.items():
        rows.append(((source, "", "", ""), {}))
        documents = _change(facts["in"], facts["kept"], "{:,}".format)
        rows.append((("  read", documents, human_bytes(facts["decoded_bytes"]), ""), facts["quarantined"]))
        for row in (row for row in manifest.funnel if row["source"] == source):
            tokens = ""
            if source in density:
                tokens = "~" + _change(
                    row["bytes_in"] / density[source], row["bytes_out"] / density[source], human_count
                )
            documents = _change(row["documents_in"], row["documents_out"], "{:,}".format)
            text = _change(row["bytes_in"], row["bytes_out"], human_bytes)
            rows.append(((f"  {row['step']}", documents, text, tokens), row["dropped"]))
        for split, counts in facts.get("splits", {}).items():
            rows.append(
                ((f"  given: {split}", _change(counts["documents"], counts["kept"], "{:,}".format), "", ""), {})
            )
        for name, shards in manifest.shard_sets.items():
            own = [shard for shard in shards.shards if shard.source == source]
            for split in (split for split in SPLITS if split != TEST or TEST in facts.get("splits", {})):
                shown = (shard for shard in own if shard.split == split)
                rows.append((_shard_cells(f"  {name}: {split}", list(shown)), {}))
            rows += [(cells, {}) for cells in _domain_cells(own)]
    heading = (f"corpus {manifest.corpus}", "documents", "text", "tokens")
    widths = [max(cell_len(cells[column]) for cells, _ in [(heading, {}), *rows]) for column in range(4)]
    console.print(Text(_aligned(heading, widths), style="bold"), soft_wrap=True)
    for cells, dropped in rows:
        console.print(Text(_aligned(cells, widths), style="" if cells[0].startswith(" ") else "bold"), soft_wrap=True)
        if dropped:
            _print_wrapped(console, _rules(dropped), " " * 6)
    console.print("[dim]~ estimated from the source's bytes per token in its shards[/dim]")
    for name, domains in without_validation(manifest).items():
        more = f" and {len(domains) - _DOMAINS:,} more" if len(domains) > _DOMAINS else ""
        console.print(
            f"{name}: no validation documents of {', '.join(domains[:_DOMAINS])}{more}, so training measures no held-out loss "
            "for them; raise `validation_share`, or change `seed` or `split_by`", markup=False, soft_wrap=True,
        )  # fmt: skip


def _print_wrapped(console: Console, text: str, indent: str) -> None:
    lines = textwrap.wrap(
        text, max(40, console.width), initial_indent=indent, subsequent_indent=indent, break_long_words=False,
        break_on_hyphens=False,
    )  # fmt: skip
    console.print(Text("\n".join(lines).replace(_GLUE, " "), style="dim"), soft_wrap=True)


def _shard_cells(title: str, shards: Sequence[ShardRecord]) -> tuple[str, str, str, str]:
    documents, tokens = sum(shard.documents for shard in shards), sum(shard.tokens for shard in shards)
    return title, f"{documents:,}", human_bytes(sum(shard.text_bytes for shard in shards)), f"{tokens:,}"


def _domain_cells(shards: Sequence[ShardRecord]) -> list[tuple[str, str, str, str]]:
    groups: dict[str, list[ShardRecord]] = {}
    for shard in (shard for shard in shards if shard.group):
        groups.setdefault(shard.domain, []).append(shard)
    lines = [_shard_cells(f"    {domain}", groups[domain]) for domain in sorted(groups)[:_DOMAINS]]
    more = len(groups) - len(lines)
    return [*lines, (f"    and {more:,} more, in the report", "", "", "")] if more else lines


def _aligned(cells: Sequence[str], widths: Sequence[int]) -> str:
    padding = [width - cell_len(cell) for cell, width in zip(cells, widths, strict=True)]
    figures = [" " * (2 + space) + cell for cell, space in zip(cells[1:], padding[1:], strict=True)]
    return (cells[0] + " " * padding[0] + "".join(figures)).rstrip()


def _change(before: float, after: float, form: Callable[[float], str]) -> str:
    return form(before) if before == after else f"{form(before)} → {form(after)}"


def _rules(counts: Mapping[str, int]) -> str:
    """Format how many documents each rule dropped, grouped by rule set: `SET: RULE 7, RULE 2; language 1`."""
    sets: dict[str, dict[str, int]] = {}
    for rule, number in sorted(counts.items(), key=lambda item: -item[1]):
        family, dot, name = rule.partition(".")
        sets.setdefault(family if dot else "", {})[name if dot else rule] = number
    lists = {
        family: ", ".join(f"{rule}{_GLUE}{number:,}" for rule, number in rules.items())
        for family, rules in sets.items()
    }
    return "; ".join(f"{family}: {rules}" if family else rules for family, rules in lists.items())


def show_estimates(estimates: Mapping[str, Any]) -> None:
    """Print estimates for the whole corpus, by source and step, with confidence intervals."""
    console = wide_console()
    rows: list[tuple[tuple[str, str, str], str]] = []
    for source in estimates["sources"]:
        rows.append(((source["source"], f"{source['sampled']:,} of {source['records']:,}", "in the sample"), ""))
        for row in source["rows"]:
            rows.append(((f"  {row['step']}", *_figures(row)), _losses(row)))
        for name, tokens in source.get("tokens", {}).items():
            rows.append(((f"  {name}", "", _figure(source["meaning"], tokens, human_count, " tokens")), ""))
    totals = estimates["totals"]
    rows.append((("all sources", "", ""), ""))
    rows.append((("  read", *_figures({"meaning": ESTIMATE, **totals["read"]})), ""))
    rows.append((("  kept", *_figures({"meaning": totals["meaning"], **totals["kept"]})), ""))
    for name, tokens in totals["tokens"].items():
        rows.append(((f"  {name}", "", _figure(totals["meaning"], tokens, human_count, " tokens")), ""))
    heading = ("the whole, estimated", "documents", "text")
    widths = [max(cell_len(cells[column]) for cells, _ in [(heading, ""), *rows]) for column in range(3)]
    console.print(Text(_aligned(heading, widths), style="bold"), soft_wrap=True)
    for cells, losses in rows:
        console.print(Text(_aligned(cells, widths), style="" if cells[0].startswith(" ") else "bold"), soft_wrap=True)
        if losses:
            _print_wrapped(console, losses, " " * 6)
    legend = (
        f"in brackets: {100 * estimates['level']:.0f} % intervals; ≤, ≥: the sample holds too few of the duplicates"
    )
    for note in [legend, *estimate_notes(estimates)]:
        _print_wrapped(console, note, "")


def _figures(row: Mapping[str, Any]) -> tuple[str, str]:
    return (
        _figure(row["meaning"], row["documents"], human_count),
        _figure(row["meaning"], row["bytes"], human_bytes),
    )


def _figure(meaning: str, interval: Sequence[float] | None, form: Callable[[float], str], unit: str = "") -> str:
    if interval is None:
        return "not estimated"
    return ("≤ " if meaning == AT_MOST else "") + _range(interval, form, unit)


def _range(interval: Sequence[float], form: Callable[[float], str], unit: str = "") -> str:
    estimate, low, high = map(form, interval)
    return f"{estimate}{unit}" if low == high else f"{estimate}{unit} ({low}–{high})"


def _losses(row: Mapping[str, Any]) -> str:
    removed, more = row["removed"], "≥ " if row["more"] else ""
    text = (
        [f"{more}{_range(removed, lambda share: f'{100 * share:.3g}')} % of the text"] if removed and removed[2] else []
    )
    rules = sorted(row["dropped"].items(), key=lambda rule: -rule[1][0])
    return "; ".join([*text, *(f"{rule}{_GLUE}{more}{_range(values, human_count)}" for rule, values in rules)])
