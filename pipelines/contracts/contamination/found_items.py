"""Contamination: which items of evaluation sets a corpus was searched for, and which of them occur in its
text.

A step of the stage `decontaminate` publishes two things: a file `items.arrow` with the texts that it searched
for, and a column with their occurrences in each document. The column is named `contamination`, preceded by
the step's prefix.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gristmill.storage.location import Location
from pipelines.contracts.columns import DROP
from pipelines.contracts.given_split import TRAIN
from pipelines.contracts.lineage import PublishedStep, open_corpus
from pipelines.contracts.manifest import read_table, schema_facts
from pipelines.contracts.parts import Part

STAGE = "decontaminate"
COLUMN = "contamination"
SPAN = pa.struct(
    [("item", pa.string()), ("field", pa.string()), ("start", pa.int64()), ("end", pa.int64()), ("score", pa.float32())]
)
"""An occurrence of an item in a document: the item's name, the field (`prompt` or `answer`), the range
of bytes in the text that was searched, and the share of the field's words that the document contains.
"""
ITEMS_FILE = "items.arrow"
ITEMS = pa.schema([("item", pa.string()), ("field", pa.string()), ("found_as", pa.string())])
"""A text that was searched for. Equal texts of one field are found under the name of their first item, `found_as`."""


@dataclass(frozen=True)
class Contamination:
    """How much of each evaluation item occurs in the kept training documents of a corpus. Both fields are
    keyed by the item's name, `SET#ITEM`, and contain every item that was searched for.

    `shares` gives the largest share of the item's words that occurs in a single document, and `documents` the
    number of documents that contain part of the item. If an item has several texts, such as its prompt and
    its answer, the value of each field is the highest of any text.
    """

    shares: dict[str, float]
    documents: dict[str, int]


def read_contamination(
    directory: Location, is_read: Callable[[str], bool] = lambda source: True
) -> Contamination | None:
    """Return the contamination of a published corpus, or None if no step searched it. Only sources for which
    `is_read` returns True count.

    Dropped documents do not count, nor do documents that their source itself assigns to validation or test
    (`given_split`); documents that `shards` will hold out by hash do count. Occurrences that the step cuts
    out of the text (its `redact_at`) do not count either. Raises UserError and CorruptFileError as
    `open_corpus` does.
    """
    corpus = open_corpus(directory)
    steps = [step for step in corpus.steps if step.stage == STAGE]
    if not steps:
        return None
    found_as: dict[str, list[str]] = {}
    best: dict[str, float] = {}
    holders: dict[str, int] = {}
    for step in steps:
        for item, keys in _searched(step).items():
            found_as.setdefault(item, []).extend(keys)
    for part in corpus.parts():
        if is_read(part.source):
            for key, rows in _found(part, steps, best).items():
                holders[key] = holders.get(key, 0) + len(rows)
    return Contamination(
        {item: max(best.get(key, 0.0) for key in keys) for item, keys in found_as.items()},
        {item: max(holders.get(key, 0) for key in keys) for item, keys in found_as.items()},
    )


def evidence_column(step: PublishedStep) -> str:
    """Return the name of the column in which a `decontaminate` step publishes the occurrences of items that
    it found.
    """
    return next(name for name in step.manifest.schema if name.endswith(COLUMN))


def items_of_texts(step: PublishedStep) -> dict[tuple[str, str], list[str]]:
    """Map each text that a step searched for to all items that have it. The key is the (item, field) under
    which the text is found (see SPAN).
    """
    items: dict[tuple[str, str], dict[str, None]] = {}
    for row in _texts_of_items(step):
        items.setdefault((row["found_as"], row["field"]), {})[row["item"]] = None
    return {text: list(names) for text, names in items.items()}


def _found(part: Part, steps: Sequence[PublishedStep], best: dict[str, float]) -> dict[str, set[int]]:
    """Map the key of each text to the rows of the kept training documents in which it occurs, not counting
    redacted occurrences. Also update `best`, which maps each key to its highest score so far.
    """
    holders: dict[str, set[int]] = {}
    searched = {annotation.step for annotation in part.annotations}
    for step in (step for step in steps if step.name in searched):
        cut = _redacts_at(step)
        for row, spans in _evidence(part, evidence_column(step)):
            for span in (span for span in spans if span["score"] < cut):
                key = _key(span["item"], span["field"])
                best[key] = max(best.get(key, 0.0), span["score"])
                holders.setdefault(key, set()).add(row)
    return holders


def _evidence(part: Part, column: str) -> Iterator[tuple[int, list[dict[str, Any]]]]:
    """Yield the (row, occurrences) of each kept training document in which items occur."""
    table = part.table((column, DROP))
    kept, splits = pc.is_null(table[DROP]), part.splits()
    if splits is not None:
        kept = pc.and_(kept, pc.equal(splits, TRAIN))
    some = pc.greater(pc.fill_null(pc.list_value_length(table[column]), 0), 0)
    rows = pc.indices_nonzero(pc.and_(pc.fill_null(kept, False), some))
    yield from zip(rows.to_pylist(), table[column].take(rows).to_pylist(), strict=True)


def _key(item: str, field: str) -> str:
    return f"{field} {item}"


def _redacts_at(step: PublishedStep) -> float:
    value = step.manifest.facts.get("redact_at")
    return math.inf if value is None else float(np.float32(value))


def _searched(step: PublishedStep) -> dict[str, list[str]]:
    """Map each item that a step searched for to the keys (see `_key`) under which its texts are found."""
    found_as: dict[str, list[str]] = {}
    for row in _texts_of_items(step):
        found_as.setdefault(row["item"], []).append(_key(row["found_as"], row["field"]))
    return found_as


def _texts_of_items(step: PublishedStep) -> Iterator[dict[str, str]]:
    """Yield the rows of a step's table ITEMS."""
    for record in step.manifest.files:
        if record.path == ITEMS_FILE:
            yield from read_table(step.directory, record, ITEMS.names, schema_facts(ITEMS)).to_pylist()
