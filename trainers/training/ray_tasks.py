"""Join or start a Ray cluster, run function calls as its tasks, and set up the process group of Ray Train's
workers.
"""

import os
import socket
import struct
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gristmill.errors import UserError
from gristmill.libraries.local_ray import start_local_ray

_NEEDLESS = ("DatasetsCallback", "PlacementGroupCleanerCallback")  # of Ray Train
_SIOCGIFADDR = 0x8915  # the ioctl number on Linux


@dataclass(frozen=True)
class FinishedTask:
    """A task that has ended. If its process or node was lost, there is no value, and `lost` says what
    happened.
    """

    reference: Any
    value: Any = None
    lost: str = ""


class RayTasks:
    """Runs calls of `work` as tasks of the cluster. Each task reserves `cpus` CPUs and `gpus` GPUs, which may
    be fractions.
    """

    def __init__(self, work: Callable[..., Any], cpus: float, gpus: float) -> None:
        import ray

        # Lost tasks are counted by whoever submits them, so Ray repeats none itself.
        self._remote = ray.remote(num_cpus=cpus, num_gpus=gpus, max_retries=0)(work)
        self._ray = ray

    def submit(self, *arguments: Any) -> Any:
        """Submit a call of `work` with `arguments`, and return its reference at once. The call starts when
        enough CPUs and GPUs are free.
        """
        return self._remote.remote(*arguments)

    def wait(self, references: Sequence[Any], seconds: float) -> list[FinishedTask]:
        """Wait up to `seconds` for one of the tasks to end. Returns a list that contains this task, or an
        empty list after a timeout. An error that `work` raised is raised again.
        """
        ended, _ = self._ray.wait(list(references), num_returns=1, timeout=seconds)
        return [self._finished(reference) for reference in ended]

    def cancel(self, references: Sequence[Any]) -> None:
        """Cancel tasks: those that have not begun never start, and in the others a KeyboardInterrupt is
        raised.
        """
        for reference in references:
            self._ray.cancel(reference)

    def kill(self, reference: Any) -> None:
        """End a task at once by killing its process."""
        self._ray.cancel(reference, force=True)

    def _finished(self, reference: Any) -> FinishedTask:
        errors = self._ray.exceptions
        try:
            return FinishedTask(reference, self._ray.get(reference))
        except errors.RayTaskError:
            raise
        except (errors.WorkerCrashedError, errors.OutOfMemoryError, errors.NodeDiedError) as error:
            return FinishedTask(reference, lost=str(error).splitlines()[0])


@contextmanager
def ray_tasks(work: Callable[..., Any], cpus: float, gpus: float) -> Iterator[RayTasks]:
    """Yield a `RayTasks` that runs calls of `work` on a Ray cluster, which is joined or started if necessary
    (`start_ray`). Raises UserError if no node has enough CPUs and GPUs for a task.
    """
    import ray

    started = not ray.is_initialized()
    if started:
        start_ray()
    try:
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        if not any(each.get("CPU", 0) >= cpus and each.get("GPU", 0) >= gpus for each in nodes):
            most = {kind: max((each.get(kind, 0) for each in nodes), default=0) for kind in ("CPU", "GPU")}
            raise UserError(
                f"a run needs {cpus:g} CPUs and {gpus:g} GPUs, but no node of the Ray cluster has as many; the largest has "
                f"{most['CPU']:g} CPUs and {most['GPU']:g} GPUs"
            )
        yield RayTasks(work, cpus, gpus)
    finally:
        if started:
            ray.shutdown()


def start_ray() -> None:
    """Join the cluster that RAY_ADDRESS names or, if it is not set, start one on this machine. Raises
    UserError if this fails.
    """
    import ray

    # Each of these features would start another actor, or wait for one, before the first step.
    for feature in ("RAY_USAGE_STATS_ENABLED", "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER", "RAY_TRAIN_METRICS_ENABLED"):
        os.environ.setdefault(feature, "0")
    # Ray's default of 60 s is too short for busy nodes, or if all load torch from one network storage.
    os.environ.setdefault("RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S", "180")
    # Ray Train reads it in this process; else its workers would change their directory.
    os.environ.setdefault("RAY_CHDIR_TO_TRIAL_DIR", "0")
    paths = [str(Path(__file__).parents[2]), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    variables = {"PYTHONPATH": os.pathsep.join(dict.fromkeys(paths))}
    alone = not os.environ.get("RAY_ADDRESS")
    if alone:
        os.environ.update(variables)  # workers inherit them; with a runtime_env Ray would start each of them twice
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            if alone:
                start_local_ray()
            else:
                ray.init(runtime_env={"env_vars": variables}, log_to_driver=False, logging_level="ERROR")
        except Exception as error:
            where = "start on this machine" if alone else f"join the cluster at {os.environ['RAY_ADDRESS']}"
            reason = (str(error) or type(error).__name__).splitlines()[0]
            raise UserError(f"Ray did not {where}: {reason}; run the same command when it can") from error


def lean_trainer() -> Any:
    """Return a subclass of Ray Train's DataParallelTrainer that starts no helper processes for data sets, for
    cleaning up placement groups or for autoscaling. Training does not need them, and each would load Ray
    Train before the workers start. If a version of Ray names the helpers' callbacks and methods differently,
    the helpers start as usual.
    """
    from ray.train.v2._internal.execution.scaling_policy import FixedScalingPolicy
    from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

    class OnGivenNodes(FixedScalingPolicy):
        def _send_resource_request(self) -> None: ...

        def _maybe_send_resource_request(self) -> None: ...

        def _cancel_resource_request(self) -> None: ...

    class LeanTrainer(DataParallelTrainer):
        def _create_default_callbacks(self) -> list[Any]:
            callbacks = super()._create_default_callbacks()
            return [callback for callback in callbacks if type(callback).__name__ not in _NEEDLESS]

        def _initialize_and_run_controller(self, **parts: Any) -> Any:
            return super()._initialize_and_run_controller(
                **parts | {"scaling_policy": OnGivenNodes(self.scaling_config)}
            )

    return LeanTrainer


def rank_variables() -> Any:
    """Return a backend configuration for Ray Train that sets torchrun's environment variables in each worker.

    It replaces Ray's own TorchConfig, which would load torch in Ray Train's controller and in the driver.
    """
    from ray.train.backend import Backend, BackendConfig

    class RankVariables(Backend):
        share_cuda_visible_devices = True  # so that LOCAL_RANK is the number of the worker's GPU, as under torchrun

        def on_start(self, worker_group: Any, backend_config: Any) -> None:
            worker_group.execute(_set_rank_variables, *worker_group.execute_single(0, _address_of_group))

    class Config(BackendConfig):
        @property
        def backend_cls(self) -> Any:
            return RankVariables

    return Config()


def _address_of_group() -> tuple[str, int]:
    import ray

    with socket.socket() as probe:
        probe.bind(("", 0))
        return ray.util.get_node_ip_address(), probe.getsockname()[1]


def _set_rank_variables(address: str, port: int) -> None:
    """Set torchrun's environment variables in a worker, and make gloo use Ray's network interface. By default
    gloo resolves the host's name, which often gives a loopback address.
    """
    import ray
    import ray.train

    own = ray.train.get_context()
    ranks = {
        "RANK": own.get_world_rank(),
        "WORLD_SIZE": own.get_world_size(),
        "LOCAL_RANK": own.get_local_rank(),
        "LOCAL_WORLD_SIZE": own.get_local_world_size(),
    }
    os.environ.update({name: str(value) for name, value in ranks.items()})
    os.environ.update(MASTER_ADDR=address, MASTER_PORT=str(port))
    interface = interface_of(ray.util.get_node_ip_address())
    if interface is not None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)


def interface_of(address: str) -> str | None:
    """Return the name of this machine's network interface with the IPv4 address `address`, or None if there
    is none.
    """
    import fcntl

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:
                reply = fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack("256s", name.encode()))
            except OSError:  # this interface has no IPv4 address
                continue
            if socket.inet_ntoa(reply[20:24]) == address:
                return name
    return None
