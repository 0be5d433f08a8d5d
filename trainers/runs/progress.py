"""Progress of a run: events in `log.jsonl`, and a readable line for each of them."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gristmill.errors import UserError
from gristmill.events import EventLog, human_line
from trainers.runs.history import follow
from trainers.runs.sinks import Follower, Outcome
from trainers.runs.training_metrics import RunMetrics


class Progress:
    """Writes the events of a run to its log, shows each as a line, and starts and closes the sinks. Only the
    first worker does this; on the others, `path` is None.
    """

    def __init__(self, path: Path | None, show: Callable[[str], None] | None, sinks: Sequence[Follower] = ()) -> None:
        """`show` prints a line, or is None if another process follows the log. `path` is the run's
        `log.jsonl`.
        """
        self._path, self._log = path, EventLog(path) if path else None
        self._show, self._sinks = show, sinks
        self._metrics = RunMetrics(path.parent.name) if path else None
        self._outcome: Outcome = "failed"

    def write(self, event: str, **fields: Any) -> None:
        """Record an event and show its line. The event `start` also starts the sinks."""
        if self._log is None or self._path is None:
            return
        self._record(event, fields)
        if event == "start":
            for sink in self._sinks:
                sink.begin(self._path)
        if event in ("finished", "stopped"):
            self._outcome = "finished" if event == "finished" else "stopped"
        self._tell_failures()

    def _record(self, event: str, fields: dict[str, Any]) -> None:
        if self._log is not None:
            self._log.write(event, **fields)
        if self._metrics is not None:
            self._metrics.take(event, fields)
        if self._show:
            self._show(line(event, fields))

    def _tell_failures(self) -> None:
        for sink in self._sinks:
            if message := sink.failure():
                self._record("warning", {"message": message})

    def sync(self) -> None:
        """Flush the log to the disk, so that a power failure cannot lose events from before the newest
        checkpoint. Raises UserError if the log cannot be written.
        """
        if self._log is None:
            return
        try:
            self._log.sync()
        except OSError as error:
            raise UserError(f"{self._path}: could not be written ({error.strerror or error})") from error

    def close(self) -> None:
        """Wait until the sinks have delivered everything, for at most a minute each, then flush the log to
        the disk and close it.
        """
        if self._log is not None:
            for sink in self._sinks:
                sink.close(self._outcome)
            self._tell_failures()
            self._log.close()


def line(event: str, fields: dict[str, Any]) -> str:
    """Format an event as a readable line."""
    if event == "step":
        shown = {
            "step": f"{fields['step']}/{fields['steps']}",
            "tokens": fields["tokens"],
            **{_label(name): value for name, value in fields.items() if is_loss(name) or _is_measure(name)},
            "rate": fields["learning_rate"],
            "gradient": fields["gradient_norm"],
            "tokens/s": round(fields["tokens_per_second"]),
        }
        if fields.get("mfu") is not None:
            shown["mfu"] = f"{fields['mfu']:.1%}"
        return human_line(**shown)
    if event == "validation":
        several = len(fields["sources"]) > 1  # a single source would only repeat the total
        per_source = [f"{name} {_losses(entry)}" for name, entry in fields["sources"].items()] if several else []
        shown_losses = (name for name in fields if is_loss(name) and (several or name != "uniform_loss"))
        losses = {name: _label(name) for name in (*shown_losses, *filter(_is_measure, fields))}
        named = losses | {"bits_per_byte": "bits per byte", "document_bits_per_byte": "of documents"}
        values = {shown: fields[key] for key, shown in named.items() if key in fields} | fields.get("scores", {})
        whole = human_line(**{name: f"{value:.4f}" for name, value in values.items()})
        return "  ".join([f"validation at step {fields['step']}", whole, *per_source])
    if "message" in fields:
        return f"{event}  {fields['message']}"
    return f"{event}  {human_line(**{name: value for name, value in fields.items() if not isinstance(value, dict)})}"


def is_loss(field: str) -> bool:
    """Return whether a field of a step or validation event is a loss, in nats per target
    (`trainers.engine.losses`).
    """
    return field == "loss" or field.endswith("_loss")


def _is_measure(field: str) -> bool:
    return field.endswith(("_share", "_accuracy"))


def _label(loss: str) -> str:
    return "uniform" if loss == "uniform_loss" else loss.replace("_", " ")


def _losses(entry: dict[str, Any]) -> str:
    return f"{entry['loss']:.4f}" + (f" ({entry['bits_per_byte']:.3f})" if "bits_per_byte" in entry else "")


@contextmanager
def followed(path: Path, show: Callable[[str], None]) -> Iterator[None]:
    """While the block runs, show a line for each event that other processes append to the log at `path`."""
    stop = threading.Event()
    start = path.stat().st_size if path.exists() else 0

    def show_lines() -> None:
        for entry in follow(path, start, stop):
            fields = {name: value for name, value in entry.items() if name not in ("event", "time")}
            show(line(entry["event"], fields))

    thread = threading.Thread(target=show_lines, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
