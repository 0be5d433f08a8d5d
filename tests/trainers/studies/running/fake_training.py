"""Replaces training in tests of processes and Ray tasks, and does what the entry of a run asks for."""

import os
import signal
import time
from dataclasses import asdict

from gristmill.events import EventLog
from gristmill.storage.store import write_json
from trainers.studies.running.train_study_run import FORMAT, RESULT, RunResult


def pretend(run, directory, threads):
    """End a run in the way that its entry names, for example `failed`, `dies` or `full`; other entries
    finish. A file in the run's directory counts attempts.
    """
    directory.mkdir(parents=True, exist_ok=True)
    attempts = directory / "attempts"
    number = len(attempts.read_text()) + 1 if attempts.exists() else 1
    attempts.write_text("x" * number)
    if run.entry == "dies" or (run.entry == "dies-once" and number == 1):
        os.kill(os.getpid(), signal.SIGKILL)
    if run.entry == "dies-after-a" and number == 1:
        while not (directory.parent / "a-died").exists():
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGKILL)
    if run.entry == "full":
        return "storage", "/data: No space left on device"
    if run.entry == "busy" and number < 3:
        return "busy", "another process is training"
    if run.entry == "slow" and number == 1:
        EventLog(directory / "log.jsonl").write("start", step=0, flops_per_token={"read": 1.0})
        time.sleep(600)
    state = run.entry if run.entry in ("failed", "diverged") else "finished"
    (directory / "process").write_text(f"{os.getpid()} {threads}")
    write_json(directory / RESULT, {"format": FORMAT, **asdict(RunResult(state, flops=1e9, step_seconds=1.0))})
    return state, ""
