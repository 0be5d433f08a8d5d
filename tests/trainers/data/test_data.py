"""From shards to batches: the contents of sequences, the rows of each rank, and errors."""

import math
import shutil
import tracemalloc
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest

import pipelines
from gristmill.errors import ConfigError, CorruptFileError, UserError
from gristmill.storage.disk import LocalPath
from gristmill.storage.parsing import parse_location
from pipelines.contracts.shard_set import ShardRecord, open_shard
from tokenizer.vocabulary.specials import SPECIAL_IDS
from trainers.config.pretraining import Data
from trainers.data.mixture_weights import build_mixture
from trainers.data.order import Order, OrderPhase, Stream
from trainers.data.packed_corpus import PackedCorpus, TrainingData, _spread, open_corpus, training_data, validation_data
from trainers.data.sequence_documents import documents_of
from trainers.data.stream import SourceStream
from trainers.objectives.causal import Causal
from trainers.objectives.shared.context import Context
from trainers.recipes import llama_tiny
from trainers.rows.batch import IGNORED, Frame
from trainers.runs.resolve import resolve, resolve_data

BOS, EOS, PAD = (SPECIAL_IDS[mark] for mark in ("<bos>", "<eos>", "<pad>"))
LENGTH = 64
PACKINGS = ("concatenate", "best_fit", "documents", "full_sentences", "doc_sentences")


def stream(source):
    """Return the expected inputs and targets of a source's packed stream, built document by document."""
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


def data(corpus, weights=None, length=LENGTH, seed=0, packing="concatenate"):
    read = Data(sequence_length=length, packing=packing, weights=weights or dict.fromkeys(corpus.train, 1.0))
    return training_data(corpus, replace(llama_tiny(), data=read, seed=seed))


@pytest.fixture(autouse=True, scope="module")
def cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRISTMILL_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


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


@pytest.mark.long
@pytest.mark.parametrize("frame", [Frame(), Frame(None, "<eos>"), Frame("<cls>", "<sep>")], ids=["0", "after", "2"])
@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize("length", [7, 64])
def test_every_frame_is_read_once_with_its_marks_and_documents_are_found(corpus_directory, frame, packing, length):
    """The rows equal documents read one by one. Empty documents have no position if the frame has no marks."""
    opened = open_corpus((str(corpus_directory),), None, frame)
    for name in opened.train:
        data = Data(sequence_length=length, weights={name: 1.0}, packing=packing)
        read = training_data(opened, replace(llama_tiny(), data=data))
        source = read.sources[0]
        samples = read.order.take(0, source.count(length))
        np.testing.assert_array_equal(samples.tokens, source.sizes(length, samples.sequence))
        batch = read.rows(samples)
        np.testing.assert_array_equal((batch.segments >= 0).sum(axis=1), samples.tokens)
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


@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize(("world", "size"), [(1, 12), (1, 5), (2, 3), (3, 4), (4, 2), (5, 1)])
def test_world_size_and_micro_batch_do_not_change_what_is_read(corpus, packing, world, size):
    read = data(corpus, packing=packing)
    whole = read.rows(read.order.take(24, 12))
    lengths, found = set(), []
    for rank in range(world):
        batches = list(read.micro_batches(24, 12, size, rank, world))
        lengths.add(len(batches))
        for batch in batches:
            assert len(batch.inputs) == size
            held = (batch.segments >= 0).sum(axis=1)
            assert batch.inputs.shape[1] == min(LENGTH, -(-max(1, held.max()) // 8) * 8)
            assert (held[batch.sample < 0] == 0).all()
            found += batch.sample[batch.sample >= 0].tolist()
            for row in np.flatnonzero(batch.sample >= 0):
                same = batch.sample[row] - 24
                for name in ("inputs", "targets", "positions", "segments"):
                    its, width = getattr(whole, name)[same], batch.inputs.shape[1]
                    np.testing.assert_array_equal(getattr(batch, name)[row], its[:width])
                assert (whole.segments[same][batch.inputs.shape[1] :] == -1).all()
                for name in ("source", "sequence", "epoch"):
                    assert getattr(batch, name)[row] == getattr(whole, name)[same]
    assert len(lengths) == 1
    assert sorted(found) == list(range(24, 36))


@pytest.mark.parametrize(("world", "size"), [(1, 4), (2, 2), (3, 4)])
def test_a_part_holds_rows_of_about_one_length_and_ranks_have_about_the_same_at_any_time(corpus, world, size):
    read = data(corpus, packing="documents")
    count = 50
    samples = read.order.take(0, count)
    parts = [list(samples.share(size, rank, world)) for rank in range(world)]
    in_turn = [part for together in zip(*parts, strict=True) for part in together]
    lengths = np.concatenate([part.tokens for part in in_turn])
    np.testing.assert_array_equal(lengths, -np.sort(-samples.tokens))
    places = sum(len(part) * part.tokens.max() for part in in_turn if len(part))
    assert places < 0.8 * count * samples.tokens.max()


def test_how_a_step_is_split_changes_no_loss_but_by_rounding(corpus):
    torch = pytest.importorskip("torch")
    from trainers.engine.forward import Forward, tensors
    from trainers.models import build_model

    read = data(corpus, packing="documents")
    config = resolve(replace(llama_tiny(), data=Data(sequence_length=LENGTH)), corpus)
    torch.manual_seed(0)
    model = build_model(config.model, corpus.tokenizer.specials, 0)
    forward = Forward(model, config.model.architecture)
    found = []
    for world, size in ((1, 12), (1, 5), (2, 3), (3, 2)):
        model.zero_grad()
        sums, targets = 0.0, 0
        for rank in range(world):
            for batch in read.micro_batches(0, 12, size, rank, world):
                nats = forward(**tensors(batch, "cpu"))["loss"].sum()
                nats.backward()
                sums, targets = sums + nats.item(), targets + int((batch.targets != IGNORED).sum())
        norm = torch.nn.utils.get_total_norm([p.grad for p in model.parameters()])
        found.append((targets, sums / targets, float(norm)))
    for targets, loss, norm in found[1:]:
        assert targets == found[0][0]
        assert loss == pytest.approx(found[0][1], abs=1e-5)
        assert norm == pytest.approx(found[0][2], rel=1e-5)


@dataclass(frozen=True)
class Reading(Causal):
    needs_sentences: ClassVar[bool] = True

    def apply(self, batch, context):
        return batch


@pytest.mark.long
@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize("frame", [Frame(), Frame("<bos>"), Frame("<cls>", "<sep>")], ids=["0", "1", "2"])
def test_rows_know_where_sentences_begin(corpus_directory, packing, frame):
    opened = open_corpus((str(corpus_directory),), None, frame)
    read = Data(sequence_length=LENGTH, packing=packing, weights={"plays": 1.0})
    found = training_data(opened, replace(llama_tiny(), data=read, objective=Reading()))
    source = found.sources[0]
    batch = found.rows(found.order.take(0, source.count(LENGTH)))
    begun = {}
    for row, sequence in enumerate(batch.sequence):
        for segment, document in enumerate(documents_of(source, int(sequence), LENGTH)):
            held = np.flatnonzero(batch.segments[row] == segment)
            assert batch.sentence_starts[row, held[0]]
            begun.setdefault(document, []).append(batch.sentence_starts[row, held].tolist())
        assert not batch.sentence_starts[row, batch.segments[row] < 0].any()
    for (number, i), pieces in begun.items():
        if len(pieces) > 1:
            continue
        shard = source.shard(number)
        size = shard.offsets[i + 1] - shard.offsets[i]
        starts = shard.sentences[shard.sentence_offsets[i] : shard.sentence_offsets[i + 1]]
        lead = int(frame.before is not None)
        expected = {0, *(int(s) + lead for s in starts if 0 < s < size)}
        assert np.flatnonzero(pieces[0]).tolist() == sorted(expected)
    assert any(len(pieces) == 1 for pieces in begun.values())


def test_shards_without_sentences_are_refused_where_sentences_are_needed(plain_directory):
    opened = open_corpus((str(plain_directory),), None)
    for packing in ("full_sentences", "doc_sentences"):
        with pytest.raises(ConfigError, match=rf"data\.packing: {packing} needs sentence starts"):
            data(opened, packing=packing)
        with pytest.raises(ConfigError, match="`sentences: true` in its `shards` step"):
            validation_data(opened, replace(llama_tiny(), data=Data(packing=packing)), 100)
    weights = dict.fromkeys(opened.train, 1.0)
    with pytest.raises(ConfigError, match="objective: causal needs sentence starts"):
        training_data(opened, replace(llama_tiny(), data=Data(weights=weights), objective=Reading()))
    assert data(opened, packing="documents").rows(data(opened).order.take(0, 3)).sentence_starts is None


@pytest.mark.parametrize("packing", PACKINGS)
def test_validation_is_the_same_for_every_world_and_spread_over_the_split(corpus, packing):
    config = configured()
    config = replace(config, data=replace(config.data, packing=packing))
    validation = validation_data(corpus, config, 256)

    def rows(size, world):
        found = {}
        for rank in range(world):
            for batch in validation.batches(size, rank, world):
                for row in np.flatnonzero(batch.sample >= 0):
                    held = batch.segments[row] >= 0
                    found[int(batch.sample[row])] = batch.inputs[row][held].tolist() + batch.targets[row][held].tolist()
        return found

    assert rows(4, 1) == rows(2, 2) == rows(3, 3)
    another_seed = validation_data(corpus, replace(config, seed=7), 256)
    np.testing.assert_array_equal(another_seed.samples.sequence, validation.samples.sequence)
    for index, source in enumerate(validation.sources):
        here = validation.samples.source == index
        sizes = source.sizes(LENGTH, np.arange(source.count(LENGTH)))
        assert validation.samples.tokens[here].sum() >= 256
        count, numbers = here.sum(), validation.samples.sequence[here]
        np.testing.assert_array_equal(numbers, np.arange(count) * len(sizes) // count)
        assert sizes[np.arange(count - 1) * len(sizes) // (count - 1)].sum() < 256 + LENGTH
    whole = validation_data(corpus, config, 10**9)
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


def test_a_missing_or_foreign_shard_on_an_object_store_is_an_error_before_anything_is_read(s3, corpus, tmp_path):
    source = corpus.train["plays"]
    place = parse_location(f"s3://bucket/{tmp_path.name}", s3.remote)
    there = replace(source, directory=place)
    for record in source.shards:
        s3.store.pipe(f"{place}/{record.path}", (source.directory / record.path).read_bytes())
    there.check()
    there = replace(source, directory=place)  # what was found is not looked for again
    damaged = f"{place}/{source.shards[1].path}"
    s3.store.pipe(damaged, b"short")
    with pytest.raises(CorruptFileError, match=rf"{damaged}: is 5 bytes, the corpus's manifest records"):
        there.check()
    s3.store.rm(damaged)
    with pytest.raises(CorruptFileError, match=rf"{damaged}: is missing, the corpus's manifest records"):
        there.check()


def test_corpora_that_do_not_fit_together_are_refused(corpus_directory, tmp_path):
    with pytest.raises(UserError, match="no corpus here"):
        open_corpus((str(tmp_path),), None)
    with pytest.raises(ConfigError, match="names no corpus"):
        open_corpus((), None)
    with pytest.raises(UserError, match=r"data\.shard_set: got 'bytes'"):
        open_corpus((str(corpus_directory),), "bytes")
    with pytest.raises(UserError, match="in an earlier corpus too"):
        open_corpus((str(corpus_directory), str(corpus_directory)), None)


@pytest.fixture
def small_corpus(tmp_path):
    """A function that builds a corpus of sources, each with its split or null, and returns its directory."""

    def make(name, shard_set, **sources):
        lines = [
            f"  - {{name: {source}, root: {tmp_path}/text, format: text, split: {split}}}"
            for source, split in sources.items()
        ]
        (tmp_path / "text").mkdir(exist_ok=True)
        for number in range(20):
            (tmp_path / "text" / f"{number}.txt").write_text(f"Text {number} of a few words.")
        (tmp_path / "corpus.yaml").write_text(
            f"name: {name}\noutput: {tmp_path}/{name}\nsources:\n" + "\n".join(lines) + "\nsteps:\n"
            "  - learn_tokenizer: {kind: bytes}\n  - shards: {tokenizer: learn_tokenizer, validation_share: 0.2}\n"
            f"    name: {shard_set}\n"
        )
        pipelines.build(tmp_path / "corpus.yaml", in_process=True)
        return str(tmp_path / name)

    return make


def test_sources_that_share_a_name_are_refused_even_if_one_only_validates(small_corpus):
    train = small_corpus("one", "shards", web="null", other="null")
    with pytest.raises(UserError, match="the sources web are in an earlier corpus too; rename them"):
        open_corpus((train, small_corpus("two", "shards", web="validation", more="null")), None)
    dev = [small_corpus(name, "shards", dev="validation", **{name: "null"}) for name in ("three", "four")]
    with pytest.raises(UserError, match="the sources dev are in an earlier corpus too; rename them"):
        open_corpus(tuple(dev), None)


def test_shard_sets_of_two_corpora_may_have_different_names(small_corpus):
    corpora = (small_corpus("one", "first", a="null"), small_corpus("two", "second", b="null"))
    opened = open_corpus(corpora, None)
    resolved = resolve_data(Data(corpora=corpora), opened, 10_000)
    assert open_corpus(corpora, resolved.shard_set).fingerprint == opened.fingerprint
    assert resolve_data(Data(corpora=corpora[:1]), open_corpus(corpora[:1], None), 10_000).shard_set == "first"


def huge(name, sequences, length=64):
    """Return a source of `sequences` sequences whose shard exists only as a record, without data."""
    tokens = sequences * length - 2 * 10**6  # two marks a document
    return SourceStream(
        name, LocalPath("nowhere"), (ShardRecord("x", 0, "", name, "train", 10**6, tokens, 4 * tokens),), Frame()
    )


def least_peak(call):
    """Return the lowest memory peak of three calls, in bytes, and the result of the last call. The first call
    imports and compiles, and threads left over from other tests may allocate during any call.
    """
    peaks = []
    for _ in range(3):
        tracemalloc.start()
        result = call()
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    return min(peaks), result


def test_a_log_line_takes_no_memory_by_the_number_of_sequences():
    """With 10^9 sequences, storing 8 bytes per sequence would take 8 GB."""
    sources, length = (huge("web", 10**9), huge("code", 10**9)), 64
    context = Context(0, SPECIAL_IDS, 512, "decoder", length)
    packed = PackedCorpus(sources, length, Causal(), context)
    streams = tuple(Stream(source.name, source.tokens) for source in sources)
    asked = build_mixture([(math.inf, {"web": 1.0, "code": 2.0})], {}, ["web", "code"])

    def consumed():  # by other training data each time, as it keeps its place in the order
        return TrainingData((packed,), Order([OrderPhase(streams, length)], asked, 0, "corpus")).consumed(3_000)

    peak, seen = least_peak(consumed)
    assert peak < 2**20
    assert [entry["cropped"] for entry in seen.values()] == [0, 0]
    assert sum(entry["tokens"] for entry in seen.values()) == 3_000 * length


def test_validation_takes_no_memory_by_the_number_of_sequences():
    source, length = huge("web", 10**9), 64
    peak, (_, chosen) = least_peak(lambda: _spread(source, length, 1_000))
    assert peak < 2**20
    assert chosen.tolist() == [length] * 16
