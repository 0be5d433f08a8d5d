"""Draw the charts of the corpus page: dropped documents, tokens, clusters of duplicates and distributions of
columns.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from gristmill.page.bars import stacked_bars
from gristmill.page.drawing import COLOURS, KEPT, LOST, series_colour
from gristmill.page.formats import compact, short_size, shortened
from gristmill.page.histograms import Bound, HistogramRow, histogram_rows
from gristmill.terminal import printable
from pipelines.report.bins import Axis, axis_for, cell_counts, quantile

_MOST_BARS = 24
_LABELS = 2  # maximum number of labelled bounds per side
_SOME = 16  # characters in a label of the values by which a rule chooses its documents


def drops_chart(funnel: Sequence[Mapping[str, Any]], sources: Sequence[str]) -> Markup:
    """Draw the number of documents that each rule dropped, stacked by source. The rules that dropped the most
    documents have bars of their own; the others share one.
    """
    by_rule: dict[str, dict[str, int]] = {}
    steps: dict[str, set[str]] = {}
    for row in funnel:
        for rule in row["dropped"]:
            steps.setdefault(rule, set()).add(row["step"])
    for row in funnel:
        for rule, count in row["dropped"].items():
            name = rule if len(steps[rule]) == 1 else f"{row['step']}: {rule}"
            counts = by_rule.setdefault(name, {})
            counts[row["source"]] = counts.get(row["source"], 0) + count
    ranked = sorted(by_rule, key=lambda rule: (-sum(by_rule[rule].values()), rule))
    others = ranked[_MOST_BARS:]
    bars = {rule: by_rule[rule] for rule in ranked[:_MOST_BARS]}
    if others:
        bars[f"{len(others)} other rules"] = {s: sum(by_rule[rule].get(s, 0) for rule in others) for s in sources}
    series = [
        (name, colour, [sum(counts.get(source, 0) for source in members) for counts in bars.values()])
        for name, members, colour in _grouped(sources)
    ]
    return stacked_bars("documents dropped by rule and source", list(bars), series)


def tokens_chart(shard_set: Mapping[str, Any]) -> Markup:
    """Draw the number of tokens of each source as a bar, stacked by split."""
    tokens = {(split["source"], split["split"]): split["tokens"] for split in shard_set["tokens"]}
    sources = list(dict.fromkeys(source for source, _ in tokens))
    colours = {"train": KEPT, "validation": LOST, "test": series_colour(2)}
    series = [
        (split, colours[split], [tokens.get((source, split), 0) for source in sources])
        for split in dict.fromkeys(split for _, split in tokens)
    ]
    return stacked_bars("tokens by source and split", sources, series)


def clusters_chart(duplicates: Mapping[str, Any]) -> Markup:
    """Draw the number of clusters of duplicates by size. Sizes above 4 are grouped: 5 to 8, 9 to 16 and so
    on.
    """
    clusters: dict[str, int] = {}
    for size, count in sorted((int(size), count) for size, count in duplicates["cluster_sizes"].items()):
        low = size if size < 5 else 4 << ((size - 1).bit_length() - 3) | 1
        name = f"{size} copies" if size < 5 else f"{low:,} to {2 * (low - 1):,}"
        clusters[name] = clusters.get(name, 0) + count
    series = [("clusters", KEPT, list(clusters.values()))]
    return stacked_bars(f"clusters of {duplicates['step']} by size", list(clusters), series)


def _grouped(sources: Sequence[str]) -> list[tuple[str, list[str], str]]:
    own = COLOURS - 1 if len(sources) > COLOURS else len(sources)
    groups = [(source, [source]) for source in sources[:own]]
    groups += [("other sources", list(sources[own:]))] if own < len(sources) else []
    return [(name, members, series_colour(number)) for number, (name, members) in enumerate(groups)]


def distribution_chart(
    column: str, by_source: Mapping[str, Mapping[str, Any]], thresholds: Sequence[Mapping[str, Any]]
) -> Markup:
    """Draw a column's distribution, with one row per source that has values. At least one source must have
    values. A bar's height is proportional to the square root of its number of documents, so that tails are
    visible, and each row is scaled to its own peak.
    """
    shown = {source: h for source, h in by_source.items() if h["bins"]}
    bounds = [
        b for t in thresholds for s in shown for end in ("at_least", "at_most") for b in _bounds(t, end, s).values()
    ]
    axis = axis_for(shown.values(), bounds)
    middle = 0.5 if all(h["whole"] for h in shown.values()) and not axis.logarithmic else 0.0
    ticks = [tick for tick in axis.ticks() if tick + middle < axis.high or not middle]
    return histogram_rows(
        f"distribution of {column} by source",
        [_row(column, source, histogram, thresholds, axis) for source, histogram in shown.items()],
        [(axis.position(tick + middle), short(tick, column)) for tick in ticks],
    )


def _row(
    column: str, source: str, histogram: Mapping[str, Any], thresholds: Sequence[Mapping[str, Any]], axis: Axis
) -> HistogramRow:
    every, kept = ((cell_counts(histogram, axis, which) ** 0.5).tolist() for which in (1, 2))
    shaded: list[tuple[float, float]] = []
    bounds: list[Bound] = []
    for test in thresholds:
        if source in test["sources"]:
            _mark_bounds(test, source, axis, histogram["whole"], shaded, bounds)
    median = short(quantile(histogram, 0.5), column)
    return HistogramRow(source, every, kept, median, _missing(histogram), shaded, bounds)


def _mark_bounds(
    test: Mapping[str, Any],
    source: str,
    axis: Axis,
    whole: bool,
    shaded: list[tuple[float, float]],
    bounds: list[Bound],
) -> None:
    """Add the bounds of a rule to `bounds`, and add the ranges of the axis in which the rule drops every
    document of the source to `shaded`. Nothing is shaded if the rule has a `when`, or on a side where it
    leaves a group unbounded.
    """
    some = shortened(", ".join(str(value) for values in test["when"].values() for value in values), _SOME)
    for end, sign in (("at_least", "≥"), ("at_most", "≤")):
        by_group = _bounds(test, end, source)
        places = [axis.position(bound + (1 if whole and end == "at_most" else 0)) for bound in by_group.values()]
        unbounded = test["per"] != "source" and None in _mapping(test, end).values()
        if places and not unbounded and not test["when"]:
            shaded.append((0.0, min(places)) if end == "at_least" else (max(places), 1.0))
        for (group, bound), height in zip(by_group.items(), places, strict=True):
            label = " ".join(filter(None, (sign, short(bound, test["signal"]), group, some)))
            bounds.append(Bound(height, label if len(by_group) <= _LABELS else ""))


def _mapping(test: Mapping[str, Any], end: str) -> Mapping[str, float | None]:
    return test[end] if isinstance(test[end], Mapping) else {}


def _bounds(test: Mapping[str, Any], end: str, source: str) -> dict[str, float]:
    """Return the bounds of a rule on one side (`end`: at_least or at_most) for a source, keyed by the value
    of the rule's column `per`. A bound that applies to all documents of the source has the key "".
    """
    mapping = _mapping(test, end)
    if not mapping:
        return {} if test[end] is None else {"": test[end]}
    if test["per"] == "source":
        mapping = {"": mapping.get(source, mapping["default"])}
    return {printable(group): bound for group, bound in mapping.items() if bound is not None}


def _missing(histogram: Mapping[str, Any]) -> str:
    counted = sum(entry[1] for entry in histogram["bins"])
    absent = histogram["missing"] + histogram["not_finite"]
    return f"{_rounded(100 * absent / (absent + counted))} % without" if absent else ""


def _rounded(share: float) -> str:
    if 0 < share < 0.1:
        return "< 0.1"
    return "> 99.9" if 99.9 < share < 100 else f"{share:.1f}"


def short(value: float, column: str) -> str:
    """Format a value of `column` briefly, as a size if the column's name ends in `bytes`."""
    return short_size(value) if column.endswith("bytes") else compact(value)
