"""The funnel: what each step let through, per source, which rules dropped the rest, and what the documents are like."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.contracts.annotations import Part
from pipelines.contracts.edits import compose, edited_lengths
from pipelines.contracts.errors import AccountingError
from pipelines.contracts.manifest import StepOutput
from pipelines.contracts.stage import DROP, EDITS_COLUMN, Cluster, CorpusStage
from pipelines.summary import KEPT, Summary, summarise


@dataclass(frozen=True)
class Funnel(CorpusStage):
    """The last step of every build: it counts, so that the report reads no corpus.

    `steps` are the names of all configured steps, in order; `columns` those that are summarised, see
    `pipelines.summary.summary_columns`.
    """

    steps: tuple[str, ...]
    columns: tuple[str, ...] = ()

    version: ClassVar[int] = 1

    def reads(self) -> tuple[str, ...]:
        """Everything that removes text, and every column that is summarised."""
        return (DROP, "edited_text", *(f"{column}?" for column in self.columns))

    def run(self, parts: Sequence[Part], out: StepOutput, cluster: Cluster) -> dict[str, Any]:
        """Facts: `rows`, one per source and step that removes text; `distributions`, `values` by source; `samples`."""
        tasks = [_CountTask(part, self.columns) for part in parts]
        rows: dict[tuple[str, str], dict[str, Any]] = {}
        summaries: dict[str, Summary] = {part.source: Summary() for part in parts}
        counted = cluster.map(count_part, tasks, lambda task: f"funnel: part {task.part.name}")
        for position, (counts, summary) in counted:
            part = parts[position]
            _check(part, counts)
            _add_rows(rows, part.source, counts)
            summaries[part.source].add(summary)
        order = {name: position for position, name in enumerate(self.steps)}
        sources = list(summaries)
        return {
            "rows": sorted(rows.values(), key=lambda row: (sources.index(row["source"]), order[row["step"]])),
            "distributions": {
                source: {name: summary.histograms[name].facts() for name in sorted(summary.histograms)}
                for source, summary in summaries.items()
            },
            "values": {source: _values(summary) for source, summary in summaries.items()},
            "samples": [entry for source in sources for entry in _samples(source, summaries[source], order)],
        }


def _check(part: Part, counts: Sequence[dict[str, Any]]) -> None:
    lost = sum(sum(count["dropped"].values()) for count in counts)
    left = counts[-1]["documents_out"] if counts else part.rows
    if part.rows != left + lost:
        raise AccountingError(f"funnel, part {part.name}: {part.rows} documents, {left} kept and {lost} dropped")


def _add_rows(rows: dict[tuple[str, str], dict[str, Any]], source: str, counts: Sequence[dict[str, Any]]) -> None:
    for count in counts:
        row = rows.setdefault((source, count["step"]), {"source": source, "step": count["step"], "dropped": {}})
        for name in ("documents_in", "documents_out", "bytes_in", "bytes_out"):
            row[name] = row.get(name, 0) + count[name]
        dropped = row["dropped"]
        for rule, number in count["dropped"].items():
            dropped[rule] = dropped.get(rule, 0) + number
        row["dropped"] = dict(sorted(dropped.items()))


def _values(summary: Summary) -> dict[str, Any]:
    """Per column a list of [value, all, kept], the most frequent first; null where there are too many values."""
    listed: dict[str, Any] = {}
    for name, table in sorted(summary.values.items()):
        ranked = None if table is None else sorted(table.items(), key=lambda item: (-item[1][0], item[0]))
        listed[name] = None if ranked is None else [[value, *counts] for value, counts in ranked]
    return listed


def _samples(source: str, summary: Summary, order: dict[str, int]) -> list[dict[str, Any]]:
    """Kept documents first, then dropped ones by step and rule; `step` and `rule` are null for kept ones."""
    groups = sorted(summary.samples, key=lambda group: (order.get(group[0], -1), group))
    return [
        {"source": source, "step": step or None, "rule": rule or None, **sampled.facts()}
        for step, rule in groups
        for sampled in summary.samples[step, rule]
    ]


@dataclass(frozen=True)
class _CountTask:
    part: Part
    columns: tuple[str, ...]


def count_part(task: _CountTask) -> tuple[list[dict[str, Any]], Summary]:
    """Per step that removes documents or bytes, in order: what came in, what left, drops by rule. And the summary."""
    part = task.part
    text_bytes = pc.binary_length(part.table(("text",))["text"].combine_chunks())
    stored = text_bytes.to_numpy().astype(np.int64)
    alive: np.ndarray = np.ones(part.rows, bool)
    lengths = stored
    edits: list[pa.Array] = []
    counts = []
    groups: dict[tuple[str, str], np.ndarray] = {}
    for annotation in part.annotations:
        if DROP not in annotation.schema and EDITS_COLUMN not in annotation.schema:
            continue
        arriving = {"documents_in": int(alive.sum()), "bytes_in": int(lengths[alive].sum())}
        count: dict[str, Any] = {"step": annotation.step, **arriving, "dropped": {}}
        if DROP in annotation.schema:
            fallen = _fallen(annotation.column(DROP).combine_chunks(), alive)
            for rule, mask in fallen.items():
                count["dropped"][rule] = int(mask.sum())
                groups[annotation.step, rule] = mask
                alive = alive & ~mask
        if EDITS_COLUMN in annotation.schema:
            edits.append(annotation.column(EDITS_COLUMN).combine_chunks())
            lengths = edited_lengths(stored, compose(edits))
        count |= {"documents_out": int(alive.sum()), "bytes_out": int(lengths[alive].sum())}
        counts.append(count)
    return counts, summarise(part, task.columns, text_bytes, groups | {KEPT: alive})


def _fallen(drop: pa.Array, alive: np.ndarray) -> dict[str, np.ndarray]:
    """Masks of the documents still alive that a step drops, by rule."""
    rules = drop.filter(pa.array(alive)).unique().drop_null().to_pylist()
    named = {rule: pc.fill_null(pc.equal(drop, rule), False) for rule in sorted(rules)}
    return {rule: alive & mask.to_numpy(zero_copy_only=False) for rule, mask in named.items()}
