"""Jobs: attach, try again, follow through broken connections, stop; on a stand-in for Ray's client, and on a real cluster."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from pipelines import jobs
from pipelines.contracts.errors import ConflictError, UserError
from pipelines.submission import Upload, Work

ROOT = Path(__file__).parents[1]
WORK = Work(("python", "x.py"), "x", "words", "key", None)
LAUNCH = jobs.Launch("/opt/python", None, {})


class Cluster:
    """What Ray's client shows of a cluster: an id is taken once, a job ends as `endings` say, one after the other."""

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
    """Lines said, and nothing waits."""
    monkeypatch.setattr(jobs.time, "sleep", lambda seconds: None)
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


def test_a_log_is_written_once_however_often_the_connection_breaks(said):
    cluster = Cluster(0)
    cluster.breaks = [RuntimeError("closed"), ConnectionResetError(), TimeoutError()]
    written = []
    assert jobs.follow(cluster, submit(cluster, said), written.append).status == "SUCCEEDED"
    assert "".join(written) == "one\ntwo\n"


def test_silence_is_an_end(said, monkeypatch):
    cluster = Cluster(0)
    job = submit(cluster, said)
    cluster.breaks = [ConnectionResetError() for _ in range(50)]
    clock = iter(range(0, 100_000, 200))
    monkeypatch.setattr(jobs.time, "monotonic", lambda: next(clock))
    with pytest.raises(UserError, match="may run on"):
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
    assert jobs.exit_status(jobs.Job("x", status, "", "", code, None, None, {})) == expected


def test_a_signal_is_an_exit_status_as_in_a_shell():
    assert jobs.exit_status(jobs.Job("x", "FAILED", "", "", -9, None, None, {})) == 137


HEAD = """
import socket, sys
from ray.cluster_utils import Cluster

def free():
    with socket.socket() as probe:
        probe.bind(("", 0))
        return probe.getsockname()[1]

head = dict(num_cpus=1, include_dashboard=True, dashboard_port=free(), dashboard_agent_listen_port=free(),
            object_store_memory=100 << 20)
cluster = Cluster(initialize_head=True, head_node_args=head)
print(cluster.webui_url, flush=True)
sys.stdin.read()
cluster.shutdown()
"""

SCRIPT = """
import os, sys
from pathlib import Path
place, failures = Path(sys.argv[1]), int(sys.argv[2])
runs = len(place.read_text().splitlines()) + 1 if place.exists() else 1
with place.open("a") as file:
    file.write("run\\n")
print("run", runs, "\\x1b[2J", sorted(path.name for path in Path().rglob("*") if path.is_file()), flush=True)
assert "CANARY" not in os.environ and os.environ["OMP_NUM_THREADS"] == "3"
sys.exit(7 if runs <= failures else 0)
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """A one-node cluster with dashboard and token; the environment of its users."""
    home = tmp_path_factory.mktemp("home")
    plain = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")} | {
        "HOME": str(home),
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    with_token = plain | {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "a-token-of-this-test"}
    head = subprocess.Popen(
        [sys.executable, "-c", HEAD], env=with_token, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    try:
        address = f"http://{head.stdout.readline().strip()}"
        yield SimpleNamespace(address=address, plain=plain, env=with_token)
    finally:
        head.communicate(timeout=60)  # it ends with its input


def command(cluster, *arguments, env=None):
    return subprocess.run(
        [sys.executable, "-m", "pipelines", *arguments], cwd=ROOT, env=env or cluster.env, capture_output=True, text=True,
        timeout=200,
    )  # fmt: skip


@pytest.fixture
def script(tmp_path):
    """A checkout with one script, and a file that stays here."""
    (tmp_path / "code" / "pipelines").mkdir(parents=True)
    (tmp_path / "code" / "count.py").write_text(SCRIPT)
    (tmp_path / "code" / ".env").write_text("CANARY=1")
    return tmp_path / "code"


@pytest.mark.ray
@pytest.mark.timeout(400)
def test_a_second_submission_attaches_and_a_failed_one_runs_again(cluster, script, tmp_path):
    def run(*words, retries=0):
        options = ("--follow", "--retries", str(retries), "--address", cluster.address, "--directory", str(script))
        environment = cluster.env | {"CANARY": "1"}
        return command(cluster, "submit", *options, "--env", "OMP_NUM_THREADS=3", "--", *words, env=environment)

    once = ("python", "count.py", str(tmp_path / "once"), "0")
    first, second = run(*once), run(*once)
    assert first.returncode == 0, first.stderr
    assert (tmp_path / "once").read_text() == "run\n"
    assert "run 1 \\x1b[2J ['count.py']" in first.stdout  # the log, harmless on a terminal, and all that travelled
    assert second.returncode == 0
    assert "has succeeded already" in second.stderr
    assert "run 1" in second.stdout

    failing = ("python", "count.py", str(tmp_path / "twice"), "2")
    failed = run(*failing)
    assert failed.returncode == 7, failed.stderr
    mended = run(*failing, retries=2)
    assert mended.returncode == 0, mended.stderr
    assert (tmp_path / "twice").read_text() == "run\n" * 3
    name = mended.stderr.strip().splitlines()[-1].partition(":")[0]
    assert name.endswith("-3")

    shown = command(cluster, "jobs", "status", name, "--address", cluster.address)
    assert shown.returncode == 0
    facts = json.loads(shown.stdout)
    assert facts["status"] == "SUCCEEDED"
    assert facts["metadata"]["submission"] == name.removesuffix("-3")
    assert "CANARY" not in shown.stdout


@pytest.mark.ray
@pytest.mark.timeout(500)
def test_a_submitted_build_joins_its_cluster_and_publishes_the_same_bytes(cluster, corpus_file, tmp_path):
    local = command(cluster, "build", str(corpus_file), "--in-process", f"output={tmp_path}/local")
    assert local.returncode == 0, local.stderr
    words = ("python", "-m", "pipelines", "build", str(corpus_file), f"output={tmp_path}/submitted")
    options = ("--follow", "--slot", "tonight", "--address", cluster.address)
    first = command(cluster, "submit", *options, "--", *words)
    assert first.returncode == 0, first.stderr + first.stdout
    results = [
        {
            str(path.relative_to(root)): path.read_bytes()
            for path in root.rglob("*")
            if path.is_file() and path.name not in ("run.json", ".checksums.json", "report.html")
        }
        for root in (tmp_path / "local", tmp_path / "submitted")
    ]
    assert len(results[0]) > 20
    assert results[0] == results[1]
    assert (
        json.loads(next(tmp_path.glob("submitted/funnel-*/run.json")).read_text())["workers"] == 1
    )  # the cluster's CPUs
    before = sorted(path.stat().st_mtime_ns for path in (tmp_path / "submitted").rglob("*"))
    second = command(cluster, "submit", *options, "--", *words)
    assert second.returncode == 0
    assert "has succeeded already" in second.stderr
    assert sorted(path.stat().st_mtime_ns for path in (tmp_path / "submitted").rglob("*")) == before


@pytest.mark.ray
@pytest.mark.timeout(300)
def test_a_job_is_stopped(cluster, tmp_path):
    (tmp_path / "sleep.py").write_text("import time\nprint('up', flush=True)\ntime.sleep(600)\n")
    place = ("--address", cluster.address)
    started = command(cluster, "submit", *place, "--directory", str(tmp_path), "--", "python", "sleep.py")
    assert started.returncode == 0, started.stderr
    name = started.stdout.strip()
    stopped = command(cluster, "jobs", "stop", name, *place)
    assert stopped.stdout == f"{name}: stopped\n", stopped.stderr
    assert command(cluster, "jobs", "status", name, *place).returncode == 1


@pytest.mark.ray
@pytest.mark.timeout(300)
def test_without_the_token_nothing_is_shown_or_run(cluster, script):
    import urllib.error
    import urllib.request

    for path in ("/api/jobs/", "/api/jobs/x/logs", "/api/v0/tasks", "/nodes?view=summary"):
        for header in ({}, {"Authorization": "Bearer another"}):
            with pytest.raises(urllib.error.HTTPError) as error:
                urllib.request.urlopen(urllib.request.Request(cluster.address + path, headers=header), timeout=60)
            assert error.value.code in (401, 403), path
            error.value.close()
    before = command(cluster, "jobs", "list", "--address", cluster.address).stdout
    for env in (cluster.plain, cluster.env | {"RAY_AUTH_TOKEN": "another"}):
        options = ("--address", cluster.address, "--directory", str(script))
        refused = command(cluster, "submit", *options, "--", "python", "count.py", "x", "0", env=env)
        assert refused.returncode == 2
        assert "does not take this token" in refused.stderr
    assert command(cluster, "jobs", "list", "--address", cluster.address).stdout == before
