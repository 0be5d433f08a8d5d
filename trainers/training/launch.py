"""Launch training in this process, under torchrun, or on workers of Ray Train.

On a cluster, the run directory must be on shared storage. If a run on Ray loses workers, it continues from
its last checkpoint with as many workers as still fit on the cluster, up to the number requested. It ends if
workers are lost four times in a row without a new checkpoint, if no resources are left, or if any other error
occurs.
"""

import os
import shutil
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gristmill.config import plain
from gristmill.errors import UserError, reason_of
from gristmill.events import EventLog
from gristmill.libraries.advisories import refuse_known
from gristmill.libraries.loading import loading
from gristmill.storage.disk import LocalPath
from gristmill.storage.paths import is_url
from trainers.config.job import Job
from trainers.config.job_kinds import parse_job
from trainers.data.job_interface import JobCorpus
from trainers.runs import checkpoint
from trainers.runs.job_data import reader_of
from trainers.runs.progress import followed
from trainers.runs.run import STOP, begin_attempt
from trainers.runs.sinks import require_libraries
from trainers.training.ray_tasks import lean_trainer, rank_variables, start_ray

_MAX_FAILURES = 4  # in a row without a new checkpoint; the same cause would then end the next workers too
_ANSWER_SECONDS = 60.0  # time for a node to start a process; Ray notices a lost node within half a minute
_BROKEN = ("Connection closed by peer", "Connection reset by peer", "Broken pipe")  # of gloo
_LATE = ("Timed out", "timed out", "timeout")  # of gloo, of NCCL and the store


class LostWorkerError(UserError):
    """Raised in a worker that has lost its connection to another worker, and by the launcher if it cannot
    continue a run whose workers were lost.
    """


def launch(config: Job, corpus: JobCorpus, run: LocalPath, workers: int, show: Callable[[str], None]) -> None:
    """Train with the resolved `config` until the run is finished or stopped. Under torchrun, `workers` is
    ignored.

    Under torchrun, raises LostWorkerError if another worker is lost. On Ray, raises it only if workers are
    lost four times in a row without a new checkpoint, or if no resources are left.
    """
    refuse_known("torch", "ray", "pyarrow")
    require_libraries(config.sinks)
    attempt = None
    if os.environ.get("RANK", "0") == "0":
        (run / STOP).unlink(missing_ok=True)  # left by a launch that was killed before it saw the file
        attempt = begin_attempt(run)
    if "RANK" in os.environ or workers == 1:
        _train(config, corpus, run, show, attempt)
    else:
        config = config.with_inputs(tuple(d if is_url(d) else str(Path(d).resolve()) for d in config.inputs))
        with followed(run / "log.jsonl", show):
            _launch_on_ray(config, run.resolve(), workers)


def _train(
    config: Job, corpus: JobCorpus, run: LocalPath, show: Callable[[str], None] | None, attempt: str | None
) -> None:
    with loading("trainers.training.loop"):
        import torch

        from trainers.engine.hardware.micro_batch import is_out_of_memory
        from trainers.training.loop import train

    try:
        train(config, corpus, run, show, attempt)
    except (RuntimeError, MemoryError) as error:
        if is_out_of_memory(error):
            raise UserError(
                f"{run}: worker {os.environ.get('RANK', '0')} ran out of memory. Lower execution.micro_batch (now "
                f"{config.execution.micro_batch}; the batch stays what it is), set execution.activation_checkpointing=true, "
                f"or spread the state over more workers with execution.zero_stage; the same command continues from the "
                f"last checkpoint"
            ) from error
        # Gloo has no exception of its own.
        of_gloo = "gloo/transport" in str(error) and any(words in str(error) for words in (*_BROKEN, *_LATE))
        if not of_gloo and not isinstance(error, torch.distributed.DistError):
            raise
        raise LostWorkerError(
            f"{run}: {_lost(str(error))} The same command continues from the last checkpoint"
        ) from error
    except BrokenPipeError:  # the reader of the standard output has exited
        raise
    except OSError as error:  # Ray would wrap it in an error of its own, with a traceback
        raise UserError(
            f"{run}: worker {os.environ.get('RANK', '0')}: {reason_of(error)}; fix that and run the same command, which "
            f"continues from the last checkpoint"
        ) from error


def _lost(error: str) -> str:
    if any(words in error for words in _LATE):
        return (
            "another worker did not answer within the time limit of a collective: it hangs, is very slow, or its node or "
            "network is down. Check its process and its storage; DEEPSPEED_TIMEOUT sets the limit in minutes."
        )
    return (
        "the connection to another worker broke, so that worker is gone; if it left no message, check whether the "
        "system killed it, often for lack of memory."
    )


@contextmanager
def _sigterm_asks_to_stop(run: LocalPath) -> Iterator[None]:
    before = signal.signal(signal.SIGTERM, lambda *_: (run / STOP).touch())
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
        (run / STOP).unlink(missing_ok=True)


def _launch_on_ray(config: Job, run: LocalPath, workers: int) -> None:
    import ray

    started = not ray.is_initialized()
    if started:
        start_ray()
    try:
        # This process may be on a node without a GPU.
        on_gpu = ray.cluster_resources().get("GPU", 0) >= 1 and _can_use_gpus()
        # Ray installs its own SIGTERM handler when it starts, so ours is installed after that.
        with _sigterm_asks_to_stop(run):
            _train_on_what_is_left(config, run, workers, "GPU" if on_gpu else "CPU")
    finally:
        if started:
            ray.shutdown()


def _can_use_gpus() -> bool:
    """Return whether torch is built for GPUs. Loading torch is slow, so call this only if necessary."""
    import torch

    return bool(torch.version.cuda or torch.version.hip)


def _train_on_what_is_left(config: Job, run: LocalPath, workers: int, kind: str) -> None:
    nodes = _nodes(kind)
    if sum(nodes) < workers:
        # Without this check Ray would wait for ever.
        there = f"the Ray cluster has {sum(nodes)} {kind}s"
        raise UserError(f"--workers: got {workers}, {there}; allowed 1 to {sum(nodes)}")
    size, reached, in_row = workers, _step_of_checkpoint(run), 0
    while (lost := _fit(config, run, size, kind, _each(nodes, size))) is not None:
        before, reached = reached, _step_of_checkpoint(run)
        in_row = 1 if reached > before else in_row + 1
        if (run / STOP).exists():
            message = f"{lost}; the same command continues from step {reached}"
            _record(run, "stopped", step=reached, message=message)
            return
        nodes = _nodes(kind, answering=True)
        size = min(workers, sum(nodes))
        if in_row == _MAX_FAILURES or size == 0:
            raise LostWorkerError(
                f"{run}: workers were lost {in_row} times in a row without a checkpoint after step {reached}, the last "
                f"time: {lost}; {sum(nodes)} {kind}s are left. Check in Ray's logs whether the system killed them, "
                f"often for lack of memory, fix the cause, and run the same command again"
            )
        message = f"{lost}; continues from step {reached} with {size} of {workers} workers"
        _record(run, "restart", step=reached, workers=size, in_row=in_row, message=message)


def _fit(config: Job, run: LocalPath, workers: int, kind: str, each: int) -> str | None:
    """Train on `workers` workers, each with one GPU if `kind` is `GPU`, otherwise with `each` CPUs. Returns
    None if training has ended, or a line that says how it was interrupted.
    """
    from ray.train import FailureConfig, RunConfig, ScalingConfig

    on_gpu = kind == "GPU"
    # Ray needs storage that all workers share, which the run directory is. Its files there are useless
    # afterwards.
    results = run / ".ray"
    # Ray's own retries are off: they follow every error, and need as many workers as before.
    never = FailureConfig(max_failures=0, controller_failure_limit=0, max_preemption_failures=0)
    try:
        lean_trainer()(
            _work,
            train_loop_config={"config": plain(config), "run": str(run), "attempt": begin_attempt(run)},
            scaling_config=ScalingConfig(
                num_workers=workers, use_gpu=on_gpu, resources_per_worker=None if on_gpu else {kind: each}
            ),
            backend_config=rank_variables(),
            run_config=RunConfig(name=run.name, storage_path=str(results), failure_config=never),
        ).fit()
    except Exception as error:
        lost = _loss(error)
        _release()
        return lost
    finally:
        shutil.rmtree(results, ignore_errors=True)
    return None


def _release() -> None:
    """Release the resources that a lost controller had reserved for its workers. Otherwise Ray would keep
    them reserved until this job ends.
    """
    import ray
    from ray._raylet import PlacementGroupID
    from ray.util.placement_group import PlacementGroup, placement_group_table, remove_placement_group

    job = ray.get_runtime_context().get_job_id()
    for number, group in placement_group_table().items():
        if number.endswith(job) and group["state"] != "REMOVED":  # a group's id ends with the id of its job
            remove_placement_group(PlacementGroup(PlacementGroupID(bytes.fromhex(number))))


def _work(arguments: dict[str, Any]) -> None:
    config = parse_job(arguments["config"], "resolved.yaml")
    _train(config, reader_of(config).corpus(config), LocalPath(arguments["run"]), None, arguments["attempt"])


def _loss(error: Exception) -> str:
    """Return a line that says how training on Ray was interrupted: workers or their controller were lost, or
    workers could not be started. Any other error is raised again; if it wraps a worker's UserError, only that
    is raised.
    """
    from ray.exceptions import OutOfMemoryError, RayActorError, RayError, RayTaskError
    from ray.train import ControllerError, PreemptionError
    from ray.train.v2._internal.exceptions import WorkerHealthCheckTimeoutError

    failures = getattr(error, "worker_failures", {})
    seen = {rank: getattr(failure, "health_check_failure", failure) for rank, failure in sorted(failures.items())}
    for failure in seen.values():
        # Only this one of Ray's errors wraps an exception of our code. The others concern processes and
        # nodes.
        raised = isinstance(failure, RayTaskError)
        if raised or not isinstance(failure, (LostWorkerError, RayError, WorkerHealthCheckTimeoutError)):
            raise failure if isinstance(failure, UserError) else error
    if isinstance(error, RayActorError):
        return "lost Ray Train's controller"
    # None of our code runs in the controller, so its errors concern starting workers.
    if not seen and not isinstance(error, (ControllerError, PreemptionError)):
        raise error
    gone = [
        f"worker {rank}{' (out of memory)' if isinstance(failure, OutOfMemoryError) else ''}"
        for rank, failure in seen.items()
        if not isinstance(failure, LostWorkerError)
    ]
    if gone:
        return f"lost {', '.join(gone)}"
    return "lost a worker" if seen else f"Ray could not start or keep workers ({str(error).splitlines()[-1]})"


def _nodes(kind: str, answering: bool = False) -> list[int]:
    """Return the number of CPUs or GPUs of each node that Ray lists as alive. With `answering`, count only
    nodes that complete a task within a minute, because Ray notices the loss of a node late.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    alive = {node["NodeID"]: int(node["Resources"].get(kind, 0)) for node in ray.nodes() if node["Alive"]}
    if not answering:
        return list(alive.values())
    nothing = ray.remote(num_cpus=0, max_retries=0)(lambda: None)
    cpus_of = {
        nothing.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)).remote(): count
        for node, count in alive.items()
    }
    answered, _ = ray.wait(list(cpus_of), num_returns=len(cpus_of), timeout=_ANSWER_SECONDS)
    return [cpus_of[task] for task in answered if _succeeded(ray, task)]


def _succeeded(ray: Any, task: Any) -> bool:
    try:
        ray.get(task)
    except ray.exceptions.RayError:
        return False
    return True


def _each(nodes: Sequence[int], workers: int) -> int:
    """Return the largest number of CPUs or GPUs per worker with which all workers fit on the nodes. `nodes`
    holds the number of CPUs or GPUs of each node.
    """
    return next(count for count in range(max(nodes), 0, -1) if sum(node // count for node in nodes) >= workers)


def _step_of_checkpoint(run: LocalPath) -> int:
    latest = checkpoint.newest(run, lambda message: None)
    return latest.step if latest else 0


def _record(run: LocalPath, event: str, **fields: Any) -> None:
    """Write an event to the run's log. No worker may have the log open."""
    log = EventLog(run / "log.jsonl")
    log.write(event, **fields)
    log.close()
