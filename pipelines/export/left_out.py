"""What an export leaves out and why, and how much personal data in it was replaced."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pipelines.contracts.columns import DROP, EDITS_COLUMN
from pipelines.contracts.lineage import Corpus
from pipelines.contracts.parts import Part
from pipelines.export.export_directory import markdown_cell

OPTIONAL_COLUMNS = ("url", "meta")
"""Columns that `--without` can leave out."""

_WITHOUT = "left out by --without"
_NOT_CHOSEN = "not named by --columns"
_NESTED = "holds lists, records or bytes, which are not exported"


@dataclass(frozen=True)
class LeftOut:
    """What an export leaves out or replaces. `sources` are the sources that are not exported. `documents`
    counts the documents left out of the exported sources: {source: {"quarantined": {reason: number}, step:
    {rule: number}}}. `columns` is {column: reason}. `replaced` counts the personal data that pii steps
    replaced in exported documents: {source: {"text": {entity: number of edits}, "url": number of values,
    "meta": number of values}}.
    """

    sources: list[str]
    documents: dict[str, dict[str, dict[str, int]]]
    columns: dict[str, str]
    replaced: dict[str, dict[str, Any]] = field(default_factory=dict)

    def markdown(self) -> list[str]:
        """Return the lines of the section `Left out` of the dataset card."""
        lines = ["## Left out", ""]
        if self.sources:
            lines += [f"Sources of the corpus that are not in this export: {', '.join(self.sources)}.", ""]
        rows = [
            f"| {source} | {markdown_cell(step)} | {markdown_cell(rule)} | {number:,} |"
            for source, steps in self.documents.items()
            for step, rules in steps.items()
            for rule, number in rules.items()
        ]
        if rows:
            lines += ["| source | left out by | reason | documents |", "|---|---|---|---|", *rows, ""]
        for reason in dict.fromkeys(self.columns.values()):
            names = ", ".join(f"`{name}`" for name, why in self.columns.items() if why == reason)
            lines += [f"Columns: {names}: {reason}.", ""]
        rows = [f"| {source} | {markdown_cell(what)} | {number:,} |" for source, what, number in self._replacements()]
        if rows:
            lines += ["| source | personal data replaced | number |", "|---|---|---|", *rows, ""]
        return lines if len(lines) > 2 else [*lines, "Nothing.", ""]

    def _replacements(self) -> list[tuple[str, str, int]]:
        rows = []
        for source, places in self.replaced.items():
            rows += [(source, f"{entity} in text", number) for entity, number in places["text"].items()]
            rows += [(source, f"values of {name}", number) for name, number in places.items() if name != "text"]
        return rows


def find_left_out(corpus: Corpus, sources: Sequence[str], schema: pa.Schema, without: Sequence[str]) -> LeftOut:
    """Return what an export of `sources` with the columns of `schema` leaves out, and how much personal data
    the pii steps replaced in the exported documents. `without` names the columns that the user excluded.
    """
    documents = {source: _documents(corpus, source) for source in sources}
    replaced = {source: _replaced(corpus, source, schema) for source in sources}
    return LeftOut(
        [name for name in corpus.manifest.sources if name not in sources],
        {source: steps for source, steps in documents.items() if steps},
        _columns(corpus, schema, without),
        {source: places for source, places in replaced.items() if any(places.values())},
    )


def _documents(corpus: Corpus, source: str) -> dict[str, dict[str, int]]:
    quarantined = {"quarantined": corpus.manifest.sources[source]["quarantined"]}
    dropped = {row["step"]: row["dropped"] for row in corpus.manifest.funnel if row["source"] == source}
    return {step: dict(rules) for step, rules in (quarantined | dropped).items() if rules}


def _columns(corpus: Corpus, schema: pa.Schema, without: Sequence[str]) -> dict[str, str]:
    first = next(corpus.parts(), None)
    columns = dict.fromkeys((name for name in OPTIONAL_COLUMNS if name in without), _WITHOUT)
    for written in first.types if first is not None else ():
        if written.name not in (DROP, EDITS_COLUMN, *schema.names):
            columns[written.name] = _NOT_CHOSEN if is_scalar(written.type) else _NESTED
    return columns


def is_scalar(kind: pa.DataType) -> bool:
    """Return whether the values of a type are text, numbers, booleans or times. Bytes are excluded, because
    JSON cannot represent them.
    """
    is_bytes = pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind)
    return not pa.types.is_nested(kind) and not is_bytes


def _replaced(corpus: Corpus, source: str, schema: pa.Schema) -> dict[str, Any]:
    entities: Counter[str] = Counter()
    values: Counter[str] = Counter()
    pii = {step.directory for step in corpus.steps if step.stage == "pii"}
    for part in corpus.parts(source):
        kept = part.kept_rows()
        for annotation in part.annotations:
            if annotation.directory in pii and EDITS_COLUMN in annotation.schema:
                edits = annotation.column(EDITS_COLUMN).combine_chunks().take(kept)
                counted = pc.value_counts(edits.flatten().field("rule")).to_pylist()
                entities.update({entry["values"]: entry["counts"] for entry in counted})
        values.update({name: _valid(part, f"pii_{name}", kept) for name in OPTIONAL_COLUMNS if name in schema.names})
    return {"text": dict(sorted(entities.items())), **{name: number for name, number in values.items() if number}}


def _valid(part: Part, column: str, rows: pa.Array) -> int:
    if not part.has(column):
        return 0
    values = part.table((column,), rows)[column]
    return len(values) - int(values.null_count)
