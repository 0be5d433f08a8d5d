"""Training on a fixed random subset of each source, to repeat data as often as a larger run on the whole
corpus would.
"""

from dataclasses import replace

import numpy as np
import pytest

from gristmill.config import parse, plain
from gristmill.errors import ConfigError
from trainers.config.job import BatchSize, TrainingBudget
from trainers.config.pretraining import Data
from trainers.data.mixture_weights import build_mixture
from trainers.data.order import MixtureExhausted, Order, OrderPhase, Stream, choose_sequences
from trainers.data.packed_corpus import open_corpus, training_data
from trainers.recipes import llama_tiny
from trainers.runs.resolve import resolve


def test_a_subset_is_a_function_of_its_key_and_grows_with_the_share():
    small, large = choose_sequences(1000, 0.1, "0/web"), choose_sequences(1000, 0.3, "0/web")
    assert (len(small), len(large)) == (100, 300)
    assert set(small) < set(large)
    assert (
        choose_sequences(1000, 0.1, "0/web").tolist() == small.tolist() != choose_sequences(1000, 0.1, "1/web").tolist()
    )
    assert len(choose_sequences(3, 0.01, "0/web")) == 1
    assert len(choose_sequences(0, 0.5, "0/web")) == 0


def test_every_epoch_reads_each_sequence_of_the_subset_once():
    chosen = np.array([3, 50, 77, 901])
    mixture = build_mixture([(float("inf"), {"a": 0.5, "b": 0.5})], {}, ["a", "b"])
    order = Order([OrderPhase((Stream("a", 40, None, chosen), Stream("b", 10_000)), 10)], mixture, 0, "corpus")
    samples = order.take(0, 24)
    of_first = samples.sequence[samples.source == 0]
    for epoch in range(3):
        assert sorted(of_first[4 * epoch : 4 * epoch + 4]) == chosen.tolist()
    assert samples.epoch[samples.source == 0].max() == 2
    again = Order([OrderPhase((Stream("a", 40, None, chosen + 1), Stream("b", 10_000)), 10)], mixture, 0, "corpus")
    assert again.identity != order.identity


@pytest.mark.parametrize("packing", ["concatenate", "best_fit"])
def test_a_run_of_a_subset_reads_few_sequences_and_counts_their_epochs(corpus_directory, packing):
    corpus = open_corpus((str(corpus_directory),), None)
    read = Data(corpora=(str(corpus_directory),), sequence_length=64, packing=packing, subset=0.1, weights="uniform")
    config = replace(llama_tiny(), data=read)
    config = resolve(config, corpus)
    data = training_data(corpus, config)
    samples = data.order.take(0, 200)
    for index, source in enumerate(data.sources):
        whole = len(source.packing.sizes) if source.packing else source.tokens // 64
        assert len(np.unique(samples.sequence[samples.source == index])) <= max(1, round(0.1 * whole))
    consumed, tokens = data.consumed(200), {source.name: source.tokens for source in data.sources}
    for name in ("plays", "code"):  # of many sequences, so that a tenth of them is nearly a tenth of the tokens
        assert consumed[name]["epochs"] == pytest.approx(consumed[name]["tokens"] / (0.1 * tokens[name]), rel=0.15)
    other = training_data(corpus, replace(config, seed=1))
    assert set(other.order.take(0, 200).sequence) != set(samples.sequence)


def test_a_run_of_the_whole_keeps_its_configuration():
    assert "subset" not in plain(Data())
    assert plain(Data(subset=0.5))["subset"] == 0.5
    with pytest.raises(ConfigError, match="subset: got 0"):
        parse(Data, {"subset": 0}, "recipe")


def test_a_source_shorter_than_one_sequence_is_read_as_a_whole(corpus_directory):
    corpus = open_corpus((str(corpus_directory),), None)
    length = corpus.train["notes"].tokens + 8
    assert length < corpus.train["code"].tokens
    read = Data(corpora=(str(corpus_directory),), sequence_length=length, subset=0.1, weights="uniform")
    config = resolve(replace(llama_tiny(), data=read), corpus)
    data = training_data(corpus, config)
    tokens = data.consumed(12)["notes"]["tokens"]
    assert (tokens > 0, tokens % corpus.train["notes"].tokens) == (True, 0)
    assert len(data.rows(data.order.take(0, 12)).inputs) == 12


def test_caps_in_epochs_are_of_at_least_one_sequence(corpus_directory):
    corpus = open_corpus((str(corpus_directory),), None)
    for length in (corpus.train["notes"].tokens + 8, corpus.train["notes"].tokens // 2):
        read = Data(
            corpora=(str(corpus_directory),), sequence_length=length, subset=0.01, weights="uniform", max_epochs=2.0
        )
        config = replace(llama_tiny(), data=read, budget=TrainingBudget(steps=1), batch=BatchSize(sequences=3))
        config = replace(config, schedule=replace(config.schedule, warmup_steps=0))
        config = resolve(config, corpus)
        order = training_data(corpus, config).order
        caps = dict(zip((stream.name for stream in order.streams), order.caps().tolist(), strict=True))
        assert caps["notes"] == 2 * min(length, corpus.train["notes"].tokens)


@pytest.mark.parametrize("subset", [0.1, 0.5])
def test_caps_in_epochs_count_the_tokens_of_the_sequences_that_are_read(corpus_directory, subset):
    corpus = open_corpus((str(corpus_directory),), None)
    read = Data(
        corpora=(str(corpus_directory),),
        sequence_length=64,
        packing="documents",
        subset=subset,
        weights={"plays": 1.0, "code": 1.0},
        max_epochs=1.0,
    )
    config = replace(llama_tiny(), data=read, budget=TrainingBudget(steps=1), batch=BatchSize(sequences=1))
    config = replace(config, schedule=replace(config.schedule, warmup_steps=0))
    order = training_data(corpus, resolve(config, corpus)).order
    with pytest.raises(MixtureExhausted) as end:
        order.take(0, 10_000)
    samples = order.take(0, end.value.samples)
    for index, stream in enumerate(order.streams):
        assert sorted(samples.sequence[samples.source == index]) == stream.subset.tolist()
