"""Damage at rest: a flipped bit or a truncated end of any file of a run (except its log), an export or the
cache of packings is either detected on reading and reported with the file's name, or does not change what is
read.
"""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from gristmill.storage.store import digest, read_json, write_json
from tests.damage import cuts, files_of, flips, unnamed
from trainers.data.packed_corpus import open_corpus, training_data
from trainers.inference.model_export import export_checkpoint, load_trained
from trainers.models import build_model
from trainers.recipes import llama_tiny
from trainers.report.read_runs import read_runs
from trainers.runs import checkpoint
from trainers.runs.exclusion import exclude, read_excluded
from trainers.runs.ledger import make_ledger, read_ledger
from trainers.runs.resolve import resolve
from trainers.runs.run import fingerprints, open_run

# Each of its lines has a checksum; damage to one is told among the events, see tests/gristmill/test_events.py.
UNREAD = ("log.jsonl",)


@pytest.fixture(scope="module")
def corpus(corpus_directory):
    return open_corpus((str(corpus_directory),), None)


@pytest.fixture(scope="module")
def config(corpus):
    recipe = llama_tiny()
    small = replace(recipe.model, layers=1, width=16, feed_forward=16, heads=2, key_value_heads=1)
    data = replace(recipe.data, corpora=(str(corpus.directory),))
    return resolve(replace(recipe, model=small, data=data), corpus)


@pytest.fixture(scope="module")
def run(corpus, config, tmp_path_factory) -> Path:
    """A run with an excluded document, a ledger and a checkpoint of a freshly initialised model."""
    path = tmp_path_factory.mktemp("runs") / "run"
    open_run(path, config, corpus)
    source = corpus.train["plays"]
    listed = path.with_name("ids.txt")
    listed.write_text(source.shard(0).doc_ids[0].as_py().hex() + "\n")
    exclude(path, listed, corpus)
    write_json(path / "ledger.json", make_ledger(path, config, corpus, training_data(corpus, config), 7))
    model = build_model(config.model, corpus.tokenizer.specials, seed=3)
    state = (
        (name, {"weight": weight.detach().clone(), "exp_avg": torch.ones_like(weight)})
        for name, weight in model.named_parameters()
    )
    checkpoint.save(path, 7, 70, fingerprints(config, corpus), state, keep=1)
    write_json(path / "finished.json", {"step": 7, "tokens": 70})
    return path


@pytest.fixture(scope="module")
def export(run):
    return export_checkpoint(run, run.with_name("export"))


def weights_of(path: Path) -> list:
    from tokenizer.encode import Encoder

    trained = load_trained(path)
    weights = {name: float(weight.detach().double().sum()) for name, weight in trained.model.named_parameters()}
    encoder = Encoder.load(str(trained.tokenizer))
    return [
        weights,
        encoder.decode(list(range(128, 400))),
        encoder.specials,
        repr(trained.config),
        trained.fingerprints,
    ]


def run_says(run: Path, config, corpus, heard: list[str]) -> str:
    """Return a digest of what resuming, loading the model and the report read of a run."""
    opened = open_run(run, config, corpus)
    found = checkpoint.newest(run, heard.append)
    state = checkpoint.read_state(found)
    sums = {name: {key: float(value.double().sum()) for key, value in state[name].items()} for name in state}
    ledger = read_ledger(run)
    excluded = sorted(identifier.hex() for identifier in read_excluded(run))
    report = read_runs([run])[0]
    return digest([opened.finished, opened.changed, sums, ledger, excluded, weights_of(run), repr(report.config)])


def check(root: Path, says, flipped: int, cut: int | None) -> None:
    before, wrong, found = says(), [], 0
    for seed, path in enumerate(files_of(root)):
        size = path.stat().st_size
        for damage in (*flips(size, seed, flipped), *cuts(size, seed, cut)):
            if path.name not in UNREAD:
                wrong.append(unnamed(root, path, damage, lambda: says() == before))
                found += 1
    assert [line for line in wrong if line] == []
    assert found > 20
    assert says() == before


@pytest.mark.long
@pytest.mark.parametrize(("flipped", "cut"), [(3, 2), pytest.param(40, None, marks=pytest.mark.slow)])
def test_damage_to_any_file_of_a_run_is_found_and_named(flipped, cut, run, config, corpus):
    def says() -> str:
        heard: list[str] = []
        try:
            return run_says(run, config, corpus, heard)
        except Exception as error:
            raise type(error)(
                f"{error}; {heard}"
            ) from None  # which checkpoints are corrupt is said as each is passed over

    check(run, says, flipped, cut)


@pytest.mark.parametrize(("flipped", "cut"), [(3, 2), pytest.param(40, None, marks=pytest.mark.slow)])
def test_damage_to_any_file_of_an_export_is_found_and_named(flipped, cut, export):
    check(export, lambda: digest(weights_of(export)), flipped, cut)


def test_a_damaged_export_is_written_again(run, export, tmp_path):
    copy = tmp_path / "export"
    shutil.copytree(export, copy)
    content = bytearray((copy / "model.safetensors").read_bytes())
    content[-1] ^= 1
    (copy / "model.safetensors").write_bytes(content)
    export_checkpoint(run, copy)
    assert read_json(copy / "gristmill.json") == read_json(export / "gristmill.json")
    assert (copy / "model.safetensors").read_bytes() == (export / "model.safetensors").read_bytes()


@pytest.mark.long
@pytest.mark.parametrize(("flipped", "cut"), [(3, 2), pytest.param(40, None, marks=pytest.mark.slow)])
def test_damage_to_the_cache_of_packings_changes_no_row(flipped, cut, config, corpus_directory, tmp_path, monkeypatch):
    monkeypatch.setenv("GRISTMILL_CACHE", str(tmp_path))

    packed = replace(config, data=replace(config.data, packing="best_fit"))

    def says() -> str:
        data = training_data(open_corpus((str(corpus_directory),), None), packed)
        rows = list(data.micro_batches(0, 64, 8, 0, 1))
        return digest([[batch.inputs.tolist(), batch.positions.tolist(), batch.source.tolist()] for batch in rows])

    says()
    check(tmp_path, says, flipped, cut)
