"""Jobs: attach, retry, follow through broken connections, stop; with a fake of Ray's client and on a real cluster."""

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from functools import partial
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace

import pytest

from gristmill.errors import ConflictError, UserError
from gristmill.host import Host
from pipelines.building.build_metrics import METRICS
from pipelines.commands.submit import jobs
from pipelines.commands.submit.submission import Upload, Work
from tests.canaries import add_signed_source, places, secrets, signed_pages
from tests.conftest import write_corpus_file, write_sources
from tests.scraping import OF_NODES, Watch, check_labels, scrape

ROOT = Path(__file__).parents[4]
WORK = Work(("python", "x.py"), "x", "words", "key", None)
LAUNCH = jobs.Launch("/opt/python", None, {})


class Cluster:
    """A fake of Ray's job client. An id can be used once, and jobs end with the exit codes in `endings`, in
    turn.
    """

    def __init__(self, *endings):
        self.endings, self.known, self.requests, self.breaks = list(endings), {}, [], []

    def list_jobs(self):
        return list(self.known.values())

    def get_job_info(self, job_id):
        return self.known[job_id]

    def submit_job(self, **request):
        if request["submission_id"] in self.known:
            raise RuntimeError("Request failed with status code 500: id is taken\ntraceback")
        self.requests.append(request)
        self.add(request["submission_id"], "RUNNING", request["metadata"])

    def add(self, name, status, metadata=None):
        self.known[name] = SimpleNamespace(
            submission_id=name, status=status, entrypoint="e", message="a line\n\x1b[2J", driver_exit_code=None,
            start_time=1000 * len(self.known), end_time=None, metadata=metadata or {},
        )  # fmt: skip

    async def tail_job_logs(self, job_id):
        yield "one\n"
        if self.breaks:
            raise self.breaks.pop()
        yield "two\n"
        job = self.known[job_id]
        if job.status == "RUNNING":
            code = self.endings.pop(0)
            job.driver_exit_code, job.status = code, "FAILED" if code else "SUCCEEDED"

    def stop_job(self, job_id):
        self.known[job_id].status = "STOPPED"
        return True


@pytest.fixture
def said(monkeypatch):
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    return []


def submit(cluster, said, work=WORK):
    return jobs.submit(cluster, work, LAUNCH, said.append)


def test_the_same_work_attaches_while_it_runs_and_after_it_succeeded(said):
    cluster = Cluster(0)
    first = submit(cluster, said)
    assert first.id == WORK.id
    assert submit(cluster, said).id == first.id
    assert jobs.run(cluster, WORK, LAUNCH, 0, said.append, said.append).status == "SUCCEEDED"
    assert submit(cluster, said).status == "SUCCEEDED"
    assert len(cluster.requests) == 1
    assert any("attached" in line for line in said)


def test_a_failed_job_is_a_new_attempt_of_the_same_submission(said):
    cluster = Cluster(3, 1, 0)
    for expected in ("", "-2", "-3"):
        job = jobs.run(cluster, WORK, LAUNCH, 0, said.append, said.append)
        assert job.id == WORK.id + expected
    assert [jobs.exit_status(job) for job in jobs.attempts(cluster, WORK.id)] == [3, 1, 0]
    assert jobs.newest(cluster, WORK.id).status == "SUCCEEDED"
    assert jobs.newest(cluster, f"{WORK.id}-2").exit_code == 1


def test_a_new_attempt_follows_the_last_one_if_earlier_ones_were_deleted(said):
    cluster = Cluster(3, 1, 0)
    for _ in range(2):
        jobs.run(cluster, WORK, LAUNCH, 0, said.append, said.append)
    del cluster.known[WORK.id]
    assert submit(cluster, said).id == f"{WORK.id}-3"


def test_retries_are_bounded_and_end_with_the_first_success(said):
    cluster = Cluster(1, 1, 0)
    assert jobs.run(cluster, WORK, LAUNCH, 1, said.append, said.append).id == f"{WORK.id}-2"
    assert len(cluster.requests) == 2
    assert jobs.run(cluster, WORK, LAUNCH, 5, said.append, said.append).status == "SUCCEEDED"
    assert len(cluster.requests) == 3


def test_a_stopped_job_is_not_retried_by_itself(said):
    cluster = Cluster()
    job = submit(cluster, said)
    assert jobs.stop(cluster, job).status == "STOPPED"
    assert jobs.follow(cluster, job, said.append).status == "STOPPED"
    assert len(cluster.requests) == 1
    assert submit(cluster, said).id == f"{WORK.id}-2"  # asked for again, it is


def test_who_loses_the_race_for_an_id_attaches(said):
    cluster = Cluster()
    answers = [[], [], cluster.list_jobs]  # what the loser saw before the winner's job was there

    def late():
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        return answer() if callable(answer) else answer

    cluster.add(WORK.id, "RUNNING", {"submission": WORK.id, "words": "words", "work": "key"})
    cluster.list_jobs, answers[-1] = late, cluster.list_jobs
    assert submit(cluster, said).id == WORK.id
    assert cluster.requests == []
    assert "just now" in said[-1]


def test_a_refusal_is_one_line(said):
    cluster = Cluster()

    def refuse(**request):
        raise RuntimeError("Request failed with status code 500: No available agent\nTraceback ...")

    cluster.submit_job = refuse
    with pytest.raises(UserError, match="No available agent") as error:
        submit(cluster, said)
    assert "\n" not in str(error.value)


def test_slots_of_the_same_work_do_not_overlap(said):
    cluster = Cluster(0, 0)
    monday, tuesday = (Work(WORK.command, "x", "words", "key", slot) for slot in ("mon", "tue"))
    running = submit(cluster, said, monday)
    assert submit(cluster, said, tuesday).id == running.id  # it still runs
    jobs.follow(cluster, running, said.append)
    assert submit(cluster, said, tuesday).id == tuesday.id
    assert len(cluster.requests) == 2


def test_the_same_command_with_other_code_waits(said):
    cluster = Cluster(0)
    submit(cluster, said)
    changed = Work(WORK.command, "x", "words", "another key", None)
    with pytest.raises(ConflictError, match=f"jobs stop {WORK.id}"):
        submit(cluster, said, changed)
    jobs.follow(cluster, jobs.newest(cluster, WORK.id), said.append)
    assert submit(cluster, said, changed).id == changed.id


class Turns:
    """Makes two agents call a cluster in the order of `turns`, a sequence of 0 and 1. After its end, calls
    come in any order.
    """

    def __init__(self, cluster, turns):
        self.cluster, self.turns, self.ended, self.changed = cluster, list(turns), set(), threading.Condition()

    def of(self, agent):
        calls = ("list_jobs", "get_job_info", "submit_job", "stop_job")
        return SimpleNamespace(**{name: partial(self.call, agent, name) for name in calls})

    def call(self, agent, name, *arguments, **named):
        with self.changed:
            while self.next() not in (agent, None):
                self.changed.wait(10)
            if self.turns:
                self.turns.pop(0)
            self.changed.notify_all()
            return getattr(self.cluster, name)(*arguments, **named)

    def next(self):
        while self.turns and self.turns[0] in self.ended:
            self.turns.pop(0)
        return self.turns[0] if self.turns else None

    def end(self, agent):
        with self.changed:
            self.ended.add(agent)
            self.changed.notify_all()


@pytest.mark.long
@pytest.mark.parametrize("key", ["key", "another key"], ids=["another slot", "other code"])
def test_of_two_submissions_at_the_same_moment_one_goes_on_in_every_order(said, key):
    """A submission that meets no other makes five calls: it looks for another slot and for attempts, submits,
    reads the job, and looks again.
    """
    for first in combinations(range(10), 5):
        cluster, ends = Cluster(), {}
        turns = Turns(cluster, [0 if turn in first else 1 for turn in range(10)])
        works = [Work(WORK.command, "x", "words", "key", "mon"), Work(WORK.command, "x", "words", key, "tue")]

        def agent(number, work, turns=turns, ends=ends):
            try:
                ends[number] = jobs.submit(turns.of(number), work, LAUNCH, said.append).id
            except ConflictError as error:
                ends[number] = str(error).split()[0]
            finally:
                turns.end(number)

        threads = [threading.Thread(target=agent, args=each) for each in enumerate(works)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        (active,) = [job.submission_id for job in cluster.known.values() if job.status == "RUNNING"]
        assert ends == {0: active, 1: active}, first


def test_a_log_is_written_once_however_often_the_connection_breaks(said):
    cluster = Cluster(0)
    cluster.breaks = [RuntimeError("closed"), ConnectionResetError(), TimeoutError()]
    written = []
    assert jobs.follow(cluster, submit(cluster, said), written.append).status == "SUCCEEDED"
    assert "".join(written) == "one\ntwo\n"


def test_a_log_that_cannot_be_written_is_an_error(said):
    written = []

    def write(text):
        if written:
            pytest.fail("the log is written again")
        written.append(text)
        raise BrokenPipeError

    cluster = Cluster(0)
    with pytest.raises(BrokenPipeError):
        jobs.follow(cluster, submit(cluster, said), write)


def test_silence_is_an_end(said, monkeypatch):
    cluster = Cluster(0)
    job = submit(cluster, said)

    async def no_answer(job_id):
        raise ConnectionResetError
        yield

    cluster.tail_job_logs = no_answer
    clock = iter(range(0, 100_000, 200))
    monkeypatch.setattr(Host, "monotonic", lambda self: next(clock))
    with pytest.raises(UserError, match="may still be running"):
        jobs.follow(cluster, job, lambda text: None)


def test_what_ray_is_told_holds_no_more_than_it_must(said, monkeypatch, tmp_path):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "swordfish-canary")
    (tmp_path / "code.py").write_text("x = 1\n")
    (tmp_path / ".env").write_text("swordfish-canary")
    cluster, seen = Cluster(), {}

    def look(**request):
        copy = Path(request["runtime_env"]["working_dir"])
        seen.update({path.name: path.read_text() for path in copy.rglob("*") if path.is_file()})
        Cluster.submit_job(cluster, **request)

    cluster.submit_job = look
    launch = jobs.Launch("/opt/python", Upload(tmp_path, (("code.py", 6),), ()), {"OMP_NUM_THREADS": "2"}, 0, 1)
    jobs.submit(cluster, Work(("python", "code.py"), "code", "w", "k", "s"), launch, said.append)
    (request,) = cluster.requests
    assert seen == {"code.py": "x = 1\n"}
    assert "canary" not in repr(request)
    assert set(request["runtime_env"]) == {"env_vars", "working_dir"}
    assert request["runtime_env"]["env_vars"] == {"OMP_NUM_THREADS": "2"}
    assert request["entrypoint"] == "/opt/python code.py"
    assert (request["entrypoint_num_cpus"], request["entrypoint_num_gpus"]) == (None, 1)
    assert set(request["metadata"]) == {"submission", "words", "work", "attempt", "slot"}
    assert not Path(request["runtime_env"]["working_dir"]).exists()


def test_ids_that_only_look_alike_are_other_jobs():
    cluster = Cluster()
    for name in ("x-1", "x-1-2", "x-1-10", "x-1-nightly", "x-12", "y-x-1"):
        cluster.add(name, "FAILED")
    cluster.add(None, "RUNNING")  # a driver that was not submitted
    assert [job.id for job in jobs.attempts(cluster, "x-1")] == ["x-1", "x-1-2", "x-1-10"]
    with pytest.raises(UserError, match="no such job"):
        jobs.newest(cluster, "z")


@pytest.mark.parametrize(("status", "code", "expected"), [("SUCCEEDED", 0, 0), ("FAILED", 3, 3), ("FAILED", None, 1)])
def test_exit_status(status, code, expected):
    assert jobs.exit_status(jobs.SubmittedJob("x", status, "", "", code, None, None, {})) == expected


def test_a_signal_is_an_exit_status_as_in_a_shell():
    assert jobs.exit_status(jobs.SubmittedJob("x", "FAILED", "", "", -9, None, None, {})) == 137


HEAD = """
import socket, sys
from pathlib import Path
from ray.cluster_utils import Cluster

def free():
    with socket.socket() as probe:
        probe.bind(("", 0))
        return probe.getsockname()[1]

head = dict(num_cpus=1, include_dashboard=True, dashboard_port=free(), dashboard_agent_listen_port=free(),
            object_store_memory=100 << 20)
cluster = Cluster(initialize_head=True, head_node_args=head)
session = Path(cluster.head_node.get_session_dir_path())
print(cluster.webui_url, session, next(session.glob("metrics_export_port_*")).read_text(), flush=True)
sys.stdin.read()
cluster.shutdown()
"""

# Runs commands one after the other, as a shell would that has imported Ray already.
USER = """
import contextlib, io, json, sys
from pipelines.__main__ import main
for line in sys.stdin:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            status = main(json.loads(line))
        except SystemExit as exit:
            status = exit.code
    print(json.dumps([status, out.getvalue(), err.getvalue()]), flush=True)
"""

SCRIPT = """
import os, sys
from pathlib import Path
place, failures = Path(sys.argv[1]), int(sys.argv[2])
runs = len(place.read_text().splitlines()) + 1 if place.exists() else 1
with place.open("a") as file:
    file.write("run\\n")
print("run", runs, "\\x1b[2J", sorted(path.name for path in Path().rglob("*") if path.is_file()), flush=True)
assert "HF_TOKEN" not in os.environ and os.environ["OMP_NUM_THREADS"] == "3"
sys.exit(7 if runs <= failures else 0)
"""

SECRETS = secrets()
SIGNATURE = SECRETS["AWS_SECRET_ACCESS_KEY"]


class Users:
    """Users of the cluster on this machine, with secrets in the environment. `said` collects the output of
    their commands.
    """

    def __init__(self, head, home):
        self.plain = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
        self.plain |= {"HOME": str(home), "RAY_USAGE_STATS_ENABLED": "0"}
        self.env = self.plain | SECRETS | {"RAY_AUTH_MODE": "token"}
        web, session, port = head.stdout.readline().split()
        self.address, self.session, self.metrics_port = f"http://{web}", Path(session), int(port)
        self.said = []
        self.process = subprocess.Popen(
            [sys.executable, "-c", USER],
            cwd=ROOT,
            env=self.env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments):
        """Run a command in the shared process of all commands; return its exit status and output."""
        self.process.stdin.write(json.dumps(arguments) + "\n")
        self.process.stdin.flush()
        status, out, err = json.loads(self.process.stdout.readline())
        self.said += [out, err]
        return SimpleNamespace(returncode=status, stdout=out, stderr=err)

    def start(self, *arguments, env=None):
        return subprocess.Popen(
            [sys.executable, "-m", "pipelines", *arguments], cwd=ROOT, env=env or self.env, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def end(self, process):
        out, err = process.communicate(timeout=300)
        self.said += [out, err]
        return SimpleNamespace(returncode=process.returncode, stdout=out, stderr=err)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """Yield the users of a one-node cluster with a dashboard and a token."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": SECRETS["RAY_AUTH_TOKEN"]}
    home = {"HOME": str(tmp_path_factory.mktemp("home")), "RAY_USAGE_STATS_ENABLED": "0"}
    head = subprocess.Popen(
        [sys.executable, "-c", HEAD], cwd=ROOT, env=kept | token | home | {"RAY_metrics_report_interval_ms": "500"},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    try:
        users = Users(head, home["HOME"])
        try:
            yield users
        finally:
            users.process.communicate(timeout=60)
    finally:
        head.communicate(timeout=60)  # it ends with its input


@pytest.fixture(scope="module")
def build(cluster, tmp_path_factory):
    """Yield a submitted build, which runs alongside the tests that use it, and a corpus file for the same
    build in process.

    One source is behind a signed URL, and its server fails once for each of the two builds, when a task reads
    the source.
    """
    place = tmp_path_factory.mktemp("build")
    file = write_corpus_file(place / "small.yaml", write_sources(place / "raw"), place / "unused")
    local_file = place / "local.yaml"
    shutil.copyfile(file, local_file)
    words = ("python", "-m", "pipelines", "build", str(file), f"output={place}/submitted")
    submission = ("submit", "--no-upload", "--follow", "--slot", "tonight", "--address", cluster.address, "--", *words)
    with signed_pages(SIGNATURE, fails_at=2) as port:
        add_signed_source(file, port, "for-the-job", SIGNATURE)
        add_signed_source(local_file, port, "for-this-process", SIGNATURE)
        submitted = cluster.start(*submission)
        watch = Watch(cluster.metrics_port)
        watch.start()
        yield SimpleNamespace(
            place=place, submission=submission, submitted=submitted, local_file=local_file, watch=watch
        )
        watch.stop()
        submitted.kill()
        submitted.wait()


@pytest.fixture
def script(tmp_path):
    (tmp_path / "code" / "pipelines").mkdir(parents=True)
    (tmp_path / "code" / "count.py").write_text(SCRIPT)
    (tmp_path / "code" / ".env").write_text("HF_TOKEN=1")
    return tmp_path / "code"


@pytest.mark.ray
@pytest.mark.timeout(300)
def test_without_the_token_nothing_is_shown_or_run(cluster, build, script):
    import urllib.error
    import urllib.request

    wrong = cluster.env | {"RAY_AUTH_TOKEN": "another"}
    submission = (
        "submit",
        "--address",
        cluster.address,
        "--directory",
        str(script),
        "--",
        "python",
        "count.py",
        "x",
        "0",
    )
    refused = [cluster.start(*submission, env=env) for env in (cluster.plain, wrong)]
    for path in ("/api/jobs/", "/api/jobs/x/logs", "/api/v0/tasks", "/nodes?view=summary"):
        for header in ({}, {"Authorization": "Bearer another"}):
            with pytest.raises(urllib.error.HTTPError) as error:
                urllib.request.urlopen(urllib.request.Request(cluster.address + path, headers=header), timeout=60)
            assert error.value.code in (401, 403), path
            error.value.close()
    for ended in map(cluster.end, refused):
        assert ended.returncode == 2
        assert "rejects this token" in ended.stderr
    assert "count-" not in cluster.run("jobs", "list", "--address", cluster.address).stdout


@pytest.mark.ray
@pytest.mark.timeout(400)
def test_a_second_submission_attaches_and_a_failed_one_runs_again(cluster, build, script, tmp_path):
    def run(*words, retries=0):
        options = ("--follow", "--retries", str(retries), "--address", cluster.address, "--directory", str(script))
        return cluster.run("submit", *options, "--env", "OMP_NUM_THREADS=3", "--", *words)

    once = ("python", "count.py", str(tmp_path / "once"), "0")
    first, second = run(*once), run(*once)
    assert first.returncode == 0, first.stderr
    assert (tmp_path / "once").read_text() == "run\n"
    assert "run 1 \\x1b[2J ['count.py']" in first.stdout  # the log, harmless on a terminal, and all that travelled
    assert second.returncode == 0
    assert "has already succeeded" in second.stderr
    assert "run 1" in second.stdout

    mended = run("python", "count.py", str(tmp_path / "twice"), "1", retries=1)
    assert mended.returncode == 0, mended.stderr
    assert "failed with exit status 7; retry 1 of 1" in mended.stderr
    assert (tmp_path / "twice").read_text() == "run\n" * 2
    name = mended.stderr.strip().splitlines()[-1].partition(":")[0]
    assert name.endswith("-2")

    shown = cluster.run("jobs", "status", name, "--address", cluster.address)
    assert shown.returncode == 0
    facts = json.loads(shown.stdout)
    assert facts["status"] == "SUCCEEDED"
    assert facts["metadata"]["submission"] == name.removesuffix("-2")
    before = cluster.run("jobs", "status", f"{name.removesuffix('-2')}-1", "--address", cluster.address)
    assert before.returncode == 2  # attempts are numbered from 2


@pytest.mark.ray
@pytest.mark.timeout(300)
def test_a_job_is_stopped(cluster, build, tmp_path):
    (tmp_path / "sleep.py").write_text("import time\nprint('up', flush=True)\ntime.sleep(600)\n")
    place = ("--address", cluster.address)
    started = cluster.run("submit", *place, "--directory", str(tmp_path), "--", "python", "sleep.py")
    assert started.returncode == 0, started.stderr
    name = started.stdout.strip()
    stopped = cluster.run("jobs", "stop", name, *place)
    assert stopped.stdout == f"{name}: stopped\n", stopped.stderr
    assert cluster.run("jobs", "status", name, *place).returncode == 1


@pytest.mark.ray
@pytest.mark.timeout(500)
def test_a_submitted_build_joins_its_cluster_and_publishes_the_same_bytes(cluster, build):
    local = cluster.run("build", str(build.local_file), "--in-process", f"output={build.place}/local")
    first = cluster.end(build.submitted)
    assert local.returncode == 0, local.stderr
    assert first.returncode == 0, first.stderr + first.stdout
    results = [
        {
            str(path.relative_to(root)): path.read_bytes()
            for path in root.rglob("*")
            if path.is_file() and path.name not in ("run.json", ".checksums.json", "report.html")
        }
        for root in (build.place / "local", build.place / "submitted")
    ]
    assert len(results[0]) > 20
    assert results[0] == results[1]
    run = json.loads(next(build.place.glob("submitted/funnel-*/run.json")).read_text())
    assert run["workers"] == 1  # the cluster's CPUs
    before = sorted(path.stat().st_mtime_ns for path in (build.place / "submitted").rglob("*"))
    second = cluster.run(*build.submission)
    assert second.returncode == 0
    assert "has already succeeded" in second.stderr
    assert sorted(path.stat().st_mtime_ns for path in (build.place / "submitted").rglob("*")) == before


@pytest.mark.ray
@pytest.mark.timeout(300)
def test_the_exporter_shows_what_a_build_has_done(cluster, build):
    build.submitted.wait(timeout=280)
    build.watch.stop()
    series = build.watch.series | scrape(
        cluster.metrics_port
    )  # what counters have reached stays after their process has ended
    names = {f"ray_gristmill_{metric.name}{'_bucket' * (metric.kind == 'histogram')}" for metric in METRICS}
    assert names | OF_NODES <= series.keys()
    check_labels(series, METRICS)
    funnel = json.loads((build.place / "submitted" / "manifest.json").read_text())["sources"]
    read = {
        labels["source"]: value for labels, value in series["ray_gristmill_documents_total"] if labels["step"] == "read"
    }
    assert read == {name: entry["in"] for name, entry in funnel.items()}
    assert {labels["rule"] for labels, _ in series["ray_gristmill_drops_total"]} >= {"dedup_exact", "dedup_minhash"}


@pytest.mark.ray
@pytest.mark.timeout(300)
def test_no_secret_is_in_what_ray_keeps_or_commands_print_and_write(cluster, build):
    """This test comes last, so that it sees the jobs, logs and outputs of the other tests."""
    import urllib.request

    header = {"Authorization": f"Bearer {SECRETS['RAY_AUTH_TOKEN']}"}
    kept = [*cluster.said]
    for path in ("/api/jobs/", "/api/v0/jobs?detail=1", "/api/v0/tasks?detail=1", "/api/v0/workers?detail=1"):
        with urllib.request.urlopen(
            urllib.request.Request(cluster.address + path, headers=header), timeout=60
        ) as answer:
            kept.append(answer.read().decode())
    assert "runtime_env" in kept[len(cluster.said)]
    files = [path for place in (cluster.session, build.place) for path in place.rglob("*") if path.is_file()]
    files = [path for path in files if path.suffix != ".yaml"]
    assert any("job-driver-build-tonight" in path.name for path in files)
    assert places(SECRETS.values(), kept, files) == ([], [])
