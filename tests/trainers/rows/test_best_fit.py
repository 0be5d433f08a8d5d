"""Best-fit packing: no document that fits is lost or cut, packing needs as few sequences as the textbook
algorithm, and the cache does not change the content.
"""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gristmill.config import override, parse, plain
from pipelines.contracts.shard_set import Shard
from trainers.config.pretraining import Data, Pretraining
from trainers.data.mixture_weights import build_mixture
from trainers.data.order import Order, OrderPhase, Stream
from trainers.data.packed_corpus import open_corpus, training_data
from trainers.data.sequence_documents import documents_of
from trainers.recipes import llama_tiny
from trainers.rows.batch import IGNORED, Frame
from trainers.rows.sequences import pack_shard
from trainers.runs.resolve import describe_data, resolve

LENGTH, CAUSAL = 64, Frame("<bos>")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("GRISTMILL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def offsets(seed, documents=300, longest=200):
    sizes = np.random.default_rng(seed).integers(0, longest, documents)
    return np.concatenate([[17], 17 + np.cumsum(sizes)])  # a shard's offsets need not begin at 0


def packed(ends, checksum="shard", length=LENGTH, frame=CAUSAL, seed=0, packing="best_fit"):
    return pack_shard(packing, lambda: Shard(None, ends, None, None, None, None, {}), checksum, length, frame, seed)


def best_fit_rows(counts, length):
    """Return how many sequences textbook best-fit decreasing needs, found by linear search through the free
    space of all sequences.
    """
    rooms = []
    for count in sorted(counts, reverse=True):
        fitting = [room for room in rooms if room >= count]
        if fitting:
            rooms.remove(min(fitting))
            rooms.append(min(fitting) - count)
        else:
            rooms.append(length - count)
    return len(rooms)


@pytest.mark.long
@pytest.mark.parametrize("length", [5, 64, 1000])
@pytest.mark.parametrize("seed", [0, 1])
def test_every_position_is_in_one_piece_and_rows_are_best_fit_decreasing(length, seed):
    ends = offsets(seed)
    rows = packed(ends, length=length, seed=seed)
    held = np.concatenate([np.arange(s, s + c) for s, c in zip(rows.starts, rows.counts, strict=True)])
    sizes = np.diff(ends) + 1
    np.testing.assert_array_equal(np.sort(held), np.arange(sizes.sum()))
    assert rows.sizes.max() <= length
    assert rows.sizes.sum() == sizes.sum()
    # A document that fits is one piece; a longer one is whole sequences and a rest.
    expected = [length] * int((sizes // length).sum()) + [int(rest) for rest in sizes % length if rest]
    assert sorted(rows.counts.tolist()) == sorted(expected)
    assert len(rows.sizes) == best_fit_rows(expected, length)


def test_a_shard_without_documents_has_no_sequences():
    assert len(packed(np.array([5])).sizes) == 0


def test_the_cached_index_is_that_of_shard_length_and_seed_and_a_damaged_one_is_made_again(cache):
    ends = offsets(0)
    first = packed(ends)
    kept = [path for path in cache.rglob("*") if path.is_file()]
    assert len(kept) == 1
    other = offsets(1)  # the same inputs by name: read from the cache, whatever the offsets
    np.testing.assert_array_equal(packed(other).starts, first.starts)
    two = Frame("<cls>", "<sep>")
    for different in ({"checksum": "other"}, {"length": 65}, {"frame": two}, {"seed": 1}, {"packing": "documents"}):
        assert packed(ends, **different).starts.tolist() != first.starts.tolist()
    content = bytearray(kept[0].read_bytes())
    content[len(content) // 2] ^= 1
    for damaged in (bytes(content), b"", bytes(content[:40])):
        kept[0].write_bytes(damaged)
        again = packed(ends)
        for name in ("first", "starts", "counts"):
            np.testing.assert_array_equal(getattr(again, name), getattr(first, name))


def test_a_cache_that_cannot_be_written_is_done_without(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("GRISTMILL_CACHE", str(tmp_path / "file" / "cache"))
    assert len(packed(offsets(0)).sizes)


def test_sequences_of_any_size_follow_the_mixture_within_a_sequence_and_are_read_once_an_epoch():
    rng = np.random.default_rng(0)
    for _ in range(60):
        count, length = int(rng.integers(1, 6)), int(rng.integers(2, 40))
        sizes = [rng.integers(1, length + 1, rng.integers(1, 60)) for _ in range(count)]
        streams = [Stream(f"s{i}", int(size.sum()), size) for i, size in enumerate(sizes)]
        weights = [dict(zip((s.name for s in streams), rng.random(count), strict=True)) for _ in range(2)]
        asked = build_mixture([(500, weights[0]), (math.inf, weights[1])], {}, [s.name for s in streams])
        samples = Order([OrderPhase(tuple(streams), length)], asked, 0, "corpus").take(0, 400)
        total = np.cumsum(samples.tokens)
        wanted = np.array([asked.requested(int(tokens)) for tokens in total])
        for source, size in enumerate(sizes):
            here = samples.source == source
            assert np.abs(np.cumsum(np.where(here, samples.tokens, 0)) - wanted[:, source]).max() <= length
            np.testing.assert_array_equal(samples.tokens[here], size[samples.sequence[here]])
            epoch = samples.sequence[here][: len(size)]
            assert len(set(epoch.tolist())) == len(epoch)


@pytest.fixture(scope="module")
def corpus(corpus_directory):
    return open_corpus((str(corpus_directory),), None)


def data(corpus, weights=None, length=LENGTH):
    weights = weights or dict.fromkeys(sorted(corpus.train), 1.0)
    return training_data(
        corpus, replace(llama_tiny(), data=Data(sequence_length=length, packing="best_fit", weights=weights))
    )


@pytest.mark.parametrize("source", ["plays", "code", "notes"])
@pytest.mark.parametrize("length", [7, 64, 1000])
def test_an_epoch_holds_every_document_whole_where_it_fits(corpus, source, length):
    read = data(corpus, {source: 1.0}, length)
    held = read.sources[0]
    samples = read.order.take(0, len(held.packing.sizes))
    batch = read.rows(samples)
    np.testing.assert_array_equal((batch.targets != IGNORED).sum(axis=1), samples.tokens)
    assert (batch.targets != IGNORED).sum() == held.tokens
    parts = {}
    for row, sequence in enumerate(samples.sequence):
        for segment, place in enumerate(documents_of(held, int(sequence), length)):
            here = (batch.segments[row] == segment) & (batch.targets[row] != IGNORED)
            assert batch.positions[row][here].tolist() == list(range(here.sum()))
            parts.setdefault(place, []).append(batch.targets[row][here].tolist())
    for number, record in enumerate(held.shards):
        shard = held.shard(number)
        for i in range(record.documents):
            document = [*shard.tokens[shard.offsets[i] : shard.offsets[i + 1]].tolist(), 2]
            pieces = parts[number, i]
            assert len(pieces) == -(-len(document) // length)
            assert sorted(token for piece in pieces for token in piece) == sorted(document)
            assert all(piece in (document[k : k + len(piece)] for k in range(len(document))) for piece in pieces)


def test_world_size_does_not_change_the_batch_and_padding_is_counted(corpus):
    whole = data(corpus).rows(data(corpus).order.take(24, 12))
    found = []
    for rank in range(2):
        for batch in data(corpus).micro_batches(24, 12, 4, rank, 2):
            held = (batch.targets != IGNORED).any(axis=1)
            found += [row.tobytes() for row in batch.inputs[held]]
    assert sorted(found) == sorted(row.tobytes() for row in whole.inputs)
    seen = data(corpus).consumed(100)
    batch = data(corpus).rows(data(corpus).order.take(0, 100))
    assert sum(entry["padding"] for entry in seen.values()) == (batch.targets == IGNORED).sum()


def test_the_waste_is_told_before_training(corpus):
    assignments = ["data.packing=best_fit", "data.weights={plays: 1, code: 1}"]
    resolved = resolve(parse(Pretraining, override(plain(llama_tiny()), assignments), "recipe"), corpus)
    read = training_data(corpus, resolved)
    told = [line for line in describe_data(resolved, corpus, read.order) if "best_fit" in line]
    for line, source in zip(told, read.sources, strict=True):
        waste = 1 - source.tokens / (len(source.packing.sizes) * resolved.data.sequence_length)
        assert line.startswith(
            f"data  {source.name}: best_fit at 128 leaves {waste:.2%} of the positions as padding and omits 0 tokens; "
        )


def test_the_cache_is_in_the_configured_directory(corpus, cache):
    data(corpus)
    assert {path.parent for path in cache.rglob("*") if path.is_file()} == {Path(cache) / "packing"}
