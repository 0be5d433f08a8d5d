"""A run's directory belongs to one run, whose configuration and corpus change only where that is allowed."""

from dataclasses import replace
from unittest.mock import Mock

import pytest
import torch

from gristmill.config import override, parse, plain
from gristmill.errors import ConflictError, UserError
from gristmill.storage.store import write_json
from trainers.config.pretraining import Pretraining
from trainers.data.packed_corpus import open_corpus
from trainers.evaluation.blame import blame
from trainers.recipes import llama_tiny
from trainers.runs import checkpoint
from trainers.runs.resolve import resolve
from trainers.runs.run import (
    attempt_number,
    begin_attempt,
    differing,
    fingerprints,
    locked,
    open_run,
    read_config,
    read_run,
    write_config,
)


@pytest.fixture
def corpus(corpus_directory):
    return open_corpus((str(corpus_directory),), None)


def config(corpus, *assignments):
    return resolve(parse(Pretraining, override(plain(llama_tiny()), assignments), "recipe"), corpus)


def test_a_new_run_records_who_it_is_and_can_be_opened_again(tmp_path, corpus):
    run = tmp_path / "run"
    assert open_run(run, config(corpus), corpus).is_new
    assert read_config(run) == config(corpus)
    assert read_run(run)["fingerprints"]["corpus"] == corpus.fingerprint
    opened = open_run(run, config(corpus), corpus)
    assert (opened.is_new, opened.finished, opened.changed) == (False, None, ())


def test_attempts_are_numbered_also_after_one_of_an_earlier_version(tmp_path):
    assert [attempt_number(begin_attempt(tmp_path)) for _ in range(3)] == [1, 2, 3]
    (tmp_path / ".attempt").write_text("1f" * 16)
    assert attempt_number("1f" * 16) == 0
    assert attempt_number(begin_attempt(tmp_path)) == 1


def test_execution_may_change_and_is_reported(tmp_path, corpus):
    open_run(tmp_path / "run", config(corpus), corpus)
    opened = open_run(tmp_path / "run", config(corpus, "execution.zero_stage=3"), corpus)
    assert opened.changed == ("execution.zero_stage: 1 -> 3",)
    assert read_config(tmp_path / "run").execution.zero_stage == 3


def test_another_configuration_is_refused_with_the_difference_named(tmp_path, corpus):
    open_run(tmp_path / "run", config(corpus), corpus)
    with pytest.raises(ConflictError, match=r"optimizer.learning_rate: 0.005 -> 0.1"):
        open_run(tmp_path / "run", config(corpus, "optimizer.learning_rate=0.1"), corpus)


def test_a_foreign_corpus_and_a_foreign_tokenizer_are_refused(tmp_path, corpus, foreign_directory):
    open_run(tmp_path / "run", config(corpus), corpus)
    foreign = open_corpus((str(foreign_directory),), None)
    with pytest.raises(ConflictError, match=f"began with the corpus {corpus.fingerprint}"):
        open_run(tmp_path / "run", config(corpus), foreign)
    assert read_run(tmp_path / "run")["fingerprints"]["corpus"] == corpus.fingerprint
    other = replace(corpus, tokenizer=replace(corpus.tokenizer, xxh3_128="0" * 32))
    with pytest.raises(ConflictError, match="began with the tokenizer"):
        open_run(tmp_path / "run", config(corpus), other)


def test_a_run_continues_with_another_corpus_on_request(tmp_path, corpus, foreign_directory):
    run, foreign = tmp_path / "run", open_corpus((str(foreign_directory),), None)
    open_run(run, config(corpus), corpus)
    state = ((name, {"weight": torch.zeros(2)}) for name in ("a", "b"))
    checkpoint.save(run, 30, 1, fingerprints(config(corpus), corpus), state, keep=1)
    with pytest.raises(ConflictError, match=r"optimizer.learning_rate"):
        open_run(run, config(foreign, "optimizer.learning_rate=0.1"), foreign, another_corpus=True)
    opened = open_run(run, config(foreign), foreign, another_corpus=True)
    assert any(change.startswith("data.weights.") for change in opened.changed)
    record = read_run(run)
    assert record["since"] == 30
    assert record["earlier"] == [{"until_step": 30, "corpus": corpus.fingerprint}]
    assert open_run(run, config(foreign), foreign).changed == ()
    with pytest.raises(ConflictError, match=f"began with the corpus {foreign.fingerprint}"):
        open_run(run, config(corpus), corpus)
    with pytest.raises(ConflictError, match="up to step 30 the run read another corpus"):
        blame(replaced(run, foreign_directory), 30, pytest.fail)


def test_another_corpus_of_other_domains_than_those_of_online_weights_changes_nothing(
    tmp_path, corpus, foreign_directory
):
    run, foreign = tmp_path / "run", open_corpus((str(foreign_directory),), None)
    before = config(corpus, "online_weights=ado")
    open_run(run, before, corpus)
    state = ((name, {"weight": torch.zeros(2)}) for name in ("a", "b"))
    domains = {"domains": sorted(corpus.train)}
    checkpoint.save(run, 30, 1, fingerprints(before, corpus), state, keep=1, online_weights=domains)
    other = config(foreign, "online_weights=ado", "data.weights={plays: 1.0}")
    with pytest.raises(ConflictError, match=r"weights of the domains code, notes, plays, .* would read plays; give"):
        open_run(run, other, foreign, another_corpus=True)
    assert read_config(run) == before
    assert open_run(run, before, corpus).changed == ()
    open_run(run, config(foreign, "online_weights=ado"), foreign, another_corpus=True)
    assert read_run(run)["since"] == 30


@pytest.mark.parametrize("writes", ["write_json", "write_config"], ids=["run.json", "resolved.yaml"])
def test_a_kill_while_the_corpus_changes_leaves_a_run_that_the_same_command_opens(
    tmp_path, corpus, foreign_directory, monkeypatch, writes
):
    run, foreign = tmp_path / "run", open_corpus((str(foreign_directory),), None)
    open_run(run, config(corpus), corpus)
    with monkeypatch.context() as patch:
        patch.setattr(f"trainers.runs.run.{writes}", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            open_run(run, config(foreign), foreign, another_corpus=True)
    open_run(run, config(foreign), foreign, another_corpus=True)
    assert (read_run(run)["fingerprints"]["corpus"], read_config(run)) == (foreign.fingerprint, config(foreign))


def replaced(run, directory):
    found = read_config(run)
    placed = replace(found, data=replace(found.data, corpora=(str(directory),)))
    write_config(run, placed)
    return run


def test_a_directory_with_other_files_is_refused(tmp_path, corpus):
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(ConflictError, match="holds files but no run"):
        open_run(tmp_path, config(corpus), corpus)
    with pytest.raises(UserError, match="no run here"):
        read_run(tmp_path)


def test_a_finished_run_says_so(tmp_path, corpus):
    open_run(tmp_path / "run", config(corpus), corpus)
    write_json(tmp_path / "run" / "finished.json", {"step": 100, "tokens": 7})
    assert open_run(tmp_path / "run", config(corpus), corpus).finished["step"] == 100


def test_two_processes_do_not_train_in_one_directory(tmp_path):
    with locked(tmp_path), pytest.raises(ConflictError, match="another process is training"), locked(tmp_path):
        pass


def test_only_differences_from_the_recipe_are_printed():
    recipe = {"name": "a", "batch": {"tokens": None, "sequences": 8}, "objective": {"kind": "causal"}, "seed": 0}
    config = {**recipe, "batch": {"tokens": 512, "sequences": 8}, "objective": {"kind": "masked", "rate": 0.3}}
    assert differing(recipe, recipe) == []
    assert differing(recipe, config) == [
        "batch.tokens: null -> 512",
        'objective: {"kind": "causal"} -> {"kind": "masked", "rate": 0.3}',
    ]


def test_what_killed_trainers_have_left_is_removed(tmp_path):
    (tmp_path / ".export" / "0.tmp").mkdir(parents=True)
    for name in (".resolved.yaml.0.tmp", ".ledger.json.0.tmp", "..attempt.0.tmp", "..lease.0.tmp", "..lease.0.1.tmp"):
        (tmp_path / name).touch()
    with locked(tmp_path):
        assert {path.name for path in tmp_path.iterdir()} == {".lease", ".export"}
