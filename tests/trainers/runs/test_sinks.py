"""Sinks get every step once. Their failures do not stop a run that has begun, and messages contain no
secrets.
"""

import json
import struct
import threading
from time import sleep
from typing import ClassVar

import pytest

from gristmill.errors import ConfigError, UserError
from gristmill.events import read_events
from trainers.recipes import llama_tiny
from trainers.runs import sinks
from trainers.runs.progress import Progress
from trainers.runs.sinks import metrics, open_sinks, redacted, require_libraries, safe

SOURCE = "<script>/ä 1"


def step_event(step, loss=2.0):
    return {
        "step": step, "steps": 9, "tokens": 100 * step, "loss": loss, "bits_per_byte": 1.5, "learning_rate": 1e-3,
        "gradient_norm": float("nan"), "tokens_per_second": 9.0, "mfu": None, "memory_bytes": 5,
        "sources": {SOURCE: {"loss": loss, "bits_per_byte": 1.0, "tokens": 3}},
        "data": {SOURCE: {"padding": 7, "epochs": 0.5}},
    }  # fmt: skip


class Recorder:
    kept: ClassVar[list] = []

    def __init__(self, described):
        self.described, self.identity = described, described.identity or "the-run"
        self.rows, self.outcome = [], None
        Recorder.kept.append(self)

    def log(self, step, seconds, values):
        self.rows.append((step, values["train/loss"]))

    def close(self, outcome):
        self.outcome = outcome


@pytest.fixture
def recorder(monkeypatch):
    monkeypatch.setattr(Recorder, "kept", [])
    monkeypatch.setitem(sinks.SINKS, "tensorboard", (Recorder, "json"))
    return Recorder.kept


def part(run, start, events, last="finished", name="tensorboard"):
    """Log one part of a run, starting at step `start`, and return the printed lines."""
    lines = []
    run.mkdir(exist_ok=True)
    progress = Progress(run / "log.jsonl", lines.append, open_sinks([name], run, llama_tiny()))
    try:
        progress.write("start", step=start)
        for event in events:
            progress.write("step", **event)
        if last:
            progress.write(last, step=0)
    finally:
        progress.close()
    return lines


def test_a_sink_gets_the_history_first_and_no_step_twice(tmp_path, recorder):
    run = tmp_path / "run"
    before = Progress(run / "log.jsonl", None)
    before.write("start", step=0)
    before.write("step", **step_event(1, 5.0))
    before.close()
    part(run, 1, [step_event(2, 4.0), step_event(3, 3.0)], last=None)
    part(run, 2, [step_event(3, 2.5), step_event(4, 2.0)], last="stopped")
    assert recorder[0].rows == [(1, 5.0), (2, 4.0), (3, 3.0)]
    assert recorder[1].rows == [(1, 5.0), (2, 4.0), (3, 2.5), (4, 2.0)]
    assert [sink.outcome for sink in recorder] == ["failed", "stopped"]
    assert [sink.described.identity for sink in recorder] == [None, "the-run"]
    assert recorder[1].described.last_step == 3


def test_a_run_that_ends_before_it_begins_is_closed_as_failed(tmp_path, recorder):
    Progress(tmp_path / "log.jsonl", None, open_sinks(["tensorboard"], tmp_path, llama_tiny())).close()
    assert (recorder[0].rows, recorder[0].outcome) == ([], "failed")


def test_a_failing_sink_is_one_warning_and_the_log_is_whole(tmp_path, recorder, monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "abcdef0123456789")
    failed = threading.Event()

    def fail(self, step, seconds, values):
        failed.set()
        raise ConnectionError("no route to https://me:secret@host/x?token=1 with abcdef0123456789")

    monkeypatch.setattr(Recorder, "log", fail)
    run = tmp_path / "run"
    run.mkdir()
    lines = []
    progress = Progress(run / "log.jsonl", lines.append, open_sinks(["tensorboard"], run, llama_tiny()))
    progress.write("start", step=0)
    progress.write("step", **step_event(1))
    assert failed.wait(30)
    for step in range(2, 6):
        progress.write("step", **step_event(step))
    progress.close()
    warnings = read_events(run / "log.jsonl", "warning")
    assert len(warnings) == 1
    assert "THE SINK tensorboard FAILED" in warnings[0]["message"]
    assert "ConnectionError: no route to https://***@host/x?*** with ***" in warnings[0]["message"]
    assert [event["step"] for event in read_events(run / "log.jsonl", "step")] == [1, 2, 3, 4, 5]
    assert sum("FAILED" in line for line in lines) == 1


def test_a_sink_that_hangs_does_not_hold_up_training(tmp_path, recorder, monkeypatch):
    release = threading.Event()
    monkeypatch.setattr(Recorder, "log", lambda *_: release.wait(60))
    monkeypatch.setattr(sinks, "_CLOSING", 0.05)
    part(tmp_path / "run", 0, [step_event(step) for step in range(1, 8)])
    (warning,) = read_events(tmp_path / "run" / "log.jsonl", "warning")
    assert "not accepted all of them" in warning["message"]
    assert not release.is_set()
    release.set()


@pytest.mark.long
def test_a_slow_sink_gets_everything_however_far_it_is_behind(tmp_path, recorder, monkeypatch):
    release, log = threading.Event(), Recorder.log

    def wait(self, *arguments):
        release.wait(60)
        log(self, *arguments)

    monkeypatch.setattr(Recorder, "log", wait)
    run = tmp_path / "run"
    run.mkdir()
    progress = Progress(run / "log.jsonl", None, open_sinks(["tensorboard"], run, llama_tiny()))
    progress.write("start", step=0)
    for step in range(1, 12_001):
        progress.write("step", step=step, steps=12_000, loss=1.0)
    assert recorder[0].rows == []
    release.set()
    progress.write("finished", step=12_000)
    progress.close()
    assert [step for step, _ in recorder[0].rows] == list(range(1, 12_001))
    assert recorder[0].outcome == "finished"
    assert not read_events(run / "log.jsonl", "warning")


def test_a_missing_library_is_named_with_the_line_that_installs_it(monkeypatch):
    monkeypatch.setattr(sinks, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install .*'\.\[mlflow\]'.*leave mlflow out"):
        require_libraries(["mlflow"])
    require_libraries([])


def test_a_sink_that_cannot_be_opened_stops_the_run_before_it_begins(tmp_path, recorder, monkeypatch):
    def refuse(self, described):
        raise RuntimeError("401 for token=abc at http://u:p@h/?q=1")

    monkeypatch.setattr(Recorder, "__init__", refuse)
    with pytest.raises(
        UserError, match=r"'tensorboard' could not be opened: RuntimeError: 401 .* at http://\*\*\*@h/\?\*\*\*"
    ):
        open_sinks(["tensorboard"], tmp_path, llama_tiny())


def test_a_run_continues_without_a_sink_that_cannot_be_reopened(tmp_path, recorder, monkeypatch):
    run = tmp_path / "run"
    part(run, 0, [step_event(1)], "stopped")

    def refuse(self, described):
        raise ConnectionError("no route")

    with monkeypatch.context() as patched:
        patched.setattr(Recorder, "__init__", refuse)
        part(run, 1, [step_event(2)], "stopped")
    (warning,) = read_events(run / "log.jsonl", "warning")
    assert "ConnectionError: no route" in warning["message"]
    part(run, 2, [step_event(3)])
    assert [step for step, _ in recorder[-1].rows] == [1, 2, 3]


def test_names_are_safe_and_stay_different():
    names = ["en.wikipedia", "a b", "a_b", "a/b", "ä", "ö", "..", "", "<script>", "x" * 300, "x" * 301, "-a", "\ud800"]
    shown = [safe(name) for name in names]
    assert shown[0] == "en.wikipedia"
    assert len(set(shown)) == len(names)
    allowed = set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-")
    assert all(
        (set(name) <= allowed and len(name) <= 80 and not name.startswith((".", "-"))) or name[0] == "-"
        for name in shown
    )


def test_numbers_of_an_event_are_listed_by_source():
    found = metrics({"event": "step", "time": 1.0, **step_event(3)})
    source = safe(SOURCE)
    assert found[f"train_loss/{source}"] == 2.0
    assert found[f"data_padding/{source}"] == 7.0
    assert found["train/memory_bytes"] == 5.0
    assert not {"train/step", "train/steps", "train/time", "train/mfu", "train/gradient_norm"} & set(found)


def test_secrets_are_taken_out(monkeypatch):
    monkeypatch.setenv("SOME_PASSWORD", "hunter22")
    monkeypatch.setenv("SHORT_KEY", "a")
    monkeypatch.setenv("LONG_TOKEN", "hunter22-and-more")
    monkeypatch.setenv("MYSQL_PWD", "hunter33")
    assert redacted("hunter22-and-more hunter33 https://user:p@ss@host/a") == "*** *** https://***@host/a"
    plain = "http://host:80/a@b hf://org/repo@rev"
    assert redacted(f"s3://AKIA:ab/cd@bucket/x {plain}") == f"s3://***@bucket/x {plain}"
    assert (
        redacted("s3://id:pw@bucket/a hunter22 http://h/p?sig=1&x=2 a@b") == "s3://***@bucket/a *** http://h/p?*** a@b"
    )


def two_parts(run, name, pause=0.0):
    """Log steps 1 to 4, then resume from step 2 and log steps 3 to 5."""
    part(run, 0, [step_event(step, 10.0 - step) for step in range(1, 5)], "stopped", name)
    sleep(pause)
    part(run, 2, [step_event(step, 20.0 - step) for step in range(3, 6)], "finished", name)
    assert not read_events(run / "log.jsonl", "warning")


@pytest.mark.filterwarnings("default")
def test_tensorboard_has_every_step_once(tmp_path):
    pytest.importorskip("tensorboard", reason="the extra tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    two_parts(tmp_path / "run", "tensorboard")
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    events.Reload()
    assert [(e.step, e.value) for e in events.Scalars("train/loss")] == [(1, 9), (2, 8), (3, 17), (4, 16), (5, 15)]
    assert f"train_loss/{safe(SOURCE)}" in events.Tags()["scalars"]


@pytest.mark.filterwarnings("default")
def test_mlflow_resumes_its_run(tmp_path, monkeypatch):
    pytest.importorskip("mlflow", reason="the extra mlflow is not installed")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "store").as_uri())
    from mlflow import MlflowClient

    two_parts(tmp_path / "run", "mlflow")
    client = MlflowClient()
    experiment = client.get_experiment_by_name("gristmill")
    (found,) = client.search_runs([experiment.experiment_id])
    history = client.get_metric_history(found.info.run_id, f"train_loss/{safe(SOURCE)}")
    assert [(m.step, m.value) for m in history] == [(1, 9), (2, 8), (3, 7), (4, 6), (5, 15)]
    assert found.info.status == "FINISHED"
    assert found.data.params["model.architecture"] == "llama"
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    with pytest.raises(ConfigError, match="MLFLOW_TRACKING_URI"):
        open_sinks(["mlflow"], tmp_path / "run", llama_tiny())


@pytest.mark.filterwarnings("default")
def test_wandb_goes_on_with_its_run(tmp_path, monkeypatch):
    pytest.importorskip("wandb", reason="the extra wandb is not installed")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("HOME", str(tmp_path))
    run = tmp_path / "run"
    two_parts(run, "wandb", 1.1)  # the library names directories by the second
    identity = json.loads((run / "sinks.json").read_text())["identities"]["wandb"]

    def rows():
        files = (run / "wandb").glob(f"offline-run-*-{identity}/run-{identity}.wandb")
        return sorted((row["_step"], row["train/loss"]) for file in files for row in wandb_rows(file.read_bytes()))

    assert rows() == [(1, 9), (2, 8), (3, 17), (4, 16), (5, 15)]
    (first,) = (run / "wandb").glob("offline-run-*")
    (first / f"run-{identity}.wandb.synced").touch()
    sleep(1.1)
    part(run, 4, [step_event(5), step_event(6)], "finished", "wandb")
    assert rows() == [(1, 9), (2, 8), (3, 17), (4, 16), (5, 15), (6, 2)]


def wandb_rows(data):
    """Yield the history in a `.wandb` file, which holds protocol buffers in LevelDB's log format, in blocks
    of 32 KiB after a 7-byte header.
    """
    from wandb.proto.wandb_internal_pb2 import Record

    place, whole = 7, b""
    while place + 7 <= len(data):
        if 32768 - place % 32768 < 7:
            place += 32768 - place % 32768
            continue
        _, length, kind = struct.unpack_from("<IHB", data, place)
        whole += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # a whole record, or the end of one
            record, whole = Record.FromString(whole), b""
            if record.WhichOneof("record_type") == "history":
                yield {i.key or "/".join(i.nested_key): json.loads(i.value_json) for i in record.history.item}
