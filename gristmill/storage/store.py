"""Checksums of files and of JSON values, and JSON files that contain their own checksum."""

import json
from pathlib import Path
from typing import Any

import xxhash

from gristmill.budget import HASHING, spend
from gristmill.errors import CorruptFileError
from gristmill.host import host
from gristmill.storage.location import Check, Location
from gristmill.storage.retries import retry

_CHUNK = 1 << 20


def file_checksum(path: Path) -> str:
    """Return the xxh3_128 of a file's content, as 32 hex digits."""
    with spend(HASHING):
        return retry(path, lambda: _checksum(path))


def _checksum(path: Path) -> str:
    digest = xxhash.xxh3_128()
    with host().open(str(path)) as source:
        while chunk := source.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def canonical_json(value: Any) -> bytes:
    """Return `value` as ASCII JSON with sorted keys and no white space between tokens."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode()


def digest(value: Any) -> str:
    """Return the xxh3_128 of a value's canonical JSON, as 32 hex digits."""
    return xxhash.xxh3_128_hexdigest(canonical_json(value))


def write_json(path: Location, value: dict[str, Any], check: Check | None = None) -> None:
    """Write a JSON object with the added field `checksum` atomically, and only if `check` passes."""
    path.write_atomic(_with_checksum(value), check)


def write_new_json(path: Location, value: dict[str, Any], check: Check | None = None) -> bool:
    """Write a JSON object as `write_json` does, unless the file exists. Returns whether this call wrote it
    (`Location.write_new`).
    """
    return path.write_new(_with_checksum(value), check)


def _with_checksum(value: dict[str, Any]) -> bytes:
    body = {name: field for name, field in value.items() if name != "checksum"}
    body["checksum"] = digest(body)
    return (json.dumps(body, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()


def read_json(path: Location, advice: str = "remove it and run the same command again") -> dict[str, Any]:
    """Read a JSON object written by `write_json` and verify its checksum.

    Raises FileNotFoundError if the file does not exist, and CorruptFileError with `advice` if it is damaged.
    """
    value = _parse_intact(retry(path, path.read_bytes))
    if value is None:  # perhaps damaged in transfer
        value = _parse_intact(path.read_bytes())
    if value is None:
        raise CorruptFileError(f"{path}: its content does not match its own checksum; {advice}")
    return value


def _parse_intact(data: bytes) -> dict[str, Any] | None:
    """Return the JSON object in `data`, or None if there is none or its checksum is wrong or missing."""
    try:
        value = json.loads(data)
        body = {name: field for name, field in value.items() if name != "checksum"}
        return dict(value) if value.get("checksum") == digest(body) else None
    except (ValueError, AttributeError, TypeError):
        return None
