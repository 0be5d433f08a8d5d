"""Derived values, and the errors of settings that do not fit the corpus."""

from dataclasses import replace

import pytest

from pipelines.contracts.config import override, parse, plain
from pipelines.contracts.errors import ConfigError
from trainers.config import Budget, Pretraining
from trainers.data import open_corpus, training_data
from trainers.recipes import RECIPES, llama_tiny
from trainers.resolve import describe_data, differences, is_free, resolve


@pytest.fixture(scope="module")
def corpus(corpus_directory):
    return open_corpus((str(corpus_directory),), None)


def settings(*assignments):
    return parse(Pretraining, override(plain(llama_tiny()), assignments), "recipe llama_tiny")


@pytest.mark.parametrize("name", RECIPES)
def test_recipes_resolve_and_the_result_is_an_input_that_resolves_to_itself(name, corpus):
    recipe = RECIPES[name]()
    assert recipe.name == name
    resolved = resolve(recipe, corpus)
    again = parse(Pretraining, plain(resolved), "resolved.yaml")
    assert again == resolved
    assert resolve(again, corpus) == resolved


def test_open_values_come_from_the_corpus(corpus):
    resolved = resolve(settings("data.sequence_length=128", "batch.sequences=4", "budget.steps=25"), corpus)
    assert resolved.model.vocab_size == 448  # 400 tokens, rounded up to a multiple of 64
    assert (resolved.batch.tokens, resolved.budget.tokens, resolved.data.shard_set) == (512, 12_800, "shards")
    assert resolved.data.weights == {name: source.tokens for name, source in corpus.train.items()}


def test_a_token_budget_is_rounded_down_so_that_it_is_not_overrun(corpus):
    config = replace(settings("data.sequence_length=128", "batch.sequences=4"), budget=Budget(tokens=5500))
    assert resolve(replace(config, schedule=replace(config.schedule, warmup_steps=0)), corpus).budget.steps == 10


@pytest.mark.parametrize(
    ("assignments", "message"),
    [
        (["model.vocab_size=128"], "model.vocab_size: got 128, the corpus's tokenizer has 400 tokens"),
        (["data.weights={play: 1.0}"], "data.weights.play: no such source .* did you mean 'plays'"),
        (["data.weights=temperatur"], "data.weights: got 'temperatur', allowed a mapping"),
        (["budget.steps=5"], "schedule.warmup_steps: got 10, the run has 5 steps"),
        (["batch.tokens=100", "batch.sequences=null"], "batch.tokens: got 100, one sequence has 128"),
        (["batch.tokens=256"], "batch: got tokens 256 and sequences 16"),
        (["budget.tokens=2048"], "budget: got tokens 2048 and steps 100"),
    ],
)
def test_values_that_do_not_fit_are_refused(assignments, message, corpus):
    with pytest.raises(ConfigError, match=message):
        resolve(settings(*assignments), corpus)


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("model.layer=2", "recipe llama_tiny: model.layer: no such field in Model; did you mean 'layers'"),
        ("model.layers=two", "recipe llama_tiny: model.layers: got 'two'"),
        ("data.sequence_length=4096", "data.sequence_length: got 4096, the model has 128 positions"),
        ("data.weights={plays: -1}", "data.weights.plays: got -1.0, allowed 0 and more"),
        ("model.heads=3", "model.heads: got 3, which does not divide width 64"),
        ("execution.zero_stage=4", "execution.zero_stage: got 4, expected one of 0, 1, 2, 3"),
        ("model.dropout=0.1", "model.dropout: got 0.1, llama has none"),
    ],
)
def test_wrong_settings_name_the_place_and_what_is_allowed(assignment, message):
    with pytest.raises(ConfigError, match=message):
        settings(assignment)


def test_bf16_needs_a_stage_that_keeps_fp32_weights():
    with pytest.raises(ConfigError, match="precision: bf16"):
        settings("precision=bf16", "execution.zero_stage=0")


def test_entering_another_epoch_is_said_before_training(corpus):
    resolved = resolve(settings("budget.steps=30", "data.weights={plays: 1.0, code: 0.1}"), corpus)
    order = training_data(corpus, resolved).order
    lines = describe_data(resolved, corpus, order)
    assert "code: 9.09%" in lines[0]
    assert "again" in lines[0] or corpus.train["code"].tokens > 0.0909 * 30 * 16 * 128
    assert "plays: 90.91%" in lines[1]
    assert "reads documents again" in lines[1]
    assert lines[2] == "data  notes: not read, its weight is 0"


def test_differences_name_fields_and_say_which_may_change():
    changed = settings("execution.micro_batch=2", "optimizer.learning_rate=0.1")
    found = differences(llama_tiny(), changed)
    assert found == [("execution.micro_batch", 8, 2), ("optimizer.learning_rate", 0.005, 0.1)]
    assert [is_free(name) for name, _, _ in found] == [True, False]
