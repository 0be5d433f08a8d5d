"""Tombstones: the records that a corpus directory has forgotten and must not read again."""

from typing import Any

from gristmill.errors import UserError
from gristmill.storage.location import Location
from gristmill.storage.store import read_json, write_json

FORGOTTEN = "forgotten"
"""The reason of a record that was forgotten."""
_FILE = "forgotten.json"


def read_tombstone(output: Location) -> dict[str, Any]:
    """The tombstone of a corpus.

    `records`: sorted `path#record` by source; `pending`: documents whose removal is unfinished; `asked`: a
    digest of the ids and URLs that named them; `before`: earlier fingerprints of the corpus, while it held
    documents that are forgotten now.
    """
    try:
        tombstone = read_json(
            output / _FILE, "restore it from a copy; without it, what was forgotten would be read again"
        )
    except FileNotFoundError:
        tombstone = {}
    kinds = {"records": dict, "pending": list, "asked": str, "before": list}
    return {name: tombstone.get(name, kind()) for name, kind in kinds.items()}


def write_tombstone(output: Location, tombstone: dict[str, Any]) -> None:
    """Write what `read_tombstone` gives."""
    write_json(output / _FILE, tombstone)


def forgotten(output: Location) -> dict[str, tuple[str, ...]]:
    """The records, `path#record`, that must not be read again, by source. Raises UserError while a removal is
    unfinished.
    """
    tombstone = read_tombstone(output)
    if tombstone["pending"]:
        raise UserError(f"{output}: forgetting was interrupted; finish it first: python -m pipelines forget {output}")
    return {source: tuple(records) for source, records in tombstone["records"].items()}
