"""How a launch reacts to lost workers and to errors that workers raise."""

import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from gristmill.errors import CorruptFileError, UserError
from gristmill.events import read_events
from tests.scraping import check_labels, scrape
from tests.trainers.launching import (
    NODE_LOST_AT,
    ROOT,
    SETTINGS,
    STEPS,
    WORKER_LOST_AT,
    environment,
    losses,
    run_workers,
)
from trainers.__main__ import main
from trainers.runs.run import STOP, locked
from trainers.runs.training_metrics import METRICS
from trainers.training import launch
from trainers.training.ray_tasks import interface_of, lean_trainer

RECIPE = ["pretrain", "llama_tiny", *SETTINGS]
# Metrics that a short run on CPUs does not have.
ONLY_SOMETIMES = {"training_mfu", "training_skipped_total", "training_checkpoints_total"}


@pytest.fixture
def corrupt(corpus_directory, tmp_path):
    """A copy of the corpus with a flipped bit in one shard, which opening the corpus does not reveal."""
    directory = shutil.copytree(corpus_directory, tmp_path / "corrupt")
    shard = directory / "shards" / "plays" / "train-00002.arrow"
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)
    return directory


def test_a_corrupt_shard_is_one_line(corrupt, tmp_path, capsys):
    assert main([*RECIPE, f"corpus={corrupt}", f"run={tmp_path / 'run'}"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {corrupt}/shards/plays/train-00002.arrow: is ")
    (corrupt / "shards" / "plays" / "train-00000.arrow").unlink()
    assert main([*RECIPE, f"corpus={corrupt}", f"run={tmp_path / 'other'}"]) == 2
    assert "train-00000.arrow: is missing" in capsys.readouterr().err


@pytest.mark.slow
def test_a_step_that_runs_out_of_memory_gets_an_error_with_a_remedy(corpus_directory, tmp_path):
    settings = ["batch.sequences=4096", "execution.micro_batch=4096", "budget.steps=11", "execution.loader_threads=0"]
    ended = subprocess.run(
        [sys.executable, "-m", "trainers", *RECIPE, *settings, f"corpus={corpus_directory}", f"run={tmp_path / 'run'}"],
        cwd=ROOT, env=environment(), capture_output=True, text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (3_000_000_000, 3_000_000_000)),
    )  # fmt: skip
    assert ended.returncode == 2, ended.stderr
    line = ended.stderr.splitlines()[-1]
    assert line.startswith(f"error: {tmp_path / 'run'}: worker 0 ran out of memory")
    assert "execution.micro_batch (now 4096" in line
    assert "execution.activation_checkpointing=true" in line


@pytest.mark.parametrize(
    ("nodes", "workers", "each"),
    [([1, 1], 2, 1), ([8], 2, 4), ([4, 4], 2, 4), ([4, 4], 3, 2), ([5, 0, 3], 2, 3), ([2], 1, 2), ([1], 1, 1)],
)
def test_workers_get_the_cpus_that_there_are(nodes, workers, each):
    assert launch._each(nodes, workers) == each


def test_the_interface_of_an_address():
    assert interface_of("127.0.0.1") == "lo"
    assert interface_of("192.0.2.77") is None  # no machine has it


@pytest.fixture
def cluster(monkeypatch, tmp_path):
    """A function that plays a scripted cluster and returns the number of workers of each launch. For each
    launch in turn, `fits` gives (step of the newest checkpoint afterwards, CPUs of each node afterwards, what
    was lost or None).
    """

    def play(workers, nodes, fits):
        state, sizes = {"step": 0, "nodes": nodes}, []

        def fit(config, run, size, kind, each):
            sizes.append(size)
            state["step"], state["nodes"], lost = fits[len(sizes) - 1]
            return lost

        monkeypatch.setattr(launch, "_fit", fit)
        monkeypatch.setattr(launch, "_nodes", lambda kind, answering=False: state["nodes"])
        monkeypatch.setattr(launch, "_step_of_checkpoint", lambda run: state["step"])
        try:
            launch._train_on_what_is_left(None, tmp_path, workers, "CPU")
        finally:
            sizes.append("end")
        return sizes[:-1]

    return play


def test_a_run_continues_with_as_many_workers_as_fit(cluster, tmp_path):
    assert cluster(3, [2, 2], [(5, [2], "lost worker 1"), (5, [2, 2], "lost worker 0"), (9, [2, 2], None)]) == [3, 2, 3]
    first, second = read_events(tmp_path / "log.jsonl", "restart")
    assert first["message"] == "lost worker 1; continues from step 5 with 2 of 3 workers"
    assert (second["step"], second["workers"], second["in_row"]) == (5, 3, 2)


def test_losses_without_progress_end_a_run(cluster, tmp_path):
    lost = (5, [1, 1], "lost worker 0")
    with pytest.raises(
        UserError, match=r"workers were lost 4 times in a row without a checkpoint after step 5.*2 CPUs"
    ):
        cluster(2, [1, 1], [lost] * 9)
    assert len(read_events(tmp_path / "log.jsonl", "restart")) == 3
    forward = [(step, [1, 1], "lost worker 0") for step in (1, 1, 1, 2, 2, 2)]
    assert len(cluster(2, [1, 1], [*forward, (3, [1, 1], None)])) == 7
    with pytest.raises(UserError, match=r"workers were lost 1 times .* 0 CPUs are left"):
        cluster(2, [1, 1], [(1, [0], "lost worker 0")])


def test_more_workers_than_the_cluster_has_room_for_are_refused(cluster):
    with pytest.raises(UserError, match="--workers: got 3, the Ray cluster has 2 CPUs; allowed 1 to 2"):
        cluster(3, [1, 1], [])


def test_a_loss_after_sigterm_ends_a_run(cluster, tmp_path):
    (tmp_path / STOP).touch()
    assert cluster(2, [1, 1], [(7, [1], "lost worker 1")]) == [2]
    (stopped,) = read_events(tmp_path / "log.jsonl", "stopped")
    assert "continues from step 7" in stopped["message"]


@pytest.mark.parametrize(
    ("error", "says"),
    [
        ("[gloo/transport/tcp/pair.cc:547] Connection closed by peer [10.0.0.2]:4", "for lack of memory"),
        ("[gloo/transport/tcp/unbound_buffer.cc:80] Timed out waiting 60000ms for recv operation", "DEEPSPEED_TIMEOUT"),
        ("[gloo/transport/tcp/pair.cc:144] timed out connecting: SO_ERROR: Connection refused", "DEEPSPEED_TIMEOUT"),
    ],
)
def test_what_broke_a_collective_is_said(monkeypatch, tmp_path, error, says):
    def fail(*arguments):
        raise RuntimeError(error)

    monkeypatch.setattr("trainers.training.loop.train", fail)
    with pytest.raises(launch.LostWorkerError, match=says) as raised:
        launch._train(None, None, tmp_path, None, None)
    assert ("memory" in str(raised.value)) == (says == "for lack of memory")


@pytest.mark.ray
def test_only_losses_of_workers_are_tried_again():
    from ray.exceptions import ActorDiedError, ActorUnavailableError, OutOfMemoryError, RayTaskError
    from ray.train import ControllerError, WorkerGroupError
    from ray.train.v2._internal.exceptions import WorkerGroupStartupTimeoutError, WorkerHealthCheckFailedError

    broken = launch.LostWorkerError("the connection to another worker broke")
    died = WorkerHealthCheckFailedError("health", ActorDiedError())
    away = WorkerHealthCheckFailedError("health", ActorUnavailableError("away", None))
    killed = WorkerHealthCheckFailedError("health", OutOfMemoryError("by the memory monitor"))
    unreadable = WorkerHealthCheckFailedError("health", RayTaskError("poll", "no pickle", TypeError("no pickle")))
    assert launch._loss(WorkerGroupError("", {0: broken, 1: died})) == "lost worker 1"
    assert launch._loss(WorkerGroupError("", {2: away, 0: died})) == "lost worker 0, worker 2"
    assert launch._loss(WorkerGroupError("", {0: broken, 1: killed})) == "lost worker 1 (out of memory)"
    assert launch._loss(WorkerGroupError("", {0: broken})) == "lost a worker"
    assert "could not start" in launch._loss(ControllerError(WorkerGroupStartupTimeoutError(2)))
    assert "controller" in launch._loss(ActorDiedError())
    for failures in ({0: ZeroDivisionError()}, {0: broken, 1: ZeroDivisionError()}, {0: died, 1: unreadable}):
        error = WorkerGroupError("", failures)
        with pytest.raises(WorkerGroupError) as raised:
            launch._loss(error)
        assert raised.value is error
    with pytest.raises(CorruptFileError, match="this shard"):
        launch._loss(WorkerGroupError("", {0: broken, 1: CorruptFileError("this shard")}))
    with pytest.raises(KeyError):
        launch._loss(KeyError("not of a worker"))


@pytest.mark.ray
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_ray_train_starts_no_process_that_training_does_not_need(monkeypatch):
    from ray.train import ScalingConfig
    from ray.train.v2._internal.execution.scaling_policy import autoscaling_coordinator_client
    from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

    parts, started = {}, []
    monkeypatch.setattr(
        autoscaling_coordinator_client, "get_or_create_autoscaling_coordinator", lambda: started.append(1)
    )
    monkeypatch.setattr(DataParallelTrainer, "_initialize_and_run_controller", lambda trainer, **its: parts.update(its))
    trainer = lean_trainer()(print, scaling_config=ScalingConfig(num_workers=2))
    trainer._initialize_and_run_controller(callbacks=trainer._create_default_callbacks(), scaling_policy=None)
    kinds = {type(callback).__name__ for callback in parts["callbacks"]}
    assert "BackendSetupCallback" in kinds
    assert not kinds & {"DatasetsCallback", "PlacementGroupCleanerCallback"}
    policy = parts["scaling_policy"]
    policy.after_controller_start(SimpleNamespace(run_id="run"))
    assert policy.make_decision_for_non_running_worker_group().num_workers == 2
    policy.before_controller_abort()
    assert started == []


@pytest.mark.deepspeed
@pytest.mark.slow
def test_workers_do_not_train_where_another_process_does(corpus_directory, tmp_path):
    run = tmp_path / "run"
    worker = [Path(__file__).parents[1] / "kill_worker.py", "never", 0, 0, tmp_path / "record"]
    with locked(run):
        # The first worker ends before the second has found it.
        statuses, printed = run_workers(2, *worker, *RECIPE, f"corpus={corpus_directory}", f"run={run}", grace=2)
    assert 0 not in statuses
    assert f"error: {run}: another process is training here" in printed
    assert [path.name for path in run.iterdir()] == []


@pytest.mark.deepspeed
@pytest.mark.ray
@pytest.mark.slow
def test_sigterm_stops_a_run_on_ray_after_a_checkpoint(corpus_directory, tmp_path):
    run = tmp_path / "run"
    settings = ["budget.steps=5000", "checkpoints.every=5000", "validation.every=5000"]
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "trainers",
            *RECIPE,
            *settings,
            f"corpus={corpus_directory}",
            f"run={run}",
            "--workers=2",
        ],
        env=environment(HOME=str(tmp_path), RAY_metrics_report_interval_ms="500"),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    wanted = {metric.name for metric in METRICS if metric.name.startswith("training")} - ONLY_SOMETIMES
    exported = {}
    while not {f"ray_gristmill_{name}" for name in wanted} <= exported.keys():
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.2)
        if (run / "log.jsonl").exists() and losses(run):
            (port,) = Path("/tmp/ray").glob(f"session_*_{process.pid}/metrics_export_port_*")
            exported = scrape(port.read_text())
    check_labels(exported, METRICS)
    assert exported["ray_gristmill_training_steps"] == [({"run": "run"}, 5000.0)]
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    (stopped,) = read_events(run / "log.jsonl", "stopped")
    assert f"stopped  at step {stopped['step']}, checkpoint saved" in output
    assert [path.name for path in (run / "checkpoints").iterdir()] == [f"step-{stopped['step']:08d}"]
    assert {entry["workers"] for entry in read_events(run / "log.jsonl", "start")} == {2}
    assert not (run / STOP).exists()


@pytest.mark.deepspeed
@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_run_that_loses_a_worker_and_then_a_node_is_the_run_that_loses_none(
    corpus_directory, corrupt, unbroken, tmp_path
):
    script, output = Path(__file__).with_name("ray_driver.py"), tmp_path / "output"
    output.mkdir()
    command = [sys.executable, str(script), str(output), str(corrupt), str(corpus_directory), *SETTINGS]
    off = ("RAY_TRAIN_ENABLE_PREEMPTION_WATCHER", "RAY_TRAIN_METRICS_ENABLED")
    variables = environment(HOME=str(tmp_path), **dict.fromkeys(off, "0"))
    done = subprocess.run(command, env=variables, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]

    refused, finished = map(int, (output / "exits").read_text().split())
    assert refused == 2
    assert f"error: {corrupt}/shards/plays/train-00002.arrow: is " in done.stderr
    assert "Traceback" not in done.stderr
    assert not read_events(output / "corrupt" / "log.jsonl", "restart")

    run = output / "elastic"
    assert finished == 0
    assert [path.name for path in sorted(output.glob("lost-at-*"))] == [
        f"lost-at-{WORKER_LOST_AT}",
        f"lost-at-{NODE_LOST_AT}",
    ]
    restarts = [(entry["step"], entry["workers"]) for entry in read_events(run / "log.jsonl", "restart")]
    assert restarts == [(0, 2), (5, 1)]
    assert "continues from step 5 with 1 of 2 workers" in done.stdout
    assert [entry["workers"] for entry in read_events(run / "log.jsonl", "start")] == [2, 2, 1]
    expected, found = losses(unbroken), read_events(run / "log.jsonl", "step")
    again = [*range(1, WORKER_LOST_AT), *range(1, NODE_LOST_AT), *range(6, STEPS + 1)]
    assert [entry["step"] for entry in found] == again
    for entry in found:
        assert entry["loss"] == pytest.approx(expected[entry["step"]], abs=5e-6)
    validations = [read_events(path / "log.jsonl", "validation")[-1]["loss"] for path in (run, unbroken)]
    assert validations[0] == pytest.approx(validations[1], abs=5e-6)
    assert (run / "export" / "model.safetensors").exists()
