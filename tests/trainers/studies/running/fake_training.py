"""In place of training, in the processes of `StudyWorkers`: what the name of a run asks for."""

import os
import signal
from dataclasses import asdict

from gristmill.storage.store import write_json
from trainers.studies.running.train_study_run import FORMAT, RESULT, RunResult


def pretend(run, directory, threads):
    """Finish a run, or fail, die, or find a full disk, as its entry says. A file in its directory counts attempts."""
    directory.mkdir(parents=True, exist_ok=True)
    attempts = directory / "attempts"
    number = len(attempts.read_text()) + 1 if attempts.exists() else 1
    attempts.write_text("x" * number)
    if run.entry == "dies" or (run.entry == "dies-once" and number == 1):
        os.kill(os.getpid(), signal.SIGKILL)
    if run.entry == "full":
        return "storage", "/data: No space left on device"
    if run.entry == "busy" and number < 3:
        return "busy", "another process is training"
    state = run.entry if run.entry in ("failed", "diverged") else "finished"
    (directory / "process").write_text(f"{os.getpid()} {threads}")
    write_json(directory / RESULT, {"format": FORMAT, **asdict(RunResult(state))})
    return state, ""
