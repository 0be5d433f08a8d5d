"""Workers, nodes, the driver and the head node of a Ray cluster of three nodes get SIGKILL at random moments.

Builds, and training on two workers, are killed again and again. Nothing may be lost or doubled, and the
result must equal that of an undisturbed run. The tasks that the workers run show the phase of a build. The
seconds of a fault are those until the next kill, or the end.
"""

import json
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.chaos.harness.outcome import Outcome, build_outcome, reference_of, run_outcome, trained
from tests.chaos.soak.soak_cluster import SoakCluster
from tests.chaos.soak.soak_work import Work
from tests.conftest import write_corpus_file, write_sources
from tests.trainers.launching import LONG_SETTINGS, ROOT, environment

pytestmark = [pytest.mark.chaos, pytest.mark.ray, pytest.mark.timeout(1800)]

GROUP = "Random kills"
SHUFFLE = ("scatter_bands", "summarise_clusters", "elect_winners", "send_evidence", "judge_members", "write_verdicts")
TASKS = {
    "read": ("read_files",),
    "annotate": ("annotate_documents",),
    "dedup shuffle": SHUFFLE,
    "encode": ("encode_documents",),
}
VICTIMS = ("a worker", "a node", "the driver", "the head node")
# Every build meets every victim, and over all builds every phase does.
BUILDS = [[(phase, VICTIMS[(first + number) % 4]) for number, phase in enumerate(TASKS)] for first in range(4)]
WORKER, CONTROLLER = "RayTrainWorker", "TrainController"  # of Ray Train
# What to kill, and when: phases of training with their steps.
RUNS = [
    {"training 3": "a worker", "validation 10": "a node", "checkpoint 15": "the driver", "training 18": "a worker"},
    {"training 4": "a node", "validation 10": "the driver", "checkpoint 15": "a worker", "training 17": "the driver"},
    {
        "checkpoint 5": "a node",
        "training 8": "the controller",
        "validation 10": "a worker",
        "training 12": "the head node",
    },
]


@pytest.fixture(scope="module")
def soaking(tmp_path_factory):
    """Return a directory with a corpus file whose build takes a while in every phase, built once without Ray."""
    directory = tmp_path_factory.mktemp("soak")
    raw = write_sources(directory / "raw", documents=8000, files=24, modules=60)
    write_corpus_file(directory / "corpus.yaml", raw, directory / "undisturbed")
    subprocess.run([*build_command(directory, "undisturbed"), "--in-process"], cwd=ROOT, check=True, timeout=600)
    return directory


@pytest.fixture(scope="module")
def cluster():
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment().items():
            patch.setenv(name, value)
        started = SoakCluster()
        yield started
        started.close()


def build_command(directory, output):
    sizes = ["sources.web.part_bytes=120000", "sources.code.part_bytes=4000", "steps.shards.shard_bytes=400000"]
    build = [sys.executable, "-m", "pipelines", "build", str(directory / "corpus.yaml"), *sizes]
    return [*build, f"output={directory / output}"]


def test_a_task_outlasts_the_only_node_with_as_much_memory_as_it_was_given(cluster, tmp_path, injected):
    work = Work(cluster, [sys.executable, "-m", "tests.chaos.soak.soak_map", str(tmp_path)], tmp_path / "log")
    try:
        work.until((tmp_path / "again").exists, "the second attempt, with more memory")
        work.strike("a task tried again with more memory", "a node", "fragile")
        (tmp_path / "go").touch()
        assert work.ended() == 0, work.said()
    finally:
        work.close()
    for fault, seconds in work.recovered():
        injected(GROUP, fault, Outcome(0, 0, True), seconds)


@pytest.mark.parametrize("number", range(len(BUILDS)))
def test_a_build_that_is_killed_again_and_again(soaking, cluster, injected, number):
    chance = random.Random(number)
    wanted = reference_of(soaking / "undisturbed")
    work = Work(cluster, build_command(soaking, f"build-{number}"), soaking / f"build-{number}.log")
    try:
        for phase, victim in BUILDS[number]:
            task = chance.choice(TASKS[phase])
            work.until(lambda task=task: cluster.workers(task), phase)
            work.strike(phase, victim, task)
        assert work.ended() == 0, work.said()
    finally:
        work.close()
    recovered = work.recovered()
    outcome = build_outcome(wanted, soaking / f"build-{number}")
    for fault, seconds in recovered:
        injected(GROUP, fault, outcome, seconds)
    assert not leftovers(soaking / f"build-{number}")


def leftovers(directory):
    """Return the temporary files of killed attempts, and the directories of unfinished steps."""
    return [path for path in directory.rglob("*") if path.suffix == ".tmp" or path.name in ("units", "work")]


@pytest.fixture(scope="module")
def never_killed(soaking):
    """Return the rows and losses of the training run without a kill, on one worker."""
    worker = Path(__file__).parents[2] / "trainers" / "kill_worker.py"
    command = [sys.executable, str(worker), "never", "0", "0", str(soaking / "record"), *training(soaking, "run")]
    done = subprocess.run(command, env=environment(), cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-4000:]
    return trained(soaking / "run", soaking / "record")


def training(directory, run, *more):
    settings = [
        *LONG_SETTINGS,
        "execution.micro_batch=1",
        f"corpus={directory / 'undisturbed'}",
        f"run={directory / run}",
    ]
    return ["pretrain", "llama_tiny", *settings, *more]


@pytest.mark.deepspeed
@pytest.mark.parametrize("number", range(len(RUNS)))
def test_a_run_that_is_killed_again_and_again(soaking, cluster, never_killed, injected, number):
    chance, place = random.Random(number), soaking / f"run-{number}"
    place.mkdir()
    hook = {"worker_process_setup_hook": "tests.chaos.soak.soak_worker.prepare", "env_vars": {"SOAK": str(place)}}
    variables = {"RAY_JOB_CONFIG_JSON_ENV_VAR": json.dumps({"runtime_env": hook})}
    aims = iter(RUNS[number].items())
    aim, victim = next(aims)
    (place / "aim").write_atomic(aim.encode())
    command = [sys.executable, "-m", "trainers", *training(soaking, f"run-{number}/run", "--workers", "2")]
    work = Work(cluster, command, place / "log", **variables)
    try:
        while aim:
            work.until((place / aim).exists, aim)
            time.sleep(chance.uniform(0, 1))
            phase = f"pretraining, 2 workers, {aim.split()[0]}"
            work.strike(phase, victim, CONTROLLER if victim == "the controller" else WORKER)
            aim, victim = next(aims, ("", ""))
            (place / "aim").write_atomic(aim.encode())
        assert work.ended() == 0, work.said()
    finally:
        work.close()
    recovered = work.recovered()
    outcome = run_outcome(never_killed, trained(place / "run", place / "record"))
    for fault, seconds in recovered:
        injected(GROUP, fault, outcome, seconds)
    names = {str(path.relative_to(place / "run")) for path in (place / "run").rglob("*")}
    assert names == {str(path.relative_to(soaking / "run")) for path in (soaking / "run").rglob("*")}
