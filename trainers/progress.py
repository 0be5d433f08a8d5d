"""Progress of a run: events in `log.jsonl`, and the line that a person reads for each of them."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pipelines.contracts.events import EventLog, human_line


class Progress:
    """Writes events and shows their lines. Only the first worker has a log; the others pass `path` None and stay
    silent.
    """

    def __init__(self, path: Path | None, show: Callable[[str], None] | None) -> None:
        """`show` prints a line; None where another process follows the log."""
        self._log = EventLog(path) if path else None
        self._show = show

    def write(self, event: str, **fields: Any) -> None:
        """Record an event and show its line."""
        if self._log is None:
            return
        self._log.write(event, **fields)
        if self._show:
            self._show(line(event, fields))

    def close(self) -> None:
        """Flush the log to the disk."""
        if self._log is not None:
            self._log.close()


def line(event: str, fields: dict[str, Any]) -> str:
    """The human line of an event."""
    if event == "step":
        shown = {
            "step": f"{fields['step']}/{fields['steps']}",
            "tokens": fields["tokens"],
            "loss": fields["loss"],
            "rate": fields["learning_rate"],
            "gradient": fields["gradient_norm"],
            "tokens/s": round(fields["tokens_per_second"]),
        }
        if fields.get("mfu") is not None:
            shown["mfu"] = f"{fields['mfu']:.1%}"
        return human_line(**shown)
    if event == "validation":
        per_source = (f"{name} {s['loss']:.4f} ({s['bits_per_byte']:.3f})" for name, s in fields["sources"].items())
        whole = f"loss {fields['loss']:.4f}  bits per byte {fields['bits_per_byte']:.3f}"
        return f"validation at step {fields['step']}  {whole}  {'  '.join(per_source)}"
    return f"{event}  {fields['message']}" if "message" in fields else f"{event}  {human_line(**fields)}"


@contextmanager
def followed(path: Path, show: Callable[[str], None]) -> Iterator[None]:
    """Show the lines of events that other processes add to `path` while the block runs."""
    stop = threading.Event()
    start = path.stat().st_size if path.exists() else 0
    thread = threading.Thread(target=_follow, args=(path, start, show, stop), daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _follow(path: Path, start: int, show: Callable[[str], None], stop: threading.Event) -> None:
    rest = b""
    while True:
        last = stop.wait(0.3)
        if path.exists():
            with open(path, "rb") as log:
                log.seek(start)
                data = log.read()
            start += len(data)
            *complete, rest = (rest + data).split(b"\n")
            for entry in map(json.loads, complete):
                name = entry.pop("event")
                entry.pop("time")
                show(line(name, entry))
        if last:
            return
