"""Run tasks on Ray, on one machine or many.

A task that raises an error is attempted up to three times, with growing pauses; a UserError stops the build
at once.

Every task has a memory limit, which the kernel enforces on Linux. A task that exceeds it, or whose process is
killed, is retried after the other tasks with twice as much memory, then with four times as much, up to the
memory of the largest node. Ray starts only as many tasks on a node as its memory allows.
"""

import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from gristmill.budget import add_account
from gristmill.errors import UserError
from gristmill.libraries.advisories import refuse_known
from gristmill.libraries.local_ray import start_local_ray
from pipelines.cluster.memory import ALLOCATOR, LEAST, measured, room_here
from pipelines.cluster.tasks import (
    ATTEMPTS,
    PAUSE_SECONDS,
    Progress,
    Usage,
    broken_reason,
    is_broken,
    no_progress,
    task_failure,
    title_of,
)

Item = TypeVar("Item")
Result = TypeVar("Result")
_RAY_NEEDS = 64 << 10  # free bytes that Ray needs to start; it survives a disk that fills up later
_COUNT_SECONDS = 5.0
_REPLACED_SECONDS = 300.0  # time for an autoscaler to put another node in the place of one that is gone
_INTENDED = (1, 4)  # Ray's death reasons for a node that was told to stop, and for an idle one


def _silent(line: str) -> None:
    return None


@dataclass
class _Task:
    """A task in flight: the index of its item, its memory limit in bytes, and the time when it was last
    submitted.
    """

    position: int
    room: int | None
    since: float = field(default_factory=time.monotonic)


def _full_temporary_directory() -> str | None:
    directory = os.environ.get("RAY_TMPDIR", "/tmp")
    return directory if shutil.disk_usage(directory).free < _RAY_NEEDS else None


@dataclass
class RayCluster:
    """A cluster that runs tasks as Ray Core tasks of one CPU each.

    With an `address`, or RAY_ADDRESS in the environment, it joins that Ray cluster and uses all of its CPUs;
    nodes may come and go. Otherwise it starts Ray on this machine with `workers` CPUs.

    `memory` is the memory limit of a task at its first attempt, in bytes. By default it is the lowest memory
    per CPU of any node, or LEAST if that is more. With fewer tasks than CPUs, the default is higher.
    """

    workers: int
    address: str | None = None
    progress: Progress = no_progress
    say: Callable[[str], None] = _silent
    memory: int | None = None
    peak_bytes: int = 0
    usage: Usage = field(default_factory=Usage)
    _started: bool = field(default=False, init=False)
    _remote: Any = field(default=None, init=False)  # shared by all tasks, because Ray sends each one to all nodes
    _broken: int = field(default=0, init=False)
    _counted: float = field(default=float("-inf"), init=False)
    _nodes: list[dict[str, float]] = field(default_factory=list, init=False)
    _gone: frozenset[str] = field(default=frozenset(), init=False)
    _lost: float = field(default=float("-inf"), init=False)  # when the loss of a node was last noticed
    _largest: float = field(default=0.0, init=False)  # bytes for tasks of the largest node alive
    _shrunk: float = field(default=float("-inf"), init=False)  # when `_largest` last became smaller

    def _start(self) -> None:
        if self._started:
            return
        began = time.monotonic()
        import ray

        refuse_known("ray")
        options: dict[str, Any]
        self.address = self.address or os.environ.get("RAY_ADDRESS") or None  # Ray sets RAY_ADDRESS for a submitted job
        if self.address is None:
            os.environ.update(ALLOCATOR)  # workers inherit it; with a runtime_env Ray would start them twice
            # Ray warns and slows down if /dev/shm is small. A small object store is enough, because parts go
            # through files.
            options = {"object_store_memory": 256 << 20, "_memory": room_here(self.memory, self.workers)}
            start = partial(start_local_ray, num_cpus=self.workers, **options)
        else:
            options = {"log_to_driver": False, "logging_level": "ERROR", "runtime_env": {"env_vars": ALLOCATOR}}
            start = partial(ray.init, self.address, **options)
        try:
            start()
        except Exception as error:
            where = "start on this machine" if self.address is None else f"join the cluster at {self.address}"
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            if self.address is None and (full := _full_temporary_directory()):
                reason = (
                    f"its temporary directory {full} is full; free some space, or set RAY_TMPDIR to another directory"
                )
            raise UserError(
                f"Ray did not {where}: {reason}; run the command again, or build with --in-process"
            ) from error
        self.usage.start_seconds = time.monotonic() - began
        self._remote = ray.remote(num_cpus=1, max_retries=0)(measured)
        self._started = True

    def _look_around(self) -> None:
        """Update, at most every 5 seconds, which nodes are alive, when one was last lost, when the largest one
        last became smaller and, in a joined cluster, the number of workers.
        """
        if time.monotonic() - self._counted < _COUNT_SECONDS:
            return
        import ray

        nodes = ray.nodes()
        alive = (node["Resources"] for node in nodes if node["Alive"])
        self._nodes = [node for node in alive if node.get("CPU", 0) >= 1 and "memory" in node]
        gone = frozenset(n["NodeID"] for n in nodes if not n["Alive"] and n["DeathReason"] not in _INTENDED)
        if gone - self._gone:
            self._lost = time.monotonic()
        self._gone = gone
        largest = max((node["memory"] for node in self._nodes), default=0.0)
        if largest < self._largest:
            self._shrunk = time.monotonic()
        self._largest = largest
        if self.address is not None:
            self.workers = max(1, int(sum(node["CPU"] for node in self._nodes)))
        self._counted = time.monotonic()

    def _room(self, tasks: int, attempt: int) -> int | None:
        """Return the memory limit of a task in bytes, or None for no limit. `attempt` is the number of
        earlier attempts of this task that ran out of memory or lost their process; each doubles the limit, up
        to the memory of the largest node. If no node is known, the limit is `memory`.
        """
        if not self._nodes:
            return self.memory
        # With fewer tasks than CPUs, each task gets more.
        share = max(LEAST, min(node["memory"] / min(node["CPU"], tasks) for node in self._nodes))
        most = max(node["memory"] for node in self._nodes)
        if self.memory is not None and self.memory > most:
            raise UserError(
                f"--memory-per-worker: got {self.memory:,} bytes, the largest node of the cluster has {most:,.0f} for tasks"
            )
        return int(min((self.memory or share) * 2**attempt, most))

    def _exceeds_all_nodes(self, room: int | None) -> bool:
        """Return whether a task with the memory limit `room` needs more than any node alive has, and no larger
        node has come for 5 minutes. Ray reports no error for such a task, and keeps it waiting for a new node.
        """
        if room is None or not self._nodes or room <= self._largest:
            return False
        return time.monotonic() - self._shrunk >= _REPLACED_SECONDS

    def _submit(self, function: Callable[[Item], Result], item: Item, label: str, room: int | None) -> Any:
        import ray

        gpus = getattr(item, "gpus", 0)
        if gpus and gpus > ray.cluster_resources().get("GPU", 0):
            raise UserError(f"{label}: asks for {gpus:g} GPUs, the cluster has fewer; lower num_gpus")
        # A request that Ray has sent to a lost node blocks all equal requests, so a request asks for one byte less for every
        # node lost.
        memory = None if room is None else room - len(self._gone)
        # A process keeps some of the memory of a broken task, so new processes are started after one.
        fresh = {"env_vars": {"GRISTMILL_BROKEN_TASKS": str(self._broken)}} if self._broken else None
        options = self._remote.options(name=function.__name__, num_gpus=gpus, memory=memory, runtime_env=fresh)
        return options.remote(function, item, room, self.usage.purpose)

    def map(
        self, function: Callable[[Item], Result], items: Sequence[Item], label: Callable[[Item], str]
    ) -> Iterator[tuple[int, Result]]:
        """Run the tasks, as `pipelines.contracts.stage.Cluster.map` does.

        Ray reports a lost node at once, but its lost tasks only minutes later. Therefore, if a node is lost
        and no task ends for 5 seconds, all tasks that were started before the loss are submitted again. Tasks
        that need more memory than any node alive has cannot be running: if no larger node comes for 5 minutes,
        they are submitted again with the memory of the largest. If `memory` is more than that, raises UserError.
        """
        title = title_of(function)
        self.progress(title, 0, len(items))
        if not items:
            return
        self._start()
        import ray

        waiting = list(range(len(items)))[::-1]
        failures: dict[int, list[bool]] = {
            position: [] for position in waiting
        }  # for each, whether more memory may help
        running: dict[Any, _Task] = {}
        done = 0

        def hand_out(position: int, room: int | None) -> Any:
            return self._submit(function, items[position], label(items[position]), room)

        while waiting or running:
            self._look_around()
            while waiting and len(running) < 2 * self.workers:
                position = waiting.pop()
                room = self._room(len(items), sum(failures[position]))
                running[hand_out(position, room)] = _Task(position, room)
            ready, _ = ray.wait(list(running), num_returns=1, timeout=_COUNT_SECONDS)
            if not ready:
                for request in [each for each, task in running.items() if self._exceeds_all_nodes(task.room)]:
                    position = running.pop(request).position
                    ray.cancel(request)
                    if all(task.position != position for task in running.values()):
                        waiting.append(position)
                for late in [task for task in running.values() if task.since < self._lost]:
                    late.since = time.monotonic()
                    # The remaining nodes may all have less memory than the lost one.
                    room = self._room(len(items), sum(failures[late.position]))
                    running[hand_out(late.position, room)] = _Task(late.position, room)
                continue
            ended = running.pop(ready[0])
            position, room = ended.position, ended.room
            twins = [task for task, other in running.items() if other.position == position]
            try:
                finished = ray.get(ready[0])
            except Exception as error:
                cause = getattr(error, "cause", None) or error
                if isinstance(cause, UserError):
                    raise cause from None
                if twins:
                    continue
                failed = failures[position]
                failed.append(is_broken(cause))
                self._broken += failed[-1]
                if len(failed) == ATTEMPTS:
                    raise task_failure(label(items[position]), cause, position, room) from error
                time.sleep(PAUSE_SECONDS * len(failed))
                if failed[-1]:
                    self.say(
                        f"  {label(items[position])}: {broken_reason(cause, room)}; it is tried again after the others"
                    )
                waiting.insert(0 if failed[-1] else len(waiting), position)
                continue
            for twin in twins:
                del running[twin]
                ray.cancel(twin)
            done += 1
            self.peak_bytes = max(self.peak_bytes, finished.peak)
            add_account(self.usage.spent, finished.spent)
            self.progress(title, done, len(items))
            yield position, finished.result

    def fits(self, function: Callable[[Item], Any], item: Item, memory: int | None) -> bool:
        """Run a task once on Ray, and return or raise as `LocalCluster.fits` does. A task whose process is
        killed or crashes does not fit. If no node has had `memory` bytes for 5 minutes, return True: nothing is
        known about the task. Must be called after `map`, which starts Ray.
        """
        import ray

        request = self._submit(function, item, title_of(function), memory)
        try:
            while not ray.wait([request], timeout=_COUNT_SECONDS)[0]:
                self._look_around()
                if self._exceeds_all_nodes(memory):
                    ray.cancel(request)
                    return True
            ray.get(request)
        except Exception as error:
            cause = getattr(error, "cause", None) or error
            if isinstance(cause, UserError):
                raise cause from None
            self._broken += is_broken(cause)
            return not is_broken(cause)
        return True

    def close(self) -> None:
        """Stop Ray on this machine, or disconnect from the cluster that was joined."""
        if self._started:
            import ray

            ray.shutdown()
            self._started = False
