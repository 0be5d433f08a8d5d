"""Labelled documents as rows of numbers, on which models of columns or of embeddings are trained, and the
files from which labels are read.
"""

import gzip
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from gristmill.config import near_match
from gristmill.errors import UserError
from pipelines.classifiers.class_sources import hash_id, highest_hash, kept_orders, open_sources, source_facts
from pipelines.classifiers.fasttext_training import LABELS
from pipelines.contracts.columns import DROP, definition_of
from pipelines.contracts.document import ID, document_id, file_key, parse_id
from pipelines.contracts.lineage import Corpus
from pipelines.contracts.parts import Part
from pipelines.stages.score.column_model import ModelColumn
from pipelines.stages.score.column_values import column_values, is_number

Labels = Mapping[bytes, tuple[float, str]]
"""Maps the id of a document to its target (1 if it is positive, 0 if it is negative, or a judge's score) and
the place of its label, such as `FILE:LINE`.
"""


class DocumentNumbers(Protocol):
    """Where a model finds the numbers of a document: in several columns with one number each, or in one
    column with a vector.
    """

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns."""
        ...

    def knob(self, name: str) -> str:
        """Return the name of the YAML field that specifies the column `name`, for error messages."""
        ...

    def check(self, name: str, kind: pa.DataType, definitions: int) -> str:
        """Return a message that says what is wrong with the column `name` of type `kind`, empty if nothing
        is. `definitions` is the number of different definitions that the column has had in the sources so
        far, including the current one.
        """
        ...

    def read(self, part: Part, rows: pa.Array) -> np.ndarray:
        """Return the numbers of the documents at the indices `rows` of a part, float64 [n, width], with NaN
        for a missing number.
        """
        ...


@dataclass(frozen=True)
class NumberColumns:
    """`DocumentNumbers` from several columns of numbers or booleans."""

    names: tuple[str, ...]

    def knob(self, name: str) -> str:
        """Return the name of the YAML field that specifies the column `name`: `columns.NAME`."""
        return f"columns.{name}"

    def check(self, name: str, kind: pa.DataType, definitions: int) -> str:
        """Return a complaint if the column holds neither numbers nor booleans, else ""."""
        return "" if is_number(kind) else f"holds {kind} in it, expected numbers or booleans; leave it out"

    def read(self, part: Part, rows: pa.Array) -> np.ndarray:
        """Return the columns' values for the documents at the indices `rows` of a part, float64 [n, columns],
        with NaN for a missing or infinite value.
        """
        return column_values(part, self.names, rows)


@dataclass(frozen=True)
class ColumnExamples:
    """Labelled documents, sorted by a hash of their ids. `values` is float64 [n, width], with NaN for missing
    numbers. `targets` is float64 [n]; `positive` and `held_out` are bool [n]. `sources`, int64 [n], holds the
    index in `names` of each document's source. `facts` maps each class to the entries for its sources in
    metrics.json.
    """

    columns: tuple[ModelColumn, ...]
    values: np.ndarray
    targets: np.ndarray
    positive: np.ndarray
    held_out: np.ndarray
    sources: np.ndarray
    names: tuple[str, ...]
    facts: Mapping[str, list[dict[str, Any]]]

    def owners(self, rows: np.ndarray) -> list[str]:
        """Return the source's name for each document that the mask `rows`, bool [n], selects."""
        return [self.names[number] for number in self.sources[rows].tolist()]

    def of(self, positive: bool, held_out: bool) -> np.ndarray:
        """Return a mask, bool [n], of the documents of one class on one side of the split."""
        chosen: np.ndarray = (self.positive == positive) & (self.held_out == held_out)
        return chosen


@dataclass(frozen=True)
class _Rows:
    """Documents of one source. `orders`, uint64 [n], contains the hashes of their ids. `values`, float64 [n,
    width], contains the numbers that a model reads, and `targets`, float64 [n], those that it should predict.
    """

    orders: np.ndarray
    values: np.ndarray
    targets: np.ndarray


def contrast_examples(
    classes: Mapping[str, Sequence[str]], numbers: DocumentNumbers, limit: int, seed: int, held_out: float
) -> ColumnExamples:
    """Return kept documents of the classes `positive` and `negative`, at most `limit` of each, sampled by a
    hash of their ids. `classes` maps each class to the names of its sources. Raises UserError for a source in
    both classes, for a class without kept documents, and for a column that a source lacks or that `numbers`
    cannot read.
    """
    gathered, definitions = [], _Definitions(numbers)
    facts: dict[str, list[dict[str, Any]]] = {label: [] for label in LABELS}
    owners: dict[tuple[str, str], str] = {}
    for label in LABELS:
        sources = open_sources(classes[label], label)
        for corpus, source in sources:
            if (first := owners.setdefault((corpus.manifest.fingerprint, source), label)) != label:
                raise UserError(
                    f"{label}: the source {source!r} of the corpus {corpus.manifest.corpus!r} is also in {first}"
                )
        orders = [kept_orders(corpus, source, seed) for corpus, source in sources]
        if not any(len(order) for order in orders):
            raise UserError(f"{label}: no document of {', '.join(classes[label])} is kept; name other corpora")
        highest = highest_hash(orders, limit)
        for (corpus, source), order in zip(sources, orders, strict=True):
            facts[label].append(source_facts(corpus, source, len(order)))
            if not len(order):
                continue
            definitions.add(corpus, source)
            rows = _kept_rows(corpus, source, numbers, highest, seed, float(label == "positive"))
            gathered.append((f"{corpus.manifest.corpus}:{source}", rows))
    return _assemble(gathered, definitions, facts, 1.0, seed, held_out)


def labelled_examples(
    corpora: Sequence[str], labels: Labels, numbers: DocumentNumbers, seed: int, held_out: float, threshold: float = 1.0
) -> ColumnExamples:
    """Return the labelled documents of some corpora, including those that a build dropped. Documents with a
    target of `threshold` or more are positive. Raises UserError for an id that no corpus has, and for a
    column that a source lacks or that `numbers` cannot read.
    """
    gathered, definitions = [], _Definitions(numbers)
    facts: dict[str, list[dict[str, Any]]] = {label: [] for label in LABELS}
    for (corpus, source), parts in labelled_parts(corpora, labels):
        definitions.add(corpus, source)
        found = [each for _, _, ids in parts for each in ids]
        targets = np.array([labels[each][0] for each in found])
        add_source_facts(facts, corpus, source, targets >= threshold)
        orders = np.array([hash_id(each, seed) for each in found], np.uint64)
        values = np.concatenate([numbers.read(part, rows) for part, rows, _ in parts])
        gathered.append((f"{corpus.manifest.corpus}:{source}", _Rows(orders, values, targets)))
    return _assemble(gathered, definitions, facts, threshold, seed, held_out)


def add_source_facts(facts: dict[str, list[dict[str, Any]]], corpus: Corpus, source: str, positive: np.ndarray) -> None:
    """Append an entry for a source to `facts` for each class that has labelled documents from it."""
    for label in LABELS:
        if count := int((positive == (label == "positive")).sum()):
            facts[label].append(source_facts(corpus, source, count))


def labelled_parts(
    corpora: Sequence[str], labels: Labels
) -> Iterator[tuple[tuple[Corpus, str], list[tuple[Part, pa.Array, list[bytes]]]]]:
    """Yield ((corpus, source), parts) for every source that has labelled documents; `parts` is a list of
    (part, rows of the labelled documents, their ids). A document that is in several corpora is yielded only
    for the first. After the last source, raises UserError for an id that no corpus has.
    """
    wanted, known = pa.array(list(labels), ID), set[bytes]()
    for corpus, source in open_sources(corpora, "corpora"):
        parts = []
        for part in corpus.parts(source):
            ids = part.table(("id",))["id"]
            rows = pc.indices_nonzero(pc.is_in(ids, value_set=wanted))
            if new := [row for row in rows.to_pylist() if ids[row].as_py() not in known]:
                found = ids.take(pa.array(new)).to_pylist()
                known.update(found)
                parts.append((part, pa.array(new), found))
        if parts:
            yield (corpus, source), parts
    if unknown := [where for identifier, (_, where) in labels.items() if identifier not in known]:
        raise UserError(
            f"{unknown[0]}: the corpora in `corpora` have no document with this id ({len(unknown):,} of {len(labels):,} "
            f"labels have none). Remove them, or add the corpus"
        )


def read_labels(files: Sequence[str]) -> Labels:
    """Read labels from JSON Lines files, plain or .gz, with lines such as {"id": "web/a.jsonl#17", "label":
    "positive"}. Raises UserError for an invalid line, for an id with two different labels, and unless there
    are labels of both classes.
    """
    labels: dict[bytes, tuple[float, str]] = {}
    for file in files:
        for where, line in _lines(file):
            identifier, positive = _parse_label(line, where)
            first = labels.setdefault(identifier, (float(positive), where))
            if first[0] != positive:
                raise UserError(f"{where}: this id has another label in {first[1]}; remove one of them")
    if not labels:
        raise UserError(f"labels: {', '.join(files)} hold no label; expected one {_EXPECTED} per line")
    for target, label in zip((1.0, 0.0), LABELS, strict=True):
        if all(each == target for each, _ in labels.values()):
            raise UserError(
                f"labels: all {len(labels):,} labels are {label}; a classifier needs documents of both classes"
            )
    return labels


_EXPECTED = '{"id": "SOURCE/PATH#RECORD", "label": "positive" or "negative"}'


def _lines(file: str) -> Iterator[tuple[str, bytes]]:
    try:
        with gzip.open(file) if file.endswith(".gz") else Path(file).open("rb") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield f"{file}:{number}", line
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"labels: {file}: cannot be read ({error})") from None


def _parse_label(line: bytes, where: str) -> tuple[bytes, bool]:
    try:
        entry = orjson.loads(line)
    except orjson.JSONDecodeError:
        entry = None
    printed, label = (entry.get("id"), entry.get("label")) if isinstance(entry, dict) else (None, None)
    if not isinstance(printed, str) or label not in LABELS:
        raise UserError(f"{where}: expected {_EXPECTED}")
    return identifier_of(printed, where), label == "positive"


def identifier_of(printed: str, where: str) -> bytes:
    """Return the 16-byte id of a document, given its printed id, such as web/a.jsonl#17. Raises UserError,
    with a message that begins with `where`, if `printed` does not have this form.
    """
    try:
        source, path, record = parse_id(printed)
        return document_id(file_key(source, path), record)
    except (UserError, OverflowError):
        raise UserError(f"{where}: the id is not of the form source/path#record") from None


def _kept_rows(corpus: Corpus, source: str, numbers: DocumentNumbers, highest: int, seed: int, target: float) -> _Rows:
    orders, values = [], []
    for part in corpus.parts(source):
        docs = part.table((DROP, "id"))
        hashes = np.array([hash_id(raw, seed) for raw in docs["id"].to_pylist()], np.uint64)
        kept = pc.is_null(docs[DROP]).to_numpy()
        rows = np.flatnonzero(kept & (hashes <= np.uint64(highest)))
        orders.append(hashes[rows])
        values.append(numbers.read(part, pa.array(rows)))
    total = np.concatenate(orders)
    return _Rows(total, np.concatenate(values), np.full(len(total), target))


class _Definitions:
    """The different definitions of each column in the sources added so far."""

    def __init__(self, numbers: DocumentNumbers) -> None:
        self.numbers = numbers
        self.found: dict[str, list[dict[str, Any]]] = {name: [] for name in numbers.names}

    def add(self, corpus: Corpus, source: str) -> None:
        steps = [step for step in corpus.steps if any(part.source == source for part in step.manifest.parts)]
        kinds = next(corpus.parts(source)).types if steps else pa.schema([])
        for name, known in self.found.items():
            writers = [step for step in steps if name in step.manifest.schema and step.stage != "read"]
            where = f"{self.numbers.knob(name)}: the source {source!r} of the corpus {corpus.manifest.corpus!r}"
            if not writers:
                written = [each for step in steps if step.stage != "read" for each in step.manifest.schema]
                raise UserError(
                    f"{where} has no such column{near_match(name, written)}; add the stage that writes it, or leave it out"
                )
            if (definition := definition_of(writers[0].manifest.identity)) not in known:
                known.append(definition)
            if wrong := self.numbers.check(name, kinds.field(name).type, len(known)):
                raise UserError(f"{where} {wrong}")


def _assemble(
    gathered: Sequence[tuple[str, _Rows]],
    definitions: _Definitions,
    facts: Mapping[str, list[dict[str, Any]]],
    threshold: float,
    seed: int,
    held_out: float,
) -> ColumnExamples:
    """Join the documents of all sources. Held-out documents are chosen by a hash of their column values, so
    that documents with the same values are on the same side of the split.
    """
    names = tuple(dict.fromkeys(name for name, _ in gathered))
    sources = [np.full(len(rows.orders), names.index(name)) for name, rows in gathered]
    values = np.concatenate([rows.values for _, rows in gathered])
    order = np.argsort(np.concatenate([rows.orders for _, rows in gathered]), kind="stable")
    values, width = np.ascontiguousarray(values[order]), values.shape[1] * values.itemsize
    data, bound = memoryview(values.tobytes()), int(held_out * (1 << 64))
    splits = [xxhash.xxh3_64_intdigest(data[at : at + width], seed) < bound for at in range(0, len(data), width)]
    columns = tuple(ModelColumn(name, tuple(found)) for name, found in definitions.found.items())
    targets = np.concatenate([rows.targets for _, rows in gathered])[order]
    sides = np.array(splits, bool)
    return ColumnExamples(
        columns, values, targets, targets >= threshold, sides, np.concatenate(sources)[order], names, facts
    )
