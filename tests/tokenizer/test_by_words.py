"""Encoding each distinct word only once gives the same ids and offsets as `tokenizers`, for any text."""

import json
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tokenizer.word_cache as by_words
from tokenizer.encode import Encoder
from tokenizer.kinds.train import train
from tokenizer.vocabulary.definition import Definition
from tokenizer.vocabulary.specials import SPECIALS
from tokenizer.word_cache import cuts_at_spaces

KINDS = [
    ("bpe", False),
    ("bpe", True),
    ("wordpiece", False),
    ("wordpiece", True),
    ("unigram", False),
    ("unigram", True),
]
SPACES = [
    " ",
    "\n",
    "  ",
    "\t",
    "\r\n",
    "\x0b",
    "\x0c",
    "\x1c",
    "\x85",
    "\xa0",
    "\u1680",
    "\u2003",
    "\u2028",
    "\u200b",
    "\u3000",
]
PARTS = st.one_of(
    st.sampled_from(SPACES),
    st.sampled_from(
        ["mill", "The", "é", "e\u0301", "\u0308", "¨", "中文", "🙂", "ﬁ", "Σ", "İ", "▁", "␃", "a.b", "한", "ᄒ", "ᅡ"]
    ),
    st.sampled_from(SPECIALS[:8]),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=3),
)
TEXTS = st.lists(st.lists(PARTS, max_size=10).map("".join), max_size=5)


def strings(texts):
    return pa.array(texts, pa.large_string())


@pytest.fixture(scope="module", params=KINDS, ids=lambda case: f"{case[0]}-{'lower' if case[1] else 'as-is'}")
def both(request, prose, tmp_path_factory):
    """Return two encoders of the same tokenizer: one that works word by word, and one for whole texts."""
    kind, lowercase = request.param
    file = tmp_path_factory.mktemp(kind) / "tokenizer.json"
    texts = [*prose[4:6], "中文句子 한국어 é Σ İ ␃ 🙂"] * 2
    file.write_bytes(train(kind, texts, 700, lowercase=lowercase, coverage=1))
    return Encoder.load(str(file)), Encoder.load(str(file), "tokenizers")


@pytest.mark.long
@settings(max_examples=60)
@given(texts=TEXTS)
def test_ids_and_places_are_those_of_whole_texts(both, texts):
    """Positions are looked up at the starts of words, where sentences may begin, and at the ends of texts."""
    found, expected = (encoder.encode(strings(texts)) for encoder in both)
    assert [side.tolist() for side in found] == [side.tolist() for side in expected]
    assert both[0].library == "words"
    places = [[0, *starts(text), len(text.encode())] for text in texts]
    flat = np.array([place for some in places for place in some], np.int64)
    offsets = np.cumsum([0, *map(len, places)])
    found, expected = (encoder.encode_with_positions(strings(texts), flat, offsets) for encoder in both)
    for mine, theirs in zip(found, expected, strict=True):
        np.testing.assert_array_equal(mine, theirs)
        assert mine.dtype == theirs.dtype


def starts(text):
    return [len(text[:i].encode()) for i in range(1, len(text)) if text[i - 1] in " \n" and not text[i].isspace()]


def test_sentences_within_a_word(both):
    text = "中文。한국어。The mill.x 中文。"
    places = np.array([len(part.encode()) for part in ("", "中文。", "中文。한국어。", "中文。한국어。The ")])
    found, expected = (
        encoder.encode_with_positions(strings(["", text, text]), np.tile(places, 2), np.array([0, 0, 4, 8]))
        for encoder in both
    )
    assert found[2].tolist() == expected[2].tolist()
    assert len(set(found[2].tolist())) == 4


@pytest.mark.long
def test_batches_and_what_is_remembered_change_nothing(both, documents, monkeypatch):
    words, whole = both
    expected = [side.tolist() for side in whole.encode(documents)]
    places = np.arange(3)
    monkeypatch.setattr("tokenizer.encode.BATCH_BYTES", 500)
    fresh = Encoder(words.definition, "words", "")
    for _ in range(2):
        assert [side.tolist() for side in fresh.encode(documents)] == expected
    assert len(set(fresh._words.words.to_pylist())) == len(fresh._words.words)
    monkeypatch.setattr(by_words, "MAX_WORDS", 50)
    forgetful = Encoder(words.definition, "words", "")
    assert [side.tolist() for side in forgetful.encode(documents)] == expected
    assert len(forgetful._words.words) < len(fresh._words.words)
    long = strings(["", *["one two three "] * 90])
    offsets = np.arange(0, 3 * 91 + 1, 3)
    offsets[1:] -= 3
    found, wanted = (e.encode_with_positions(long, np.tile(places, 90), offsets) for e in (forgetful, whole))
    assert [side.tolist() for side in found] == [side.tolist() for side in wanted]


def test_the_check_of_a_build_finds_a_difference(both, monkeypatch):
    words = Encoder(both[0].definition, "words", "")
    assert words.check(strings(["the mill", ""]), ["a", "b"]) == 2
    words._words.cut(strings(["the mill"]))
    words._words.ids[-1] += 1
    with pytest.raises(ValueError, match=r"document a: at token \d+ words has id \d+, tokenizers \S+ has id \d+"):
        words.check(strings(["the mill"]), ["a"])


@pytest.mark.parametrize(
    "change",
    [
        {"pre_tokenizer": {"type": "Whitespace"}},
        {"normalizer": None},
        {"normalizer": {"type": "Lowercase"}},
        {
            "added_tokens": [
                {"id": 900, "content": "a b", "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
                 "special": False}
            ]
        },
    ],
)  # fmt: skip
def test_other_tokenizers_are_not_cut(both, change):
    definition = both[0].definition
    assert cuts_at_spaces(definition)
    changed = Definition("x", json.loads(json.dumps({**definition.data, **change})))
    if change == {"normalizer": {"type": "Lowercase"}} or changed.kind == definition.kind:
        assert not cuts_at_spaces(changed)


def test_published_bert_is_cut(shared_data):
    words = Encoder.load(str(shared_data / "models" / "bert_uncased"))
    whole = Encoder.load(str(shared_data / "models" / "bert_uncased"), "tokenizers")
    lines = ["The quick [MASK] fox\njumped\tover 中文 ¨a \x85 e\u0301", ""]
    assert [s.tolist() for s in words.encode(strings(lines))] == [s.tolist() for s in whole.encode(strings(lines))]


def test_words_must_be_possible(encoder):
    with pytest.raises(ValueError, match="words cannot encode it"):
        Encoder.load(encoder.definition.path, "words")


@pytest.mark.slow
def test_every_kind_of_character_beside_spaces(both):
    """Unicode tables decide which characters are white space, combine or are removed, so characters of every
    kind are tried next to each kind of cut.
    """
    points = [point for point in (*range(0x20000), *range(0x20000, 0x110000, 61)) if not 0xD800 <= point < 0xE000]
    lines = [f"a{c}1 {c} {c}b\n{c}{c}\n {c} x{c} \u0308" for c in map(chr, points)]
    (found, found_ends), (expected, ends) = (encoder.encode(strings(lines)) for encoder in both)
    if not np.array_equal(found, expected):
        wrong = [
            hex(points[row])
            for row, ((a, b), (c, d)) in enumerate(zip(pairwise(found_ends), pairwise(ends), strict=True))
            if found[a:b].tolist() != expected[c:d].tolist()
        ]
        pytest.fail(f"differ: {wrong[:20]}")
    np.testing.assert_array_equal(found_ends, ends)
