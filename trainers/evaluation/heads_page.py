"""The page with the measures of each attention head, rendered from the template heads.html."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

import pyarrow as pa

from gristmill.page.lines import LineChart, Series, line_chart
from gristmill.page.render import render_template
from trainers.evaluation.probing.head_effects import HeadEffects
from trainers.evaluation.suites.suite_result import Z

_SIZE = (860, 280)
# {column of `measure_heads`: (title, what it says)}
_MEASURES = {
    "loss_change": ("Change of the loss without the head", "nats per token; bold if its 95 % interval excludes 0"),
    "entropy": ("Entropy of attention", "nats; 0 if a token attends to one position alone"),
    "distance": ("Distance of attention", "positions to what a token attends to"),
    "to_first": ("Attention to the first position", "share"),
    "to_special": ("Attention to special tokens", "share"),
}


@dataclass(frozen=True)
class HeadCell:
    """The cell of a head in a grid. `shade` is the head's value relative to the largest in the grid, from 0
    to 1; negative values count as 0. `bold` marks a change of the loss whose 95 % interval excludes 0.
    """

    text: str
    shade: float
    bold: bool


@dataclass(frozen=True)
class HeadGrid:
    """A grid that shows one measure of every head. `rows` contains a layer's name and the cells of its heads."""

    title: str
    note: str
    rows: list[tuple[str, list[HeadCell]]]


def render_heads(model: str, text: str, table: pa.Table, effects: HeadEffects) -> str:
    """Return the page about a model's attention heads as self-contained HTML, given the results of
    `measure_heads`.
    """
    rows = table.to_pylist()
    return render_template(
        Path(__file__).with_name("heads.html"),
        title=f"{PurePath(model).name}: attention heads",
        kind="attention heads",
        model=model,
        text=PurePath(text).name,
        effects=effects,
        chart=_chart(effects),
        grids=[_grid(name, rows) for name in _MEASURES],
        columns=max(row["head"] for row in rows) + 1,
    )


def _chart(effects: HeadEffects) -> LineChart | None:
    points = [(0.0, effects.loss), *((float(many), each.loss) for many, each in effects.pruned)]
    band = tuple(
        (float(many), each.loss - Z * each.error, each.loss + Z * each.error)
        for many, each in effects.pruned
        if each.error == each.error
    )
    series = [Series(0, "loss", points, True, band)]
    ticks = [(x, f"{x:.0f}") for x, _ in points]
    return line_chart(
        "loss, nats per token, by masked heads", series, lambda value: f"{value:.3f}", _SIZE, x_ticks=ticks
    )


def _grid(name: str, rows: Sequence[Mapping[str, Any]]) -> HeadGrid:
    title, note = _MEASURES[name]
    most = max((row[name] for row in rows if row[name] is not None), default=0.0)
    layers: dict[str, list[HeadCell]] = {}
    for row in rows:
        value, shown = row[name], row["layer"] if row["attends"] == "self" else f"{row['layer']}, cross-attention"
        bold = name == "loss_change" and row["error"] is not None and abs(value) > Z * row["error"]
        sign = "+" if name == "loss_change" else ""
        cell = HeadCell(
            "–" if value is None else f"{value:{sign}.3f}", max(0.0, value or 0.0) / most if most > 0 else 0.0, bold
        )
        layers.setdefault(shown, []).append(cell)
    return HeadGrid(title, note, list(layers.items()))
