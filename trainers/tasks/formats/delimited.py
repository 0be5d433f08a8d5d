"""Tables: tab-separated values without quoting, comma-separated values as RFC 4180, and Parquet."""

import csv
import io
from collections.abc import Iterable, Iterator

import pyarrow as pa
import pyarrow.parquet as pq

from gristmill.errors import UserError
from trainers.tasks.formats.row_set import RowSet
from trainers.tasks.schema.task import Layout


def read_tsv(data: str, layout: Layout, path: str) -> RowSet:
    """Lines of values between tabs. Quotation marks are characters as any other, as in GLUE's files."""
    lines = enumerate(data.split("\n"), start=1)
    return _table(((number, line.rstrip("\r").split("\t")) for number, line in lines if line.strip("\r")), layout, path)


def read_csv(data: str, layout: Layout, path: str) -> RowSet:
    """RFC 4180: values may be quoted, a quoted value may hold line breaks. A row's place is its last line."""
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


def _table(numbered: Iterable[tuple[int, list[str]]], layout: Layout, path: str) -> RowSet:
    """A table of rows with their line numbers; its width is the header's, or the first row's."""
    rows = list(numbered)
    if not rows:
        raise UserError(f"{path}: holds no row")
    width = len(rows[0][1])
    names: list[str | int] = [*(rows[0][1] if layout.header else range(width))]
    if len(set(names)) < width:
        repeated = next(name for name in names if names.count(name) > 1)
        raise UserError(
            f"{path}: line {rows[0][0]}: two columns are named {repeated!r}; rename one, or say header: false"
        )
    body = rows[1:] if layout.header else rows
    whole = [entry for entry in body if len(entry[1]) == width]
    skipped = len(body) - len(whole)
    if skipped and layout.incomplete_rows == "refuse":
        line, row = next(entry for entry in body if len(entry[1]) != width)
        raise UserError(
            f"{path}: line {line}: {len(row)} columns, expected {width} as in line {rows[0][0]}; "
            f"correct it, or skip such rows with incomplete_rows: skip"
        )
    if not whole:
        raise UserError(f"{path}: holds no row below its header")
    columns = dict(zip(names, ([*values] for values in zip(*(row for _, row in whole), strict=True)), strict=True))
    return RowSet(path, columns, [line for line, _ in whole], skipped=skipped)


def read_parquet(data: bytes, layout: Layout, path: str) -> RowSet:
    """All columns of a Parquet file, as Python values."""
    try:
        table = pq.read_table(pa.BufferReader(data))
    except pa.ArrowException as error:
        raise UserError(f"{path}: not intact Parquet: {str(error).splitlines()[0]}; fetch the file again") from None
    columns: dict[str | int, list] = {name: table[name].to_pylist() for name in table.column_names}
    return RowSet(path, columns, range(1, table.num_rows + 1), "row")
