"""Encoding of the texts of examples: tokens equal the tokenizer's, record the bytes they come from, and are
cached by content.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.trainers.data.examples.conftest import KINDS, sentences, texts
from tokenizer.encode import Encoder
from trainers.data.examples.encoded_texts import TextEncoder, answer_tokens

HARD = [
    "",
    " ",
    "  the   fox ",
    "naïve façades",
    "e\u0301 über",
    "中文 日本 fox",
    "\x00the \u200b dog",
    "🙂 quick\nfox\t",
]


def of(encoded, text):
    return encoded.tokens[encoded.first[text] : encoded.first[text] + encoded.sizes[text]]


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_are_those_of_the_tokenizer(kind, encoder_of, tokenizer_files):
    """Tokens are equal also when read from the cache, for repeated texts, and when byte positions are
    requested.
    """
    values = [*HARD, *sentences(20), *HARD]
    ids, offsets = Encoder.load(str(tokenizer_files[kind]), "tokenizers").encode(texts(*values))
    for encode in (encoder_of(kind).encode, encoder_of(kind).encode, encoder_of(kind).encode_located):
        encoded = encode(texts(*values))
        for number in range(len(values)):
            assert of(encoded, number).tolist() == ids[offsets[number] : offsets[number + 1]].tolist()


def test_the_cache_saves_loading_the_tokenizer(encoder_of):
    encoder_of("byte_bpe").encode(texts("the fox", "dog"))
    again = encoder_of("byte_bpe")
    again.encode(texts("the fox", "dog"))
    assert "encoder" not in vars(again)
    again.encode(texts("the fox", "dogs"))
    assert "encoder" in vars(again)


def test_another_tokenizer_has_another_cache(encoder_of):
    one, other = (encoder_of(kind).encode(texts("the fox")) for kind in ("bytes", "wordpiece"))
    assert of(one, 0).tolist() != of(other, 0).tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_bytes_of_tokens_are_those_that_tokenizers_reports(kind, encoder_of, tokenizer_files):
    """A token ends where `tokenizers` says. It may begin earlier than `tokenizers` says, because it also
    covers white space or dropped characters.

    Byte-level tokenizers may split a character that `tokenizers` reports as a whole.
    """
    plain = Encoder.load(str(tokenizer_files[kind]), "tokenizers")._plain
    values = [*HARD, *sentences(30, seed=3)]
    encoded = encoder_of(kind).encode_located(texts(*values))
    checked = 0
    for number, text in enumerate(values):
        bytes_before = np.cumsum([0, *(len(character.encode()) for character in text)])
        reported = np.array(plain.encode(text, add_special_tokens=False).offsets).reshape(-1, 2)
        own = slice(encoded.first[number], encoded.first[number] + encoded.sizes[number])
        starts, ends = encoded.starts[own], encoded.ends[own]
        assert (np.diff(starts) >= 0).all()
        assert (np.diff(ends) >= 0).all()
        assert (starts <= ends).all()
        assert len(starts) == len(reported)
        own = plain.encode(text, add_special_tokens=False).tokens
        for token, (start, end) in enumerate(reported):
            # Of several tokens of one character, and of a lone space and the first token of its word, the first has all.
            shared = (reported[:, 0] < end) & (reported[:, 1] > start)
            if shared.sum() > 1 or "▁" in own[max(0, token - 1) : token + 1]:
                continue
            assert bytes_before[start] >= starts[token]
            assert ends[token] == bytes_before[end]
            checked += 1
    assert checked > 200


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=30)
@given(data=st.data())
def test_answers_become_tokens_and_characters_again(kind, tokenizer_files, data, tmp_path_factory):
    """A span is mapped to the fewest tokens that cover it, and a span of whole words is restored exactly."""
    words = data.draw(
        st.lists(st.sampled_from(["the", "naïve", "中文", "fox", "über-façades", "🙂", "dog."]), min_size=1)
    )
    text = data.draw(st.sampled_from(["", " ", "\n"])) + data.draw(st.sampled_from([" ", "  "])).join(words)
    encoder = TextEncoder(str(tokenizer_files[kind]), str(tmp_path_factory.mktemp("none")))
    characters = np.cumsum([0, *(len(character.encode()) for character in text)])
    begin = data.draw(st.integers(0, len(text) - 1))
    end = data.draw(st.integers(begin + 1, len(text)))
    if data.draw(st.booleans()):  # whole words
        begin = text.rfind(" ", 0, begin + 1) + 1
        end = len(text) if text.find(" ", end) < 0 else text.find(" ", end)
    span = text[begin:end].strip()
    if not span:
        return
    begin = text.index(span, begin)
    start, stop = int(characters[begin]), int(characters[begin + len(span)])
    encoded = encoder.encode_located(texts(text))
    first, last = (int(array[0]) for array in answer_tokens(encoded, [[(start, stop)]]))
    if first < 0:  # nothing of it has a token
        assert kind != "bytes"
        return
    assert encoded.starts[first] <= start
    assert encoded.ends[last] >= stop or encoded.ends[-1] < stop
    assert encoded.ends[first] > start
    assert last == first or encoded.ends[last - 1] < stop
    whole = (begin == 0 or text[begin - 1].isspace()) and (
        begin + len(span) == len(text) or text[begin + len(span)].isspace()
    )
    if whole and encoded.ends[last] >= stop:
        assert text.encode()[encoded.starts[first] : encoded.ends[last]].decode().strip() == span


@pytest.mark.parametrize("kind", KINDS)
def test_words_know_their_first_token(kind, encoder_of):
    """A word's first token is the token of the word's first byte, as found from the byte positions of all
    tokens.
    """
    values = sentences(30, seed=5)
    starts = [[0, *(i + 1 for i, byte in enumerate(value.encode()) if byte == 32)] for value in values]
    offsets = np.cumsum([0, *map(len, starts)])
    flat = np.concatenate(starts)
    encoded, words = encoder_of(kind).encode_words(texts(*values), flat, offsets)
    located = encoder_of(kind).encode_located(texts(*values))
    text = np.repeat(np.arange(len(values)), np.diff(offsets))
    assert (words == located.tokens_at(text, flat)).all()
    assert all(of(encoded, i).tolist() == of(located, i).tolist() for i in range(len(values)))
    again = encoder_of(kind).encode_words(texts(*values), flat, offsets)
    assert (again[1] == words).all()


@pytest.mark.parametrize("kind", KINDS)
def test_batches_do_not_change_the_bytes_of_tokens(kind, encoder_of, monkeypatch):
    """The first batch may have only texts without tokens."""
    values = [*HARD, *sentences(10, seed=7)]
    whole = encoder_of(kind)._encode_located(texts(*values))
    monkeypatch.setattr("trainers.data.examples.encoded_texts._BATCH_BYTES", 1)
    for one, other in zip(whole, encoder_of(kind)._encode_located(texts(*values)), strict=True):
        assert np.array_equal(one, other)
