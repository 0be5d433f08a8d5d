"""The `fineweb` normal form of a column, against its definition for one text."""

import sys
import unicodedata

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.kernels.text.buffers import BLOCK_BYTES
from pipelines.kernels.text.normal_form import fineweb_form, fineweb_forms


def forms(texts):
    return fineweb_forms(pa.array(texts, pa.large_string())).to_pylist()


@pytest.mark.long
def test_every_character_alone_and_between_letters():
    characters = [chr(point) for point in range(sys.maxunicode + 1) if not 0xD800 <= point < 0xE000]
    texts = ["".join(characters[first : first + 97]) for first in range(0, len(characters), 97)]
    texts += [f"a{'b'.join(text)}c" for text in texts[: 0x3000 // 97]]
    for text, form in zip(texts, forms(texts), strict=True):
        assert form == fineweb_form(text)


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("3.14 is 1.2.3, 7. and .5", "0 is 0 0  0  and  0"),
        ("٣.١٤ and 1٢.３", "0 and 0"),
        ("Naïve CAFÉ, don't", "naive cafe  don t"),
        ("ΟΔΟΣ ΑΣ Β Σ", "οδος ας β σ"),
        ("İstanbul 한국 \u0301x", "istanbul \u1112\u1161\u11ab\u1100\u116e\u11a8 x"),
        ("", ""),
    ],
)
def test_numbers_accents_sigma_and_hangul(text, form):
    assert forms([text]) == [form] == [fineweb_form(text)]


MARKS = [chr(p) for p in range(0x20000) if unicodedata.combining(chr(p)) and unicodedata.category(chr(p)) != "Mn"]


@pytest.mark.long
@settings(deadline=None, max_examples=200)
@given(st.lists(st.text(st.sampled_from("aA1.Σσé한e\u0301\u0323 $٣" + "".join(MARKS)), max_size=9), max_size=5))
def test_any_mixture_in_any_document(texts):
    assert forms(texts) == [fineweb_form(text) for text in texts]


@pytest.mark.long
def test_nulls_slices_and_several_blocks():
    long = "Ἀθῆναι 3.5 and so on. " * (BLOCK_BYTES // 20)
    texts = ["pad", long, None, "É", f"{MARKS[0]}{MARKS[-1]}", long[::-1]]
    column = pa.array(texts, pa.large_string())
    expected = [fineweb_form(text or "") for text in texts]
    assert fineweb_forms(column.slice(1)).to_pylist() == expected[1:]
    assert fineweb_forms(pa.chunked_array([column.slice(0, 2), column.slice(2)])).to_pylist() == expected
    assert forms([]) == []
