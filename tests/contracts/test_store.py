"""Files are whole or absent, and a changed byte is found on first touch."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.contracts.errors import CorruptFileError
from pipelines.contracts.store import (
    FileRecord,
    canonical_json,
    digest,
    read_json,
    record_file,
    verify,
    write_atomic,
    write_json,
)


def test_a_writer_that_fails_leaves_nothing(tmp_path):
    def fail(sink):
        sink.write(b"half")
        raise OSError(28, "No space left on device")

    write_atomic(tmp_path / "kept", b"old")
    with pytest.raises(OSError, match="No space"):
        write_atomic(tmp_path / "kept", fail)
    assert (tmp_path / "kept").read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


@given(position=st.integers(0, 999), bit=st.integers(0, 7))
def test_every_flipped_bit_is_found(tmp_path_factory, position, bit):
    directory = tmp_path_factory.mktemp("flip")
    write_atomic(directory / "f", bytes(1000))
    record = record_file(directory, "f")
    assert verify(directory, record) == directory / "f"
    data = bytearray(1000)
    data[position] ^= 1 << bit
    write_atomic(directory / "f", bytes(data))
    with pytest.raises(CorruptFileError, match=r"f: is .*its manifest recorded"):
        verify(directory, record)


def test_truncated_and_missing_files_are_named(tmp_path):
    write_atomic(tmp_path / "f", b"12345")
    record = record_file(tmp_path, "f")
    write_atomic(tmp_path / "f", b"1234")
    with pytest.raises(CorruptFileError, match="is 4 bytes, its manifest recorded 5 bytes"):
        verify(tmp_path, record)
    with pytest.raises(CorruptFileError, match="recorded in its manifest but missing"):
        verify(tmp_path, FileRecord("g", 1, "0"))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda v: st.lists(v) | st.dictionaries(st.text(), v),
    max_leaves=8,
)


@given(st.dictionaries(st.text().filter(lambda key: key != "checksum"), JSON))
def test_json_round_trip(tmp_path_factory, value):
    path = tmp_path_factory.mktemp("json") / "v.json"
    write_json(path, value)
    found = read_json(path)
    assert found.pop("checksum") == digest(value)
    assert found == value


def test_edited_json_is_refused(tmp_path):
    path = tmp_path / "v.json"
    write_json(path, {"documents": 10})
    path.write_text(path.read_text().replace("10", "11"))
    with pytest.raises(CorruptFileError, match="does not match its own checksum"):
        read_json(path)


def test_equal_values_have_equal_digests_whatever_the_order_of_their_keys():
    assert canonical_json({"b": 1, "a": [2, {"d": 3, "c": 4}]}) == canonical_json({"a": [2, {"c": 4, "d": 3}], "b": 1})
