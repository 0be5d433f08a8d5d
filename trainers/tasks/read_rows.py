"""Read the files of a split into RowSets."""

from gristmill.errors import UserError
from gristmill.storage.location import FileRecord, Location
from trainers.tasks.formats import TEXT_FORMATS
from trainers.tasks.formats.delimited import read_parquet
from trainers.tasks.formats.generated_rows import generated_rows
from trainers.tasks.formats.row_set import RowSet
from trainers.tasks.formats.text_lines import read_documents, read_parallel
from trainers.tasks.task_files import SplitFiles, decode, read_content


def read_rows(files: SplitFiles) -> tuple[list[RowSet], tuple[FileRecord, ...]]:
    """Read the files of a split. Returns the rows that fit the layout's `where`, as one RowSet per file that
    has such rows, and the records of all files. Parallel files form a single RowSet, and so do files in the
    format `documents`. Raises UserError for a file that cannot be read, and if no row is left.
    """
    layout = files.layout
    contents = [read_content(path) for path in files.paths]
    records = tuple(record for _, record in contents)
    texts = [(path, data) for path, (data, _) in zip(files.paths, contents, strict=True)]

    def text(path: Location, data: bytes) -> str:
        return decode(data, layout.encoding, path)

    if files.format == "generated":
        sets = [generated_rows(name) for name in files.columns]
    elif files.columns:
        named = list(zip(files.columns, texts, strict=True))
        content = {column: text(path, data) for column, (path, data) in named}
        sets = [read_parallel(content, {column: str(path) for column, (path, _) in named})]
    elif files.format == "documents":
        sets = [read_documents([(path, text(path, data)) for path, data in texts])]
    elif files.format == "parquet":
        sets = [read_parquet(data, layout, str(path)) for path, data in texts]
    else:
        read = TEXT_FORMATS[files.format]
        sets = [read(text(path, data), layout, str(path)) for path, data in texts]
    for column, allowed in (layout.where or {}).items():
        sets = [_where(rows, column, allowed) for rows in sets]
    if not any(len(rows) for rows in sets):
        raise UserError(f"{sets[0].path}: holds no row" + (" that fits `where`" if layout.where else ""))
    return [rows for rows in sets if len(rows)], records


def _where(rows: RowSet, column: str, allowed: tuple[str, ...]) -> RowSet:
    values = rows.column(column, f"where.{column}")
    return rows.keep([row for row, value in enumerate(values) if label_text(value) in allowed])


def label_text(value: object) -> str:
    """Return a label as text in the form used in `labels`, such as `true` for True and `1` for 1.0."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return value.strip() if isinstance(value, str) else str(value)
