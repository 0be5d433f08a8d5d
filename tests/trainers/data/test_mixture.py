"""Staged mixtures with epoch caps: at every sample, the tokens read from each source follow the requested
mixture, including after a change of stage.
"""

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest

from gristmill.config import override, parse, plain
from gristmill.errors import ConfigError, CorruptFileError, UserError
from gristmill.storage.store import write_json
from trainers.config.job import BatchSize
from trainers.config.pretraining import Data, MixtureStage, Pretraining
from trainers.config.pretraining import LengthPhase as Length
from trainers.data.mixture_weights import UNCAPPED, build_mixture, epoch_cap
from trainers.data.order import MixtureExhausted, Order, OrderPhase, Stream
from trainers.data.packed_corpus import open_corpus, training_data
from trainers.objectives.causal import Causal
from trainers.recipes import llama_tiny
from trainers.rows.batch import IGNORED, Frame
from trainers.runs.ledger import make_ledger, read_ledger
from trainers.runs.resolve import describe_data, resolve
from trainers.runs.run import open_run

THREE = ((3_000, (0.7, 0.2, 0.1)), (5_001, (0.0, 0.5, 0.5)), (math.inf, (0.3, 0.0, 0.7)))
SIZES = (900, 1_111, 2_000)


def asked(stages, sizes, epochs):
    names = [f"s{i}" for i in range(len(sizes))]
    caps = {f"s{i}": epoch_cap(sizes[i], most) for i, most in epochs.items()}
    return build_mixture([(until, dict(zip(names, weights, strict=True))) for until, weights in stages], caps, names)


def order(stages=THREE, sizes=SIZES, epochs=None, length=16):
    wanted = asked(stages, sizes, epochs or {})
    streams = tuple(Stream(f"s{i}", size) for i, size in enumerate(sizes))
    return Order([OrderPhase(streams, length)], wanted, 0, "corpus")


def request(stages, caps, tokens):
    """Return the cumulative tokens requested from each source after every token, computed in a loop as a
    reference for `SourceMixture.requested`.
    """
    given, done = np.zeros(len(caps)), 0
    table = [given.copy()]
    for until, weights in stages:
        while done < min(until, tokens):
            share = np.where(given < np.array(caps) - 1e-6, weights, 0.0)
            given = given + share / share.sum()
            done += 1
            table.append(given.copy())
    return np.array(table)


def worst(drawn, samples):
    total = np.cumsum(samples.tokens)
    wanted = np.array([drawn.mixture().requested(int(tokens)) for tokens in total])
    read = np.stack(
        [np.cumsum(np.where(samples.source == s, samples.tokens, 0)) for s in range(wanted.shape[1])], axis=1
    )
    return np.abs(read - wanted).max()


def test_the_request_is_the_sum_of_the_shares_of_every_token():
    table = request(THREE, [900, 1_111, UNCAPPED], 5_800)
    wanted = asked(THREE, SIZES, {0: 1, 1: 1})
    for tokens in (0, 1, 2_999, 3_000, 3_001, 5_000, 5_001, 5_002, 5_800):
        # A source that reaches its cap within a token is followed token by token with an error of up to one.
        np.testing.assert_allclose(wanted.requested(tokens), table[tokens], atol=1.5)
        assert wanted.requested(tokens).sum() == pytest.approx(tokens)


def test_three_stages_and_a_cap_are_followed_within_a_sequence_and_nothing_is_read_twice_in_an_epoch():
    drawn = order(epochs={0: 1, 2: 2})
    samples = drawn.take(0, 400)
    assert worst(drawn, samples) <= 16
    for source, size in enumerate(SIZES):
        read = samples.sequence[samples.source == source]
        epoch = -(-size // 16)
        for first in range(0, len(read), epoch):
            assert len(set(read[first : first + epoch])) == len(read[first : first + epoch])
    tokens = drawn.totals(400).tokens
    assert tokens[0] <= 900
    assert tokens[2] <= 4_000


@pytest.mark.long
def test_random_mixtures_are_followed_within_a_sequence():
    rng = np.random.default_rng(0)
    for _ in range(150):
        count, length = int(rng.integers(1, 8)), int(rng.integers(2, 40))
        sizes = [int(size) for size in rng.integers(1, 1_500, count)]
        ends = [*np.cumsum(rng.integers(1, 3_000, rng.integers(0, 4))).tolist(), math.inf]
        stages = [
            (end, (rng.random(count) * (rng.random(count) < 0.7) + 1e-9 * (np.arange(count) == 0))) for end in ends
        ]
        # The first source stays without a cap: it can always give what the others may not.
        epochs = {i: float(rng.choice([1, 2, 3, 1.5])) for i in range(1, count) if rng.random() < 0.4}
        epochs = {i: most for i, most in epochs.items() if most * sizes[i] >= min(length, sizes[i])}
        drawn = order(stages, sizes, epochs, length)
        assert worst(drawn, drawn.take(0, 600)) <= length
        assert (drawn.totals(600).tokens <= drawn.mixture().caps).all()


def test_a_change_of_weight_continues_each_source_at_its_position():
    samples = order().take(0, 1_000)
    alone = {source: order([(math.inf, [1.0])], [size]).take(0, 1_000).sequence for source, size in enumerate(SIZES)}
    del alone[1], alone[2]  # the name of a source is part of its order's key
    for source, expected in alone.items():
        read = samples.sequence[samples.source == source]
        np.testing.assert_array_equal(read, expected[: len(read)])


def test_a_mixture_whose_sources_are_used_up_ends():
    drawn = order([(math.inf, (0.5, 0.5))], (100, 64), {0: 1, 1: 2})
    assert drawn.mixture().total == 100 + 128
    assert drawn.take(0, 15).tokens.sum() == 100 + 128  # seven sequences, one of them of 4 tokens, and eight
    with pytest.raises(ValueError, match="the mixture has 15 samples"):
        drawn.take(15, 1)


@pytest.mark.parametrize(("epochs", "tokens"), [(1, 100), (2, 200), (2.5, 248), (0.1, 0)])
def test_a_cap_is_whole_sequences(epochs, tokens):
    drawn = order([(math.inf, (0.5, 0.5))], (100, 64), {0: epochs})
    assert drawn.mixture().caps.tolist() == [tokens, UNCAPPED]


# From here on with a corpus.

LENGTH = 32


@pytest.fixture(scope="module")
def corpus(corpus_directory):
    return open_corpus((str(corpus_directory),), None)


def staged(corpus, packing="concatenate", phases=(), sequences=6):
    data = Data(
        sequence_length=LENGTH,
        packing=packing,
        phases=phases,
        stages=(MixtureStage(1_500, {"plays": 1.0, "code": 3.0}), MixtureStage(4_000, {"plays": 1.0, "notes": 0.05})),
        weights={"code": 1.0, "plays": 0.5},
        max_epochs={"code": 1.0},
    )
    return training_data(corpus, replace(llama_tiny(), data=data, batch=BatchSize(sequences=sequences)))


@pytest.mark.long
@pytest.mark.parametrize("phases", [(), (Length(until_step=9, sequence_length=16),)], ids=["one", "two"])
@pytest.mark.parametrize("packing", ["concatenate", "best_fit", "doc_sentences"])
def test_stopping_again_and_again_at_other_sizes_reads_what_never_stopping_reads(corpus, packing, phases):
    steps, size = 30, 6

    def rows(batch):
        arrays = (batch.inputs, batch.targets, batch.positions, batch.segments)
        assert (batch.targets[batch.sample < 0] == IGNORED).all()
        there = np.flatnonzero(batch.sample >= 0)
        return {int(batch.sample[row]): np.stack(arrays)[:, row, batch.segments[row] >= 0].tobytes() for row in there}

    alone = staged(corpus, packing, phases, size)
    whole = {}
    for step in range(steps):
        whole |= rows(alone.rows(alone.order.take(step * size, size)))
    resumed: dict[int, bytes] = {}
    for first, last, world, micro in ((0, 7, 1, 6), (7, 9, 3, 2), (9, 21, 2, 2), (21, 30, 4, 1)):
        ranks = [staged(corpus, packing, phases, size) for _ in range(world)]  # a new process: only the step is known
        for step in range(first, last):
            for rank, data in enumerate(ranks):
                for batch in data.micro_batches(step * size, size, micro, rank, world):
                    found = rows(batch)
                    assert not resumed.keys() & found.keys()
                    resumed |= found
    assert resumed == whole
    assert sorted(resumed) == list(range(steps * size))


@dataclass(frozen=True)
class Reading(Causal):
    def apply(self, batch, context):
        return batch


@pytest.mark.long
@pytest.mark.parametrize("phases", [(), (Length(until_step=9, sequence_length=24),)], ids=["one", "two"])
@pytest.mark.parametrize("frame", [Frame(), Frame("<bos>"), Frame("<cls>", "<sep>")], ids=["0", "1", "2"])
@pytest.mark.parametrize("packing", ["concatenate", "best_fit", "documents", "full_sentences", "doc_sentences"])
def test_the_ledger_is_what_rows_hold_and_within_a_sequence_of_the_request_at_every_step(
    numbered_directory, frame, packing, phases
):
    """The mixture has three stages and a cap. No token occurs twice in the corpus, so a token seen twice in
    an epoch would reveal text that is read twice.
    """
    corpus = open_corpus((str(numbered_directory),), None, frame)
    stages = (MixtureStage(1_500, {"plays": 1.0, "code": 3.0}), MixtureStage(4_000, {"plays": 1.0, "notes": 0.05}))
    weights, caps = {"code": 1.0, "plays": 0.5}, {"code": 0.8}
    asked = Data(sequence_length=40, phases=phases, packing=packing, weights=weights, stages=stages, max_epochs=caps)
    steps, size = 60, 8
    config = replace(llama_tiny(), data=asked, batch=BatchSize(sequences=size), objective=Reading())
    data = training_data(corpus, config)
    read, places = np.zeros((2, len(data.sources)), dtype=np.int64)
    seen, numbers = {}, {}
    longest = 40 + sum(phase.sequence_length for phase in phases)
    for step in range(steps):
        for rank in range(3):
            for batch in data.micro_batches(step * size, size, 2, rank, 3):
                held = batch.segments >= 0
                np.add.at(read, batch.source, held.sum(axis=1))
                np.add.at(places, batch.source[batch.sample >= 0], data.packed_at(step * size).length)
                for row in np.flatnonzero(batch.sample >= 0):
                    key = (int(batch.source[row]), int(batch.epoch[row]))
                    seen.setdefault(key, []).append(batch.inputs[row][held[row]])
                    numbers.setdefault(key, set()).add(int(batch.sample[row]))
        ledger = data.consumed((step + 1) * size)
        assert [entry["tokens"] for entry in ledger.values()] == read.tolist()
        assert [entry["padding"] for entry in ledger.values()] == (places - read).tolist()
        assert sum(entry["requested_tokens"] for entry in ledger.values()) == pytest.approx(read.sum())
        for entry in ledger.values():
            assert abs(entry["tokens"] - entry["requested_tokens"]) <= longest
            assert entry["cropped"] == 0
    assert ledger["code"]["epochs"] <= 0.8
    whole, cut_short = 0, _cut_short(data, numbers)
    for (index, epoch), rows in seen.items():
        source, held = data.sources[index], np.concatenate(rows)
        tokens = held[held >= 128]
        assert len(set(tokens.tolist())) == len(tokens)
        if (index, epoch + 1) in seen and (index, epoch) not in cut_short:
            whole += 1
            assert len(held) == source.tokens
            assert len(tokens) == sum(shard.tokens for shard in source.shards)
    assert whole > 0


def _cut_short(data, numbers):
    """Return the (source index, epoch) pairs that the end of a phase may have cut short."""
    ends = [phase.until for phase in data.order.phases[:-1]]
    return {
        max((key for key in numbers if key[0] == index and min(numbers[key]) < end), default=None)
        for end in ends
        for index in range(len(data.sources))
    }


def test_what_was_seen_is_counted_beside_the_request(corpus):
    data = staged(corpus)
    samples = data.order.take(0, 250)
    seen = data.consumed(250)
    assert sum(entry["tokens"] for entry in seen.values()) == samples.tokens.sum()
    assert sum(entry["requested_tokens"] for entry in seen.values()) == pytest.approx(samples.tokens.sum())
    batch = data.rows(samples)
    for index, source in enumerate(data.sources):
        entry, rows = seen[source.name], batch.targets[samples.source == index]
        assert (entry["tokens"], entry["sequences"]) == ((rows != IGNORED).sum(), len(rows))
        assert entry["padding"] == (rows == IGNORED).sum()
        assert abs(entry["tokens"] - entry["requested_tokens"]) <= LENGTH
        assert entry["epochs"] == entry["tokens"] / source.tokens
    assert seen["code"]["epochs"] <= 1.0


def test_the_ledger_is_what_was_seen_and_is_refused_where_it_is_not(corpus, tmp_path):
    with pytest.raises(UserError, match="has no ledger"):
        read_ledger(tmp_path)
    config = resolve(settings("data.max_epochs={code: 1}"), corpus)
    data = training_data(corpus, config)
    open_run(tmp_path, config, corpus)
    write_json(tmp_path / "ledger.json", make_ledger(tmp_path, config, corpus, data, 7))
    ledger = read_ledger(tmp_path)
    assert (ledger["step"], ledger["samples"], ledger["corpus"]) == (7, 7 * 16, corpus.fingerprint)
    assert ledger["sources"] == data.consumed(7 * 16)
    text = (tmp_path / "ledger.json").read_text()
    (tmp_path / "ledger.json").write_text(text.replace('"samples": 112', '"samples": 111'))
    with pytest.raises(CorruptFileError):
        read_ledger(tmp_path)


def settings(*assignments):
    return parse(Pretraining, override(plain(llama_tiny()), assignments), "recipe")


def test_stages_and_caps_resolve_to_an_input_and_are_printed_before_training(corpus):
    stages = "data.stages=[{until_tokens: 1e4, weights: uniform}, {until_tokens: 2e4, weights: {code: 1}}]"
    resolved = resolve(settings(stages, "data.weights={plays: 1}", "data.max_epochs={code: 4}"), corpus)
    assert resolved.data.stages[0] == MixtureStage(10_000, {"code": 1.0, "notes": 1.0, "plays": 1.0})
    again = parse(Pretraining, plain(resolved), "resolved.yaml")
    assert resolve(again, corpus) == again == resolved
    resolved = replace(resolved, data=replace(resolved.data, max_epochs=None))
    lines = describe_data(resolved, corpus, training_data(corpus, resolved).order)
    assert lines[-2:] == ["data  from token 10,000 on: code 100.00%", "data  from token 20,000 on: plays 100.00%"]
    again = [line for line in lines if "reads documents again: enters epoch" in line]
    assert len(again) == 3


def test_unimax_is_of_the_tokens_that_its_weights_hold_for(corpus):
    stages = "data.stages=[{until_tokens: 600, weights: unimax}, {until_tokens: 1e9, weights: temperature}]"
    resolved = resolve(settings(stages, "data.weights=unimax", "data.max_epochs=1000"), corpus)
    sizes = {name: source.tokens for name, source in sorted(corpus.train.items())}
    assert resolved.data.stages[0].weights == pytest.approx(dict.fromkeys(sizes, 1 / 3))  # 200 tokens of each
    powers = {name: size**0.3 for name, size in sizes.items()}
    assert resolved.data.stages[1].weights == pytest.approx(
        {name: power / sum(powers.values()) for name, power in powers.items()}
    )
    tight = resolve(settings("data.weights=unimax", "data.max_epochs={notes: 1000}", "budget.steps=12"), corpus).data
    amounts = {name: weight * 12 * 16 * 128 for name, weight in tight.weights.items()}
    assert amounts["notes"] == pytest.approx(4 * sizes["notes"])
    assert amounts["code"] == pytest.approx(min(amounts["plays"], 4 * sizes["code"]))


@pytest.mark.parametrize("exponent", ["0", "0.3", ".7", "1"])
def test_sources_are_weighted_by_a_power_of_their_tokens(corpus, exponent):
    weights = resolve(settings(f"data.weights=tokens**{exponent}"), corpus).data.weights
    powers = {name: source.tokens ** float(exponent) for name, source in corpus.train.items()}
    assert weights == pytest.approx({name: power / sum(powers.values()) for name, power in powers.items()})


@pytest.mark.parametrize(
    "power", ["tokens**2", "tokens**1.5", "tokens**-1", "tokens**", "tokens**1e9", "tokens**.", "token**0.5"]
)
def test_other_powers_are_refused(corpus, power):
    with pytest.raises(ConfigError, match=r"data\.weights: got 'token.*or tokens\*\*E with an exponent from 0 to 1"):
        resolve(settings(f"data.weights={power}"), corpus)


def test_a_mixture_ends_with_its_stage_and_reads_no_source_of_another_one():
    drawn = order(stages=((1_000, (0.0, 1.0, 0.0)), (math.inf, (1.0, 0.0, 0.0))), epochs={0: 1})
    with pytest.raises(MixtureExhausted) as end:
        drawn.take(0, 400)
    samples = drawn.take(0, end.value.samples)
    assert worst(drawn, samples) <= 16
    assert 1_900 <= end.value.tokens == samples.tokens.sum() < 1_916


def test_a_stage_after_the_end_of_the_run_is_no_error(corpus):
    stages = "data.stages=[{until_tokens: 1e9, weights: {plays: 1}}]"
    for caps in ("{plays: 1}", "{plays: 1, code: 1}", "{plays: 1e300}"):
        run = settings(stages, "data.weights={code: 1}", f"data.max_epochs={caps}", "budget.steps=2")
        resolved = resolve(replace(run, schedule=replace(run.schedule, warmup_steps=0)), corpus)
        seen = training_data(corpus, resolved).consumed(2 * 16)
        assert (seen["plays"]["tokens"], seen["code"]["tokens"]) == (resolved.budget.tokens, 0)


def test_one_cap_for_all_sources_becomes_a_cap_of_each(corpus):
    resolved = resolve(settings("data.max_epochs=100", "data.weights={plays: 1, code: 1}"), corpus)
    assert resolved.data.max_epochs == {"plays": 100.0, "code": 100.0}


@pytest.mark.parametrize(
    ("assignments", "message"),
    [
        (["data.stages=[{until_tokens: 5, weights: {code: -1}}]"], r"data.stages\[0\].weights.code: got -1.0"),
        (["data.stages=[{until_tokens: 0, weights: uniform}]"], r"data.stages\[0\].until_tokens: got 0, allowed 1"),
        (
            ["data.stages=[{until_tokens: 9, weights: uniform}, {until_tokens: 9, weights: uniform}]"],
            r"data.stages\[1\].until_tokens: got 9, the stage before ends at 9",
        ),
        (["data.stages=[{until_tokens: 9, weights: {cod: 1}}]"], r"data.stages\[0\].weights.cod: no such source"),
        (["data.stages=[{until_tokens: 9, weights: tempered}]"], r"data.stages\[0\].weights: got 'tempered', allowed"),
        (["data.weights={code: 1e308, plays: 1e308}"], r"data.weights: sum to inf"),
        (["data.weights={code: many}"], r"data.weights.code: got 'many', expected a number"),
        (["data.max_epochs={code: .inf}"], r"data.max_epochs.code: got inf, expected a number"),
        (["data.weights={code: 0}"], r"data.weights: all are 0"),
        (["data.max_epochs=0"], r"data.max_epochs: got 0.0, allowed above 0"),
        (["data.max_epochs={code: -2}"], r"data.max_epochs.code: got -2.0, allowed above 0"),
        (["data.max_epochs={cod: 2}"], r"data.max_epochs.cod: no such source"),
        (["data.max_epochs={code: 0.001}"], r"data.max_epochs.code: got 0.001, less than one sequence"),
        (["data.max_epochs=1"], r"data.max_epochs: the sources of a stage are exhausted after [\d,]+ tokens"),
        (
            [
                "data.stages=[{until_tokens: 4000, weights: {plays: 1}}]",
                "data.weights={code: 1}",
                "data.max_epochs={code: 1}",
            ],
            r"data.max_epochs: the sources of a stage are exhausted after [\d,]+ tokens",
        ),
    ],
)
def test_stages_and_caps_that_do_not_fit_are_refused(assignments, message, corpus):
    with pytest.raises(ConfigError, match=message):
        resolve(settings(*assignments), corpus)


def test_a_weighted_source_without_a_training_document_is_refused(corpus):
    emptied = replace(corpus, train={k: v for k, v in corpus.train.items() if k != "notes"}, empty=frozenset({"notes"}))
    with pytest.raises(ConfigError, match=r"data.weights.notes: the corpus has no training document of this source"):
        resolve(settings("data.weights={notes: 1, code: 1}"), emptied)
