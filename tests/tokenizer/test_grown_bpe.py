"""A grown vocabulary keeps the tokens and ids of its base, and encodes texts as the base does with some
tokens merged.
"""

import json
from collections import Counter

import pyarrow as pa
import pytest
from tokenizers import Tokenizer, pre_tokenizers

from tests.tokenizer.conftest import HARD_TEXTS
from tokenizer.encode import Encoder
from tokenizer.kinds.byte_bpe import train_byte_bpe
from tokenizer.kinds.byte_vocabulary import byte_vocabulary
from tokenizer.kinds.grown_bpe import grow_byte_bpe
from tokenizer.kinds.unigram import train_unigram
from tokenizer.vocabulary.definition import load_within_text, read_definition

LAW = [
    f"Pursuant to section {n} of the Act, the Mayor shall amend the certification of {n + 3} offices."
    for n in range(90)
]


@pytest.fixture(scope="module")
def base(prose, tmp_path_factory):
    file = tmp_path_factory.mktemp("base") / "tokenizer.json"
    file.write_bytes(train_byte_bpe(prose[:10], 700))
    return read_definition(str(file))


def reading(path, content):
    path.write_bytes(content)
    return read_definition(str(path))


def expanded(grown, base):
    """Return each token of the grown vocabulary as a sequence of tokens of the base."""
    vocabulary, pieces = grown.data["model"]["vocab"], {number: [number] for number in base.tokens}
    for left, right in grown.data["model"]["merges"][len(base.data["model"]["merges"]) :]:
        pieces[vocabulary[left + right]] = pieces[vocabulary[left]] + pieces[vocabulary[right]]
    return pieces


def test_the_base_keeps_its_tokens_and_texts_are_encoded_as_before_with_some_joined(base, prose, tmp_path):
    grown = reading(tmp_path / "tokenizer.json", grow_byte_bpe(LAW, base, 780))
    assert {**base.tokens, **grown.tokens} == grown.tokens
    assert grown.vocab_size == len(grown.tokens) == 780
    assert grown.roles == base.roles
    old, new, pieces = load_within_text(base), load_within_text(grown), expanded(grown, base)
    assert Counter(map(len, pieces.values()))[1] == 700
    for text in [*LAW[:20], *prose[10:14], *HARD_TEXTS]:
        before, after = (each.encode(text, add_special_tokens=False).ids for each in (old, new))
        assert [piece for token in after for piece in pieces[token]] == before
    assert len(new.encode(LAW[0]).ids) < 0.7 * len(old.encode(LAW[0]).ids)


def test_the_most_frequent_pair_is_joined_first_and_never_across_words(base, tmp_path):
    (number,) = [grow_byte_bpe(LAW, base, 701)]
    grown = reading(tmp_path / "tokenizer.json", number)
    old = load_within_text(base)
    pairs = Counter()
    for text in LAW:
        encoding = old.encode(text, add_special_tokens=False)
        for place in range(len(encoding.ids) - 1):
            if encoding.word_ids[place] == encoding.word_ids[place + 1]:
                pairs[tuple(encoding.ids[place : place + 2])] += 1
    best = max(pairs.values())
    assert expanded(grown, base)[700] in [list(pair) for pair, count in pairs.items() if count == best]
    words = {word for text in LAW for word, _ in Tokenizer.from_str(base.json).pre_tokenizer.pre_tokenize_str(text)}
    more = reading(tmp_path / "tokenizer.json", grow_byte_bpe(LAW, base, 780))
    assert all(any(more.tokens[number] in word for word in words) for number in range(700, 780))


def test_neither_order_nor_the_number_of_texts_at_once_matters(base, monkeypatch):
    content = grow_byte_bpe(LAW, base, 740)
    assert grow_byte_bpe(LAW[::-1], base, 740) == content
    monkeypatch.setattr("tokenizer.kinds.grown_bpe._TEXTS", 7)
    assert grow_byte_bpe(LAW, base, 740) == content


def test_no_two_tokens_have_the_same_text(base, tmp_path):
    """A text such as `abab` can be merged in several ways, and merging some pairs gives the text of an
    existing token.
    """
    texts = [f"{a}{b}{a} {b}{a}{b} {a}{a}{b}{b}" for a in ("ab", "ba", "aab") for b in ("b", "ab", "bba", "abab")] * 3
    small = reading(tmp_path / "small.json", train_byte_bpe(["ab ba ab abb ba aab"] * 3, 388))
    grown = reading(tmp_path / "grown.json", grow_byte_bpe(texts, small, 400))
    assert len(set(grown.tokens.values())) == len(grown.tokens) == 400
    old, new, pieces = load_within_text(small), load_within_text(grown), expanded(grown, small)
    for text in texts:
        before, after = (each.encode(text, add_special_tokens=False).ids for each in (old, new))
        assert [piece for token in after for piece in pieces[token]] == before


def test_a_text_with_a_reserved_token_s_name_leaves_its_id_alone(tmp_path):
    base = reading(tmp_path / "bytes.json", byte_vocabulary())
    texts = [*LAW, *["x<mask>y <mask> b", "<mask>" * 9, "a <mask>"] * 60]
    grown = reading(tmp_path / "grown.json", grow_byte_bpe(texts, base, 420))
    assert {"<mas", "k>"} <= set(grown.tokens.values())
    assert grown.specials == base.specials
    tokens, _ = Encoder.load(str(tmp_path / "grown.json")).encode(pa.array(["a <mask>"], pa.large_string()))
    assert not set(tokens.tolist()) & set(grown.specials.values())


def test_bytes_grow_too(tmp_path):
    base = reading(tmp_path / "bytes.json", byte_vocabulary())
    grown = reading(tmp_path / "grown.json", grow_byte_bpe(LAW, base, 420))
    assert grown.kind == "byte_bpe"
    assert {**base.tokens, **grown.tokens} == grown.tokens


def test_a_vocabulary_of_another_maker_gets_the_reserved_tokens_that_it_lacks(tmp_path):
    """Like GPT-2's vocabulary, the base has a single special token, which has the last id."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    foreign = json.loads(train_byte_bpe(LAW, 384))
    foreign["model"]["vocab"] = {character: number for number, character in enumerate(alphabet)} | {
        "<|endoftext|>": 256
    }
    foreign["added_tokens"] = [{"id": 256, "content": "<|endoftext|>", "single_word": False, "lstrip": False, "rstrip": False,
                                "normalized": False, "special": True}]  # fmt: skip
    base = reading(tmp_path / "tokenizer.json", json.dumps(foreign).encode())
    grown = reading(tmp_path / "grown.json", grow_byte_bpe(LAW, base, 420))
    assert grown.specials["<|endoftext|>"] == 256
    assert {"<mask>", "<pad>", "<extra_id_99>"} <= set(grown.roles)
    assert sorted(grown.tokens) == list(range(420))
    first = 256 + len(grown.specials)
    assert sorted(grown.specials.values()) == list(range(256, first))
    assert [grown.tokens[number] for number in range(first, 420)] == [
        "".join(pair) for pair in grown.data["model"]["merges"]
    ]


def test_what_cannot_grow_is_refused(base, tmp_path):
    unigram = reading(tmp_path / "unigram.json", train_unigram(LAW, 170))
    for definition, size, texts, message in (
        (unigram, 900, LAW, "is unigram, or changes text; only a byte-level BPE that keeps every byte can grow"),
        (base, 700, LAW, "vocab_size: got 700, allowed more than the 700 tokens of"),
        (base, 800, LAW[:1], r"vocab_size: got 800, but the texts fill only 7\d\d: no further pair"),
        (base, 710, ["a \ud800"], "lone surrogate"),
    ):
        with pytest.raises(ValueError, match=message):
            grow_byte_bpe(texts, definition, size)
