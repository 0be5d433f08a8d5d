"""Builds on Ray: the bytes of the in-process build, with one worker, with two, and after kill -9 of driver and workers."""

import contextlib
import random
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.chaos.harness.outcome import files_of
from tests.chaos.soak.soak_cluster import workers_of
from tests.conftest import write_corpus_file, write_sources

ROOT = Path(__file__).parents[3]

pytestmark = pytest.mark.ray


def command(corpus_file, *arguments):
    return [sys.executable, "-m", "pipelines", "build", str(corpus_file), *arguments]


def build(corpus_file, *arguments):
    result = subprocess.run(command(corpus_file, *arguments), cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def wanted(tmp_path_factory):
    """What a build in one process writes, undisturbed. The location of a corpus does not matter."""
    root = tmp_path_factory.mktemp("undisturbed")
    build(write_corpus_file(root / "small.yaml", write_sources(root / "raw"), root / "out"), "--in-process")
    files = files_of(root / "out")
    assert len(files) > 20
    return files


def test_the_number_of_workers_changes_no_byte(corpus_file, tmp_path, wanted):
    for workers in ("1", "2"):
        output = tmp_path / f"ray{workers}"
        build(corpus_file, f"output={output}", "--workers", workers)
        assert files_of(output) == wanted


def test_killed_drivers_and_workers_leave_the_same_bytes(corpus_file, tmp_path, wanted):
    chance = random.Random(7)
    for kill in range(4):
        process = subprocess.Popen(
            command(corpus_file, "--workers", "2"), cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        time.sleep(chance.uniform(3, 9))
        if kill % 2:
            for worker in workers_of(process.pid)[:1]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    worker.kill()
            time.sleep(chance.uniform(0, 2))
        process.kill()
        process.wait()
    build(corpus_file, "--workers", "2")
    assert files_of(tmp_path / "out") == wanted


def test_a_dead_worker_does_not_stop_the_build(corpus_file, tmp_path, wanted):
    process = subprocess.Popen(
        command(corpus_file, "--workers", "2"), cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    killed = 0
    while process.poll() is None and killed < 2:
        for worker in workers_of(process.pid)[:1]:
            with contextlib.suppress(psutil.NoSuchProcess):
                worker.kill()
                killed += 1
        time.sleep(2.5)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    assert killed
    assert files_of(tmp_path / "out") == wanted
