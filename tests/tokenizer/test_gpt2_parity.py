"""GPT-2's published vocabulary: the product's encoder against a direct implementation of byte-pair encoding."""

import json
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
import regex
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from tokenizer.encode import Encoder
from tokenizer.kinds.byte_bpe import GPT2


@pytest.fixture(scope="module")
def published(gpt2_files):
    vocabulary = json.loads((gpt2_files / "encoder.json").read_text(encoding="utf-8"))
    lines = (gpt2_files / "vocab.bpe").read_text(encoding="utf-8").split("\n")[1:-1]
    return vocabulary, [tuple(line.split(" ")) for line in lines]


@pytest.fixture(scope="module", params=["gigatoken", "tokenizers"])
def gpt2(request, published, tmp_path_factory) -> Encoder:
    vocabulary, merges = published
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|endoftext|>"])
    file = tmp_path_factory.mktemp("gpt2") / "tokenizer.json"
    tokenizer.save(str(file))
    return Encoder.load(str(file), request.param)


def merge_by_rank(piece: str, ranks: dict[tuple[str, str], int]) -> list[str]:
    """Merge the lowest-ranked pair everywhere in the piece until no remaining pair has a rank."""
    symbols = list(piece)
    while pairs := [pair for pair in pairwise(symbols) if pair in ranks]:
        best = min(pairs, key=ranks.__getitem__)
        merged: list[str] = []
        for symbol in symbols:
            if merged and (merged[-1], symbol) == best:
                merged[-1] += symbol
            else:
                merged.append(symbol)
        symbols = merged
    return symbols


def test_published_facts(gpt2):
    assert (gpt2.kind, gpt2.vocab_size, gpt2.definition.specials) == ("byte_bpe", 50257, {"<|endoftext|>": 50256})
    assert gpt2.specials == {"<bos>": 50256, "<eos>": 50256}
    tokens, _ = gpt2.encode(pa.array(["Hello, world!"], pa.large_string()))
    assert tokens.tolist() == [15496, 11, 995, 0]
    assert tokens.dtype == np.uint16


@pytest.mark.long
def test_end_of_text_in_a_text_is_characters(gpt2):
    tokens, offsets = gpt2.encode(pa.array(["a<|endoftext|>b"], pa.large_string()))
    assert 50256 not in tokens
    assert gpt2.decode(tokens) == "a<|endoftext|>b"
    assert gpt2.decode([50256]) == "<|endoftext|>"
    assert gpt2.token_starts(tokens, offsets)[-1] == len("a<|endoftext|>")


def test_the_papers_algorithm_gives_the_same_ids(gpt2, published, documents):
    vocabulary, merges = published
    ranks = {pair: rank for rank, pair in enumerate(merges)}
    letters = {
        value: letter
        for letter in vocabulary
        if len(letter) == 1
        for value in gpt2.definition.token_bytes(vocabulary[letter])
    }
    tokens, offsets = gpt2.encode(documents)
    for row, text in enumerate(documents.to_pylist()):
        pieces = ["".join(letters[value] for value in piece.encode()) for piece in regex.findall(GPT2, text)]
        expected = [vocabulary[symbol] for piece in pieces for symbol in merge_by_rank(piece, ranks)]
        assert tokens[offsets[row] : offsets[row + 1]].tolist() == expected
