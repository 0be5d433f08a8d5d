import pyarrow as pa
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.stages.measure.text_hash import TextHash


def hashes(documents, normalisation):
    table = TextHash(normalisation).annotate(pa.table({"text": pa.array(documents, pa.large_string())}))
    assert table.schema == TextHash().writes()
    return table["text_hash"].to_pylist()


texts = st.lists(st.text(st.sampled_from("Aa \n\u00a0Σς.İ") | st.characters(exclude_categories=["Cs"])), max_size=8)


@settings(deadline=None)
@given(texts)
def test_the_hash_is_that_of_the_normalised_text(documents):
    assert hashes(documents, "none") == [xxhash.xxh3_128_digest(text.encode()) for text in documents]
    plain = [" ".join(text.lower().split()) for text in documents]
    assert hashes(documents, "plain") == [xxhash.xxh3_128_digest(text.encode()) for text in plain]


def test_what_plain_forgives():
    same = ["Two  words.", "two words.", "\ttwo\u00a0WORDS.\n"]
    assert len(set(hashes(same, "plain"))) == 1
    assert len(set(hashes(same, "none"))) == 3
    assert len(set(hashes(["two words.", "two words", "twowords.", ""], "plain"))) == 4


def test_empty_texts_share_a_hash_and_slices_are_honoured():
    documents = pa.array(["x", "", " \n", "y"], pa.large_string()).slice(1, 2)
    table = TextHash("plain").annotate(pa.table({"text": documents}))
    assert table["text_hash"].to_pylist() == [xxhash.xxh3_128_digest(b"")] * 2


def test_only_normalisation_depends_on_unicode():
    assert TextHash("none").depends() == {}
    assert set(TextHash("plain").depends()) == {"unicode"}


GOLDEN = {1: {"none": "d5c4a4b7c36bb89a3e46705cec0aac3c", "plain": "0a76434d97f5c0c99a5fd01dfcf37ae8"}}


@pytest.mark.parametrize("normalisation", ["none", "plain"])
def test_golden_output(normalisation):
    found = hashes(["Ein  GRÖẞERER Text\n中文 ΟΔΟΣ"], normalisation)[0].hex()
    assert found == GOLDEN[TextHash.version][normalisation], "the output changed: raise TextHash.version"
