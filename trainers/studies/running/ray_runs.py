"""Train the runs of a study as tasks of a Ray cluster.

Every run is one task, so a node trains as many at a time as have room, and a process of Ray trains many of them without
restarting. The directory of the study and its corpora must be on storage that all nodes share.
"""

import time
from collections import Counter, deque
from collections.abc import Sequence
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

SLOW = 4.0  # times the others' seconds per FLOP; models of a study differ by less in how well they use a core
FEWEST_ENDED = 3  # runs to compare a slow one with
LOOK_SECONDS = 30.0  # between two looks for slow runs
_LONGEST_START = 120.0  # seconds in which a run may load its libraries and compile, however fast the others were


@dataclass(frozen=True)
class RayResources:
    """The CPUs and GPUs of each run; both may be fractions."""

    cpus: float = 1.0
    gpus: float = 0.0

    def check(self) -> None:
        """Validate ranges."""
        for name, value in (("cpus", self.cpus), ("gpus", self.gpus)):
            if not 0 <= value < float("inf"):
                raise ValueError(f"--{name}-per-run: got {value:g}, allowed 0 or more")


def train_on_ray(
    root: LocalPath, runs: Sequence[StudyRun], resources: RayResources, show: Show, train: Train = train_study_run
) -> None:
    """Train `runs` below `root`, each of which has no result yet or a failed one. `show` is called with a line per run. A run
    whose task is lost continues from its last checkpoint in another one; one that loses MOST_LOST tasks in a row has failed.
    Once no run waits for its turn, the task of a run that is SLOW times slower than those that have ended is killed, once per
    run, and the run continues in another task.

    Raises UserError if the disk fails, and KeyboardInterrupt after SIGINT or SIGTERM; the tasks then end, and the same
    command continues from their checkpoints.
    """
    root, waiting, lost, total, done = root.resolve(), deque(runs), Counter[str](), len(runs), 0
    threads, going = max(1, int(resources.cpus)), dict[Any, StudyRun]()
    pace, looked = _Pace(root), time.monotonic()
    with ray_tasks(_train, resources.cpus, resources.gpus) as tasks, terminable():
        try:
            while waiting or going:
                while waiting:
                    run = waiting.popleft()
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
                        pace.note(run)
                        show(f"{done}/{total}  {run.name}  {outcome}{f': {reason}' if reason else ''}")
                    else:
                        waiting.append(run)
                if not waiting and time.monotonic() - looked >= LOOK_SECONDS:
                    looked = time.monotonic()
                    waiting.extend(_give_up_slow(tasks, going, pace, show))
        finally:
            tasks.cancel(list(going))


class _Pace:
    """The seconds per FLOP of runs, to tell slow ones. A run that has been given up once is not slow any more."""

    def __init__(self, root: LocalPath) -> None:
        self._root = root
        self._ended: list[float] = []
        self._given_up: set[str] = set()

    def note(self, run: StudyRun) -> None:
        """Note the pace of a run that has ended."""
        result = read_result(self._root / run.key)
        if result is not None and result.flops:
            self._ended.append((result.step_seconds + result.validation_seconds) / result.flops)

    def slow(self, runs: Sequence[StudyRun]) -> list[tuple[StudyRun, float]]:
        """Return those of `runs` that are slow, with how many times slower than the median of the ended ones each is. There are
        none while a run has not begun: free room would be used for that one.
        """
        if len(self._ended) < FEWEST_ENDED:
            return []
        logs = [read_events(self._root / run.key / "log.jsonl") for run in runs]
        if not all(any(event["event"] == "start" for event in log) for log in logs):
            return []
        ratios = [_seconds_per_flop(log) / median(self._ended) for log in logs]
        found = [(r, x) for r, x in zip(runs, ratios, strict=True) if x > SLOW and r.key not in self._given_up]
        self._given_up.update(run.key for run, _ in found)
        return found


def _seconds_per_flop(log: Sequence[dict[str, Any]]) -> float:
    """The pace of a run since its last start, from its log; that of a run that has logged no step since is infinite after
    _LONGEST_START.
    """
    at = max(number for number, event in enumerate(log) if event["event"] == "start")
    start, steps = log[at], [event for event in log[at:] if event["event"] == "step"]
    seconds = time.time() - start["time"]
    if not steps:
        return float("inf") if seconds > _LONGEST_START else 0.0
    last = steps[-1]
    tokens = last["tokens"] * (1 - start["step"] / last["step"])
    return seconds / (tokens * sum(start["flops_per_token"].values())) if tokens else 0.0


def _give_up_slow(tasks: RayTasks, going: dict[Any, StudyRun], pace: _Pace, show: Show) -> list[StudyRun]:
    """Kill the tasks of slow runs and forget them; returns these runs."""
    slow = pace.slow(list(going.values()))
    for run, ratio in slow:
        reference = next(reference for reference, other in going.items() if other is run)
        tasks.kill(reference)
        del going[reference]
        how = "has logged no step" if ratio == float("inf") else f"is {ratio:,.0f} times slower than the others"
        show(f"{run.name} {how}; it continues in another task")
    return [run for run, _ in slow]


def _train(run: StudyRun, directory: str, threads: int, train: Train) -> tuple[Outcome, str]:
    """Train a run, as a task."""
    outcome = train(run, LocalPath(directory), threads)
    if outcome[0] == "busy":
        time.sleep(BUSY_SECONDS)
    return outcome


def _with_absolute_inputs(run: StudyRun) -> StudyRun:
    """Return a run whose corpora can be opened in any working directory."""
    inputs = tuple(name if is_url(name) else str(Path(name).resolve()) for name in run.job.data.corpora)
    return replace(run, job=run.job.with_inputs(inputs))
