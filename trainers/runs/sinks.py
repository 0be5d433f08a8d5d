"""Sinks copy a run's measurements from `log.jsonl` to TensorBoard, Weights & Biases or MLflow.

Once open, each sink follows the log in its own thread, so a sink that is slow, hangs or fails neither delays
nor changes the training steps. When a run is resumed, a sink first receives the measurements that it lacks
because it failed earlier or was just added; `WeightsAndBiases` describes an exception.

The libraries' own environment variables (WANDB_PROJECT, WANDB_MODE, MLFLOW_TRACKING_URI,
MLFLOW_EXPERIMENT_NAME and others) determine where W&B and MLflow write, so no configuration contains an API
key.

To add a sink, write a class with the methods of `Sink`, and add its name to SINKS, to `Job.sinks` and to the
extras in pyproject.toml.
"""

import hashlib
import math
import os
import re
import shutil
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Any, Literal, Protocol

from gristmill.config import plain
from gristmill.errors import ConfigError, UserError
from gristmill.events import read_events
from gristmill.libraries.extras import install_extra
from gristmill.storage.disk import LocalPath
from gristmill.storage.paths import LOGIN
from gristmill.storage.store import read_json, write_json
from trainers.runs.history import drop_superseded, follow

Outcome = Literal["finished", "stopped", "failed"]
FORMAT, FILE = "gristmill-sinks/1", "sinks.json"
_GROUPS = {"step": "train", "validation": "validation"}
_CLOSING = 60.0  # seconds that a run waits for a sink when it ends
_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,79}")
_SECRET_NAME = re.compile("KEY|TOKEN|PASS|_PWD|SECRET|CREDENTIAL")


@dataclass(frozen=True)
class Description:
    """A run as described to a sink: its directory, its settings by dotted name, the identity that the sink
    gave it earlier, if any, and the last step whose measurements are in the run's log, or 0.
    """

    run: LocalPath
    settings: dict[str, Any]
    identity: str | None
    last_step: int


class Sink(Protocol):
    """Sends the measurements of one run to a metrics library, such as MLflow. `identity` is the library's
    identifier of the run, if there is one. The constructor may raise any error; `open_sinks` handles it.
    """

    identity: str | None

    def __init__(self, described: Description) -> None:
        """Begin the run, or continue the one that `described.identity` names."""

    def log(self, step: int, seconds: float, values: Mapping[str, float]) -> None:
        """Store the metrics of `step`, measured at the Unix time `seconds`, unless the sink has them already."""

    def close(self, outcome: Outcome) -> None:
        """Deliver the remaining metrics, and end the run with `outcome`."""


class TensorBoard:
    """Writes event files for TensorBoard to `tensorboard/` in the run's directory. Every resume rewrites
    them, so no step occurs twice.
    """

    def __init__(self, described: Description) -> None:
        from torch.utils.tensorboard import SummaryWriter

        directory = described.run / "tensorboard"
        for file in directory.glob("events.out.tfevents.*"):
            file.unlink()
        self.identity: str | None = None
        self._writer = SummaryWriter(str(directory), flush_secs=10)

    def log(self, step: int, seconds: float, values: Mapping[str, float]) -> None:
        """Write the metrics of a step as scalars."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step, seconds)

    def close(self, outcome: Outcome) -> None:
        """Flush and close the file."""
        self._writer.close()


class WeightsAndBiases:
    """Logs a run to Weights & Biases. The library requires increasing steps, so a step that was logged online
    before a resume is not logged again.

    Offline, each launch or resume creates a directory of its own. A resume replaces the earlier directories
    with one that holds the whole history. If one of them has been synced, or all have been removed, the new
    directory holds only the steps after the last one in the run's log.
    """

    def __init__(self, described: Description) -> None:
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        import wandb

        self.identity: str | None = described.identity or uuid.uuid4().hex
        quiet = wandb.Settings(
            console="off", silent=True, disable_code=True, disable_git=True, x_disable_meta=True,
            x_disable_machine_info=True,
        )  # fmt: skip
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "gristmill"), name=os.environ.get("WANDB_NAME", described.run.name),
            id=self.identity, resume="allow", dir=str(described.run), config=described.settings, allow_val_change=True,
            settings=quiet,
        )  # fmt: skip
        self._next = self._take_over(described) if self._run.offline else self._run.step

    def _take_over(self, described: Description) -> int:
        """Return the first step that an offline run must log. If it is 0, remove the run's earlier
        directories.
        """
        here = Path(self._run.dir).parent
        earlier = [part for part in here.parent.glob(f"offline-run-*-{self.identity}") if part != here]
        if described.identity and (not earlier or any(list(part.glob("*.synced")) for part in earlier)):
            return described.last_step + 1
        for part in earlier:
            shutil.rmtree(part)
        return 0

    def log(self, step: int, seconds: float, values: Mapping[str, float]) -> None:
        """Log the metrics of a step, unless W&B already has this step from before the last resume. The
        library merges the training and validation metrics of a step into one row.
        """
        if step >= self._next:
            self._run.log(dict(values), step=step)

    def close(self, outcome: Outcome) -> None:
        """End the run, with exit code 1 if it failed, otherwise 0."""
        self._run.finish(exit_code=1 if outcome == "failed" else 0)


class MLflow:
    """Logs a run to the MLflow server or store at MLFLOW_TRACKING_URI. A step that was logged before a resume
    is not logged again.
    """

    def __init__(self, described: Description) -> None:
        if not os.environ.get("MLFLOW_TRACKING_URI"):
            raise ConfigError(
                "sinks: 'mlflow' needs MLFLOW_TRACKING_URI, the address of a server or store, in the environment"
            )
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        from mlflow import MlflowClient
        from mlflow.entities import Metric, Param

        self._client, self._metric = MlflowClient(), Metric
        self.identity: str | None = described.identity
        self._last = dict.fromkeys(_GROUPS.values(), 0)
        if self.identity is not None:
            self._client.update_run(self.identity, status="RUNNING")
            for group in self._last:
                history = self._client.get_metric_history(self.identity, f"{group}/loss")
                self._last[group] = max((entry.step for entry in history), default=0)
            return
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "gristmill")
        existing = self._client.get_experiment_by_name(name)
        experiment = existing.experiment_id if existing else self._client.create_experiment(name)
        identity: str = self._client.create_run(experiment, run_name=described.run.name).info.run_id
        self.identity = identity
        settings = [Param(key, str(value)[:500]) for key, value in described.settings.items()]
        for first in range(0, len(settings), 100):  # the maximum per request
            self._client.log_batch(identity, params=settings[first : first + 100])

    def log(self, step: int, seconds: float, values: Mapping[str, float]) -> None:
        """Log the metrics of a step, at most 1000 per request, unless the step was logged before the last
        resume.
        """
        new = [
            self._metric(name, value, round(seconds * 1000), step)
            for name, value in values.items()
            if step > self._last["validation" if name.startswith("validation") else "train"]
        ]
        for first in range(0, len(new), 1000):
            self._client.log_batch(self.identity, metrics=new[first : first + 1000])

    def close(self, outcome: Outcome) -> None:
        """End the run with the status FINISHED, KILLED (if it was stopped) or FAILED."""
        status = {"finished": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}[outcome]
        self._client.set_terminated(self.identity, status)


# {name in the configuration: (class, module that it needs)}. The extra in pyproject.toml has the same name.
SINKS: dict[str, tuple[type[Sink], str]] = {
    "tensorboard": (TensorBoard, "tensorboard"),
    "wandb": (WeightsAndBiases, "wandb"),
    "mlflow": (MLflow, "mlflow"),
}


def require_libraries(names: Sequence[str]) -> None:
    """Raise ConfigError if the library of a sink is missing. The message gives the command that installs
    it.
    """
    for name in names:
        if find_spec(SINKS[name][1]) is None:
            raise ConfigError(
                f"sinks: {name!r} needs the package {SINKS[name][1]}, which is not installed; run: "
                f"{install_extra(name)}, or leave {name} out of sinks"
            )


def open_sinks(
    names: Sequence[str], run: LocalPath, config: Any, show: Callable[[str], None] | None = None
) -> "list[Follower]":
    """Open the sinks of a run, and return a follower for each. `config` is the run's resolved configuration.

    Raises UserError if the library of a sink is missing, or if a sink lacks a setting, such as the address of
    its server. If a sink cannot be opened for another reason, raises UserError only if the run has no
    measurements yet; otherwise the run continues without that sink.
    """
    require_libraries(names)
    path = run / FILE
    record = read_json(path) if path.exists() else {}
    known: dict[str, str] = record.get("identities", {})
    logged = read_events(run / "log.jsonl") if names else []
    last_step = max((event["step"] for event in logged if event["event"] in _GROUPS), default=0)
    settings = dict(_settings(plain(config)))
    followers = []
    for name in names:
        if show:
            show(f"sink {name}: opening; without an answer, its library keeps trying for some minutes")
        try:
            sink = SINKS[name][0](Description(run, settings, known.get(name), last_step))
        except UserError:
            raise
        except Exception as error:
            if last_step > 0:
                followers.append(Follower(name, None, describe(error)))
                continue
            raise UserError(
                f"sinks: {name!r} could not be opened: {describe(error)}; fix that, or leave {name} out of sinks"
            ) from None
        if sink.identity and known.get(name) != sink.identity:
            known[name] = sink.identity
            write_json(path, {"format": FORMAT, "identities": known})
        followers.append(Follower(name, sink))
    return followers


class Follower:
    """Passes the measurements in a run's log to one sink, in a separate thread, so that a slow sink does not
    delay training. After a failure, the sink receives nothing more until the run is resumed.
    """

    def __init__(self, name: str, sink: Sink | None, failure: str | None = None) -> None:
        """If the sink could not be opened, `sink` is None, nothing is sent, and `failure` is the reason."""
        self.name, self._sink = name, sink
        self._thread: threading.Thread | None = None
        self._end = threading.Event()
        self._outcome: Outcome = "failed"
        self._failure, self._told = failure, False

    def begin(self, log: Path) -> None:
        """Start sending measurements to the sink: first those already in the log, then new ones as they are
        written.
        """
        self._start(log, log.stat().st_size)

    def _start(self, log: Path | None, size: int) -> None:
        if self._sink is not None:
            arguments = (self._sink, log, size)
            self._thread = threading.Thread(target=self._work, args=arguments, name=f"sink {self.name}", daemon=True)
            self._thread.start()

    def failure(self) -> str | None:
        """Return a message about the sink's failure, once; None if it has not failed or the message was
        returned before.
        """
        if self._failure is None or self._told:
            return None
        self._told = True
        return (
            f"THE SINK {self.name} FAILED and gets no more metrics until the run is resumed ({self._failure}); training "
            f"continues, and log.jsonl has them all"
        )

    def close(self, outcome: Outcome) -> None:
        """Let the sink deliver its remaining metrics and end the run with `outcome`. Waits for at most a
        minute.
        """
        self._outcome = outcome
        self._end.set()
        if self._thread is None:  # the run ended before its first step
            self._start(None, 0)
        if self._thread is not None:
            self._thread.join(_CLOSING)
            if self._thread.is_alive():
                self._failure = f"it had not accepted all of them {_CLOSING:.0f} seconds after the end"

    def _work(self, sink: Sink, log: Path | None, size: int) -> None:
        try:
            if log is not None:
                for event in chain(drop_superseded(read_events(log, size=size)), follow(log, size, self._end)):
                    if event["event"] in _GROUPS:
                        sink.log(event["step"], event["time"], metrics(event))
            sink.close(self._outcome)
        except BaseException as error:  # no error of a library stops training
            self._failure = describe(error)


def metrics(event: Mapping[str, Any]) -> dict[str, float]:
    """Return the metrics of a step or validation event: its finite numbers, keyed by names such as
    `train/loss` or, for a domain, `train_loss/NAME`. Leaves out the event's step and time and the run's
    number of steps.
    """
    group = _GROUPS[event["event"]]
    values: dict[str, float] = {}
    for path, value in _leaves(event, ()):
        if path[0] in ("event", "time", "step", "steps") or not _is_number(value):
            continue
        if path[0] in ("sources", "parents", "data") and len(path) == 3:
            name = f"{'data' if path[0] == 'data' else group}_{safe(path[2])}/{safe(path[1])}"
        else:
            name = "/".join((group, "_".join(map(safe, path))))
        values[name] = float(value)
    return values


def _leaves(value: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    if isinstance(value, Mapping):
        for key, entry in value.items():
            yield from _leaves(entry, (*path, str(key)))
    else:
        yield path, value


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def safe(name: str) -> str:
    """Return `name` in a form that every sink accepts: up to 80 ASCII letters, digits, `_`, `.` and `-`. If a
    name must be changed, a digest is appended, so that different names stay different.
    """
    if _PLAIN.fullmatch(name):
        return name
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{re.sub('[^A-Za-z0-9_-]', '_', name[:60])}-{digest}"


def _settings(config: Any) -> Iterator[tuple[str, Any]]:
    for path, value in _leaves(config, ()):
        shown = redacted(str(value)) if isinstance(value, str | list) else value
        yield ".".join(map(safe, path)), shown


def describe(error: BaseException) -> str:
    """Return the type and message of an error in one line, without secrets. The message is cut to 300
    characters.
    """
    message = redacted(" ".join(str(error).split()))
    return f"{type(error).__name__}: {message[:300]}" if message else type(error).__name__


def redacted(text: str) -> str:
    """Return `text` with `***` in place of credentials and queries in URLs and of the values of environment
    variables whose names suggest a secret. Values of fewer than 6 characters are kept.
    """
    text = re.sub(LOGIN, "://***@", text)
    text = re.sub(r"(://[^\s?'\"]*)\?[^\s'\")]*", r"\1?***", text)
    secrets = {value for name, value in os.environ.items() if _SECRET_NAME.search(name.upper()) and len(value) >= 6}
    for secret in sorted(secrets, key=len, reverse=True):  # one may begin another
        text = text.replace(secret, "***")
    return text
