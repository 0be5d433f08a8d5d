"""Read the directories of runs: their settings, measurements, events, checkpoints and evaluations."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from gristmill.errors import CorruptFileError, UserError
from gristmill.events import read_events
from gristmill.storage.disk import LocalPath
from gristmill.storage.store import read_json
from trainers.report.run_cost import parts_of
from trainers.runs.checkpoint import published
from trainers.runs.history import drop_superseded
from trainers.runs.run import read_resolved, read_run
from trainers.runs.sinks import redacted


@dataclass(frozen=True)
class Run:
    """The contents of a run's directory, read into memory.

    If steps were repeated after a resume, `steps`, `validations` and `skipped` hold only the newest events of
    these steps. `evaluations` holds, for every evaluation, the last event of each step. `ledger` and
    `finished` are None if their files do not exist yet or are damaged. `checkpoints` lists the step,
    directory and size in bytes of each checkpoint.
    """

    path: LocalPath
    name: str
    record: dict[str, Any]
    config: dict[str, Any]
    events: list[dict[str, Any]]
    steps: list[dict[str, Any]]
    validations: list[dict[str, Any]]
    skipped: list[dict[str, Any]]
    evaluations: list[dict[str, Any]]
    ledger: dict[str, Any] | None
    finished: dict[str, Any] | None
    checkpoints: list[tuple[int, LocalPath, int]]

    @property
    def step_positions(self) -> int:
        """The average number of tokens in the batch of a step (`BatchSize.tokens`)."""
        return int(self.config["batch"]["tokens"])

    @property
    def last_step(self) -> int:
        """The last step that was logged; 0 if there is none."""
        return max((event["step"] for event in (*self.steps, *self.validations, *self.skipped)), default=0)

    @property
    def state(self) -> str:
        """The state of the run: finished, not begun, not finished, stopped or failed."""
        if self.finished:
            return "finished"
        endings = [event["event"] for event in self.events if event["event"] in ("start", "stopped", "error")]
        if not endings:
            return "not begun"
        return {"start": "not finished", "stopped": "stopped", "error": "failed"}[endings[-1]]

    @property
    def export(self) -> LocalPath | None:
        """The directory of the exported model, or None if there is no export."""
        return self.path / "export" if (self.path / "export").is_dir() else None

    @property
    def starts(self) -> list[dict[str, Any]]:
        """The `start` events, one for each launch or restart of the run."""
        return [event for event in self.events if event["event"] == "start"]

    def seconds(self) -> float:
        """Return the total wall-clock seconds of the run's launches and restarts. Work that was lost and
        repeated counts twice.
        """
        return float(sum(part[-1]["time"] - part[0]["time"] for part in parts_of(self.events)))

    def sources(self) -> list[str]:
        """Return the names of the sources with measurements, those with the most tokens first."""
        seen: dict[str, int] = {}
        for event in (*self.validations[-1:], *self.steps):
            for name, entry in event["sources"].items():
                seen[name] = seen.get(name, 0) + entry.get("tokens", 0)
        return sorted(seen, key=lambda name: (-seen[name], name))


def read_runs(paths: Sequence[LocalPath]) -> list[Run]:
    """Read the runs in these directories. Raises UserError if a directory is not a run or is given twice."""
    return [_read(path, name) for path, name in zip(paths, _names(paths), strict=True)]


def _read(path: LocalPath, name: str) -> Run:
    record, config = read_run(path), _without_secrets(read_resolved(path))
    events = read_events(path / "log.jsonl")
    kept = drop_superseded(events)

    def of(kind: str) -> list[dict[str, Any]]:
        return [event for event in kept if event["event"] == kind]

    files = (_optional(path / "ledger.json"), _optional(path / "finished.json"))
    return Run(
        path, name, record, config, events, of("step"), of("validation"), of("skipped"), _evaluations(events), *files,
        list(_checkpoints(path)),
    )  # fmt: skip


def _checkpoints(run: LocalPath) -> Iterator[tuple[int, LocalPath, int]]:
    """Yield (step, directory, size in bytes) of the newest checkpoint of each step. Checkpoints that training
    removes during the reading are left out.
    """
    for step, place in published(run):
        with suppress(FileNotFoundError):
            yield step, place, sum(file.stat().st_size for file in place.rglob("*") if file.is_file())


def _evaluations(events: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the last event of each evaluation at each step, ordered by step and name."""
    found = {(event["step"], event["name"]): event for event in events if event["event"] == "evaluation"}
    return [event for _, event in sorted(found.items())]


def _without_secrets(value: Any) -> Any:
    """Return a configuration without credentials (`trainers.runs.sinks.redacted`), because reports are
    shared.
    """
    if isinstance(value, dict):
        return {key: _without_secrets(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_without_secrets(entry) for entry in value]
    return redacted(value) if isinstance(value, str) else value


def _optional(path: LocalPath) -> dict[str, Any] | None:
    try:
        return read_json(path)
    except (FileNotFoundError, CorruptFileError):
        return None


def _names(paths: Sequence[LocalPath]) -> list[str]:
    whole = [path.resolve().parts for path in paths]
    if len(set(whole)) < len(whole):
        twice = next(path for i, path in enumerate(paths) if whole.index(whole[i]) < i)
        raise UserError(f"{twice}: is named twice; name each run once")
    for length in range(1, max(map(len, whole)) + 1):
        names = ["/".join(parts[-length:]) for parts in whole]
        if len(set(names)) == len(names):
            return names
    raise AssertionError("different paths have different parts")


def flat(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (dotted name, value) for every field of a configuration."""
    if isinstance(value, Mapping) and value:
        for key, entry in value.items():
            yield from flat(entry, f"{prefix}.{key}" if prefix else str(key))
    else:
        yield prefix, value
