"""Given splits: how the publisher of a source divides its documents into training, validation and test
documents.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gristmill.config import parse
from gristmill.errors import ConfigError, UserError, attach_filename
from gristmill.storage.paths import local_path
from gristmill.storage.store import file_checksum
from pipelines.contracts.document import document_id, file_key, parse_id

TRAIN, VALIDATION, TEST = SPLITS = ("train", "validation", "test")
HELD_OUT = (VALIDATION, TEST)


@dataclass(frozen=True)
class WholeSplit:
    """`split: validation`: every document of the source is in this split."""

    kind: Literal["train", "validation", "test"]
    """The split."""

    def read_columns(self) -> tuple[str, ...]:
        """Return the columns of a document that `label` needs."""
        return ()

    def identity(self, source: str) -> dict[str, Any]:
        """Return everything that the labels depend on besides the documents."""
        return {"kind": self.kind}

    def promised(self) -> tuple[str, ...]:
        """Return the held-out splits that must have documents."""
        return tuple(split for split in HELD_OUT if split == self.kind)

    def label(self, docs: pa.Table, source: str) -> pa.Array:
        """Return the split of each document, string [n]."""
        return pa.array(np.full(docs.num_rows, self.kind, object), pa.string())


@dataclass(frozen=True)
class FieldSplit:
    """`split: {kind: field, field: subset, validation: [dev]}`: a field of the record gives the split."""

    kind: Literal["field"]
    """Distinguishes the forms of a split."""
    field: str
    """Name of the field. It must be a field that is kept in `meta`, and every record must have it."""
    validation: tuple[str, ...] = ()
    """Values of the field that mark validation documents. Documents with a value that is not listed are for
    training.
    """
    test: tuple[str, ...] = ()
    """Values of the field that mark test documents."""

    def check(self) -> None:
        """Raise ValueError if neither validation nor test lists a value, or if both list the same value."""
        if not self.validation and not self.test:
            raise ValueError(
                "validation: got no value, and none for test; expected a value of the field for one of them"
            )
        if both := sorted(set(self.validation) & set(self.test)):
            raise ValueError(f"test: {both[0]!r} is also a value of validation; a document is in one split only")

    def read_columns(self) -> tuple[str, ...]:
        """Return the columns of a document that `label` needs."""
        return ("id", "meta")

    def identity(self, source: str) -> dict[str, Any]:
        """Return everything that the labels depend on besides the documents."""
        return {"kind": self.kind, "field": self.field, **{split: list(self._values(split)) for split in HELD_OUT}}

    def promised(self) -> tuple[str, ...]:
        """Return the held-out splits that must have documents."""
        return tuple(split for split in HELD_OUT if self._values(split))

    def label(self, docs: pa.Table, source: str) -> pa.Array:
        """Return the split of each document, string [n]. Raises UserError for a record in which the field is
        missing or null.
        """
        of_value = {value: split for split in HELD_OUT for value in self._values(split)}
        values = field_values(docs, self.field, source)
        return pa.array([of_value.get(value, TRAIN) for value in values], pa.string())

    def _values(self, split: str) -> tuple[str, ...]:
        return self.validation if split == VALIDATION else self.test


@dataclass(frozen=True)
class IdSplit:
    """`split: {kind: ids, validation: dev.txt, test: test.txt}`: files list the ids of the held-out documents."""

    kind: Literal["ids"]
    """Distinguishes the forms of a split."""
    validation: str | None = None
    """File with one id per line, in UTF-8. Documents in neither file are for training. Workers on other
    machines must be able to read the file.
    """
    test: str | None = None
    """The same for test documents."""
    field: str | None = None
    """Field of the record that holds the id. If it is not given, ids are document ids: `source/path#record`."""

    def check(self) -> None:
        """Raise ValueError if neither validation nor test names a file."""
        if self.validation is None and self.test is None:
            raise ValueError("validation: got no file, and none for test; expected a file of ids for one of them")

    def read_columns(self) -> tuple[str, ...]:
        """Return the columns of a document that `label` needs."""
        return ("id",) if self.field is None else ("id", "meta")

    def identity(self, source: str) -> dict[str, Any]:
        """Return everything that the labels depend on besides the documents. Raises ConfigError for a missing
        or malformed file of ids.
        """
        self._ids(source)
        return {
            "kind": self.kind,
            "field": self.field,
            **{name: _checksum(path, local_path(path).version()) for name, path in self._named()},
        }

    def promised(self) -> tuple[str, ...]:
        """Return the held-out splits that must have documents."""
        return tuple(split for split, _ in self._named())

    def label(self, docs: pa.Table, source: str) -> pa.Array:
        """Return the split of each document, string [n]. Raises ConfigError if a file of ids is missing or
        malformed, and UserError for a record in which `field` is missing or null.
        """
        of_id = self._ids(source)
        ids = docs["id"].to_pylist() if self.field is None else field_values(docs, self.field, source)
        return pa.array([of_id.get(each, TRAIN) for each in ids], pa.string())

    def _named(self) -> list[tuple[str, str]]:
        return [(split, path) for split, path in ((VALIDATION, self.validation), (TEST, self.test)) if path is not None]

    def _ids(self, source: str) -> Mapping[Any, str]:
        for split, path in self._named():
            if not local_path(path).is_file():
                raise ConfigError(f"source {source}: split.{split}: no file {path}; expected one with one id per line")
        files = tuple((split, path, local_path(path).version()) for split, path in self._named())
        return _read_ids(files, source, self.field is None)


@dataclass(frozen=True)
class PublishedIdSplit(IdSplit):
    """The id split of a source in a published corpus. `recorded` is what `identity` returned for the source
    when the corpus was built.
    """

    recorded: Mapping[str, Any] = field(default_factory=dict)

    def label(self, docs: pa.Table, source: str) -> pa.Array:
        """Return the split of each document, string [n], as `IdSplit.label` does. Also raises ConfigError if
        a file of ids has changed since the corpus was built.
        """
        now = self.identity(source)
        for split, path in self._named():
            if now[split] != self.recorded[split]:
                raise ConfigError(
                    f"source {source}: split.{split}: {path} has changed since the corpus was built; restore it or, if the "
                    "change was intended (ids of forgotten documents removed, for example), build again"
                )
        return super().label(docs, source)


GivenSplit = WholeSplit | FieldSplit | IdSplit


@dataclass(frozen=True)
class _Holder:
    split: WholeSplit | FieldSplit | IdSplit | None = None


def parse_split(data: Any, where: str) -> GivenSplit | None:
    """Parse the `split` of a source as a published manifest stores it; None if it is null. `where` names the
    manifest in messages.
    """
    return parse(_Holder, {"split": data}, where).split


@lru_cache(maxsize=16)
def _checksum(path: str, version: Any) -> str:
    return file_checksum(local_path(path))


@lru_cache(maxsize=16)
def _read_ids(files: tuple[tuple[str, str, Any], ...], source: str, of_documents: bool) -> Mapping[Any, str]:
    """Map each id in the files to its split. `files` are (split, path, version); the version makes the cache
    read a changed file again. With `of_documents`, the files list printed document ids of `source`, and the
    result is keyed by 16-byte ids.
    """
    of_id: dict[Any, str] = {}
    for split, path, _ in files:
        where = f"source {source}: split.{split}: {path}"
        with attach_filename(local_path(path)):
            content = local_path(path).read_bytes()
        try:
            lines = content.decode("utf-8-sig").split("\n")
        except UnicodeDecodeError as error:
            raise ConfigError(f"{where}: not UTF-8 at byte {error.start}; expected one id per line") from None
        ids = [line.strip() for line in lines if line.strip()]
        if not ids:
            raise ConfigError(f"{where}: holds no id; expected one id per line")
        for line in ids:
            identifier = _document_id(line, source, where) if of_documents else line
            if of_id.setdefault(identifier, split) != split:
                raise ConfigError(f"{where}: the id {line!r} is also in {VALIDATION}; a document is in one split only")
    return of_id


def _document_id(printed: str, source: str, where: str) -> bytes:
    try:
        owner, path, record = parse_id(printed)
    except UserError as error:
        raise ConfigError(f"{where}: {error}") from None
    if owner != source:
        raise ConfigError(f"{where}: the id {printed!r} is of source {owner!r}, expected ids of {source!r}")
    return document_id(file_key(source, path), record)


def field_values(docs: pa.Table, field: str, source: str) -> list[str]:
    """Return each record's value of the field `field` of `meta`, as text: strings unchanged, other values as
    JSON. Raises UserError for a record in which the field is missing or null.
    """
    values = []
    for identifier, meta in zip(docs["id"], docs["meta"].to_pylist(), strict=True):
        value = json.loads(meta or "{}").get(field)
        if value is None:
            raise UserError(
                f"source {source}: split: the record {identifier.as_py().hex()} has no field {field!r}; name a field that every "
                "record has, other than its text and URL"
            )
        values.append(value if isinstance(value, str) else json.dumps(value))
    return values


def is_held_out(labels: pa.Array) -> np.ndarray:
    """Return whether each label is a held-out split (validation or test), bool [n]."""
    held: np.ndarray = pc.is_in(labels, value_set=pa.array(HELD_OUT)).to_numpy(zero_copy_only=False)
    return held
