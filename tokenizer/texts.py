"""Read the text files of `python -m tokenizer`: plain text and JSON lines, with or without gzip."""

import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO, cast

from gristmill.errors import attach_filename
from gristmill.storage.paths import local_path

JSON_LINES = (".jsonl", ".ndjson")


def read_texts(path: str, field: str = "text") -> Iterator[str]:
    """Yield the texts that `read_records` reads from a file, without the records."""
    return (text for text, _ in read_records(path, field))


def read_records(path: str, field: str = "text") -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the documents of a UTF-8 file as (text, record). If the name ends in .jsonl or .ndjson (also with
    .gz), each line that is not blank is a record, and its text is the value of `field`. Otherwise the whole
    file is one text with an empty record.

    Raises ValueError, with the file and where possible the line, for a missing or damaged file, and for a
    line without valid text in `field`.
    """
    file = local_path(path)
    if not file.is_file():
        raise ValueError(f"{path}: no such file; expected plain text or JSON lines, gzip or not")
    name = file.name.removesuffix(".gz")
    try:
        with attach_filename(file), _open(file) as stream:
            yield from _json_lines(stream, path, field) if name.endswith(JSON_LINES) else [(stream.read(), {})]
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8 ({error.reason}); convert the file to UTF-8") from error
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(f"{path}: damaged gzip file ({error}); copy or download it again") from error


def _open(file: Path) -> TextIO:
    if file.name.endswith(".gz"):
        return cast(TextIO, gzip.open(file, "rt", encoding="utf-8", newline=""))
    return file.open(encoding="utf-8", newline="")


def _json_lines(stream: TextIO, path: str, field: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for number, line in enumerate(stream, 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(f"{path}:{number}: not JSON ({error.msg} at column {error.colno})") from error
        if not isinstance(record, dict) or not isinstance(record.get(field), str):
            raise ValueError(f"{path}:{number}: no text in field {field!r}; name the right one with --field")
        try:
            record[field].encode()
        except UnicodeEncodeError as error:
            raise ValueError(
                f"{path}:{number}: lone surrogate in field {field!r}; repair the line or leave it out"
            ) from error
        yield record[field], record
