"""From shards to batches: what is in a sequence, what a rank gets, and what is refused."""

import shutil
from dataclasses import replace

import numpy as np
import pytest

from pipelines.contracts.errors import ConfigError, CorruptFileError, UserError
from pipelines.contracts.shards import open_shard
from tokenizer.specials import SPECIAL_IDS
from trainers.batch import IGNORED, Frame
from trainers.config import Data
from trainers.data import open_corpus, training_data, validation_data
from trainers.documents import documents_of
from trainers.recipes import llama_tiny

BOS, EOS, PAD = (SPECIAL_IDS[mark] for mark in ("<bos>", "<eos>", "<pad>"))
LENGTH = 64


def stream(source):
    """What the packed stream of a source must be, document by document: inputs, targets."""
    inputs, targets = [], []
    for record in source.shards:
        shard = open_shard(source.directory, record.file)
        for i in range(record.documents):
            document = shard.tokens[shard.offsets[i] : shard.offsets[i + 1]].tolist()
            inputs += [BOS, *document]
            targets += [*document, EOS]
    return np.array(inputs), np.array(targets)


def configured(length=LENGTH, **fields):
    return replace(llama_tiny(), data=Data(sequence_length=length), **fields)


def data(corpus, weights=None, length=LENGTH, seed=0):
    read = Data(sequence_length=length, weights=weights or dict.fromkeys(corpus.train, 1.0))
    return training_data(corpus, replace(llama_tiny(), data=read, seed=seed))


@pytest.fixture(scope="module")
def corpus(corpus_directory):
    return open_corpus((str(corpus_directory),), None)


@pytest.mark.parametrize("source", ["plays", "code", "notes"])
@pytest.mark.parametrize("length", [7, 64, 1000])
def test_an_epoch_covers_every_token_of_a_source_once(corpus, source, length):
    read = data(corpus, {source: 1.0}, length)
    count = -(-read.sources[0].tokens // length)
    samples = read.order.take(0, count)
    batch = read.rows(samples)
    in_order = np.argsort(samples.sequence)
    expected_inputs, expected_targets = stream(read.sources[0])
    kept = batch.targets[in_order].flatten() != IGNORED
    np.testing.assert_array_equal(batch.inputs[in_order].flatten()[kept], expected_inputs)
    np.testing.assert_array_equal(batch.targets[in_order].flatten()[kept], expected_targets)
    assert kept.sum() == read.sources[0].tokens
    assert (batch.inputs[in_order].flatten()[~kept] == PAD).all()


@pytest.mark.parametrize("frame", [Frame(), Frame(None, "<eos>"), Frame("<cls>", "<sep>")], ids=["0", "after", "2"])
@pytest.mark.parametrize("packing", ["concatenate", "best_fit"])
@pytest.mark.parametrize("length", [7, 64])
def test_every_frame_is_read_once_with_its_marks_and_documents_are_found(corpus_directory, frame, packing, length):
    """Against the documents one by one; empty ones have no place where a frame has no marks."""
    opened = open_corpus((str(corpus_directory),), None, frame)
    for name in opened.train:
        data = Data(sequence_length=length, weights={name: 1.0}, packing=packing)
        read = training_data(opened, replace(llama_tiny(), data=data))
        source = read.sources[0]
        samples = read.order.take(0, len(source.packing.sizes) if source.packing else -(-source.tokens // length))
        batch = read.rows(samples)
        assert (batch.targets == IGNORED).all()
        found = {}
        for row, sequence in enumerate(samples.sequence):
            documents = documents_of(source, int(sequence), length)
            assert len(documents) == batch.segments[row].max() + 1
            for segment, document in enumerate(documents):
                held = batch.inputs[row][batch.segments[row] == segment].tolist()
                found.setdefault(document, []).append((int(sequence), held))
        before, after = ([] if mark is None else [SPECIAL_IDS[mark]] for mark in (frame.before, frame.after))
        expected = {}
        for number in range(len(source.shards)):
            shard = source.shard(number)
            for i in range(len(shard.offsets) - 1):
                document = shard.tokens[shard.offsets[i] : shard.offsets[i + 1]].tolist()
                expected[number, i] = sorted([*before, *document, *after])
        pieces = {key: sorted(token for _, held in value for token in held) for key, value in found.items()}
        assert pieces == {key: value for key, value in expected.items() if value}
        whole = [key for key, value in found.items() if len(value) == 1]
        for key in whole:
            shard = source.shard(key[0])
            document = shard.tokens[shard.offsets[key[1]] : shard.offsets[key[1] + 1]].tolist()
            assert found[key][0][1] == [*before, *document, *after]


def test_positions_and_segments_restart_at_every_document(corpus):
    batch = data(corpus).rows(data(corpus).order.take(0, 50))
    for inputs, positions, segments in zip(batch.inputs, batch.positions, batch.segments, strict=True):
        padding = inputs == PAD
        starts = (inputs == BOS) | (np.arange(LENGTH) == 0)
        np.testing.assert_array_equal(positions == 0, starts | padding)
        np.testing.assert_array_equal(segments, np.where(padding, -1, np.cumsum(starts) - 1))
        np.testing.assert_array_equal(np.diff(positions)[~starts[1:] & ~padding[1:]], 1)


def test_no_target_crosses_a_document(corpus):
    batch = data(corpus).rows(data(corpus).order.take(0, 100))
    ends = np.diff(batch.segments, axis=1) == 1
    last = batch.targets[:, :-1][ends]
    assert set(last.tolist()) <= {EOS, IGNORED}


def test_a_sequence_holds_one_source(corpus):
    read = data(corpus)
    samples = read.order.take(0, 60)
    batch = read.rows(samples)
    flat = {i: stream(source)[0] for i, source in enumerate(read.sources)}
    for row, (source, sequence) in enumerate(zip(samples.source, samples.sequence, strict=True)):
        expected = flat[source][sequence * LENGTH : (sequence + 1) * LENGTH]
        np.testing.assert_array_equal(batch.inputs[row, : len(expected)], expected)


@pytest.mark.parametrize(("world", "size"), [(1, 12), (1, 5), (2, 3), (3, 4), (4, 2), (5, 1)])
def test_world_size_and_micro_batch_do_not_change_the_batch(corpus, world, size):
    whole = data(corpus).rows(data(corpus).order.take(24, 12))
    found = {}
    lengths = set()
    for rank in range(world):
        batches = list(data(corpus).micro_batches(24, 12, size, rank, world))
        lengths.add(len(batches))
        for batch in batches:
            assert batch.inputs.shape == (size, LENGTH)
            for row in range(size):
                if (batch.targets[row] != IGNORED).any():
                    found[batch.inputs[row].tobytes() + batch.targets[row].tobytes()] = batch.source[row]
    assert len(lengths) == 1
    expected = {
        whole.inputs[row].tobytes() + whole.targets[row].tobytes(): whole.source[row]
        for row in range(len(whole.inputs))
    }
    assert found == expected


def test_validation_is_the_same_for_every_world_and_spread_over_the_split(corpus):
    validation = validation_data(corpus, configured(), 256)
    alone = sorted(b.inputs[i].tobytes() for b in validation.batches(4, 0, 1) for i in range(4))
    shared = sorted(b.inputs[i].tobytes() for r in range(2) for b in validation.batches(2, r, 2) for i in range(2))
    assert alone == shared
    names = [validation.sources[source].name for source, _ in validation.rows]
    assert names == ["code"] * 4 + ["plays"] * 4
    whole = validation_data(corpus, configured(), 10**9)
    targets = sum((batch.targets != IGNORED).sum() for batch in whole.batches(4, 0, 1))
    assert targets == sum(source.tokens for source in whole.sources)


def test_a_flipped_bit_in_a_shard_is_an_error(corpus_directory, tmp_path):
    copy = shutil.copytree(corpus_directory, tmp_path / "copy")
    shard = copy / "shards/code/train-00000.arrow"
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)
    read = data(open_corpus((str(copy),), None))
    with pytest.raises(CorruptFileError, match=r"code/train-00000\.arrow"):
        read.rows(read.order.take(0, 50))


@pytest.mark.parametrize(("content", "found"), [(None, "is missing"), (b"short", "is 5 bytes")])
def test_a_missing_or_foreign_shard_is_an_error_before_anything_is_read(corpus_directory, tmp_path, content, found):
    copy = shutil.copytree(corpus_directory, tmp_path / "copy")
    shard = copy / "shards/code/train-00000.arrow"
    shard.unlink()
    if content is not None:
        shard.write_bytes(content)
    opened = open_corpus((str(copy),), None)
    with pytest.raises(CorruptFileError, match=rf"code/train-00000\.arrow: {found}, the corpus's manifest records"):
        data(opened)
    data(opened, {"plays": 1.0})


def test_corpora_that_do_not_fit_together_are_refused(corpus_directory, tmp_path):
    with pytest.raises(UserError, match="no corpus here"):
        open_corpus((str(tmp_path),), None)
    with pytest.raises(ConfigError, match="names no corpus"):
        open_corpus((), None)
    with pytest.raises(ConfigError, match=r"data\.shard_set: got 'bytes'"):
        open_corpus((str(corpus_directory),), "bytes")
    with pytest.raises(UserError, match="in an earlier corpus too"):
        open_corpus((str(corpus_directory), str(corpus_directory)), None)
