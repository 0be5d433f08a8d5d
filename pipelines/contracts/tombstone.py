"""Tombstones: the records that a corpus directory has forgotten and must not read again.

The mark of a tombstone is a digest of its records. Every step and every receipt carries the mark of the
tombstone under which it was made, and is normally treated as absent if that is no longer the current mark
(see `is_current`). A build that was suspended while `forget` ran therefore cannot bring a document back.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from gristmill.errors import UserError
from gristmill.storage.location import Check, Location
from gristmill.storage.store import digest, read_json, write_json

FORGOTTEN = "forgotten"
"""The reason of a record that was forgotten, and the name of the mark in a manifest's facts and in a receipt."""
REWRITTEN = "~"
"""Precedes the digits of the tombstone's mark in the names of files that `forget` has rewritten."""
_FILE = "forgotten.json"


def read_tombstone(output: Location) -> dict[str, Any]:
    """Return the tombstone of a corpus. Its entries are empty if nothing was forgotten.

    `records` maps each source to a sorted list of its forgotten records, as `path#record`. `pending` lists
    the documents whose removal is unfinished, and `asked` is a digest of the ids and URLs that the user gave
    for this removal. `before` lists the fingerprints that the corpus had while it held documents that are now
    forgotten.
    """
    try:
        tombstone = read_json(
            output / _FILE, "restore it from a copy; without it, forgotten documents would be read again"
        )
    except FileNotFoundError:
        tombstone = {}
    kinds = {"records": dict, "pending": list, "asked": str, "before": list}
    return {name: tombstone.get(name, kind()) for name, kind in kinds.items()}


def write_tombstone(output: Location, tombstone: dict[str, Any], check: Check | None = None) -> None:
    """Write a tombstone in the form that `read_tombstone` returns. `check` must raise an error if another
    process may have changed the file since it was read; otherwise that process's records could be lost.
    """
    write_json(output / _FILE, tombstone, check)


def mark_of(records: Mapping[str, Sequence[str]]) -> str:
    """Return the mark of a tombstone with these `records` (see `read_tombstone`): their digest, or an empty
    string if there are none.
    """
    return digest({source: list(names) for source, names in records.items()}) if records else ""


def current_mark(output: Location) -> str:
    """Return the mark of the records that an output has forgotten, including those that `forget` is still
    removing.
    """
    return mark_of(read_tombstone(output)["records"])


def is_current(output: Location, mark: str) -> bool:
    """Return whether a step with this mark counts as published. If nothing was forgotten, any mark does.
    While a removal is unfinished, the mark of the previous tombstone also counts, because `forget` has not
    rewritten all steps yet.
    """
    tombstone = read_tombstone(output)
    records: dict[str, list[str]] = tombstone["records"]
    if not records or mark == mark_of(records):
        return True
    pending = {(doc["source"], f"{doc['path']}#{doc['record']}") for doc in tombstone["pending"]}
    before = {source: [name for name in names if (source, name) not in pending] for source, names in records.items()}
    return bool(pending) and mark == mark_of({source: names for source, names in before.items() if names})


def forgotten(output: Location) -> dict[str, tuple[str, ...]]:
    """Return, for each source, the records (`path#record`) that must not be read again. Raises UserError
    while a removal is unfinished.
    """
    tombstone = read_tombstone(output)
    if tombstone["pending"]:
        raise UserError(f"{output}: forgetting was interrupted; finish it first: python -m pipelines forget {output}")
    return {source: tuple(records) for source, records in tombstone["records"].items()}
