"""A real study whose driver and workers are killed while a second driver waits. The second driver keeps the
results and finishes all runs.
"""

import os
import signal
import subprocess
import time

import pytest

from gristmill.process import process_start
from tests.trainers.launching import start_command
from tests.trainers.studies.study_files import opened, write_study
from trainers.studies.running.study_directory import RUNS, results_of

pytestmark = pytest.mark.faults
STUDY = """\
name: killed
question: Is a lower rate better?
output: {root}
corpora: [{corpus}]
recipe: llama_tiny
settings: {{batch.sequences: 4, data.sequence_length: 64}}
design: {{kind: list, baseline: a, seeds: 2, entries: {{a: {{}}, b: {{settings: {{optimizer.learning_rate: 1.0e-3}}}}}}}}
proxies: {{tokens: 5e3, matched: false}}
metrics: {{tokens: 512, last: 1}}
"""


def children(pid):
    listed = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=False)
    direct = [int(word) for word in listed.stdout.split()]
    return [*direct, *(below for child in direct for below in children(child))]


def test_a_second_driver_finishes_what_a_killed_one_began(tmp_path, corpus_directory):
    file = write_study(tmp_path, corpus_directory, STUDY)
    first = start_command(tmp_path / "first", "study", "run", file)
    study, root = opened(file)
    while not results_of(root, study.points) and first.is_alive():
        time.sleep(0.05)
    before = {path: path.read_bytes() for path in (root / RUNS).glob("*/result.json")}
    second = start_command(tmp_path / "second", "study", "run", file)
    killed = [first.pid, *children(first.pid)]
    for pid in killed:
        os.kill(pid, signal.SIGKILL)
    first.join()
    second.join()
    printed = (tmp_path / "second").read_text()
    assert second.exitcode == 0, printed
    assert all(process_start(pid) in (None, "") for pid in killed)
    assert {path: path.read_bytes() for path in before} == before
    assert before
    results = results_of(root, study.points)
    assert [result.state for result in results.values()] == ["finished"] * 4
    assert "the baseline" in printed
    assert (root / "report.html").exists()
