import itertools

import pyarrow as pa
import pytest

from gristmill.errors import UserError
from pipelines.kernels.text import buffers
from pipelines.kernels.text.buffers import blocks, text_buffers


def documents(offsets, data):
    return [data[a:b].tobytes().decode() for a, b in itertools.pairwise(offsets)]


TEXTS = ["", "é", "word " * 9, "", "日本", "x"]


def test_arrays_slices_and_chunked_columns_give_the_same_documents():
    array = pa.array(["skipped", *TEXTS, "skipped too"], pa.large_string())
    sliced = array.slice(1, len(TEXTS))
    table = pa.table({"text": pa.array(TEXTS, pa.large_string())})
    in_pieces = pa.chunked_array([array.slice(1, 2), array.slice(3, len(TEXTS) - 2)])
    for column in (sliced, table["text"], in_pieces, pa.chunked_array([sliced])):
        assert documents(*text_buffers(column)) == TEXTS


@pytest.mark.parametrize("column", [pa.array([], pa.large_string()), pa.chunked_array([], pa.large_string())])
def test_a_column_without_rows(column):
    offsets, data = text_buffers(column)
    assert offsets.tolist() == [0]
    assert list(blocks(offsets, data)) == []


def test_nothing_is_copied_and_nothing_can_be_written():
    array = pa.array(TEXTS, pa.large_string())
    offsets, data = text_buffers(array)
    assert data.ctypes.data == array.buffers()[2].address
    assert not data.flags.writeable
    assert not offsets.flags.writeable


def test_another_type_is_refused():
    with pytest.raises(TypeError, match="got a column of string, expected large_string"):
        text_buffers(pa.array(["a"]))


@pytest.mark.parametrize("block_bytes", [1, 3, 10, 46, 1000])
def test_blocks_cover_all_rows_in_order_with_whole_documents(block_bytes):
    offsets, data = text_buffers(pa.array(["head", *TEXTS], pa.large_string()).slice(1))
    found, at = [], 0
    for first, last, block_offsets, block in blocks(offsets, data, block_bytes):
        assert first == at < last
        assert block_offsets[0] == 0
        assert last - first == 1 or len(block) <= block_bytes
        assert len(block_offsets) == last - first + 1
        found += documents(block_offsets, block)
        at = last
    assert found == TEXTS


def test_a_document_that_spans_cannot_address_is_refused(monkeypatch):
    monkeypatch.setattr(buffers, "_LIMIT", 4)
    offsets, data = text_buffers(pa.array(["ab", "abcde"], pa.large_string()))
    with pytest.raises(UserError, match="row 1 of a part: a document of 5 bytes, at most 4"):
        list(blocks(offsets, data, 2))
