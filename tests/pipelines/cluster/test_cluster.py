"""Tasks and the memory granted to them. Tests that need real memory are in tests/chaos/test_memory.py."""

import sys

import pytest

from gristmill.errors import UserError
from pipelines.__main__ import main
from pipelines.cluster import ray as ray_tasks
from pipelines.cluster.local import LocalCluster
from pipelines.cluster.memory import LEAST, Measured
from pipelines.cluster.ray import RayCluster
from pipelines.cluster.tasks import task_failure


@pytest.mark.parametrize("size", ["0", "1", "1KB", "150MB"])
def test_less_memory_than_the_libraries_take_is_refused(corpus_file, tmp_path, capsys, size):
    assert main(["build", str(corpus_file), "--in-process", "--memory-per-worker", size]) == 2
    assert capsys.readouterr().err == (
        f"error: --memory-per-worker: got {size!r}, allowed 300MB or more: the libraries of a task take most of that\n"
    )
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("cpus", "memory", "room"),
    [(64, 4e9, LEAST), (4, 4e9, 1_000_000_000), (1, 4e9, 4_000_000_000), (4, 2e8, 200_000_000)],
)
def test_shares_of_a_small_machine_are_enough_for_the_libraries(cpus, memory, room):
    cluster = RayCluster(cpus)
    cluster._nodes = [{"CPU": cpus, "memory": memory}]
    assert cluster._room(tasks=1000, attempt=0) == room


def _fail(error):
    raise error


def test_only_a_want_of_memory_does_not_fit():
    """When the build looks for the document that exhausts memory, a document on which the stage fails in
    another way must not be blamed.
    """
    cluster = LocalCluster()
    assert cluster.fits(_fail, ValueError("a text"), None)
    assert not cluster.fits(_fail, MemoryError(), None)
    with pytest.raises(UserError, match="corrupt"):
        cluster.fits(_fail, UserError("corrupt"), None)


def test_a_task_whose_nodes_are_lost_repeatedly_gets_an_error_with_a_remedy():
    from ray.exceptions import NodeDiedError

    message = str(task_failure("read web: files 00000", NodeDiedError("10.0.0.3, and what Ray says of it"), 0, None))
    assert message.startswith("read web: files 00000: failed 3 times, last with Ray's NodeDiedError: ")
    assert message.endswith("the same command continues where it stopped")


class _StoppingRay:
    """Ray with two nodes, of 3 GB and 1 GB. The larger one is stopped in an orderly way when a task that needs
    it waits. The task "wide" runs out of memory at its first attempt; the task "long" ends last.
    """

    def __init__(self):
        self.requests, self.cancelled, self.is_stopped, self.waits = [], [], False, 0

    def nodes(self):
        large = {"NodeID": "a", "Alive": not self.is_stopped, "DeathReason": int(self.is_stopped)}
        small = {"NodeID": "b", "Alive": True, "DeathReason": 0}
        sizes = ((large, 3e9), (small, 1e9))
        return [{**node, "Resources": {"CPU": 1.0, "memory": memory}} for node, memory in sizes]

    def options(self, memory, **_):
        self.memory = memory
        return self

    def remote(self, function, item, room, purpose):
        self.requests.append((item, self.memory))
        return len(self.requests) - 1

    def wait(self, requests, timeout, num_returns=1):
        self.waits += 1
        assert self.waits < 20, f"hangs with {requests}"
        self.is_stopped = self.is_stopped or any(self.requests[each][1] > 1e9 for each in requests)
        able = [each for each in requests if self.requests[each][1] <= 1e9]
        is_left = any(self.requests[each][0] == "wide" for each in requests)
        return [each for each in able if self.requests[each][0] == "wide" or not is_left][:1], []

    def get(self, request):
        if request == 0:
            raise MemoryError
        return Measured(self.requests[request][0], 0, {})

    def cancel(self, request):
        self.cancelled.append(self.requests[request])


def test_a_task_that_waits_for_a_stopped_node_gets_what_the_others_have(monkeypatch):
    """Ray never starts it nor reports an error. A task that runs on another node is not repeated."""
    ray = _StoppingRay()
    monkeypatch.setitem(sys.modules, "ray", ray)
    for seconds in ("_COUNT_SECONDS", "_REPLACED_SECONDS", "PAUSE_SECONDS"):
        monkeypatch.setattr(ray_tasks, seconds, 0.0)
    cluster = RayCluster(2)
    cluster._started, cluster._remote = True, ray
    results = list(cluster.map(str, ["wide", "long"], str))
    assert results == [(0, "wide"), (1, "long")]
    assert ray.requests == [("wide", 1e9), ("long", 1e9), ("wide", 2e9), ("wide", 1e9)]
    assert ray.cancelled == [("wide", 2e9)]
    assert cluster.fits(str, "wide", 2_000_000_000)  # nobody knows; it must not be blamed
    assert ray.cancelled == [("wide", 2e9), ("wide", 2e9)]
