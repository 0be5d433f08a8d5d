"""Fixtures that read one prepared file through the whole of `read_documents`."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from pipelines.reading.documents import read_documents
from pipelines.reading.entries.listing import list_files
from pipelines.reading.sources.source import Source


class Outcome(NamedTuple):
    texts: list[str]
    urls: list[str | None]
    metas: list[str | None]
    bad: list[tuple[str, int, str, int | None]]  # path, record, reason, bytes
    paths: list[str]


def read_file(folder: Path, name: str, content: bytes | Path, part_bytes: int = 1 << 20, **fields: Any) -> Outcome:
    """Read the file `in/NAME` of `folder` as a source, after writing `content` to it if that is bytes, and
    check that every record is accounted for.
    """
    path = folder / "in" / name
    path.parent.mkdir(exist_ok=True)
    if isinstance(content, bytes):
        path.write_bytes(content)
    source = Source(name="s", root=str(path), **{"format": "text"} | fields)
    parts = list(read_documents(source, list_files(source), part_bytes))
    bad = [tuple(row.values()) for part in parts for row in part.quarantine.to_pylist()]
    files = [row for part in parts for row in part.files.to_pylist()]
    documents = [row for part in parts for row in part.documents.to_pylist()]
    assert sum(row["records"] for row in files) == len(documents) + len(bad)
    numbers = [(row["key"], row["first_record"] + i) for row in files for i in range(row["records"])]
    keys = {row["path"]: row["key"] for row in files}
    seen = [(int.from_bytes(d["id"][:8]), int.from_bytes(d["id"][8:])) for d in documents]
    assert sorted(numbers) == sorted(seen + [(keys[path], record) for path, record, _, _ in bad])
    for part in parts:
        part.documents.validate(full=True)
    columns = [[d[name] for d in documents] for name in ("text", "url", "meta")]
    return Outcome(*columns, bad, [row["path"] for row in files])


@pytest.fixture
def read(tmp_path: Path) -> Callable[..., Outcome]:
    """`read(name, content, format=...)`: `read_file` in the test's temporary directory."""
    return partial(read_file, tmp_path)
