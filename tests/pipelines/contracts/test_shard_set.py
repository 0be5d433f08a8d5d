"""The shard format: the memory-mapped content equals what was written, without a copy."""

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.errors import CorruptFileError
from pipelines.contracts.document import ID, document_id
from pipelines.contracts.shard_set import open_shard, write_shard

GOLDEN_PLAIN = (1274, "044f980bd29fecf1a40d66bee5d23b90")
GOLDEN_SENTENCES = (1610, "90b989b21f353aa6eb22cc66fdd4144f")  # both written before shards had `spans`


def write(path, documents, dtype=np.uint16, sentences=None, spans=None, targets=None):
    tokens = np.array([token for document in documents for token in document], dtype)
    offsets = np.cumsum([0, *map(len, documents)])
    ids = pa.array([document_id(7, i) for i in range(len(documents))], ID)
    n_bytes = np.array([3 * len(document) for document in documents], np.int64)
    path.write_atomic(
        lambda sink: write_shard(
            sink, tokens, offsets, ids, n_bytes, {"source": "s", "split": "train"}, sentences, spans, targets
        ),
    )
    return path.parent.record(path.name)


@st.composite
def shards(draw):
    """Draw documents (some may be empty), the starts of their sentences (or None), and the dtype of tokens."""
    dtype = draw(st.sampled_from([np.uint16, np.uint32]))
    tokens = st.integers(0, np.iinfo(dtype).max)
    documents = draw(st.lists(st.lists(tokens, max_size=5), max_size=5))
    starts = [sorted(draw(st.sets(st.integers(0, len(each) - 1)))) if each else [] for each in documents]
    return documents, draw(st.none() | st.just(starts)), dtype


def flat(lists):
    return np.array([value for each in lists for value in each], np.int64), np.cumsum([0, *map(len, lists)])


@pytest.mark.long
@given(shards())
def test_round_trip(tmp_path_factory, case):
    documents, starts, dtype = case
    path = tmp_path_factory.mktemp("shard") / "s.arrow"
    shard = open_shard(path.parent, write(path, documents, dtype, None if starts is None else flat(starts)))
    assert shard.tokens.dtype == dtype
    assert [shard.tokens[a:b].tolist() for a, b in pairwise(shard.offsets)] == documents
    assert shard.n_bytes.tolist() == [3 * len(document) for document in documents]
    assert shard.doc_ids.to_pylist() == [document_id(7, i) for i in range(len(documents))]
    assert (shard.facts["source"], shard.facts["split"]) == ("s", "train")
    if starts is None:
        assert shard.sentences is shard.sentence_offsets is None
    else:
        assert [shard.sentences[a:b].tolist() for a, b in pairwise(shard.sentence_offsets)] == starts


@given(shards(), st.floats(0, 1, exclude_max=True), st.integers(0, 7))
def test_every_bit_counts(tmp_path_factory, case, place, bit):
    documents, starts, dtype = case
    path = tmp_path_factory.mktemp("shard") / "s.arrow"
    record = write(path, documents, dtype, None if starts is None else flat(starts))
    content = bytearray(path.read_bytes())
    content[int(place * len(content))] ^= 1 << bit
    path.write_bytes(content)
    with pytest.raises(CorruptFileError, match=str(path)):
        open_shard(path.parent, record)


def test_sentences(tmp_path):
    record = write(tmp_path / "s.arrow", [[1, 2, 3], [], [4]], sentences=(np.array([0, 2, 0]), np.array([0, 2, 2, 3])))
    shard = open_shard(tmp_path, record)
    assert shard.sentences.tolist() == [0, 2, 0]
    assert shard.sentence_offsets.tolist() == [0, 2, 2, 3]


def test_spans(tmp_path):
    spans = np.array([[0, 2, 1], [2, 3, 0], [0, 1, 1]]), np.array([0, 2, 2, 3])
    shard = open_shard(tmp_path, write(tmp_path / "s.arrow", [[1, 2, 3], [], [4]], spans=spans))
    assert shard.spans.tolist() == spans[0].tolist()
    assert shard.span_offsets.tolist() == spans[1].tolist()
    assert shard.spans.dtype == np.int32
    assert not shard.spans.flags.owndata
    none = open_shard(tmp_path, write(tmp_path / "n.arrow", [[1], []], spans=(np.zeros((0, 3)), np.array([0, 0, 0]))))
    assert none.spans.shape == (0, 3)
    assert open_shard(tmp_path, write(tmp_path / "w.arrow", [[1]])).spans is None


def test_targets(tmp_path):
    begins = (np.array([0, 2, 0]), np.array([0, 2, 2, 3]))
    targets = np.array([2, -1, -1])
    record = write(tmp_path / "s.arrow", [[1, 2, 3], [], [4]], sentences=begins, targets=targets)
    shard = open_shard(tmp_path, record)
    assert shard.targets.tolist() == [2, -1, -1]
    assert shard.targets.dtype == np.int32
    assert not shard.targets.flags.owndata
    assert shard.sentences.tolist() == [0, 2, 0]
    assert open_shard(tmp_path, write(tmp_path / "w.arrow", [[1]])).targets is None


def test_a_shard_without_optional_columns_has_the_bytes_that_it_always_had(tmp_path):
    plain = write(tmp_path / "p.arrow", [[1, 2, 3], [], [4]])
    begins = write(tmp_path / "s.arrow", [[1, 2, 3], [], [4]], sentences=(np.array([0, 2, 0]), np.array([0, 2, 2, 3])))
    assert (plain.bytes, plain.xxh3_128) == GOLDEN_PLAIN
    assert (begins.bytes, begins.xxh3_128) == GOLDEN_SENTENCES


def test_opening_copies_nothing(tmp_path):
    before = pa.total_allocated_bytes()
    shard = open_shard(tmp_path, write(tmp_path / "s.arrow", [list(range(1000))] * 1000))
    assert not shard.tokens.flags.owndata
    assert not shard.tokens.flags.writeable
    assert pa.total_allocated_bytes() - before < 100_000
    assert len(shard.tokens) == 1_000_000


def test_another_arrow_file_is_no_shard(tmp_path):
    table = pa.table({"tokens": [1]})
    with pa.OSFile(str(tmp_path / "t.arrow"), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    with pytest.raises(CorruptFileError, match="format is None"):
        open_shard(tmp_path, tmp_path.record("t.arrow"))


@pytest.mark.parametrize("content", [b"", b"text"])
def test_a_file_that_is_not_arrow_is_no_shard(tmp_path, content):
    (tmp_path / "t.arrow").write_bytes(content)
    with pytest.raises(CorruptFileError, match=r"t\.arrow: is not an Arrow file; build it again"):
        open_shard(tmp_path, tmp_path.record("t.arrow"))
