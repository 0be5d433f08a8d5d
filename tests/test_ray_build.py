"""Builds on Ray: the bytes of the in-process build, with one worker, with two, and after kill -9 of driver and workers."""

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

pytestmark = pytest.mark.ray


def files_of(root):
    """Bytes of everything that is part of the result; temporary files of killed attempts are not."""
    found = {}
    for path in sorted(root.rglob("*")):
        if path.is_file() and path.name not in ("run.json", ".checksums.json", "report.html") and path.suffix != ".tmp":
            found[str(path.relative_to(root))] = path.read_bytes()
    return found


def command(corpus_file, *arguments):
    return [sys.executable, "-m", "pipelines", "build", str(corpus_file), *arguments]


def build(corpus_file, *arguments):
    result = subprocess.run(command(corpus_file, *arguments), cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    return result.stdout


def workers_of(pid):
    """Ids of the processes below `pid` in which Ray runs tasks: not those of its agents, whose loss ends the node."""
    import psutil

    found = []
    with contextlib.suppress(psutil.NoSuchProcess):
        for process in psutil.Process(pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                title = " ".join(process.cmdline())
                if title.startswith("ray::") and "Agent" not in title:
                    found.append(process.pid)
    return found


def test_the_number_of_workers_changes_no_byte(corpus_file, tmp_path):
    build(corpus_file, "--in-process")
    wanted = files_of(tmp_path / "out")
    assert len(wanted) > 20
    for workers in ("1", "2"):
        output = tmp_path / f"ray{workers}"
        build(corpus_file, f"output={output}", "--workers", workers)
        assert files_of(output) == wanted


def test_killed_drivers_and_workers_leave_the_same_bytes(corpus_file, tmp_path):
    build(corpus_file, "--in-process", f"output={tmp_path}/undisturbed")
    chance = random.Random(7)
    for kill in range(4):
        process = subprocess.Popen(
            command(corpus_file, "--workers", "2"), cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        time.sleep(chance.uniform(3, 9))
        if kill % 2:
            for pid in workers_of(process.pid)[:1]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(chance.uniform(0, 2))
        process.kill()
        process.wait()
    build(corpus_file, "--workers", "2")
    assert files_of(tmp_path / "out") == files_of(tmp_path / "undisturbed")


def test_a_dead_worker_does_not_stop_the_build(corpus_file, tmp_path):
    build(corpus_file, "--in-process", f"output={tmp_path}/undisturbed")
    process = subprocess.Popen(
        command(corpus_file, "--workers", "2"), cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    killed = 0
    while process.poll() is None and killed < 2:
        for pid in workers_of(process.pid)[:1]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                killed += 1
        time.sleep(2.5)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    assert killed
    assert files_of(tmp_path / "out") == files_of(tmp_path / "undisturbed")
