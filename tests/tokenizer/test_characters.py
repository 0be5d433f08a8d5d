"""The character vocabulary: ids by code point, exact positions, lossless decoding, and unknown characters."""

import json
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from tokenizer.encode import Encoder
from tokenizer.kinds.train import train
from tokenizer.vocabulary.specials import SPECIALS

# Line ends of two kinds, Chinese, a combining accent beside the composed letter, emoji joined to one picture, a flag,
# the mark that other vocabularies write for a space, and a reserved token spelled out.
TEXTS = ["a\r\nb\n", "中文句子。", "e\u0301 é", "👩\u200d👩\u200d👧 🇰🇷", "▁ \t\u00a0", "<mask> and <unk>", ""]
CHARACTERS = sorted(set("".join(TEXTS)))


def strings(texts):
    return pa.array(texts, pa.large_string())


@pytest.fixture(scope="module")
def load(tmp_path_factory):
    def learn(texts, library=None, **knobs):
        file = tmp_path_factory.mktemp("characters") / "tokenizer.json"
        file.write_bytes(train("characters", texts, None, **knobs))
        return Encoder.load(str(file), library)

    return learn


@pytest.fixture(scope="module")
def characters(load):
    return load(TEXTS)


def test_ids_follow_the_reserved_ones_by_code_point(characters):
    assert (characters.kind, characters.library) == ("characters", "numpy")
    assert characters.vocab_size == len(SPECIALS) + len(CHARACTERS)
    ids, offsets = characters.encode(strings(TEXTS))
    assert ids.tolist() == [len(SPECIALS) + CHARACTERS.index(character) for character in "".join(TEXTS)]
    assert np.diff(offsets).tolist() == [len(text) for text in TEXTS]
    assert characters.encode(strings(TEXTS).slice(1, 3))[0].tolist() == ids[offsets[1] : offsets[4]].tolist()


@given(st.lists(st.text(st.sampled_from(CHARACTERS)), max_size=4))
def test_decoding_gives_every_text_back(characters, texts):
    ids, offsets = characters.encode(strings(texts))
    assert [characters.decode(ids[a:b]) for a, b in pairwise(offsets)] == texts


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_tokenizers_gives_the_same_ids(characters, text):
    characters.check(strings([text]), ["one"])
    published = Tokenizer.from_str(characters.definition.plain_json)
    assert characters.encode(strings([text]))[0].tolist() == published.encode(text).ids


def test_every_byte_belongs_to_its_character(characters):
    text = TEXTS[2] + TEXTS[3]
    size = len(text.encode())
    expected = [number for number, character in enumerate(text) for _ in character.encode()]
    _, _, found = characters.encode_with_positions(
        strings(["first", text, "last"]).slice(1), np.append(np.arange(size + 1), 2), np.array([0, size + 1, size + 2])
    )
    assert found.tolist() == [*expected, len(text), 2]


def test_an_unknown_character_is_unk_or_an_error_that_names_it(load):
    assert load(["ab"]).encode(strings(["a☃b"]))[0].tolist() == [128, 3, 129]
    strict = load(["ab"], unknown="error")
    assert strict.encode(strings(["ab"]))[0].tolist() == [128, 129]
    with pytest.raises(ValueError, match=r"document 1 of the batch: character 2 is U\+2603, which is not in the vocab"):
        strict.encode(strings(["ab", "ba☃", "☃"]))
    with pytest.raises(Exception, match="Missing"):
        Tokenizer.from_str(strict.definition.json).encode("a☃")


def test_what_changes_the_cut_makes_it_another_kind(characters, tmp_path):
    file = tmp_path / "tokenizer.json"
    file.write_text(json.dumps({**characters.definition.data, "normalizer": {"type": "NFC"}}), encoding="utf-8")
    assert (Encoder.load(str(file)).kind, Encoder.load(str(file)).library) == ("word_level", "tokenizers")


@pytest.mark.parametrize(
    ("texts", "size", "knobs", "message"),
    [
        (["a"], 200, {}, "vocab_size: got 200, but characters takes that of the texts"),
        ([""], None, {}, "the texts are empty"),
        (["a\ud800"], None, {}, r"texts\[0\]: lone surrogate"),
        (["a"], None, {"unknown": "drop"}, "unknown: got 'drop', allowed unk, error"),
        (["a"], None, {"lowercase": True}, "lowercase: got True, which characters does not have"),
    ],
)
def test_bad_requests_are_refused(texts, size, knobs, message):
    with pytest.raises(ValueError, match=message):
        train("characters", texts, size, **knobs)
