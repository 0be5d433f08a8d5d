import hashlib
import json
import os
import random
import subprocess
import sys
from pathlib import Path

import gigatoken
import pytest
from tokenizers import Tokenizer, pre_tokenizers

from tokenizer.kinds.byte_bpe import PATTERNS, SMALLEST_VOCABULARY, train_byte_bpe
from tokenizer.vocabulary.specials import SPECIALS

ROOT = Path(__file__).parents[2]
# Ties everywhere, so that any dependence on order, hashing or threads would show.
TIES = [f"{a}{b}{c} {c}{a}{b}{c}{a}\n{b}{b}{a}é🙂 {c}{b}" for a in "abcde" for b in "fghij" for c in "klmno"]
PRINT_CHECKSUM = """
import hashlib, json, sys
from tokenizer.kinds.byte_bpe import train_byte_bpe
texts = json.load(sys.stdin)
print(hashlib.sha256(train_byte_bpe(texts, 460)).hexdigest())
"""


def merges_of(content: bytes) -> list[tuple[str, str]]:
    return [tuple(pair) for pair in json.loads(content)["model"]["merges"]]


@pytest.mark.parametrize("pattern", sorted(PATTERNS))
def test_layout_of_the_vocabulary(pattern, prose):
    content = train_byte_bpe(prose[:10], 700, pattern=pattern)
    vocabulary = json.loads(content)["model"]["vocab"]
    by_id = sorted(vocabulary, key=vocabulary.__getitem__)
    assert tuple(by_id[:128]) == SPECIALS
    assert set(by_id[128:384]) == set(pre_tokenizers.ByteLevel.alphabet())
    assert by_id[384:] == ["".join(pair) for pair in merges_of(content)]
    assert sorted(vocabulary.values()) == list(range(700))


@pytest.mark.parametrize(
    "environment",
    [
        {"PYTHONHASHSEED": "1", "RAYON_NUM_THREADS": "1"},
        {"PYTHONHASHSEED": "2", "RAYON_NUM_THREADS": "4", "TOKENIZERS_PARALLELISM": "true"},
        {"PYTHONHASHSEED": "3", "TOKENIZERS_PARALLELISM": "false"},
    ],
)
def test_processes_threads_hash_seeds_and_order_change_nothing(environment):
    shuffled = random.Random(environment["PYTHONHASHSEED"]).sample(TIES, len(TIES))
    finished = subprocess.run(
        [sys.executable, "-c", PRINT_CHECKSUM],
        input=json.dumps(shuffled),
        env={**os.environ, **environment, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert finished.stdout.strip() == hashlib.sha256(train_byte_bpe(TIES, 460)).hexdigest()


def test_real_text_in_another_order_gives_the_same_file(prose):
    assert train_byte_bpe(prose[:8], 1000) == train_byte_bpe(reversed(prose[:8]), 1000)


@pytest.mark.parametrize("texts", ["prose", "ties"])
def test_another_implementation_learns_the_same_merges(texts, prose, capfd):
    chosen = prose[:8] if texts == "prose" else TIES
    mark = b"\0document ends\0"
    _, learned = gigatoken.train_bpe(
        mark.join(text.encode() for text in chosen), 500, list(SPECIALS), "huggingface", mark
    )
    capfd.readouterr()  # it writes to both streams
    content = train_byte_bpe(chosen, 500, pattern="gpt2")
    decoder = Tokenizer.from_str(content.decode()).decoder
    ours = [(decoder.decode([left]), decoder.decode([right])) for left, right in merges_of(content)]
    assert ours == [tuple(part.decode(errors="replace") for part in pair) for pair in learned]


def test_sennrichs_example():
    """Sennrich et al. 2016, figure 2: four merges learned from {low, lowest, newer, wider} segment `lower` as
    `low er·`.

    The test compares the segmentation because the first merges are ties. A letter stands in for the
    end-of-word mark, since the pre-tokenizer would split off a punctuation mark.
    """
    end = "Z"
    content = train_byte_bpe([word + end for word in ("low", "lowest", "newer", "wider")], SMALLEST_VOCABULARY + 4)
    assert Tokenizer.from_str(content.decode()).encode("lower" + end).tokens == ["low", "er" + end]
    assert len(json.loads(content)["model"]["vocab"]) == SMALLEST_VOCABULARY + len(merges_of(content))


def test_literal_specials_are_learned_as_characters():
    content = train_byte_bpe([f"see {token} and {token}" for token in SPECIALS] * 5, 440)
    learned = {"".join(pair) for pair in merges_of(content)}
    assert learned.isdisjoint(SPECIALS)
    assert "Ġ<" in learned or "<extra" in learned


def test_a_pair_needs_min_frequency():
    texts = ["abcd", "abef"]
    assert merges_of(train_byte_bpe(texts, 385)) == [("a", "b")]
    with pytest.raises(ValueError, match=r"got 386, but the texts fill only 385.*occurs 2 times.*385 tokens or fewer"):
        train_byte_bpe(texts, 386)
    assert len(merges_of(train_byte_bpe(texts, 386, min_frequency=1))) == 2


@pytest.mark.parametrize(
    ("texts", "knobs", "message"),
    [
        (["x"], {"vocab_size": 383}, "vocab_size: got 383, allowed 384 or more"),
        ([], {"vocab_size": 385}, "fill only 384"),
        (["x"], {"vocab_size": 384, "pattern": "gpt3"}, "pattern: got 'gpt3', allowed 'gpt2', 'llama3'"),
        (["x"], {"vocab_size": 384, "min_frequency": 0}, "min_frequency: got 0"),
        (["fine", "a\ud800b"], {"vocab_size": 384}, r"texts\[1\]: lone surrogate at character 1"),
    ],
)
def test_wrong_requests_say_what_is_wrong(texts, knobs, message):
    with pytest.raises(ValueError, match=message):
        train_byte_bpe(texts, **knobs)


def test_no_merge_at_all_is_a_vocabulary_of_bytes():
    content = train_byte_bpe([], SMALLEST_VOCABULARY)
    tokenizer = Tokenizer.from_str(content.decode())
    assert tokenizer.decode(tokenizer.encode("né\n🙂").ids) == "né\n🙂"
    assert len(tokenizer.encode("né").ids) == 3


def test_transformers_loads_the_file(tmp_path, prose):
    from transformers import PreTrainedTokenizerFast

    file = tmp_path / "tokenizer.json"
    file.write_bytes(train_byte_bpe(prose[:5], 500))
    loaded = PreTrainedTokenizerFast(
        tokenizer_file=str(file), pad_token="<pad>", eos_token="<eos>", mask_token="<mask>"
    )
    assert (loaded.pad_token_id, loaded.eos_token_id, loaded.mask_token_id, len(loaded)) == (0, 2, 4, 500)
    assert loaded.decode(loaded("one two")["input_ids"]) == "one two"
