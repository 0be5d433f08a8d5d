"""A driver trains the runs of a study in several worker processes, each of which trains one run after
another.

    driver --run--> worker: imports once, trains, replies --outcome--> driver: the next run

If a worker dies, another one continues its run from the last checkpoint. A run that loses two workers in a
row is recorded as failed. Leases on the run directories keep two drivers from training the same run. If a
driver is killed by SIGKILL, each of its workers finishes its current run and exits.
"""

import multiprocessing
import signal
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any

from gristmill.errors import UserError
from gristmill.storage.disk import LocalPath
from gristmill.storage.store import write_json
from trainers.studies.designs.study_run import StudyRun
from trainers.studies.running.train_study_run import FORMAT, RESULT, Outcome, RunResult, train_study_run

MOST_LOST = 2  # consecutive workers that a run may lose before it is recorded as failed
BUSY_SECONDS = 2.0  # wait before retrying a run that another process is training
Train = Callable[[StudyRun, LocalPath, int], tuple[Outcome, str]]
Show = Callable[[str], None]


@dataclass
class _Worker:
    """A worker process, the driver's end of its pipe, and the run that it is training."""

    process: Any
    pipe: Connection
    run: StudyRun | None = None


@dataclass
class StudyWorkers:
    """Up to `count` worker processes that train runs below `root`, each with `threads` CPU threads."""

    root: LocalPath
    count: int
    threads: int
    show: Show
    train: Train = train_study_run
    _workers: list[_Worker] = field(default_factory=list)
    _lost: dict[str, int] = field(default_factory=dict)

    def run(self, runs: Sequence[StudyRun]) -> None:
        """Train `runs`. Each run must have no result yet, or a failed one. Raises UserError if the disk
        fails, and KeyboardInterrupt after SIGINT or SIGTERM, once the workers have saved their checkpoints.
        """
        waiting, total = deque(runs), len(runs)
        done = 0
        with terminable():
            try:
                while waiting or any(worker.run for worker in self._workers):
                    self._assign(waiting)
                    ready: Sequence[Any] = wait([worker.pipe for worker in self._workers if worker.run], BUSY_SECONDS)
                    for worker in [worker for worker in self._workers if worker.pipe in ready]:
                        run, outcome, reason = self._answer(worker)
                        if has_ended(outcome, reason):
                            done += 1
                            self.show(f"{done}/{total}  {run.name}  {outcome}{f': {reason}' if reason else ''}")
                        else:
                            waiting.append(run)
            finally:
                self._end()

    def _assign(self, waiting: deque[StudyRun]) -> None:
        while waiting:
            idle = next((worker for worker in self._workers if worker.run is None), None)
            if idle is None:
                if len(self._workers) == self.count:
                    return
                idle = self._start()
            try:
                idle.pipe.send(waiting[0])
            except OSError:  # it died while it was idle
                idle.process.join()
                self._workers.remove(idle)
                continue
            idle.run = waiting.popleft()

    def _start(self) -> _Worker:
        context = multiprocessing.get_context("spawn")  # torch does not survive a fork after its first computation
        ours, theirs = context.Pipe()
        process = context.Process(target=_work, args=(theirs, str(self.root), self.threads, self.train), daemon=True)
        process.start()
        theirs.close()  # so that the pipe breaks when the worker dies
        worker = _Worker(process, ours)
        self._workers.append(worker)
        return worker

    def _answer(self, worker: _Worker) -> tuple[StudyRun, Outcome, str]:
        run = worker.run
        assert run is not None
        try:
            outcome, reason = worker.pipe.recv()
        except (EOFError, ConnectionError):
            worker.process.join()
            self._workers.remove(worker)
            return run, *self._loss(run, worker.process.exitcode)
        worker.run = None
        self._lost.pop(run.key, None)
        return run, outcome, reason

    def _loss(self, run: StudyRun, status: int | None) -> tuple[Outcome, str]:
        self._lost[run.key] = self._lost.get(run.key, 0) + 1
        how = f"signal {-status}" if status is not None and status < 0 else f"status {status}"
        if self._lost[run.key] < MOST_LOST:
            self.show(f"{run.name}: its process ended with {how}; it continues in another one")
            return "stopped", ""
        reason = f"its process ended with {how}, {MOST_LOST} times in a row; signal 9 often means too little memory"
        return record_failure(self.root, run, reason)

    def _end(self) -> None:
        """End idle workers at once, and busy ones after a checkpoint."""
        for worker in self._workers:
            with suppress(OSError):
                worker.pipe.close()
            if worker.run is not None:
                worker.process.terminate()
        for worker in self._workers:
            worker.process.join()
        self._workers.clear()


def has_ended(outcome: Outcome, reason: str) -> bool:
    """Return whether `outcome` is final, so that the run need not be continued. Raises UserError with
    `reason` if the disk failed.
    """
    if outcome == "storage":
        raise UserError(f"{reason}; fix that and run the same command, which continues")
    return outcome not in ("busy", "stopped")


def record_failure(root: LocalPath, run: StudyRun, reason: str) -> tuple[Outcome, str]:
    """Record a run below `root` as failed with `reason`. Returns the outcome `failed` and the reason."""
    write_json(root / run.key / RESULT, {"format": FORMAT, **asdict(RunResult("failed", reason))})
    return "failed", reason


@contextmanager
def terminable() -> Iterator[None]:
    """Within the block, make SIGTERM raise KeyboardInterrupt, as SIGINT does."""
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def _work(pipe: Connection, root: str, threads: int, train: Train) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the driver too, and the driver ends its workers
    while True:
        try:
            run = pipe.recv()
        except EOFError:
            return
        outcome = train(run, LocalPath(root) / run.key, threads)
        if outcome[0] == "busy":
            time.sleep(BUSY_SECONDS)
        try:
            pipe.send(outcome)
        except OSError:
            return
