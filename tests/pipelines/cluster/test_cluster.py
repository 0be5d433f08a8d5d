"""Tasks and the memory granted to them. Tests that need real memory are in tests/chaos/test_memory.py."""

import pytest

from gristmill.errors import UserError
from pipelines.__main__ import main
from pipelines.cluster.local import LocalCluster
from pipelines.cluster.memory import LEAST
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
