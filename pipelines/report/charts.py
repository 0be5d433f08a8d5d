"""The charts of the report as inline SVG, drawn by matplotlib.

Colours are CSS variables of the page, so that one chart serves light, dark and print; text is text, so that it can be
searched and uses the page's font.
"""

import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from io import StringIO
from typing import TYPE_CHECKING, Any

from gristmill.terminal import human_bytes, printable
from pipelines.report.bins import Axis, axis_for, cell_counts, quantile

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Stand-ins that matplotlib draws with, and what the page replaces them by.
INK, _MUTED, LINE, _KEPT, _LOST, _SHADE = "#010101", "#020202", "#030303", "#040404", "#050505", "#060606"
SERIES = tuple(f"#0707{number:02x}" for number in range(8))
_VARIABLES = {
    INK: "--ink", _MUTED: "--muted", LINE: "--line", _KEPT: "--kept", _LOST: "--lost", _SHADE: "--shade",
    **{colour: f"--series-{number}" for number, colour in enumerate(SERIES)},
}  # fmt: skip
_SETTINGS: dict[Any, Any] = {
    "svg.fonttype": "none", "svg.hashsalt": "gristmill", "text.parse_math": False, "font.size": 11.0,
    "text.color": INK, "xtick.color": _MUTED, "ytick.color": INK, "xtick.major.size": 0, "ytick.major.size": 0,
    "axes.facecolor": "none", "axes.spines.top": False, "axes.spines.right": False, "axes.spines.bottom": False,
    "axes.spines.left": False, "patch.linewidth": 0,
}  # fmt: skip
_MOST_BARS = 24


def svg(width: int, height: int, label: str, draw: "Callable[[Figure], None]") -> str:
    """An SVG element of `width` x `height` CSS pixels at full size, without scripts, links, times or ids of its own."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_SETTINGS), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a name in a script that matplotlib cannot measure; the browser has the font
        figure = Figure(figsize=(width / 72, height / 72))
        draw(figure)
        figure.patch.set_visible(False)
        sink = StringIO()
        figure.savefig(sink, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    text = sink.getvalue()
    text = text[text.index("<svg") :]
    head = f'<svg class="chart" style="max-width:{width}px" viewBox="0 0 {width} {height}" role="img"'
    text = re.sub(r"<svg [^>]*>", lambda _: f'{head} aria-label="{_attribute(label)}">', text, count=1)
    text = re.sub(r' id="(?![mp][0-9a-f]{10}")[^"]*"', "", text)
    text = re.sub(r"font-family: [^;\"]*;? ?", "", text)
    return re.sub("|".join(_VARIABLES), lambda found: f"var({_VARIABLES[found[0]]})", text)


def _attribute(text: str) -> str:
    return text.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;")


def drops_chart(funnel: Sequence[Mapping[str, Any]], sources: Sequence[str]) -> str:
    """Documents dropped by each rule, stacked by source; the rules that drop most, and one bar for the others."""
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
    return _stacked(bars, _grouped(sources), "documents dropped by rule and source")


def tokens_chart(shard_set: Mapping[str, Any]) -> str:
    """Tokens by source, training and validation stacked."""
    bars: dict[str, dict[str, int]] = {}
    for split in shard_set["tokens"]:
        bars.setdefault(split["source"], {})[split["split"]] = split["tokens"]
    series = {"train": (("train",), _KEPT), "validation": (("validation",), _LOST)}
    return _stacked(bars, series, "tokens by source and split")


def clusters_chart(duplicates: Mapping[str, Any]) -> str:
    """Clusters of duplicates by their size, in classes that double."""
    bars: dict[str, dict[str, int]] = {}
    for size, count in sorted((int(size), count) for size, count in duplicates["cluster_sizes"].items()):
        low = size if size < 5 else 4 << ((size - 1).bit_length() - 3) | 1
        name = f"{size} copies" if size < 5 else f"{low:,} to {2 * (low - 1):,}"
        bars.setdefault(name, {})["clusters"] = bars.get(name, {}).get("clusters", 0) + count
    return _stacked(bars, {"clusters": (("clusters",), _KEPT)}, f"clusters of {duplicates['step']} by size")


def _grouped(sources: Sequence[str]) -> dict[str, tuple[tuple[str, ...], str]]:
    """Series for sources: a colour each, the last one for all that have none."""
    own = len(SERIES) - 1 if len(sources) > len(SERIES) else len(sources)
    series = {source: ((source,), colour) for source, colour in zip(sources[:own], SERIES, strict=False)}
    return series | ({"other sources": (tuple(sources[own:]), SERIES[-1])} if own < len(sources) else {})


def _stacked(
    bars: Mapping[str, Mapping[str, int]], series: Mapping[str, tuple[tuple[str, ...], str]], label: str
) -> str:
    """Horizontal stacked bars, the first on top, with their totals, and a legend where there are several series."""
    names = list(bars)
    legend = 28 if len(series) > 1 else 0
    height = 22 * len(names) + 10 + legend
    labels = [_shortened(name, 42) for name in names]
    start = 0.02 + 0.0076 * max(map(len, labels))  # where the bars begin: about 6.8 pixels a letter

    def draw(figure: "Figure") -> None:
        axes = figure.add_axes((start, 0.0, 0.9 - start, 1 - legend / height))
        left = [0] * len(names)
        for name, (members, colour) in series.items():
            counts = [sum(bars[bar].get(member, 0) for member in members) for bar in names]
            axes.barh(range(len(names)), counts, 0.62, left, color=colour, label=name)
            left = [a + b for a, b in zip(left, counts, strict=True)]
        widest = max([*left, 1])
        for place, total in enumerate(left):
            axes.text(total + widest * 0.012, place, f"{total:,}", va="center", fontsize=11)
        axes.set(xlim=(0, widest), ylim=(len(names) - 0.4, -0.6), xticks=[])
        axes.set_yticks(range(len(names)), labels)
        if legend:
            figure.legend(
                loc="upper left", bbox_to_anchor=(start - 0.01, 1.0), ncols=len(series), frameon=False, fontsize=11,
                handlelength=0.9, handleheight=0.9, columnspacing=1.4, borderpad=0.2,
            )  # fmt: skip

    return svg(900, height, label, draw)


_LABELS = 2  # bounds of one side that are labelled
_ROW, _ROW_GAP, _FOOT = 52, 14, 24  # pixels: a row of a distribution chart, its part above the bars, the tick labels


def distribution_chart(
    column: str, by_source: Mapping[str, Mapping[str, Any]], thresholds: Sequence[Mapping[str, Any]]
) -> str:
    """A column's distribution, one row per source: all documents, the kept ones before them, and the filters' bounds.

    The height of a bar grows with the square root of its share, each row to its own peak, so that tails can be seen.
    """
    shown = {source: h for source, h in by_source.items() if h["bins"]}
    bounds = [
        b for t in thresholds for s in shown for end in ("at_least", "at_most") for b in _bounds(t, end, s).values()
    ]
    axis = axis_for(shown.values(), bounds)
    width, height = 470, _ROW * len(shown) + _FOOT

    def draw(figure: "Figure") -> None:
        axes = figure.add_axes((0.15, _FOOT / height, 0.66, 1 - _FOOT / height))
        axes.set(xlim=(0, 1), ylim=(0, _ROW * len(shown)), yticks=[])
        for place, (source, histogram) in enumerate(shown.items()):
            bottom = float(_ROW * (len(shown) - 1 - place))
            for test in (t for t in thresholds if source in t["sources"]):
                _draw_bounds(axes, test, source, axis.position, bottom, histogram["whole"])
            _draw_row(axes, source, histogram, axis, bottom)
            axes.text(1.02, bottom + 20, f"median {short(quantile(histogram, 0.5), column)}", fontsize=10)
        middle = 0.5 if all(h["whole"] for h in shown.values()) and not axis.logarithmic else 0.0
        ticks = [tick for tick in axis.ticks() if tick + middle < axis.high or not middle]
        axes.set_xticks([axis.position(tick + middle) for tick in ticks], [short(tick, column) for tick in ticks])

    return svg(width, height, f"distribution of {column} by source", draw)


def _draw_row(axes: "Axes", source: str, histogram: Mapping[str, Any], axis: Axis, bottom: float) -> None:
    edges = [i / axis.cells for i in range(axis.cells + 1)]
    every, kept = (cell_counts(histogram, axis, which) ** 0.5 for which in (1, 2))
    scale = (_ROW - _ROW_GAP) / max(float(every.max()), 1e-9)
    axes.stairs(bottom + every * scale, edges, baseline=bottom, fill=True, color=_LOST)
    axes.stairs(bottom + kept * scale, edges, baseline=bottom, fill=True, color=_KEPT)
    axes.plot([0, 1], [bottom, bottom], color=LINE, linewidth=1, clip_on=False)
    axes.text(-0.03, bottom + 8, _shortened(source, 11), ha="right")
    axes.text(1.02, bottom + 6, _missing(histogram), color=_MUTED, fontsize=9)


def _draw_bounds(
    axes: "Axes", test: Mapping[str, Any], source: str, position: Callable[[float], float], bottom: float, whole: bool
) -> None:
    """Shade what a rule drops and label its bound; the line of an upper bound lies after the highest whole number kept.

    Where documents of one source have different bounds, what all of them drop is shaded, and few lines are labelled.
    """
    top = bottom + _ROW - _ROW_GAP
    for end, sign, outer, inner in (("at_least", "≥", 0.0, min), ("at_most", "≤", 1.0, max)):
        bounds = _bounds(test, end, source)
        places = [position(bound + (1 if whole and end == "at_most" else 0)) for bound in bounds.values()]
        if places and None not in _mapping(test, end).values():
            place = inner(places)
            axes.fill_between([min(place, outer), max(place, outer)], bottom, top, color=_SHADE, linewidth=0)
        for (group, bound), place in zip(bounds.items(), places, strict=True):
            axes.plot([place, place], [bottom, top + 3], color=INK, linewidth=1.0, linestyle=(0, (3, 2)))
            side = "left" if place < 0.5 else "right"
            shift = 0.012 if side == "left" else -0.012
            label = f"{sign} {short(bound, test['signal'])} {group}".rstrip() if len(bounds) <= _LABELS else ""
            axes.text(place + shift, top + 2, label, ha=side, fontsize=9)


def _mapping(test: Mapping[str, Any], end: str) -> Mapping[str, float | None]:
    """The bounds of one side by the values of `per`."""
    return test[end] if isinstance(test[end], Mapping) else {}


def _bounds(test: Mapping[str, Any], end: str, source: str) -> dict[str, float]:
    """The bounds of one side that documents of a source may have, by the value of `per` that they are for, or ""."""
    mapping = _mapping(test, end)
    if not mapping:
        return {} if test[end] is None else {"": test[end]}
    if test["per"] == "source":
        mapping = {"": mapping.get(source, mapping["default"])}
    return {printable(group): bound for group, bound in mapping.items() if bound is not None}


def _missing(histogram: Mapping[str, Any]) -> str:
    counted = sum(entry[1] for entry in histogram["bins"])
    absent = histogram["missing"] + histogram["not_finite"]
    return f"{100 * absent / (absent + counted):.1f} % without" if absent else ""


def short(value: float, column: str) -> str:
    """A value in few characters: sizes in bytes with a unit, large numbers with k and M."""
    if column.endswith("bytes"):
        return human_bytes(value).replace(".0 ", " ")
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= limit:
            return f"{value / (1e3 if unit == 'k' else limit):.3g}{unit}"
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:.3g}"


def _shortened(name: str, limit: int) -> str:
    name = printable(name)
    return name if len(name) <= limit else f"{name[: limit - 1]}…"
