"""Tables of the documents to export: those that no step dropped, with edited text, redacted fields and chosen
columns.
"""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from gristmill.config import near_match
from gristmill.errors import UserError
from pipelines.contracts.columns import DROP, EDITS_COLUMN
from pipelines.contracts.lineage import Corpus
from pipelines.contracts.parts import Part
from pipelines.export.left_out import OPTIONAL_COLUMNS, is_scalar

EXPORT_SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("text", pa.large_string(), nullable=False),
        pa.field("source", pa.string(), nullable=False),
        pa.field("url", pa.string()),
        pa.field("meta", pa.string(), nullable=False),
    ]
)
"""The exported columns that precede the annotations. `meta` is a JSON object as a string, `{}` if a record had no other
fields.
"""
SPLIT_COLUMN = pa.field("split", pa.string())
"""Written only if a source of the corpus comes with a split. It is null in sources without one."""


def export_schema(
    corpus: Corpus, columns: Sequence[str], without: Sequence[str], where: str = "--columns"
) -> pa.Schema:
    """Return the schema of an export: EXPORT_SCHEMA without the columns in `without`, then `split` if any
    source of the corpus comes with a split, then the annotations `columns`.

    Raises UserError if one of `columns` cannot be exported (the message begins with `where`), or if one of
    `without` cannot be left out.
    """
    for name in without:
        if name not in OPTIONAL_COLUMNS:
            raise UserError(f"--without: got {name!r}, expected some of {', '.join(OPTIONAL_COLUMNS)}")
    fields = chosen_columns(corpus, columns, where)
    given = [SPLIT_COLUMN] if any(part.given is not None for part in corpus.parts()) else []
    return pa.schema([*(field for field in EXPORT_SCHEMA if field.name not in without), *given, *fields])


def scalar_columns(corpus: Corpus) -> pa.Schema:
    """Return the schema of the scalar annotation columns that can be exported."""
    first = next(corpus.parts(), None)
    written = [field for field in first.types if is_scalar(field.type)] if first is not None else []
    reserved = (DROP, EDITS_COLUMN, SPLIT_COLUMN.name, *EXPORT_SCHEMA.names)
    return pa.schema(field for field in written if field.name not in reserved)


def chosen_columns(corpus: Corpus, names: Sequence[str], where: str) -> list[pa.Field]:
    """Return the fields of the columns `names`, without duplicates. Raises UserError for a name that
    `scalar_columns` does not contain; the message begins with `where`.
    """
    columns = scalar_columns(corpus)
    for name in names:
        if name not in columns.names:
            raise UserError(
                f"{where}: no step of this corpus writes a value {name!r}{near_match(name, columns.names)}; there are: "
                f"{', '.join(sorted(columns.names)) or 'none'}"
            )
    return [columns.field(name) for name in dict.fromkeys(names)]


def kept_documents(corpus: Corpus, part: Part, schema: pa.Schema) -> pa.Table:
    """Return the kept documents of a part as a table of `schema`, with edited text. `url` and `meta` are
    redacted as in `redact_fields`.
    """
    names = [name for name in schema.names if name not in ("id", "text", SPLIT_COLUMN.name)]
    docs = part.table((DROP, "edited_text", *names, *(["id"] if "id" in schema.names else [])))
    kept = pc.is_null(docs[DROP])
    ids = pa.array(corpus.printed_ids(part), pa.string()).filter(kept.combine_chunks())
    docs = redact_fields(part, docs).filter(kept).combine_chunks()
    columns: dict[str, Any] = {name: docs[name] for name in names} | {"id": ids, "text": docs["edited_text"]}
    columns["source"] = docs["source"].cast(pa.string())
    splits = part.splits()
    columns["split"] = (pa.nulls(part.rows, pa.string()) if splits is None else splits).filter(kept.combine_chunks())
    if "meta" in columns:
        columns["meta"] = pc.fill_null(columns["meta"], "{}")
    return pa.table([columns[name] for name in schema.names], schema=schema)


def redact_fields(part: Part, docs: pa.Table) -> pa.Table:
    """Return the documents with `url` and `meta` replaced by the redacted forms that pii steps wrote, if any.
    Columns derived from a redacted URL become null. `docs` must have all rows of `part`, in order.
    """
    for name in OPTIONAL_COLUMNS:
        if not part.has(f"pii_{name}"):
            continue
        new = part.table((f"pii_{name}",))[f"pii_{name}"]
        if name in docs.column_names:
            docs = docs.set_column(docs.column_names.index(name), name, pc.coalesce(new, docs[name]))
        for derived in docs.column_names if name == "url" else ():
            if derived.startswith("url_"):
                value = pc.if_else(pc.is_valid(new), pa.scalar(None, docs[derived].type), docs[derived])
                docs = docs.set_column(docs.column_names.index(derived), derived, value)
    return docs
