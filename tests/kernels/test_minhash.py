import re

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from datasketch import MinHash
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.kernels.buffers import text_buffers
from pipelines.kernels.minhash import signatures, xxh32


@settings(deadline=None, max_examples=200)
@given(st.binary(max_size=200))
def test_xxh32_is_the_librarys(data):
    assert xxh32(data) == xxhash.xxh32_intdigest(data)


@pytest.mark.parametrize("size", [0, 1, 3, 4, 15, 16, 17, 31, 32, 33, 63, 64, 1_000_003])
def test_xxh32_at_the_borders_of_its_lanes(size):
    data = bytes(i * 131 % 251 for i in range(min(size, 4096))) * (size // 4096 + 1)
    assert xxh32(data[:size]) == xxhash.xxh32_intdigest(data[:size])


def shingles(text, ngram):
    words = re.findall(r"\w+", text.lower())
    return [" ".join(words[i : i + ngram]).encode() for i in range(max(1, len(words) - ngram + 1))] if words else []


def by_datasketch(text, num_perm, ngram, seed):
    minhash = MinHash(num_perm, seed=seed, scheme="affine32", hashfunc=xxhash.xxh32_intdigest)
    minhash.update_batch(shingles(text, ngram))
    return minhash.hashvalues.tolist()


def by_kernel(documents, num_perm, ngram, seed):
    permutations = MinHash(num_perm, seed=seed, scheme="affine32").permutations
    return signatures(*text_buffers(pa.array(documents, pa.large_string())), permutations, ngram)


words = st.sampled_from(["the", "The", "ÉCOLE", "ΟΔΟΣ", "İzmir", "中文", "a_b", "x2", "क्षि", "straße", "\U00010400"])
texts = st.lists(words | st.text(max_size=6), max_size=30).map(" ".join)


@settings(deadline=None, max_examples=60)
@given(st.lists(texts, max_size=4), st.sampled_from([(1, 5, 1), (7, 1, 1), (112, 5, 1), (112, 5, 42), (130, 2, 1)]))
def test_signatures_are_datasketchs(documents, knobs):
    num_perm, ngram, seed = knobs
    found, count = by_kernel(documents, num_perm, ngram, seed)
    assert found.dtype == np.uint32
    assert found.tolist() == [by_datasketch(text, num_perm, ngram, seed) for text in documents]
    assert count.tolist() == [len(shingles(text, ngram)) for text in documents]


def test_more_shingles_than_a_batch_holds():
    documents = [" ".join(f"w{i * i % 977}" for i in range(size)) for size in (512, 515, 516, 517, 1028, 3000)]
    found, _ = by_kernel(documents, 112, 5, 1)
    assert found.tolist() == [by_datasketch(text, 112, 5, 1) for text in documents]


def test_a_ten_megabyte_word():
    text = "Long" * 2_500_000
    found, count = by_kernel([text, "short"], 112, 5, 1)
    assert count.tolist() == [1, 1]
    assert found[0].tolist() == by_datasketch(text, 112, 5, 1)
