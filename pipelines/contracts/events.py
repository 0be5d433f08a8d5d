"""Events: one human line per interval, and the same fields as one JSON line in a file."""

import json
import os
import time
from pathlib import Path
from typing import Any


class EventLog:
    """Append-only JSON lines. Every event carries `event` and `time` (seconds since the epoch, UTC)."""

    def __init__(self, path: Path) -> None:
        """Open `path` for appending; its directory is made where it is missing."""
        path.parent.mkdir(parents=True, exist_ok=True)
        cut_off = False
        if path.exists() and path.stat().st_size:
            with open(path, "rb") as written:
                written.seek(-1, os.SEEK_END)
                cut_off = written.read(1) != b"\n"
        self._file = open(path, "a", encoding="utf-8", buffering=1)  # noqa: SIM115  it stays open for the run

        if cut_off:  # a kill in the middle of a line
            self._file.write("\n")

    def write(self, event: str, **fields: Any) -> None:
        """Append one event. Fields are JSON values; they never hold document text."""
        self._file.write(
            json.dumps({"event": event, "time": round(time.time(), 3), **fields}, ensure_ascii=False) + "\n"
        )

    def sync(self) -> None:
        """Make what was written so far outlast a loss of power."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Flush to the disk and close."""
        if not self._file.closed:
            self.sync()
            self._file.close()


def read_events(path: Path, event: str | None = None) -> list[dict[str, Any]]:
    """All events of a file, or those named `event`. A line cut off by a kill is passed over."""
    events = []
    with open(path, encoding="utf-8") as lines:
        for line in lines:
            try:
                entry = json.loads(line)
            except ValueError:
                continue
            if event is None or entry["event"] == event:
                events.append(entry)
    return events


def human_line(**fields: Any) -> str:
    """`name value` pairs joined by two spaces, floats with four significant digits: the line a person reads."""
    return "  ".join(f"{name} {_short(value)}" for name, value in fields.items())


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1e5 else f"{value:,.0f}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return str(value)
