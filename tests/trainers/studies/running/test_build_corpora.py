"""The corpora of a study are built by separate processes. The runs of a corpus that cannot be built count as
failed, and a killed build continues.
"""

import os
import signal
import subprocess
import threading
import time

import pytest

from tests.trainers.studies.corpus_studies import write_corpus_study
from trainers.studies.designs.study_entries import variants_of
from trainers.studies.designs.study_runs import open_study
from trainers.studies.running import build_corpora as building
from trainers.studies.running.build_corpora import build_corpora, corpora_lines, record_failed_builds
from trainers.studies.running.study_directory import load_study, results_of, root_of

pytestmark = pytest.mark.faults
BROKEN = "design.entries={all: {}, wrong: {corpus: {steps.learn_tokenizer.vocab_size: 90000}}}"


def test_a_build_that_fails_is_a_row_and_is_tried_again(tmp_path):
    study = load_study(write_corpus_study(tmp_path), [BROKEN])
    root, lines = root_of(study), []
    build_corpora(study, root, 1, lines.append)
    assert lines[1] == "corpus 1/2  as the file says  built"
    assert "failed: learn_tokenizer" in lines[3]
    assert "vocab_size: got 90000" in lines[3]
    opened = open_study(study)
    record_failed_builds(opened, root)
    results = results_of(root, opened.points)
    assert [result.state for result in results.values()] == ["failed", "failed"]
    assert all("vocab_size: got 90000" in result.reason for result in results.values())
    assert "failed: learn_tokenizer" in corpora_lines(study, root)[1]
    lines.clear()
    build_corpora(study, root, 1, lines.append)
    assert lines[0].startswith("corpus 1/1  steps.learn_tokenizer.vocab_size=90000  building")


def test_a_killed_build_continues(tmp_path, monkeypatch):
    study = load_study(write_corpus_study(tmp_path))
    root, lines, started = root_of(study), [], subprocess.Popen

    def kill_once(command, **options):
        process = started(command, **options)
        monkeypatch.setattr(subprocess, "Popen", started)

        def wait_and_kill():
            while not list((tmp_path / "corpus").glob("read.*/manifest.json")) and process.poll() is None:
                time.sleep(0.01)
            os.kill(process.pid, signal.SIGKILL)

        threading.Thread(target=wait_and_kill, daemon=True).start()
        return process

    monkeypatch.setattr(building.subprocess, "Popen", kill_once)
    build_corpora(study, root, 1, lines.append)
    assert "failed: its process ended with signal 9" in lines[1]
    read = {path: path.stat().st_mtime_ns for path in (tmp_path / "corpus").glob("read.*/manifest.json")}
    assert read
    build_corpora(study, root, 1, lines.append)
    assert all(variant.is_built for variant in variants_of(study))
    assert {path: path.stat().st_mtime_ns for path in read} == read
