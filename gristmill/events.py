"""Event logs: files of JSON lines, one per event, each with its own checksum."""

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import xxhash

from gristmill.errors import attach_filename
from gristmill.host import host

CUT_OFF, DAMAGED = "cut_off", "damaged"
_CHECKSUM = b', "xxh3_64": "'


class EventLog:
    """An append-only file of JSON lines.

    Every event has the fields `event`, `time` (seconds since the epoch, UTC) and, last, `xxh3_64`, the
    checksum of the line without this field. If a process was killed while it wrote a line, opening the log
    again ends that line and appends the event `cut_off`.
    """

    def __init__(self, path: Path) -> None:
        """Open the log `path` for appending. Its directory is created if missing. If the last line is
        incomplete, it is ended and followed by a CUT_OFF event.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        cut_off = False
        if path.exists() and path.stat().st_size:
            with path.open("rb") as written:
                written.seek(-1, os.SEEK_END)
                cut_off = written.read(1) != b"\n"
        self._path = path
        self._file = path.open("ab")
        if cut_off:  # a kill in the middle of a line
            self._file.write(b"\n")
            self.write(CUT_OFF)

    def write(self, event: str, **fields: Any) -> None:
        """Append one event. Fields must be JSON values, and must not contain document text."""
        line = json.dumps({"event": event, "time": round(host().time(), 3), **fields})
        with attach_filename(self._path):
            self._file.write(f'{line[:-1]}{_CHECKSUM.decode()}{xxhash.xxh3_64_hexdigest(line.encode())}"}}\n'.encode())
            self._file.flush()

    def sync(self) -> None:
        """Flush to the disk, so that everything written so far survives a power failure."""
        with attach_filename(self._path):
            host().fsync(self._file)

    def close(self) -> None:
        """Flush to the disk and close."""
        if not self._file.closed:
            with attach_filename(self._path), self._file:  # closes the file even if the last write fails
                self.sync()


def read_events(path: Path, event: str | None = None, size: int | None = None) -> list[dict[str, Any]]:
    """Return the events in a log file, or in its first `size` bytes; an empty list if the file does not exist
    yet. If `event` is given, only events of that name are returned.

    Bytes after the last newline are skipped: they were cut off or are still being written.
    """
    if not path.exists():
        return []
    with path.open("rb") as file:
        *lines, _ = file.read(-1 if size is None else size).split(b"\n")
    return [entry for entry in events_of(lines) if event is None or entry["event"] == event]


def events_of(lines: Iterable[bytes]) -> list[dict[str, Any]]:
    """Parse the lines of a log into events. Lines cut off when a process was killed, and the `cut_off` events
    after them, are left out. Any other damaged line becomes the event `damaged`, whose `message` gives the
    line number.
    """
    entries = [_event(line) for line in lines]
    found: list[dict[str, Any]] = []
    for number, entry in enumerate(entries, 1):
        if entry is None:
            after = entries[number] if number < len(entries) else None
            if after is None or after["event"] != CUT_OFF:
                message = f"line {number} of the log is damaged and is skipped"
                found.append({"event": DAMAGED, "time": found[-1]["time"] if found else 0.0, "message": message})
        elif entry["event"] != CUT_OFF:
            found.append(entry)
    return found


def _event(line: bytes) -> dict[str, Any] | None:
    """Return the event of a line, or None if the line is damaged. Lines written by earlier versions have no
    checksum.
    """
    content, mark, checksum = line.rpartition(_CHECKSUM)
    if mark:
        line = content + b"}"
        if checksum != f'{xxhash.xxh3_64_hexdigest(line)}"}}'.encode():
            return None
    try:
        entry = json.loads(line)
    except ValueError:
        return None
    return entry if isinstance(entry, dict) and "event" in entry and "time" in entry else None


def human_line(**fields: Any) -> str:
    """Format fields as a readable line: `name value` pairs separated by two spaces."""
    return "  ".join(f"{name} {_short(value)}" for name, value in fields.items())


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1e5 else f"{value:,.0f}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return str(value)
