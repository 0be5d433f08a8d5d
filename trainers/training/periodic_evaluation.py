"""Evaluate checkpoints while a run trains, in a separate process: `python -m trainers evaluate RUN
--checkpoints STEP`.

    save a due checkpoint  ->  is a process running?  no  ->  start one for the newest due checkpoint
    a result is on disk    ->  write it to the log

Only the result files record which checkpoints have been evaluated, so no finished result is lost if either
process is killed.
"""

import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from gristmill.errors import CorruptFileError
from gristmill.events import read_events
from gristmill.storage.disk import LocalPath
from gristmill.storage.store import read_json
from gristmill.terminal import printable
from trainers.config.job import Job
from trainers.config.pretraining import PeriodicEvaluation, Pretraining
from trainers.runs import checkpoint
from trainers.runs.progress import Progress
from trainers.runs.stored_evaluations import (
    FOLDER,
    StoredEvaluation,
    evaluation_name,
    read_evaluation,
    read_evaluations,
    result_path,
)

_OUTPUT = "output.txt"
_NICE = 10  # niceness of the process, so that training has priority on shared cores
_WAIT_SECONDS = 0.2
_OF_LAUNCHERS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


class PeriodicEvaluator:
    """Evaluates the checkpoints of a run. Every worker has an evaluator, but only that of the first worker
    (`writes`) starts processes.
    """

    def __init__(self, config: Job, run: LocalPath, progress: Progress, writes: bool) -> None:
        self._settings = config.evaluation if isinstance(config, Pretraining) else None
        self._run, self._progress, self._writes = run, progress, writes and self._settings is not None
        self._last = config.budget.steps or 0
        self._process: subprocess.Popen[bytes] | None = None
        self._evaluated: tuple[int, str] = (0, "")  # step and checksum of what the process evaluates
        self._failed: set[tuple[int, str]] = set()
        self._logged: set[tuple[int, str]] | None = None
        self._looks = True  # whether there may be new results or checkpoints

    def due_at(self, step: int) -> bool:
        """Return whether the checkpoint after `step` steps must be evaluated."""
        every = self._settings.every if self._settings is not None else 0
        return every > 0 and (step % every == 0 or step == self._last)

    def advance(self, saved: int | None = None) -> None:
        """Unless an evaluation is running, log new results and start the next evaluation. `saved` is the
        number of steps done if a checkpoint has just been saved.
        """
        if not self._writes:
            return
        self._looks |= saved is not None and self.due_at(saved)
        if not self._is_running() and self._looks:
            self._looks = False
            self._log_results()
            self._start()

    def finish(self, is_asked_to_stop: Callable[[], bool]) -> bool:
        """Wait until the newest due checkpoint is evaluated. Whenever an evaluation fails, the next older due
        checkpoint is tried instead. Returns False if the run is asked to stop first.
        """
        self.advance()
        while self._writes and self._process is not None:
            if is_asked_to_stop():
                return False
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_WAIT_SECONDS)
            self.advance()
        return True

    def close(self) -> None:
        """Stop the running evaluation, if there is one. A resumed run starts it afresh, unless a newer
        checkpoint is due.
        """
        if self._process is not None:
            self._process.terminate()
            self._process.wait()
            self._process = None

    def _is_running(self) -> bool:
        """Return whether a process is running. If the process has failed, log this, and do not evaluate its
        checkpoint again.
        """
        if self._process is None:
            return False
        status = self._process.poll()
        if status is None:
            return True
        self._process, self._looks = None, True
        step, checksum = self._evaluated
        result = read_evaluation(result_path(self._run, self._folder.name, step))
        if status != 0 or result is None or result.checkpoint != checksum:
            self._failed.add(self._evaluated)
            how = f"with status {status}" if status != 0 else "without a result"
            message = f"the evaluation of step {step} ended {how}: {self._reason()}"
            self._progress.write("warning", step=step, message=message)
        return False

    def _reason(self) -> str:
        output = self._folder / _OUTPUT
        lines = output.read_text(encoding="utf-8", errors="replace").strip().splitlines() if output.exists() else []
        return f"{printable(lines[-1])} ({output})" if lines else str(output)

    @property
    def _folder(self) -> LocalPath:
        assert self._settings is not None
        return self._run / FOLDER / _name(self._settings)

    def _log_results(self) -> None:
        assert self._settings is not None
        if self._logged is None:
            known = read_events(self._run / "log.jsonl", "evaluation")
            self._logged = {
                (event["step"], event["checkpoint"]) for event in known if event["name"] == self._folder.name
            }
        for result in read_evaluations(self._run, self._folder.name):
            mark = (result.step, result.checkpoint)
            if mark not in self._logged:
                self._logged.add(mark)
                self._progress.write(
                    "evaluation", step=result.step, name=result.name, checkpoint=result.checkpoint, scores=result.scores,
                    cost=result.record.get("cost"), message=describe_result(result),
                )  # fmt: skip

    def _start(self) -> None:
        for step, path in reversed(checkpoint.published(self._run)):
            if not self.due_at(step):
                continue
            try:
                checksum = read_json(path / checkpoint.RECORD)["checksum"]
            except (FileNotFoundError, CorruptFileError):
                continue
            result = read_evaluation(result_path(self._run, self._folder.name, step))
            if result is not None and result.checkpoint == checksum:
                return  # older ones are left out
            if (step, checksum) not in self._failed:
                self._process, self._evaluated = self._evaluate(step), (step, checksum)
                return

    def _evaluate(self, step: int) -> "subprocess.Popen[bytes]":
        settings, run = self._settings, self._run.absolute()
        assert settings is not None
        words = [f"suite={settings.suite}", *(f"{name}={value}" for name, value in settings.settings.items())]
        words += [f"data={settings.data}"] if settings.data else []
        kept = {name: value for name, value in os.environ.items() if name not in _OF_LAUNCHERS}
        path = os.pathsep.join([str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])])
        self._folder.mkdir(parents=True, exist_ok=True)
        with (self._folder / _OUTPUT).open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "trainers", "evaluate", str(run), *words, "--checkpoints", str(step)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**kept, "OMP_NUM_THREADS": str(settings.threads), "PYTHONPATH": path},
                start_new_session=True,  # Ctrl-C reaches the run alone, which then ends this process
            )
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, process.pid, _NICE)
        return process


def _name(settings: PeriodicEvaluation) -> str:
    return evaluation_name(settings.suite, settings.settings)


def describe_result(result: StoredEvaluation) -> str:
    """Return one line that lists the scores of a checkpoint, with the mean of the suite first."""
    marks = {"at": " (at chance)", "below": " (below chance)"}
    ordered = sorted(result.scores.items(), key=lambda each: not each[0].endswith(".mean"))
    shown = (f"{name} {s['value']:.4f} ± {s['error']:.4f}{marks.get(s.get('verdict', ''), '')}" for name, s in ordered)
    return f"{result.name} at step {result.step}: {', '.join(shown)}"
