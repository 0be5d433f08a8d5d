"""Small tokenizers of five kinds, and a text encoder for each, with a cache private to the test."""

import numpy as np
import pyarrow as pa
import pytest
import xxhash

from tokenizer.kinds.train import train
from trainers.data.examples.encoded_texts import TextEncoder

KINDS = ("bytes", "byte_bpe", "wordpiece", "unigram", "bpe")
TEXT = "the quick brown fox jumps over a lazy dog while seven wizards boxed naïve über-façades 中文 日本"
WORDS = TEXT.split(" ")


def sentences(count=200, seed=0):
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(WORDS, rng.integers(3, 12))) + "." for _ in range(count)]


@pytest.fixture(scope="session")
def tokenizer_files(tmp_path_factory):
    folder, files = tmp_path_factory.mktemp("tokenizers"), {}
    for kind in KINDS:
        size = 384 if kind == "bytes" else 420 if kind == "byte_bpe" else 190
        files[kind] = folder / f"{kind}.json"
        files[kind].write_bytes(train(kind, sentences(), size))
    return files


@pytest.fixture
def encoder_of(tokenizer_files, tmp_path, monkeypatch):
    monkeypatch.setenv("GRISTMILL_CACHE", str(tmp_path / "cache"))

    def make(kind):
        path = tokenizer_files[kind]
        return TextEncoder(str(path), xxhash.xxh3_128_hexdigest(path.read_bytes()))

    return make


def texts(*values):
    return pa.array(values, pa.large_string())
