"""Train the runs of a study as tasks of a Ray cluster.

Each task trains one run. The directory of the study and its corpora must be on storage that all nodes share.
"""

import math
import time
from collections import Counter, deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from gristmill.events import read_events
from gristmill.storage.disk import LocalPath
from gristmill.storage.paths import is_url
from trainers.studies.designs.study_run import StudyRun
from trainers.studies.running.study_workers import (
    BUSY_SECONDS,
    MOST_LOST,
    Show,
    Train,
    has_ended,
    record_failure,
    terminable,
)
from trainers.studies.running.train_study_run import Outcome, read_result, train_study_run
from trainers.training.ray_tasks import RayTasks, ray_tasks

SLOW = 4.0  # times the expected seconds; models of a study differ by less in how well they use a core
FEWEST_ENDED = 3  # runs from which the seconds of another one are expected
LOOK_SECONDS = 30.0  # between two looks for slow runs
_OTHER_SECONDS = 120.0  # in which a run may compile and write, beyond those of its steps


@dataclass(frozen=True)
class RayResources:
    """The CPUs and GPUs of each run; both may be fractions."""

    cpus: float = 1.0
    gpus: float = 0.0

    def check(self) -> None:
        """Raise ValueError unless both numbers are finite and 0 or more."""
        for name, value in (("cpus", self.cpus), ("gpus", self.gpus)):
            if not 0 <= value < float("inf"):
                raise ValueError(f"--{name}-per-run: got {value:g}, allowed 0 or more")


def train_on_ray(
    root: LocalPath, runs: Sequence[StudyRun], resources: RayResources, show: Show, train: Train = train_study_run
) -> None:
    """Train `runs` in their directories below `root`. Each run must have no result yet, or a failed one.

    If the task of a run is lost, the run continues from its last checkpoint in another task. A run that loses
    two tasks in a row is recorded as failed. Once no run waits to start, a task that takes more than four
    times as long as expected is killed, at most once per run, and its run continues in another task.

    Raises UserError if the cluster cannot be joined, if no node has enough CPUs and GPUs for a run, or if the
    disk fails, and KeyboardInterrupt after SIGINT or SIGTERM.
    """
    root, waiting, lost, total, done = root.resolve(), deque(runs), Counter[str](), len(runs), 0
    threads, going = max(1, int(resources.cpus)), dict[Any, StudyRun]()
    pace, looked = _Pace(root), time.monotonic()
    with ray_tasks(_train, resources.cpus, resources.gpus) as tasks, terminable():
        try:
            while waiting or going:
                while waiting:
                    run = waiting.popleft()
                    pace.submitted(run)
                    going[tasks.submit(_with_absolute_inputs(run), str(root / run.key), threads, train)] = run
                for ended in tasks.wait(list(going), BUSY_SECONDS):
                    run = going.pop(ended.reference)
                    lost[run.key] = lost[run.key] + 1 if ended.lost else 0
                    answer: tuple[Outcome, str] = ended.value or ("stopped", "")
                    outcome, reason = answer
                    if lost[run.key] == MOST_LOST:
                        outcome, reason = record_failure(root, run, f"its task was lost: {ended.lost}")
                    elif ended.lost:
                        show(f"{run.name}: its task was lost ({ended.lost}); it continues in another one")
                    if has_ended(outcome, reason):
                        done += 1
                        pace.ended(run)
                        show(f"{done}/{total}  {run.name}  {outcome}{f': {reason}' if reason else ''}")
                    else:
                        waiting.append(run)
                if not waiting and time.monotonic() - looked >= LOOK_SECONDS:
                    looked = time.monotonic()
                    waiting.extend(_give_up(tasks, going, pace.slow(list(going.values())), show))
        finally:
            tasks.cancel(list(going))


class _Pace:
    """Detects runs that take too long, judged by the seconds per FLOP of the runs that have finished. The
    time that a run has taken so far is measured on this machine, because the clocks of nodes differ.
    """

    def __init__(self, root: LocalPath) -> None:
        self._root = root
        self._seconds_per_flop: list[float] = []
        self._starts: dict[str, int] = {}  # in the log of each run when it was submitted
        self._begun: dict[str, float] = {}
        self._given_up: set[str] = set()

    def submitted(self, run: StudyRun) -> None:
        self._starts[run.key] = len(self._start_events(run))
        self._begun.pop(run.key, None)

    def ended(self, run: StudyRun) -> None:
        result = read_result(self._root / run.key)
        if result is not None and result.flops:
            self._seconds_per_flop.append((result.step_seconds + result.validation_seconds) / result.flops)

    def slow(self, runs: Sequence[StudyRun]) -> list[StudyRun]:
        now, found = time.monotonic(), []
        events = {run.key: self._start_events(run)[self._starts[run.key] :] for run in runs}
        for key, starts in events.items():
            if starts:
                self._begun.setdefault(key, now)
        if len(self._seconds_per_flop) < FEWEST_ENDED or not all(events.values()):
            return []
        for run in runs:
            flops = (run.job.budget.tokens or math.inf) * sum(events[run.key][-1]["flops_per_token"].values())
            most = SLOW * flops * median(self._seconds_per_flop) + _OTHER_SECONDS
            if now - self._begun[run.key] > most and run.key not in self._given_up:
                found.append(run)
        self._given_up.update(run.key for run in found)
        return found

    def _start_events(self, run: StudyRun) -> list[dict[str, Any]]:
        with suppress(OSError):
            return read_events(self._root / run.key / "log.jsonl", "start")
        return []


def _give_up(tasks: RayTasks, going: dict[Any, StudyRun], slow: Sequence[StudyRun], show: Show) -> Sequence[StudyRun]:
    for reference, run in [(reference, run) for reference, run in going.items() if run in slow]:
        tasks.kill(reference)
        del going[reference]
        show(f"{run.name} takes more than {SLOW:g} times as long as expected; it continues in another task")
    return slow


def _train(run: StudyRun, directory: str, threads: int, train: Train) -> tuple[Outcome, str]:
    outcome = train(run, LocalPath(directory), threads)
    if outcome[0] == "busy":
        time.sleep(BUSY_SECONDS)
    return outcome


def _with_absolute_inputs(run: StudyRun) -> StudyRun:
    def absolute(name: str) -> str:
        return name if is_url(name) else str(Path(name).resolve())

    job = run.job.with_inputs(tuple(map(absolute, run.job.data.corpora)))
    if job.init is not None:
        job = replace(job, init=replace(job.init, path=absolute(job.init.path)))
    return replace(run, job=job)
