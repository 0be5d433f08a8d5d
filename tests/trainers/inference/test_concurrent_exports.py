"""Concurrent exports of one run, either in separate processes or with one export running between two
operations of another, and readers of a run that is still training.
"""

import shutil
import time
from contextlib import redirect_stderr
from dataclasses import replace
from pathlib import Path

import pytest

from gristmill.errors import CorruptFileError
from gristmill.storage.disk import LocalPath
from gristmill.storage.store import read_json, write_json
from tests.trainers.launching import preloaded
from trainers.data.packed_corpus import open_corpus
from trainers.inference import model_export
from trainers.inference.model_export import export_checkpoint, load_trained
from trainers.models import build_model
from trainers.recipes import llama_tiny
from trainers.runs import checkpoint
from trainers.runs.resolve import resolve
from trainers.runs.run import fingerprints, open_run, read_config


@pytest.fixture(scope="module")
def corpus(corpus_directory):
    return open_corpus((str(corpus_directory),), None)


def save(run, corpus, step):
    config = read_config(run)
    model = build_model(config.model, corpus.tokenizer.specials, seed=step)
    state = ((name, {"weight": tensor.detach().clone()}) for name, tensor in model.named_parameters())
    checkpoint.save(run, step, 10 * step, fingerprints(config, corpus), state, keep=1)


@pytest.fixture
def run(corpus, tmp_path):
    recipe = llama_tiny()
    small = replace(recipe.model, layers=1, width=16, feed_forward=16, heads=2, key_value_heads=1)
    data = replace(recipe.data, corpora=(str(corpus.directory),))
    path = tmp_path / "run"
    open_run(path, resolve(replace(recipe, model=small, data=data), corpus), corpus)
    save(path, corpus, 2)
    return path


def step_of(export):
    """Return the step of an export, after checking that it loads and that no temporary files are left next to
    it.
    """
    load_trained(export)
    assert not list(export.parent.glob(f".{export.name}*"))
    return read_json(export / "gristmill.json")["step"]


def step_in(monkeypatch, name, other):
    """Call `other` once, just before the next call of the function `name` in `model_export`."""
    whole, waiting = getattr(model_export, name), [other]

    def stepped(*arguments):
        if waiting:
            waiting.pop()()
        return whole(*arguments)

    monkeypatch.setattr(model_export, name, stepped)


def export_held(run, output, file):
    """Export a run, for use as a separate process. Before it saves the tokenizer, it creates FILE.held and
    waits for FILE.go.
    """
    whole = model_export.save_tokenizer

    def save_tokenizer(*arguments):
        Path(f"{file}.held").touch()
        while not Path(f"{file}.go").exists():
            time.sleep(0.02)
        whole(*arguments)

    model_export.save_tokenizer = save_tokenizer
    with open(f"{file}.stderr", "w") as errors, redirect_stderr(errors):
        export_checkpoint(LocalPath(run), LocalPath(output))


def start(run, output, file):
    process = preloaded().Process(target=export_held, args=tuple(map(str, (run, output, file))))
    process.start()
    return process


@pytest.mark.long
def test_two_processes_that_export_one_run_publish_a_whole_model(run, tmp_path):
    output, file = tmp_path / "model", tmp_path / "first"
    first = start(run, output, file)
    while not Path(f"{file}.held").exists():
        assert first.is_alive()
        time.sleep(0.02)
    Path(f"{tmp_path / 'second'}.go").touch()
    second = start(run, output, tmp_path / "second")
    time.sleep(1)
    while second.is_alive() and not list(tmp_path.glob(".model/.lease")):
        time.sleep(0.02)  # without a lease the second does not wait: it finishes, and the first goes on
    Path(f"{file}.go").touch()
    for process, name in ((first, "first"), (second, "second")):
        process.join(timeout=120)
        assert process.exitcode == 0
        assert (tmp_path / f"{name}.stderr").read_text() == ""
    assert step_of(output) == 2


@pytest.mark.long
@pytest.mark.parametrize("name", ["_save_model", "save_tokenizer", "write_json", "_replace"])
def test_an_export_that_lost_its_lease_and_its_attempt_ends_with_a_whole_model(run, tmp_path, monkeypatch, name):
    output = tmp_path / "model"

    def another():
        for lease in tmp_path.glob(".model/.lease"):
            lease.unlink()
        export_checkpoint(run, output)

    step_in(monkeypatch, name, another)
    assert export_checkpoint(run, output) == output
    assert step_of(output) == 2


@pytest.mark.long
@pytest.mark.parametrize("lost", ["model.safetensors", "config.json", "tokenizer.json"])
def test_an_export_that_was_published_without_a_file_is_found_and_exported_again(run, tmp_path, lost):
    output = export_checkpoint(run, tmp_path / "model")
    origin = read_json(output / "gristmill.json")
    (output / lost).unlink()
    write_json(
        output / "gristmill.json", origin | {"files": [entry for entry in origin["files"] if entry["path"] != lost]}
    )
    with pytest.raises(CorruptFileError, match=f"has no {lost}; export again"):
        load_trained(output)
    export_checkpoint(run, output)
    assert step_of(output) == 2


@pytest.mark.long
@pytest.mark.parametrize("there", [False, True])
def test_a_late_export_does_not_replace_one_of_a_later_step(run, corpus, tmp_path, monkeypatch, there):
    output = tmp_path / "model"
    if there:
        export_checkpoint(run, output)
        origin = read_json(output / "gristmill.json")
        write_json(output / "gristmill.json", origin | {"step": 1})

    def later():
        save(run, corpus, 4)
        finished = export_checkpoint(run, tmp_path / "elsewhere")
        shutil.rmtree(output, ignore_errors=True)
        finished.rename(output)

    step_in(monkeypatch, "_replace", later)
    export_checkpoint(run, output)
    assert step_of(output) == 4


def test_an_earlier_step_that_is_asked_for_replaces_a_later_one(run, corpus, tmp_path):
    """This happens when a run falls back to an older checkpoint because the newer one is corrupt."""
    save(run, corpus, 4)
    output = export_checkpoint(run, tmp_path / "model")
    save(run, corpus, 3)
    export_checkpoint(run, output)
    assert step_of(output) == 3


def test_an_export_that_a_checkpoint_overtakes_is_of_the_next_one(run, corpus, tmp_path, monkeypatch):
    step_in(monkeypatch, "_save_model", lambda: None)
    step_in(monkeypatch, "trained_model", lambda: save(run, corpus, 4))
    export_checkpoint(run, tmp_path / "model")
    assert step_of(tmp_path / "model") == 4


@pytest.mark.parametrize("moment", ["load", "read_weights"])
def test_a_reader_of_a_run_that_trains_reads_the_next_checkpoint(run, corpus, monkeypatch, moment):
    whole, waiting = getattr(checkpoint, moment), [4]

    def overtaken(found):
        if waiting:
            save(run, corpus, waiting.pop())
        return whole(found)

    monkeypatch.setattr(checkpoint, moment, overtaken)
    weights = dict(load_trained(run).model.named_parameters())
    expected = build_model(read_config(run).model, corpus.tokenizer.specials, seed=4)
    assert all(bool((weights[name] == tensor).all()) for name, tensor in expected.named_parameters())
