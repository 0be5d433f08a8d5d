"""Network failures and lost machines. A build and a training run on two workers are submitted to a cluster of
three machines in network namespaces, started with the commands that operators use. Machines are powered off,
cut off from the network, or given a bad connection.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gristmill.events import read_events
from tests.chaos.harness import namespaces
from tests.chaos.harness.namespaces import ROOT, Machine, environment, wait_for
from tests.chaos.harness.outcome import Outcome, Trained, build_outcome, reference_of, run_outcome
from tests.conftest import write_corpus_file, write_sources
from tests.trainers.conftest import build_corpus
from tests.trainers.launching import LONG_SETTINGS, LONG_STEPS, losses

pytestmark = [pytest.mark.chaos, pytest.mark.ray, pytest.mark.deepspeed, pytest.mark.timeout(1500)]
GROUP = "Network"
BROKEN_AT = 7  # steps: two after a checkpoint
ANNOTATING, TRAINING = "ray::annotate_documents", "ray::RayTrainWorker"  # how Ray calls processes at that
# Its queue is full after 200 ms of delay, and drops what comes then.
BAD, NAMED = ("tbf", "rate", "2mbit", "burst", "5kb", "limit", "50kb"), "2 Mbit/s, delays, losses"


class Submission:
    """A command that an operator submits at the head node and whose log the operator follows."""

    def __init__(self, head: Machine, place: Path, words: list[str], options: tuple[str, ...]) -> None:
        place.mkdir(parents=True, exist_ok=True)
        self._files = [place / f"{time.monotonic_ns()}.{name}" for name in ("out", "err")]
        command = [sys.executable, "-m", "pipelines", "submit", "--follow", *options, "--", *words]
        with open(self._files[0], "wb") as out, open(self._files[1], "wb") as err:
            self._process = subprocess.Popen(
                ["ip", "netns", "exec", head.namespace, *command], stdout=out, stderr=err, cwd=ROOT,
                env=environment(head.home, RAY_AUTH_MODE="token"),
            )  # fmt: skip

    def wait_until(self, met, what):
        wait_for(lambda: met() or self._process.poll() is not None, 600, what)
        assert self._process.poll() is None, self.text

    def finished(self) -> tuple[str, str]:
        """Wait until the submission has succeeded; return the job's log and the messages of `submit`."""
        assert self._process.wait(timeout=900) == 0, self.text
        return self._files[0].read_text(), self._files[1].read_text()

    @property
    def text(self) -> str:
        return "\n".join(file.read_text()[-4000:] for file in self._files)


class Cluster:
    """A head node without CPUs, and two workers."""

    def __init__(self, machines: list[Machine], place: Path) -> None:
        self.head, self.one, self.two = machines
        self._place = place

    def submit(self, words: list[str], *options: str) -> Submission:
        return Submission(self.head, self._place, words, options)

    def again(self, first: Submission, words: list[str], *options: str) -> Submission:
        second = self.submit(words, *options)
        second.wait_until(lambda: "attached to it" in second.text, "the second submission attaches")
        return second

    def check_attached(self, first: Submission, second: Submission, words: list[str], *options: str) -> None:
        """Assert that both submissions, and a third after the end, show the same log, and that the work was
        done by one job.
        """
        (log, said), (log_again, _), (log_after, said_after) = (
            submission.finished() for submission in (first, second, self.submit(words, *options))
        )
        assert log == log_again == log_after
        name = said.partition(":")[0]
        assert f"{name}: has already succeeded" in said_after
        jobs = self._at_the_head(sys.executable, "-m", "pipelines", "jobs", "list").splitlines()
        assert [line.split()[0] for line in jobs if name in line] == ["SUCCEEDED"]

    def wait_for_machines(self, count: int) -> None:
        ray, where = str(Path(sys.executable).with_name("ray")), "--address=http://127.0.0.1:8265"

        def there():
            nodes = json.loads(self._at_the_head(ray, "list", "nodes", where, "--format=json"))
            return sum(node["state"] == "ALIVE" for node in nodes) == count

        wait_for(there, 120, f"the head sees {count} machines")

    def _at_the_head(self, *words: str) -> str:
        command = ["ip", "netns", "exec", self.head.namespace, *words]
        variables = environment(self.head.home, RAY_AUTH_MODE="token")
        return subprocess.run(command, env=variables, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    if reason := namespaces.reason_not_to():
        pytest.skip(reason)
    with namespaces.machines(tmp_path_factory.mktemp("home") / "operator", ["head", "one", "two"]) as machines:
        machines[0].start("head")
        for machine in machines[1:]:
            machine.start("worker")
        yield Cluster(machines, tmp_path_factory.mktemp("submitted"))


@pytest.fixture
def machines(cluster):
    _up(cluster.one, cluster.two)
    yield cluster
    for machine in (cluster.one, cluster.two):
        machine.impair()


def _up(*workers):
    for machine in workers:
        if machine.process is None:
            machine.start("worker")


@pytest.fixture(scope="module")
def corpus_file(tmp_path_factory):
    place = tmp_path_factory.mktemp("corpus")
    return write_corpus_file(place / "small.yaml", write_sources(place / "raw"), place / "out")


@pytest.fixture(scope="module")
def wanted_corpus(corpus_file, tmp_path_factory):
    output = tmp_path_factory.mktemp("wanted") / "corpus"
    _run("-m", "pipelines", "build", str(corpus_file), "--in-process", f"output={output}")
    return reference_of(output)


@pytest.fixture(scope="module")
def tokens(tmp_path_factory):
    return build_corpus(tmp_path_factory.mktemp("tokens"))


@pytest.fixture(scope="module")
def wanted_run(tokens, tmp_path_factory):
    run = tmp_path_factory.mktemp("wanted") / "run"
    _run(*_pretrain(tokens, run)[1:], more={"DS_ACCELERATOR": "cpu"})
    return run


def _run(*words, more=None):
    done = subprocess.run(
        [sys.executable, *words], env=environment(Path(os.environ["HOME"]), **(more or {})), cwd=ROOT,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]


def _build(corpus_file, output):
    return ["python", "-m", "pipelines", "build", str(corpus_file), f"output={output}"]


def _pretrain(tokens, run, *more):
    return [
        "python",
        "-m",
        "trainers",
        "pretrain",
        "llama_tiny",
        *LONG_SETTINGS,
        f"corpus={tokens}",
        f"run={run}",
        *more,
    ]


def _steps(run):
    return [entry["step"] for entry in read_events(run / "log.jsonl", "step")] if (run / "log.jsonl").exists() else []


def _trained(run):
    """Return the loss of each step and what it read, both from the log. The data state stands in for the
    rows.
    """
    read = {}
    for entry in read_events(run / "log.jsonl", "step"):
        read.setdefault((entry["step"], 0), set()).add(json.dumps([entry["tokens"], entry["data"]]))
    return Trained(read, losses(run))


def _outcome(wanted: Path, run: Path) -> Outcome:
    """Compare a run on the cluster with the undisturbed one, including the last validation loss and the
    checkpoints kept.
    """
    found = run_outcome(_trained(wanted), _trained(run))
    ends = [read_events(path / "log.jsonl", "validation")[-1]["loss"] for path in (wanted, run)]
    kept = [sorted(path.name for path in (path / "checkpoints").iterdir()) for path in (wanted, run)]
    return found._replace(identical=found.identical and abs(ends[0] - ends[1]) < 1e-5 and kept[0] == kept[1])


def test_a_build_outlasts_a_machine_that_loses_its_power(machines, corpus_file, wanted_corpus, tmp_path, injected):
    words, options = _build(corpus_file, tmp_path / "out"), ("--no-upload",)
    first = machines.submit(words, *options)
    first.wait_until(lambda: machines.one.processes(ANNOTATING), "the machine builds")
    machines.one.kill()
    began = time.perf_counter()
    second = machines.again(first, words, *options)
    first.finished()
    seconds = time.perf_counter() - began
    machines.check_attached(first, second, words, *options)
    injected(GROUP, "a machine loses its power: build", build_outcome(wanted_corpus, tmp_path / "out"), seconds)


def test_a_build_outlasts_a_machine_that_is_cut_off_and_writes_on(
    machines, corpus_file, wanted_corpus, tmp_path, injected
):
    """The machine's tasks are suspended until other workers have redone them and the corpus is published;
    then they resume.
    """
    first = machines.submit(_build(corpus_file, tmp_path / "out"), "--no-upload")
    first.wait_until(lambda: machines.one.processes(ANNOTATING), "the machine builds")
    machines.one.cut()
    began = time.perf_counter()
    late = machines.one.processes(ANNOTATING)
    machines.one.signal(late, signal.SIGSTOP)
    first.finished()
    seconds = time.perf_counter() - began
    machines.one.signal(late, signal.SIGCONT)
    wait_for(lambda: not machines.one.processes(ANNOTATING), 300, "the late tasks have ended")
    machines.one.heal()
    outcome = build_outcome(wanted_corpus, tmp_path / "out")
    machines.one.kill()  # Ray has ended there, as it does on a machine that is back after it was given up
    injected(GROUP, "a machine is cut off, writes on late, and is back: build", outcome, seconds)


def test_a_build_over_a_bad_network(machines, corpus_file, wanted_corpus, tmp_path, injected):
    machines.one.impair(*BAD)
    began = time.perf_counter()
    machines.submit(_build(corpus_file, tmp_path / "out"), "--no-upload").finished()
    seconds = time.perf_counter() - began
    injected(GROUP, f"a bad network ({NAMED}): build", build_outcome(wanted_corpus, tmp_path / "out"), seconds)


def test_a_run_over_a_bad_network(machines, tokens, wanted_run, tmp_path, injected):
    run = tmp_path / "run"
    first = machines.submit(_pretrain(tokens, run, "--workers", "2"))
    first.wait_until(lambda: BROKEN_AT in _steps(run), "the run is under way")
    machines.one.impair(*BAD)
    began = time.perf_counter()
    first.wait_until(lambda: BROKEN_AT + 3 in _steps(run), "three steps over a bad network")
    machines.one.impair()
    first.finished()
    seconds = time.perf_counter() - began
    assert not read_events(run / "log.jsonl", "restart")
    fault = f"a bad network ({NAMED}) for three steps: run on two workers"
    injected(GROUP, fault, _outcome(wanted_run, run), seconds)


def test_a_run_outlasts_a_machine_that_loses_its_power(machines, tokens, wanted_run, tmp_path, injected):
    run = tmp_path / "run"
    words = _pretrain(tokens, run, "--workers", "2")
    first = machines.submit(words)
    first.wait_until(lambda: BROKEN_AT in _steps(run), "the run is under way")
    machines.one.kill()
    began = time.perf_counter()
    second = machines.again(first, words)
    first.finished()
    seconds = time.perf_counter() - began
    machines.check_attached(first, second, words)
    assert [entry["workers"] for entry in read_events(run / "log.jsonl", "start")] == [2, 2]
    injected(GROUP, "a machine loses its power: run on two workers", _outcome(wanted_run, run), seconds)


def test_a_run_outlasts_a_machine_that_is_cut_off_with_all_of_its_workers(
    cluster, tokens, wanted_run, tmp_path, injected
):
    """The workers that are cut off can still reach the run's directory and each other. They are suspended
    until new workers have continued the run, and then resume in an old step.
    """
    run = tmp_path / "run"
    cluster.one.kill()
    _up(cluster.two)
    cluster.wait_for_machines(2)
    first = cluster.submit(_pretrain(tokens, run, "--workers", "2"))
    first.wait_until(lambda: BROKEN_AT in _steps(run), "the run is under way on the other machine")
    late = cluster.two.processes(TRAINING)
    cluster.two.signal(late, signal.SIGSTOP)
    before = len(_steps(run))
    cluster.one.start("worker")
    cluster.two.cut()
    began = time.perf_counter()
    first.wait_until(lambda: len(_steps(run)) > before, "others have gone on")
    cluster.two.signal(late, signal.SIGCONT)
    first.finished()
    seconds = time.perf_counter() - began
    cluster.two.heal()
    # Ray has ended there, as it does on a machine that is back after it was given up
    wait_for(lambda: not cluster.two.processes(TRAINING), 120, "the workers that were cut off have ended")
    cluster.two.kill()
    resumed = [entry["step"] for entry in read_events(run / "log.jsonl", "resume")]
    assert _steps(run)[before:] == list(range(resumed[-1] + 1, LONG_STEPS + 1))
    fault = "a machine with all workers of a run is cut off, they wake up late, and it is back: run on two workers"
    injected(GROUP, fault, _outcome(wanted_run, run), seconds)
