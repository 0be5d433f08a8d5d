"""Find and redact personal data outside the text: in `url`, and in the other fields of a record, which `meta`
stores as JSON. The redacted copies are the columns `pii_url` and `pii_meta`, null where nothing was replaced.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from pipelines.reading.entries.records import to_json

FIELD_COLUMNS = ("url", "meta")
_URL = re.compile(r"(?:[a-z][a-z0-9+.\-]*://|//|www\.)\S*", re.IGNORECASE)
_SPACES = str.maketrans("/?#&=", "     ")
_MIN_DIGITS = 6  # minimum digits of a number that may be a telephone or card number
_MAX_DIGITS = 4000  # Python refuses to convert more digits

Search = Callable[[Sequence[str], Sequence[bytes]], Sequence[tuple[str, Mapping[str, int]]]]
"""A function that takes values and, for each, the id of a document that contains it. It returns, for each value, the
redacted value and the number of finds by entity.
"""


def column_of(name: str) -> str:
    """Return the column that stores a field, such as `meta` for `meta.author`."""
    return name.partition(".")[0]


def check_fields(names: Sequence[str]) -> None:
    """Raise ValueError for a field other than `url`, `meta` or `meta.NAME`."""
    for name in names:
        column, dot, rest = name.partition(".")
        if column not in FIELD_COLUMNS or (dot and (column == "url" or not rest)):
            raise ValueError(f"fields: got {name!r}, expected url, meta for all other fields of a record, or meta.NAME")


def redact_fields(
    names: Sequence[str], docs: pa.Table, search: Search
) -> tuple[dict[str, list[str | None]], list[Counter[str]]]:
    """Return the redacted columns that `names` request (`pii_url`, `pii_meta` or both), null where nothing
    was replaced, and the number of finds by entity in each document.

    Within the chosen fields of `meta`, the search covers all strings, field names, and integers of six or
    more digits. An integer in which something is replaced becomes a string.
    """
    chosen = {name.partition(".")[2] for name in names if column_of(name) == "meta"}
    parsed = {name: docs[name].to_pylist() for name in FIELD_COLUMNS if name in map(column_of, names)}
    if "meta" in parsed:
        parsed["meta"] = [None if value is None else json.loads(value, parse_int=_whole) for value in parsed["meta"]]
    owners: dict[str, bytes] = {}
    for identifier, *values in zip(docs["id"].to_pylist(), *parsed.values(), strict=True):
        for name, value in zip(parsed, values, strict=True):
            for text in texts_in(_select_fields(value, chosen) if name == "meta" else value):
                owners.setdefault(text, identifier)
    found = dict(zip(owners, search(list(owners), list(owners.values())), strict=True)) if owners else {}
    redacted = {text: other for text, (other, _) in found.items()}
    columns: dict[str, list[str | None]] = {}
    counts: list[Counter[str]] = [Counter() for _ in range(docs.num_rows)]
    for name, values in parsed.items():
        column = columns[f"pii_{name}"] = []
        for row, value in enumerate(values):
            new = value
            part = _select_fields(value, chosen) if name == "meta" else value
            hits = [found[text][1] for text in texts_in(part) if found[text][1]]
            for each in hits:
                counts[row].update(each)
            if hits and name == "meta" and "" not in chosen:
                new = {
                    k: replace_texts(entry, redacted) if _is_chosen(k, chosen) else entry for k, entry in value.items()
                }
            elif hits:
                new = replace_texts(value, redacted)
            changed = None if value is None or new == value else new
            column.append(to_json(changed).decode() if name == "meta" and changed is not None else changed)
    return columns, counts


def _whole(digits: str) -> int | str:
    return int(digits) if len(digits) < _MAX_DIGITS else digits


def _select_fields(meta: Any, names: set[str]) -> Any:
    if "" in names or not isinstance(meta, dict):
        return meta
    return [value for name, value in meta.items() if _is_chosen(name, names)]


def _is_chosen(key: str, names: set[str]) -> bool:
    """Return whether `names` contains the top-level field `key` of `meta`, or the path of a field inside it.
    With `author.email`, the whole field `author` is chosen.
    """
    return any(name == key or name.startswith(f"{key}.") for name in names)


def texts_in(value: Any, numbers: bool = True) -> list[str]:
    """Return all strings of a value, also those in lists, tuples and dictionaries, the keys included. With
    `numbers`, its integers of _MIN_DIGITS or more digits are returned too, converted to strings.
    """
    found, pending = [], [value]
    while pending:  # not recursively: JSON may be nested almost as deeply as Python's calls
        entry = pending.pop()
        if isinstance(entry, str):
            found.append(_clean(entry))
        elif isinstance(entry, dict):
            pending += [each for pair in reversed(entry.items()) for each in reversed(pair)]
        elif isinstance(entry, list | tuple):
            pending += reversed(entry)
        elif numbers and _is_long_number(entry):
            found.append(str(entry))
    return found


def _is_long_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and len(str(abs(value))) >= _MIN_DIGITS


def replace_texts(value: Any, redacted: Mapping[str, str], numbers: bool = True) -> Any:
    """Return a value in which each text (see `texts_in`) is replaced by the one that `redacted` maps it to,
    if any. The keys of a dictionary stay distinct.
    """
    if isinstance(value, dict):
        new: dict[str, Any] = {}
        for name, entry in value.items():
            other = replace_texts(name, redacted, numbers)
            while other in new:
                other += "'"
            new[other] = replace_texts(entry, redacted, numbers)
        return new
    if isinstance(value, list | tuple):
        entries = []
        for entry in value:  # a comprehension would take two calls for each level
            entries.append(replace_texts(entry, redacted, numbers))
        return type(value)(entries)
    if isinstance(value, str):
        text = _clean(value)
    elif numbers and _is_long_number(value):
        text = str(value)
    else:
        return value
    return value if redacted.get(text, text) == text else redacted[text]


def is_url(value: str) -> bool:
    """Return whether the whole value is a URL, which may begin with `//` or `www.` instead of a scheme."""
    return _URL.fullmatch(value) is not None


def decode_at(url: str) -> str:
    """Return a URL with each %40 decoded to @, so that an e-mail address in a parameter is recognised."""
    return url.replace("%40", "@")


def split_url_parts(url: str) -> str:
    """Return a URL with each of the separators / ? # & = replaced with a space.

    Presidio's pattern for e-mail addresses allows these characters before the @, so in a URL it would take
    the host and path for the beginning of the address.
    """
    return url.translate(_SPACES)


def _clean(text: str) -> str:
    """Return a text with lone surrogates, which Arrow cannot store, replaced with `?`."""
    return text.encode("utf-8", "replace").decode()
