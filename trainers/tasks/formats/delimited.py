"""Readers of tables: tab-separated values without quoting, comma-separated values as in RFC 4180, and
Parquet.
"""

import csv
import io
from collections.abc import Iterable, Iterator
from itertools import chain

import pyarrow as pa
import pyarrow.parquet as pq

from gristmill.errors import UserError
from trainers.tasks.formats.row_set import RowSet, used_columns
from trainers.tasks.schema.task import Layout


def read_tsv(data: str, layout: Layout, path: str) -> RowSet:
    """Read tab-separated lines. Quotation marks have no special meaning, as in GLUE's files."""
    lines = enumerate(data.split("\n"), start=1)
    return _table(((number, line.rstrip("\r").split("\t")) for number, line in lines if line.strip("\r")), layout, path)


def read_csv(data: str, layout: Layout, path: str) -> RowSet:
    """Read CSV as defined in RFC 4180. If a row spans several lines, error messages name its last line."""
    reader = csv.reader(io.StringIO(data, newline=""), strict=True)
    csv.field_size_limit(1 << 30)

    def rows() -> Iterator[tuple[int, list[str]]]:
        try:
            for row in reader:
                if row:
                    yield reader.line_num, row
        except csv.Error as error:
            raise UserError(f"{path}: line {reader.line_num}: not CSV: {error}; correct the quotation marks") from None

    return _table(rows(), layout, path)


def _table(rows: Iterable[tuple[int, list[str]]], layout: Layout, path: str) -> RowSet:
    rows = iter(rows)
    line, first = next(rows, (0, []))
    if not first:
        raise UserError(f"{path}: holds no row")
    names: list[str | int] = [*(first if layout.header else range(len(first)))]
    if len(set(names)) < len(names):
        repeated = next(name for name in names if names.count(name) > 1)
        raise UserError(f"{path}: line {line}: two columns are named {repeated!r}; rename one, or set header: false")
    columns: dict[str | int, list[str]] = {name: [] for name in names}
    used = used_columns(layout)
    filled = [(number, columns[name]) for number, name in enumerate(names) if name in used]
    places: list[int] = []
    skipped = 0
    for place, row in rows if layout.header else chain([(line, first)], rows):
        if len(row) == len(names):
            places.append(place)
            for number, column in filled:
                column.append(row[number])
        elif layout.incomplete_rows == "skip":
            skipped += 1
        else:
            raise UserError(
                f"{path}: line {place}: {len(row)} columns, expected {len(names)} as in line {line}; "
                f"correct it, or skip such rows with incomplete_rows: skip"
            )
    if not places:
        raise UserError(f"{path}: holds no row below its header")
    return RowSet(path, columns, places, skipped=skipped)


def read_parquet(data: bytes, layout: Layout, path: str) -> RowSet:
    """Read a Parquet file into columns of Python objects. Columns that the task does not use are left empty."""
    try:
        file = pq.ParquetFile(pa.BufferReader(data))
        used = [name for name in file.schema_arrow.names if name in used_columns(layout)]
        table = file.read(columns=used)
    except pa.ArrowException as error:
        raise UserError(f"{path}: not intact Parquet: {str(error).splitlines()[0]}; fetch the file again") from None
    columns: dict[str | int, list] = {name: [] for name in file.schema_arrow.names}
    columns |= {name: table[name].to_pylist() for name in used}
    return RowSet(path, columns, range(1, file.metadata.num_rows + 1), "row")
