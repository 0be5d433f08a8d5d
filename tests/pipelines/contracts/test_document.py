"""Document ids depend only on source, path and record, sort by file and record, and can be parsed from their
printed form.
"""

import unicodedata

import pyarrow as pa
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from gristmill.errors import UserError
from pipelines.contracts.document import (
    ID,
    document_id,
    empty,
    file_key,
    format_id,
    ids_as_integers,
    is_empty,
    parse_id,
    split_id,
)


def test_the_key_is_xxh3_64_of_source_nul_path():
    assert file_key("web", "a/b.jsonl") == xxhash.xxh3_64_intdigest(b"web\0a/b.jsonl")
    assert file_key("a", "bc") != file_key("ab", "c")


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1))
def test_ids_split_into_what_they_were_made_of(key, record):
    assert split_id(document_id(key, record)) == (key, record)


@given(st.lists(st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1)), max_size=5))
def test_ids_as_integers_sort_as_bytes_do(pairs):
    ids = pa.array([document_id(*pair) for pair in pairs], ID)
    integers = ids_as_integers(ids)
    assert [tuple(row) for row in integers.tolist()] == pairs
    assert [document_id(*row) for row in sorted(integers.tolist())] == sorted(ids.to_pylist())


NAMES = st.text(st.characters(codec="utf-8", exclude_characters="/"), min_size=1)


@given(NAMES, st.text(min_size=1), st.integers(0, 2**64 - 1))
def test_printed_ids_parse_back(source, path, record):
    assert parse_id(format_id(source, path, record)) == (source, path, record)


@pytest.mark.parametrize(
    "printed", ["", "web", "web/#3", "/a#3", "web/a", "web/a#", "web/a#x", "web/a#-1", "web/a#" + "1" * 5000]
)
def test_other_strings_are_no_ids(printed):
    with pytest.raises(UserError, match="expected source/path#record"):
        parse_id(printed)


@pytest.mark.parametrize("text", ["", " ", " \t ", "\n\n", "\u3000\xa0", "\ufeff", "\u200b \u200d", "\u2028\x85"])
def test_a_text_of_invisible_characters_is_empty(text):
    assert is_empty(text)


@pytest.mark.parametrize("text", [".", "  a", "\n\u3000字", "\ufffd", "\u0301", "\ue000", "\U0001f600"])
def test_a_text_with_a_visible_character_is_not(text):
    assert not is_empty(text)


def test_texts_are_empty_as_each_of_them_is():
    older = [chr(code) for code in range(0x10000) if unicodedata.ucd_3_2_0.category(chr(code)) not in ("Cn", "Cs")]
    texts = ["", "  ", *older]
    for kind in (pa.string(), pa.large_string()):
        assert empty(pa.array(texts, kind)).to_pylist() == [is_empty(text) for text in texts]
    assert empty(pa.array(["a", None, " "])).to_pylist() == [False, None, True]
