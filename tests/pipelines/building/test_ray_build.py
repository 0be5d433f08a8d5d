"""Builds on Ray give the same bytes as an in-process build: with one worker, with two, and after `kill -9` of
driver and workers.
"""

import contextlib
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from pipelines.__main__ import main
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
    """Return the files of an undisturbed in-process build. They can be compared with builds elsewhere,
    because a corpus can be moved.
    """
    root = tmp_path_factory.mktemp("undisturbed")
    corpus_file = write_corpus_file(root / "small.yaml", write_sources(root / "raw"), root / "out")
    assert main(["build", str(corpus_file), "--in-process"]) == 0
    files = files_of(root / "out")
    assert len(files) > 20
    return files


def test_the_number_of_workers_changes_no_byte(corpus_file, tmp_path, wanted):
    for workers in ("1", "2"):
        output = tmp_path / f"ray{workers}"
        build(corpus_file, f"output={output}", "--workers", workers)
        assert files_of(output) == wanted


def start(corpus_file, errors):
    """Start a build with two workers. The error output goes to a file, because Ray's processes may outlive
    the build.
    """
    with open(errors, "w") as sink:
        return subprocess.Popen(
            command(corpus_file, "--workers", "2"), cwd=ROOT, stdout=subprocess.DEVNULL, stderr=sink
        )


def kill_a_worker(driver):
    for worker in workers_of(driver.pid)[:1]:
        with contextlib.suppress(psutil.NoSuchProcess):
            worker.kill()
            return 1
    return 0


def test_killed_drivers_and_workers_leave_the_same_bytes(corpus_file, tmp_path, wanted):
    output, errors = tmp_path / "out", tmp_path / "errors"
    for published in (1, 5):
        process = start(corpus_file, errors)
        while len(list(output.glob("*/manifest.json"))) < published:
            assert process.poll() is None, errors.read_text()
            time.sleep(0.02)
        if published > 1:
            while process.poll() is None and not kill_a_worker(process):
                time.sleep(0.02)
        process.kill()
        process.wait()
        assert not (output / "manifest.json").exists()
    build(corpus_file, "--workers", "2")
    assert files_of(output) == wanted


def test_a_dead_worker_does_not_stop_the_build(corpus_file, tmp_path, wanted):
    errors, killed = tmp_path / "errors", 0
    process = start(corpus_file, errors)
    while process.poll() is None and killed < 2:  # at once, while Ray may still be starting
        killed += kill_a_worker(process)
        time.sleep(0.02)
    assert process.wait(300) == 0, errors.read_text()
    assert killed
    assert files_of(tmp_path / "out") == wanted
