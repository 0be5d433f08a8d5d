"""Three nodes of a Ray cluster on this machine, whose processes can be killed."""

import contextlib
import os
import signal
import tempfile
from pathlib import Path

import psutil

# A lost node is noticed after 5 s, not after half a minute; a machine that is busy with other things is not lost.
_SYSTEM = {
    "health_check_period_ms": 1000,
    "health_check_timeout_ms": 10_000,
    "health_check_failure_threshold": 3,
    "gcs_rpc_server_reconnect_timeout_s": 10,
}
_STORE = 80 << 20
_MEMORY = 3 << 30


class SoakCluster:
    """A Ray cluster of a head node that runs no tasks, and two workers of one CPU each.

    The first worker has twice the memory of the second and of nodes added later. All files are in a directory
    with a short path, because the length of socket paths is limited.
    """

    def __init__(self) -> None:
        self._place = tempfile.TemporaryDirectory(prefix="soak", dir="/tmp", ignore_cleanup_errors=True)
        self.start()

    def start(self) -> None:
        from ray._common.utils import get_default_ray_temp_dir
        from ray.cluster_utils import Cluster

        # Cluster writes its address there whatever its own directory is, and a fresh machine has none.
        Path(get_default_ray_temp_dir()).mkdir(parents=True, exist_ok=True)
        common = {"include_dashboard": False, "object_store_memory": _STORE}
        directory = tempfile.mkdtemp(dir=self._place.name)
        head = {**common, "num_cpus": 0, "temp_dir": directory, "_system_config": _SYSTEM}
        self.cluster = Cluster(initialize_head=True, head_node_args=head)
        self.add_node(2 * _MEMORY)
        self.add_node()

    @property
    def address(self) -> str:
        return str(self.cluster.address)

    def add_node(self, memory: int = _MEMORY) -> None:
        self.cluster.add_node(num_cpus=1, memory=memory, object_store_memory=_STORE)

    def workers(self, task: str) -> list[psutil.Process]:
        """Return the processes that run a task or an actor with `task` in its name."""
        return [
            worker
            for node in self.cluster.worker_nodes | {self.cluster.head_node}
            for worker in workers_of(_raylet(node), task)
        ]

    def kill_node_of(self, worker: psutil.Process) -> None:
        """Send SIGKILL to the raylet that started this worker. The worker ends with the raylet."""
        node = next(node for node in self.cluster.worker_nodes if worker in workers_of(_raylet(node)))
        os.kill(_raylet(node), signal.SIGKILL)
        self.cluster.remove_node(node, allow_graceful=False)

    def kill_all(self) -> None:
        """Send SIGKILL to the raylets of all nodes, and remove the nodes, including the head with the
        cluster's state.
        """
        nodes = self.cluster.list_all_nodes()
        for node in nodes:
            os.kill(_raylet(node), signal.SIGKILL)
        for node in reversed(nodes):
            self.cluster.remove_node(node, allow_graceful=False)

    def close(self) -> None:
        self.kill_all()
        self._place.cleanup()


def _raylet(node) -> int:
    return node.all_processes["raylet"][0].process.pid


def workers_of(pid: int, task: str = "") -> list[psutil.Process]:
    """Return the processes below `pid` in which Ray runs tasks with `task` in their names, except Ray's
    agents.
    """
    found = []
    with contextlib.suppress(psutil.NoSuchProcess):
        for process in psutil.Process(pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                title = " ".join(process.cmdline())
                if title.startswith("ray::") and "Agent" not in title and task in title:
                    found.append(process)
    return found
