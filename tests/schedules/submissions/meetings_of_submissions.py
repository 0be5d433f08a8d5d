"""Scenarios: concurrent runs of `pipelines submit` for the same command, with equal or different slots or
code.
"""

from types import SimpleNamespace

from gristmill.errors import ConflictError, StorageError, UserError
from pipelines.commands.submit import jobs
from pipelines.commands.submit.submission import Work
from tests.schedules.choices import Default
from tests.schedules.explore import Scenario
from tests.schedules.simulation import Simulation

_LAUNCH = jobs.Launch("/opt/python", None, {})
_COMMAND = ("python", "-m", "pipelines", "build", "web.yaml")


class MemoryCluster:
    """Stands in for a client of Ray's job server. Each call is a request; a call that changes something also
    waits for an answer.

    Jobs run until they are stopped. A failed request raises the same error as the real client, and may still
    have taken effect.
    """

    def __init__(self, world):
        self.world = world
        self.known = world.disk.jobs if hasattr(world.disk, "jobs") else {}
        world.disk.jobs = self.known

    def _request(self, kind, path=""):
        try:
            self.world.step(kind, f"cluster/{path}")
        except OSError as error:
            raise RuntimeError(f"Request failed: {error}") from error

    def list_jobs(self):
        self._request("list")
        return [SimpleNamespace(**vars(job)) for job in self.known.values()]

    def get_job_info(self, job_id):
        self._request("get", job_id)
        return SimpleNamespace(**vars(self.known[job_id]))

    def submit_job(self, **request):
        name = request["submission_id"]
        self._request("put", name)
        if name in self.known:
            raise RuntimeError("Request failed with status code 500: id is taken")
        self.known[name] = SimpleNamespace(
            submission_id=name, status="RUNNING", entrypoint=request["entrypoint"], message="", driver_exit_code=None,
            start_time=int(self.world.now * 1000), end_time=None, metadata=request["metadata"],
        )  # fmt: skip
        self.world.disk.changes += 1
        self._request("answer", name)
        return name

    def stop_job(self, job_id):
        self._request("delete", job_id)
        self.known[job_id].status = "STOPPED"
        self.world.disk.changes += 1
        self._request("answer", job_id)
        return True


def _work(slot, key="code"):
    return Work(_COMMAND, "build", "words", key, slot)


def _submit(cluster, work, say):
    def run():
        try:
            return jobs.submit(cluster, work, _LAUNCH, say).id
        except (UserError, StorageError) as error:
            return error
        except RuntimeError as error:  # the client's; the command line shows it as it is
            return error

    return run


def meeting_of_submissions(*works):
    """Return a scenario in which processes submit the same command at the same moment. Unless a process is
    killed or a request fails, one job runs in the end, and the results and ConflictErrors of the processes
    name this job.
    """

    def start(world):
        cluster = MemoryCluster(world)
        for number, work in enumerate(works):
            world.start(f"submit {number + 1}", _submit(cluster, work, world.say), machine="abc"[number])

    def judge(world):
        failed = any(decision.action == "fail" for decision in world.record)
        cut = failed or any(process.killed for process in world.processes.values())
        for name, process in world.processes.items():
            assert process.done or process.killed, f"{name} has not ended"
            assert process.error is None, f"{name} ended with {process.error!r}"
            assert failed or process.killed or not isinstance(process.result, RuntimeError), f"{name}: {process.result}"
        active = _active(world)
        assert cut or len(active) == 1, f"{len(active)} jobs of one command run: {active}"
        for name, process in world.processes.items():
            if isinstance(process.result, str):
                assert cut or process.result in active, f"{name} names {process.result}, which does not run"
            elif isinstance(process.result, ConflictError):
                assert cut or any(str(process.result).startswith(job) for job in active), f"{name}: {process.result}"
        _submit_again(world, works[0])

    return Scenario("submissions", start, judge, faults=("kills", "suspensions", "errors"))


def _active(world):
    return [job.submission_id for job in world.disk.jobs.values() if job.status == "RUNNING"]


def _submit_again(world, work):
    before = _active(world)
    again = Simulation(Default(), disk=world.disk)
    process = again.start("submit again", _submit(MemoryCluster(again), work, again.say))
    again.run(100)
    assert process.error is None, f"submitted again, it ended with {process.error!r}"
    assert not before or _active(again) == before, f"submitted again, {_active(again)} run after {before}"
    assert before or isinstance(process.result, str), f"submitted again: {process.result}"


def two_slots():
    """Return a scenario that submits the same work for two slots, and for the first slot twice."""
    return meeting_of_submissions(_work("mon"), _work("tue"), _work("mon"))


def two_versions():
    """Return a scenario that submits the same command for two slots with different code, and for the first
    slot twice.
    """
    return meeting_of_submissions(_work("mon"), _work("tue", "other code"), _work("mon"))
