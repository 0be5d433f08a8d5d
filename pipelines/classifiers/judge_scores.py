"""Read the scores that a judge, such as a large model or people, gave to documents, from JSON lines, CSV or
Parquet.
"""

import csv
import gzip
import io
import math
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import orjson

from gristmill.config import near_match
from gristmill.errors import UserError
from pipelines.classifiers.column_examples import Labels, identifier_of

_SUFFIXES = (".jsonl", ".jsonl.gz", ".csv", ".csv.gz", ".parquet")
_ID = "id"


def read_judge_scores(files: Sequence[str], field: str) -> Labels:
    """Read a judge's scores from files. Return a mapping from the id of each document to its score and the
    place of its row, such as FILE:LINE. Each row has an `id`, such as web/a.jsonl#17, and a number in the
    field that `field` names.

    Raises UserError if a file cannot be read, a row has no valid id or score, a document has two different
    scores, or there are fewer than two different scores.
    """
    scores: dict[bytes, tuple[float, str]] = {}
    without: list[str] = []
    rows = 0
    for file in files:
        for where, printed, value in _rows(file, field):
            rows += 1
            score = _number(value)
            if score is None:
                without.append(where)
                continue
            if not isinstance(printed, str):
                raise UserError(f"{where}: has no id; expected SOURCE/PATH#RECORD in the field {_ID!r}")
            first = scores.setdefault(identifier_of(printed, where), (score, where))
            if first[0] != score:
                raise UserError(f"{where}: this id has another score in {first[1]}; remove one of them")
    if without:
        raise UserError(
            f"{without[0]}: has no number in the field {field!r} ({len(without):,} of {rows:,} rows have none). Have "
            f"these documents judged again, or remove the rows"
        )
    if not scores:
        raise UserError(
            f"scores: {', '.join(files)} hold no score; expected rows with the fields {_ID!r} and {field!r}"
        )
    different = {score for score, _ in scores.values()}
    if len(different) == 1:
        raise UserError(
            f"scores: all {len(scores):,} scores are {different.pop():g}; nothing can be learned from one value"
        )
    return scores


def _number(value: Any) -> float | None:
    """Return `value` as a float if it is a finite number or a string that contains one (as in CSV), otherwise
    None. Booleans are not numbers.
    """
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _rows(file: str, field: str) -> Iterator[tuple[str, Any, Any]]:
    """Yield (place, id, score) for each row of a file. Ids and scores are not checked."""
    if not file.endswith(_SUFFIXES):
        raise UserError(f"scores: got {file!r}, expected a file {', '.join(_SUFFIXES)}")
    try:
        if file.endswith(".parquet"):
            yield from _parquet_rows(file, field)
            return
        with gzip.open(file) if file.endswith(".gz") else Path(file).open("rb") as lines:
            if file.removesuffix(".gz").endswith(".csv"):
                with io.TextIOWrapper(lines, "utf-8-sig", newline="") as text:
                    yield from _csv_rows(file, field, text)
            else:
                yield from _json_rows(file, field, lines)
    except (OSError, EOFError, ValueError, csv.Error, zlib.error) as error:
        raise UserError(f"scores: {file}: cannot be read ({error})") from None


def _json_rows(file: str, field: str, lines: Any) -> Iterator[tuple[str, Any, Any]]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            entry = orjson.loads(line)
        except orjson.JSONDecodeError:
            entry = None
        if not isinstance(entry, dict):
            raise UserError(f'{file}:{number}: expected {{"{_ID}": "SOURCE/PATH#RECORD", "{field}": NUMBER}}')
        yield f"{file}:{number}", entry.get(_ID), entry.get(field)


def _csv_rows(file: str, field: str, lines: Any) -> Iterator[tuple[str, Any, Any]]:
    reader = csv.DictReader(lines)
    _check_fields(file, field, reader.fieldnames or ())
    for entry in reader:
        yield f"{file}:{reader.line_num}", entry[_ID], entry[field]


def _parquet_rows(file: str, field: str) -> Iterator[tuple[str, Any, Any]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        parquet = pq.ParquetFile(file)
        _check_fields(file, field, parquet.schema_arrow.names)
        number = 0
        for batch in parquet.iter_batches(columns=[_ID, field]):
            for printed, value in zip(batch[_ID].to_pylist(), batch[field].to_pylist(), strict=True):
                number += 1
                yield f"{file}: row {number}", printed, value
    except pa.ArrowException as error:
        raise UserError(f"scores: {file}: cannot be read ({error})") from None


def _check_fields(file: str, field: str, names: Sequence[str]) -> None:
    for name in (_ID, field):
        if name not in names:
            raise UserError(f"scores: {file}: has no field {name!r}{near_match(name, list(names))}")
