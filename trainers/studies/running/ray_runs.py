"""Train the runs of a study as tasks of a Ray cluster.

Every run is one task, so a node trains as many at a time as have room, and a process of Ray trains many of them without
restarting. The directory of the study and its corpora must be on storage that all nodes share.
"""

import time
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

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
from trainers.studies.running.train_study_run import Outcome, train_study_run
from trainers.training.ray_tasks import ray_tasks


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

    Raises UserError if the disk fails, and KeyboardInterrupt after SIGINT or SIGTERM; the tasks then end, and the same
    command continues from their checkpoints.
    """
    root, waiting, lost, total, done = root.resolve(), deque(runs), Counter[str](), len(runs), 0
    threads, going = max(1, int(resources.cpus)), dict[object, StudyRun]()
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
                        show(f"{done}/{total}  {run.name}  {outcome}{f': {reason}' if reason else ''}")
                    else:
                        waiting.append(run)
        finally:
            tasks.cancel(list(going))


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
