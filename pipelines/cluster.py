"""Where tasks run: Ray tasks on one machine or many, or the same tasks in this process.

A task that raises is tried three times with growing pauses; what a user must act on (UserError) stops at once. Tasks in flight
are bounded, so the driver never holds more than a few results.
"""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from pipelines.contracts.advisories import refuse_known
from pipelines.contracts.errors import RemoteError, StorageError, UserError, reason_of
from pipelines.memory import measured

Item = TypeVar("Item")
Result = TypeVar("Result")
Progress = Callable[[str, int, int], None]
_ATTEMPTS = 3
_PAUSE_SECONDS = 0.5
_COUNT_SECONDS = 5.0


def _no_progress(title: str, done: int, total: int) -> None:
    return None


@dataclass
class LocalCluster:
    """Runs every task in this process, one after the other: for tests, for debugging, for people without a cluster.

    `peak_bytes`: the most memory that a task has used since it was set to 0.
    """

    progress: Progress = _no_progress
    workers: int = 1
    peak_bytes: int = 0

    def map(
        self, function: Callable[[Item], Result], items: Sequence[Item], label: Callable[[Item], str]
    ) -> Iterator[tuple[int, Result]]:
        """See pipelines.contracts.stage.Cluster."""
        title = _title(function)
        self.progress(title, 0, len(items))
        for position, item in enumerate(items):
            result, peak = _attempt(function, item, label(item))
            self.peak_bytes = max(self.peak_bytes, peak)
            yield position, result
            self.progress(title, position + 1, len(items))

    def close(self) -> None:
        """Nothing to release."""


def _attempt(function: Callable[[Item], Result], item: Item, label: str) -> tuple[Result, int]:
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            return measured(function, item)
        except UserError:
            raise
        except Exception as error:
            if attempt == _ATTEMPTS:
                raise _failure(label, error) from error
            time.sleep(_PAUSE_SECONDS * attempt)
    raise AssertionError("unreachable")


def _failure(label: str, error: BaseException) -> UserError:
    if isinstance(error, OSError) and error.errno is not None:
        return UserError(
            f"{label}: {reason_of(error)}; mend that and run the same command, which goes on where it stopped"
        )
    if isinstance(error, RemoteError):
        return UserError(f"{label}: failed {_ATTEMPTS} times: {error}; run the same command when the store answers")
    if isinstance(error, StorageError):
        return UserError(
            f"{label}: failed {_ATTEMPTS} times: {error}; mend that and run the same command, which goes on where it stopped"
        )
    # The message of a library's exception may quote the text it choked on, so only its type and place are shown.
    place = ""
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        place = f" in {Path(code.co_filename).name}:{trace.tb_lineno}"
        trace = trace.tb_next
    return UserError(f"{label}: failed {_ATTEMPTS} times, last with {type(error).__name__}{place}")


def _title(function: Callable[..., Any]) -> str:
    return function.__name__.strip("_").replace("_", " ")


@dataclass
class RayCluster:
    """Runs tasks as Ray Core tasks of one CPU each. With an `address`, or in a submitted job, it joins the cluster and uses
    the CPUs that it has at any time; else it starts Ray here with `workers` CPUs. `peak_bytes` as in LocalCluster.
    """

    workers: int
    address: str | None = None
    progress: Progress = _no_progress
    peak_bytes: int = 0
    _started: bool = field(default=False, init=False)
    _counted: float = field(default=0.0, init=False)

    def _start(self) -> None:
        if self._started:
            return
        refuse_known("ray", "pyarrow")
        import logging

        import ray

        options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
        self.address = self.address or os.environ.get("RAY_ADDRESS") or None  # which Ray sets for a submitted job
        if self.address is None:
            # Ray warns and slows down when /dev/shm is small; parts go through files, so a small object store is enough.
            options.update(num_cpus=self.workers, include_dashboard=False, object_store_memory=256 << 20)
            # Without an address Ray would join whichever cluster was started last on this machine.
            options.update(address="local")
        else:
            options.update(address=self.address)
        try:
            ray.init(**options)
        except Exception as error:
            where = "start on this machine" if self.address is None else f"join the cluster at {self.address}"
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise UserError(
                f"Ray did not {where}: {reason}; run the command again, or build with --in-process"
            ) from error
        self._started = True

    def _count_workers(self) -> None:
        """The CPUs of a joined cluster, which grows while tasks wait and shrinks when nodes are lost."""
        if self.address is None or time.monotonic() - self._counted < _COUNT_SECONDS:
            return
        import ray

        self.workers = max(1, int(ray.cluster_resources().get("CPU", 0)))
        self._counted = time.monotonic()

    def map(
        self, function: Callable[[Item], Result], items: Sequence[Item], label: Callable[[Item], str]
    ) -> Iterator[tuple[int, Result]]:
        """See pipelines.contracts.stage.Cluster."""
        title = _title(function)
        self.progress(title, 0, len(items))
        if not items:
            return
        self._start()
        import ray

        remote = ray.remote(num_cpus=1, max_retries=0)(measured)
        waiting = list(range(len(items)))[::-1]
        failures = dict.fromkeys(waiting, 0)
        running: dict[Any, int] = {}
        done = 0
        while waiting or running:
            self._count_workers()
            while waiting and len(running) < 2 * self.workers:
                position = waiting.pop()
                gpus = getattr(items[position], "gpus", 0)
                if gpus and gpus > ray.cluster_resources().get("GPU", 0):
                    raise UserError(
                        f"{label(items[position])}: asks for {gpus:g} GPUs, the cluster has fewer; lower num_gpus"
                    )
                running[remote.options(name=function.__name__, num_gpus=gpus).remote(function, items[position])] = (
                    position
                )
            ready, _ = ray.wait(list(running), num_returns=1)
            position = running.pop(ready[0])
            try:
                result, peak = ray.get(ready[0])
            except Exception as error:
                cause = getattr(error, "cause", None) or error
                failures[position] += 1
                if isinstance(cause, UserError):
                    raise cause from None
                if failures[position] == _ATTEMPTS:
                    raise _failure(label(items[position]), cause) from error
                time.sleep(_PAUSE_SECONDS * failures[position])
                waiting.append(position)
                continue
            done += 1
            self.peak_bytes = max(self.peak_bytes, peak)
            self.progress(title, done, len(items))
            yield position, result

    def close(self) -> None:
        """Stop the local Ray, or leave the cluster that was joined."""
        if self._started:
            import ray

            ray.shutdown()
            self._started = False
