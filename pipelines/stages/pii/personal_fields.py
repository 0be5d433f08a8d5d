"""Personal data outside the text: in `url`, and in the other fields of a record, which `meta` holds as JSON.

The stored columns never change. What is found is replaced in copies, `pii_url` and `pii_meta`, which are null where nothing was
found. An export writes them in the place of the stored values.
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
_LEAST_DIGITS = 6  # of a number that may be a telephone number or a card: shorter ones identify nobody
_MOST_DIGITS = 4000  # beyond, Python converts no digits

Search = Callable[[Sequence[str], Sequence[bytes]], Sequence[tuple[str, Mapping[str, int]]]]
"""Values, and the id of a document that has each -> each with what was found replaced, and the number of finds by entity."""


def column_of(name: str) -> str:
    """The column that a field is in: `meta` of `meta.author`."""
    return name.partition(".")[0]


def check_fields(names: Sequence[str]) -> None:
    """ValueError for a field that is neither `url`, `meta` nor `meta.NAME`."""
    for name in names:
        column, dot, rest = name.partition(".")
        if column not in FIELD_COLUMNS or (dot and (column == "url" or not rest)):
            raise ValueError(f"fields: got {name!r}, expected url, meta for all other fields of a record, or meta.NAME")


def redact_fields(
    names: Sequence[str], docs: pa.Table, search: Search
) -> tuple[dict[str, list[str | None]], list[Counter[str]]]:
    """`pii_url` and `pii_meta`, those that `names` ask for, and the finds by entity of each document.

    Of a field of `meta` all strings are searched, names of nested fields too, and whole numbers of six digits and more, which
    become strings where something is found.
    """
    chosen = {name.partition(".")[2] for name in names if column_of(name) == "meta"}
    parsed = {name: docs[name].to_pylist() for name in FIELD_COLUMNS if name in map(column_of, names)}
    if "meta" in parsed:
        parsed["meta"] = [None if value is None else json.loads(value, parse_int=_whole) for value in parsed["meta"]]
    owners: dict[str, bytes] = {}
    for identifier, *values in zip(docs["id"].to_pylist(), *parsed.values(), strict=True):
        for name, value in zip(parsed, values, strict=True):
            for text in _texts(_chosen(value, chosen) if name == "meta" else value):
                owners.setdefault(text, identifier)
    found = dict(zip(owners, search(list(owners), list(owners.values())), strict=True)) if owners else {}
    columns: dict[str, list[str | None]] = {}
    counts: list[Counter[str]] = [Counter() for _ in range(docs.num_rows)]
    for name, values in parsed.items():
        column = columns[f"pii_{name}"] = []
        for row, value in enumerate(values):
            new = value
            part = _chosen(value, chosen) if name == "meta" else value
            hits = [found[text][1] for text in _texts(part) if found[text][1]]
            for each in hits:
                counts[row].update(each)
            if hits and name == "meta" and "" not in chosen:
                new = {key: _replaced(entry, found) if key in chosen else entry for key, entry in value.items()}
            elif hits:
                new = _replaced(value, found)
            changed = None if value is None or new == value else new
            column.append(to_json(changed).decode() if name == "meta" and changed is not None else changed)
    return columns, counts


def _whole(digits: str) -> int | str:
    return int(digits) if len(digits) < _MOST_DIGITS else digits


def _chosen(meta: Any, names: set[str]) -> Any:
    """The fields of `meta` that are searched, all of them where the names hold an empty one."""
    if "" in names or not isinstance(meta, dict):
        return meta
    return [value for name, value in meta.items() if name in names]


def _texts(value: Any) -> list[str]:
    """All strings of a JSON value, names of fields included, and numbers that are long enough; each as often as it occurs."""
    if isinstance(value, str):
        return [_clean(value)]
    if isinstance(value, int) and not isinstance(value, bool) and len(str(abs(value))) >= _LEAST_DIGITS:
        return [str(value)]
    if isinstance(value, dict):
        return [text for pair in value.items() for entry in pair for text in _texts(entry)]
    if isinstance(value, list):
        return [text for entry in value for text in _texts(entry)]
    return []


def _replaced(value: Any, found: Mapping[str, tuple[str, Mapping[str, int]]]) -> Any:
    """The value with what was found in its strings and numbers replaced; names that become equal are numbered."""
    if isinstance(value, dict):
        new: dict[str, Any] = {}
        for name, entry in value.items():
            other = _replaced(name, found)
            while other in new:
                other += "'"
            new[other] = _replaced(entry, found)
        return new
    if isinstance(value, list):
        return [_replaced(entry, found) for entry in value]
    for text in _texts(value):
        return found[text][0] if found[text][1] else value
    return value


def is_url(value: str) -> bool:
    """Whether a value is a URL as a whole: it begins with a scheme, `//` or `www.`, and has no white space."""
    return _URL.fullmatch(value) is not None


def decode_at(url: str) -> str:
    """A URL with @ in place of %40, so that an address in a parameter is seen as one."""
    return url.replace("%40", "@")


def divided(url: str) -> str:
    """A URL with a space in place of each mark that divides it, for the search for e-mail addresses.

    Presidio's pattern allows these marks before the @, as RFC 5322 does, where hardly any address has them: it takes host and
    path of the URL for a part of the address, or finds none, because the top-level domain it then looks up is that of the host.
    """
    return url.translate(_SPACES)


def _clean(text: str) -> str:
    """Without lone surrogates, which Arrow cannot hold."""
    return text.encode("utf-8", "replace").decode()
