"""Resolved values, and the errors for settings that do not fit the corpus."""

import math
from dataclasses import replace

import numpy as np
import pytest

from gristmill.config import override, parse, plain
from gristmill.errors import ConfigError
from trainers.config.job import Init, TrainingBudget
from trainers.config.pretraining import Pretraining
from trainers.data.packed_corpus import corpus_of, open_corpus, training_data
from trainers.objectives.masked import Masked
from trainers.recipes import RECIPES, llama_tiny
from trainers.runs.parent import settle
from trainers.runs.resolve import describe_data, differences, is_free, resolve


@pytest.fixture(scope="module")
def corpus(corpus_directory):
    return open_corpus((str(corpus_directory),), None)


def settings(*assignments):
    return parse(Pretraining, override(plain(llama_tiny()), assignments), "recipe llama_tiny")


@pytest.mark.long
@pytest.mark.parametrize("name", RECIPES)
def test_recipes_resolve_and_the_result_is_an_input_that_resolves_to_itself(name, salient_directory):
    recipe, corpus = RECIPES[name](), open_corpus((str(salient_directory),), None)
    assert recipe.name == name
    resolved = resolve(recipe, corpus)
    again = parse(Pretraining, plain(resolved), "resolved.yaml")
    assert again == resolved
    assert resolve(again, corpus) == resolved


def test_the_home_directory_is_expanded_before_it_is_recorded(corpus_directory, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "corpus").symlink_to(corpus_directory)
    config = settings("data.corpora=[~/corpus]")
    assert resolve(config, corpus_of(config)).data.corpora == (str(tmp_path / "corpus"),)
    with pytest.raises(ConfigError, match=r"init\.path: .*begins with the variable \$RUNS"):
        settle(Init(path="$RUNS/a"))


def test_open_values_come_from_the_corpus(corpus):
    resolved = resolve(settings("data.sequence_length=128", "batch.sequences=4", "budget.steps=25"), corpus)
    assert resolved.model.vocab_size == 448  # 400 tokens, rounded up to a multiple of 64
    assert (resolved.batch.tokens, resolved.data.shard_set) == (512, "shards")
    drawn = training_data(corpus, resolved).order.take(0, 25 * 4).tokens
    assert resolved.budget.tokens == drawn.sum() < 12_800  # the last sequence of an epoch is shorter
    assert resolved.data.weights == {name: source.tokens for name, source in corpus.train.items()}


def test_a_token_budget_is_rounded_down_so_that_it_is_not_overrun(corpus):
    config = replace(settings("data.sequence_length=128", "batch.sequences=4"), budget=TrainingBudget(tokens=5500))
    assert resolve(replace(config, schedule=replace(config.schedule, warmup_steps=0)), corpus).budget.steps == 10


@pytest.mark.parametrize("packing", ["best_fit", "documents", "full_sentences", "doc_sentences"])
def test_a_token_budget_counts_tokens_and_no_padding(packing, corpus):
    fixed = ("data.sequence_length=64", f"data.packing={packing}", "budget={tokens: 20000}", "schedule.warmup_steps=0")
    resolved = resolve(settings(*fixed, "batch={tokens: 800}", "data.weights={plays: 3, code: 1}"), corpus)
    read = training_data(corpus, resolved)
    means = {source.name: source.tokens / len(source.packing.sizes) for source in read.sources}
    mean = 4 / (3 / means["plays"] + 1 / means["code"])  # tokens of 3 : 1, so sequences of 3 / mean : 1 / mean
    assert resolved.batch.sequences == int(800 // mean)
    assert resolved.batch.tokens == math.ceil(resolved.batch.sequences * mean) <= 800
    steps = np.cumsum(read.order.take(0, 600).tokens)[resolved.batch.sequences - 1 :: resolved.batch.sequences]
    assert resolved.budget.steps == (steps <= 20_000).sum()
    assert resolved.budget.tokens == steps[resolved.budget.steps - 1]
    batch = read.rows(read.order.take(0, resolved.budget.steps * resolved.batch.sequences))
    assert resolved.budget.tokens == (batch.segments >= 0).sum()
    assert resolve(parse(Pretraining, plain(resolved), "resolved.yaml"), corpus) == resolved


@pytest.mark.parametrize(
    ("recipe", "assignment", "said"),
    [
        ("llama_tiny", "data.packing=documents", "data  plays: documents (one in each sequence) at 64 leaves "),
        ("llama_tiny", "data.packing=best_fit", "data  plays: best_fit at 64 leaves "),
        ("tiny_canine", "data.packing=concatenate", "data  canine reads each document as a row of its own"),
    ],
)
def test_it_is_said_where_a_row_has_one_document(recipe, assignment, said, corpus):
    config = parse(Pretraining, override(plain(RECIPES[recipe]()), [assignment, "data.sequence_length=64"]), recipe)
    config = resolve(config, corpus)
    lines = describe_data(config, corpus, training_data(corpus, config).order)
    assert [line for line in lines if line.startswith(said)]
    assert ("of its own" in "".join(lines)) == (recipe == "tiny_canine")


def test_a_budget_of_too_many_samples_to_replay_uses_average_lengths(corpus, monkeypatch):
    phases = "data.phases=[{until_step: 90, sequence_length: 32}]"
    for assignment in ("budget={steps: 100}", "budget={tokens: 160000}", "budget={steps: 100, tokens: 66560}"):
        config = settings(assignment, "batch.sequences=16", phases)
        exact = resolve(config, corpus)
        with monkeypatch.context() as patch:
            patch.setattr("trainers.runs.resolve.EXACT", 1)
            about = resolve(config, corpus)
            assert resolve(parse(Pretraining, plain(about), "resolved.yaml"), corpus) == about
            lines = describe_data(about, corpus, training_data(corpus, about).order)
        first, later = min(90, about.budget.steps), max(0, about.budget.steps - 90)
        assert about.budget.tokens == 16 * (32 * first + 128 * later) <= (config.budget.tokens or 10**9)
        assert exact.budget.tokens == pytest.approx(about.budget.tokens, rel=0.03)
        assert exact.budget.steps == pytest.approx(about.budget.steps, rel=0.03)
        assert sum(int(line.split("tokens, ")[1].split(" ")[0].replace(",", "")) for line in lines if "%" in line) == (
            pytest.approx(about.budget.tokens, abs=3)
        )


def test_windows_are_printed_before_training(corpus):
    phases = "data.phases=[{until_step: 10, sequence_length: 32}]"
    config = parse(Pretraining, override(plain(RECIPES["tiny_awd_lstm"]()), ("data.bptt=16", phases)), "recipe")
    resolved = resolve(config, corpus)
    lines = describe_data(resolved, corpus, training_data(corpus, resolved).order)
    assert "data  rows are trained in windows of 16 tokens: 2, then 4 updates per step" in lines


def test_berts_schedule_reads_42_billion_tokens(corpus):
    """BERT was trained for 1,000,000 steps of 256 sequences. Sequences had 128 tokens for 900,000 steps and
    512 tokens for 100,000 steps, which makes 42.6 B tokens.
    """
    phases = "data.phases=[{until_step: 900000, sequence_length: 128}]"
    fixed = ("data.sequence_length=512", "model.positions=512", "batch.sequences=256", "budget.steps=1000000")
    resolved = resolve(settings(phases, *fixed), corpus)
    assert resolved.budget.tokens == 42_598_400_000
    assert resolved.batch.tokens == 256 * 512


@pytest.mark.parametrize(
    ("assignments", "message"),
    [
        (
            ["data.phases=[{until_step: 5, sequence_length: 256}]"],
            r"data.phases\[0\].sequence_length: got 256, the model has",
        ),
        (["data.phases=[{until_step: 0, sequence_length: 64}]"], r"data.phases\[0\].until_step: got 0, allowed 1"),
        (["data.phases=[{until_step: 5, sequence_length: 1}]"], r"data.phases\[0\].sequence_length: got 1, allowed 2"),
        (
            ["data.phases=[{until_step: 5, sequence_length: 64}, {until_step: 5, sequence_length: 32}]"],
            r"data.phases\[1\].until_step: got 5, the phase before ends at 5",
        ),
    ],
)
def test_phases_that_do_not_fit_are_refused(assignments, message):
    with pytest.raises(ConfigError, match=message):
        settings(*assignments)


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
        (
            ["execution.micro_batch=17"],
            "execution.micro_batch: got 17, a batch has 16 sequences; allowed 1 to 16, or auto",
        ),
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
        ("data.weights={plays: -1}", "data.weights.plays: got -1.0, allowed 0 or more"),
        ("model.heads=3", "model.heads: got 3, which does not divide width 64"),
        ("execution.zero_stage=4", "execution.zero_stage: got 4, expected one of 0, 1, 2, 3"),
        ("model.dropout=0.1", "model.dropout: got 0.1, llama has none"),
    ],
)
def test_wrong_settings_name_the_place_and_what_is_allowed(assignment, message):
    with pytest.raises(ConfigError, match=message):
        settings(assignment)


@pytest.mark.parametrize("recipe", ["llama_tiny", "tiny_simcse", "tiny_quick_thought"])
@pytest.mark.parametrize(
    ("assignments", "message"),
    [
        (
            ["precision=bf16", "execution.zero_stage=0"],
            "precision: bf16 keeps .*; set execution.zero_stage to 1 or more",
        ),
        (
            ["execution.offload_optimizer=true", "execution.zero_stage=0"],
            "offload_optimizer: got true, but .*; set zero_stage to 1 or more",
        ),
        (
            ["execution.compile=true", "execution.zero_stage=3"],
            "compile: got true, but .*; set zero_stage to 2 or less",
        ),
    ],
)
def test_what_does_not_fit_the_zero_stage_is_refused_in_a_line_and_every_stage_without_it_is_not(
    recipe, assignments, message
):
    fields = plain(RECIPES[recipe]())
    with pytest.raises(ConfigError, match=f"{message}$") as raised:
        parse(Pretraining, override(fields, assignments), "x.yaml")
    assert "\n" not in str(raised.value)
    for stage in range(4):
        assert parse(Pretraining, override(fields, [f"execution.zero_stage={stage}"]), "x.yaml")


def test_entering_another_epoch_is_reported_before_training(corpus):
    resolved = resolve(settings("budget.steps=30", "data.weights={plays: 1.0, code: 0.1}"), corpus)
    order = training_data(corpus, resolved).order
    lines = describe_data(resolved, corpus, order)
    read = f"{resolved.budget.tokens:,} tokens in all"
    assert lines[0] == f"data  16 sequences per step, 2,048 tokens on average; 30 steps read {read}"
    del lines[0]
    assert "code: 9.09%" in lines[0]
    assert "again" in lines[0] or corpus.train["code"].tokens > 0.0909 * 30 * 16 * 128
    assert "plays: 90.91%" in lines[1]
    assert "reads documents again" in lines[1]
    assert lines[2] == "data  notes: not read, its weight is 0"


def test_differences_name_fields_and_say_which_may_change():
    changed = settings("execution.micro_batch=2", "optimizer.learning_rate=0.1")
    found = differences(llama_tiny(), changed)
    assert found == [("execution.micro_batch", "auto", 2), ("optimizer.learning_rate", 0.005, 0.1)]
    assert [is_free(name) for name, _, _ in found] == [True, False]


def test_a_phase_begins_a_new_epoch_and_tokens_unread_because_of_caps_are_reported(corpus):
    phases = "data.phases=[{until_step: 3, sequence_length: 32}]"
    weights = ("data.weights={plays: 1.0, code: 1.0}", "data.max_epochs={code: 0.7}", "budget.steps=20")
    resolved = resolve(settings(phases, *weights, "batch.sequences=4", "schedule.warmup_steps=0"), corpus)
    order = training_data(corpus, resolved).order
    lines = describe_data(resolved, corpus, order)
    drawn = order.take(0, 20 * 4)
    assert lines[1:3] == [
        "data  steps 1 to 3: sequences of 32 tokens", "data  steps 4 to 20: sequences of 128 tokens"
    ]  # fmt: skip
    code, plays = (drawn.tokens[drawn.source == i].sum() for i in (0, 1))
    assert f"{code:,} tokens, {code / corpus.train['code'].tokens:.2f} epochs" in lines[3]
    assert lines[3].endswith("epochs  (may read documents again: a new length begins epoch 2)")
    assert f"{plays:,} tokens" in lines[4]
    assert lines[4].endswith("epochs  (may read documents again: a new length begins epoch 2)")
    more = resolve(settings(phases, *weights[:-1], "batch.sequences=4", "budget.steps=40"), corpus)
    longer = describe_data(more, corpus, training_data(corpus, more).order)
    assert any("plays" in line and line.endswith("(reads documents again: enters epoch 3)") for line in longer)
    assert code <= 0.7 * corpus.train["code"].tokens
    source = corpus.train["code"]
    sizes = source.sizes(128, np.arange(source.count(128)))
    left = corpus.train["code"].tokens - code
    assert 0.7 * corpus.train["code"].tokens - code < sizes.max()
    assert lines[5] == f"data  code: limited by max_epochs; {left:,} tokens of its last epoch stay unread"


def test_a_budget_from_averages_stays_below_the_caps(corpus, monkeypatch):
    total = int(training_data(corpus, resolve(settings("data.max_epochs=20"), corpus)).order.mixture().total)
    few = ("schedule.warmup_steps=0", "batch.sequences=1", "data.max_epochs=20")
    steps = total // 128
    exact = resolve(settings(*few, f"budget.steps={steps}"), corpus)
    assert exact.budget.steps == steps
    monkeypatch.setattr("trainers.runs.resolve.EXACT", 1)
    with pytest.raises(ConfigError, match=r"exhausted after [\d,]+ tokens"):
        resolve(settings(*few, f"budget.steps={steps}"), corpus)
    assert resolve(settings(*few, f"budget.steps={int(steps * 0.99)}"), corpus).budget.steps == int(steps * 0.99)


@pytest.mark.parametrize("recipe", ["tiny_t5", "tiny_prefix_lm"])
def test_a_special_that_the_tokenizer_lacks_is_found_before_training(recipe, corpus):
    parts = [
        {"objective": "span_corruption", "weight": 1e9},
        {"objective": "prefix_lm", "weight": 1e-9, "token": "<no>"},
    ]
    wanted = [{"kind": "mixture", "parts": parts}, "span_corruption", "denoising"]
    for objective, missing in zip(wanted, ["<no>", "<extra_id_0>", "<mask>"], strict=True):
        config = parse(Pretraining, {**plain(RECIPES[recipe]()), "objective": objective}, recipe)
        config = replace(config, data=replace(config.data, sequence_length=64))
        resolve(config, corpus) if missing != "<no>" else None
        kept = {name: number for name, number in corpus.tokenizer.specials.items() if name != missing}
        lacking = replace(corpus, tokenizer=replace(corpus.tokenizer, specials=kept))
        with pytest.raises(ConfigError, match=f"needs the special {missing}"):
            resolve(config, lacking)


@pytest.mark.parametrize("recipe", ["tiny_bart", "tiny_gpt2"])
def test_pairs_in_one_row_may_not_exceed_the_table_of_positions(recipe):
    objective = {"kind": "span_corruption"} if recipe == "tiny_bart" else {"kind": "mixture"}
    data = {**plain(RECIPES[recipe]()), "objective": objective}
    parse(Pretraining, data, recipe)
    with pytest.raises(ConfigError, match=r"data\.isolation: got false .* 1[26][80] learned positions"):
        parse(Pretraining, override(data, ["data.isolation=false"]), recipe)
    assert not parse(Pretraining, override(plain(RECIPES["tiny_t5"]()), ["data.isolation=false"]), "t5").data.isolation
    alone = override(plain(RECIPES["tiny_gpt2"]()), ["data.isolation=false"])
    assert not parse(Pretraining, alone, "gpt2").data.isolation


def test_a_field_beside_the_name_of_an_objective():
    data = override(plain(RECIPES["tiny_roberta"]()), ["objective=masked", "objective.rate=0.4"])
    assert parse(Pretraining, data, "tiny_roberta").objective == Masked(rate=0.4)


def test_sources_without_validation_documents_are_named(corpus):
    resolved = resolve(llama_tiny(), corpus)
    said = describe_data(resolved, corpus, training_data(corpus, resolved).order)
    assert "data  no validation loss of notes: no validation documents in the corpus" in said
    some = resolve(settings("data.weights={plays: 1, code: 1}"), corpus)
    assert not any(
        "no validation loss" in line for line in describe_data(some, corpus, training_data(corpus, some).order)
    )
