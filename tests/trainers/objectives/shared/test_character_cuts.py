"""Cutting documents between characters: cut positions, the encoding of the parts, and the growth of a
document.
"""

import json
from dataclasses import replace
from functools import cache

import numpy as np
import pyarrow as pa
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from tests.trainers.objectives.packed import chosen, context, one_side, packed
from tokenizer.encode import Encoder
from tokenizer.kinds.train import train
from tokenizer.vocabulary.definition import Definition, characters_of_bytes
from tokenizer.vocabulary.specials import FIM_MIDDLE, FIM_PREFIX, FIM_SUFFIX, SPECIAL_IDS
from trainers.inference.prompt import read_prompt
from trainers.objectives.fill_in_the_middle import FillInTheMiddle
from trainers.objectives.shared.character_cuts import GROWTH, TokenTexts
from trainers.objectives.shared.ragged import Ragged
from trainers.objectives.shared.whole_words import text_of

TEXTS = [
    "The quick brown foxes, said Mr. O'Neill (1984), aren't unbelievable; they re-read encyclopaedias twice!\n\n  Yes.",
    "def cut(text, place=None):\n    return text[:place], text[place:]  # unbelievably quick\n",
    "東京都は大きい。北京大学是一所大学，大学在北京。",
    "नमस्ते दुनिया, क्षेत्र में किताबें पढ़ते हैं।",
    "Family 👨‍👩‍👧 and flags 🇩🇪🇫🇷, naïve Müller 🙂🙂 café",
]


def byte_bpe(add_prefix_space=False, size=500):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False,
        special_tokens=list(SPECIAL_IDS),
    )  # fmt: skip
    tokenizer.train_from_iterator([*TEXTS, "a   b  c    d   e  f"] * 3, trainer)
    return tokenizer.to_str()


def sentencepiece_bpe():
    """Return a BPE tokenizer like Llama 2's: spaces become `▁`, a normaliser puts `▁` before the text, and
    unknown characters fall back to bytes.
    """
    bytes_of = [f"<0x{value:02X}>" for value in range(256)]
    vocabulary = ["<unk>", *bytes_of, "▁", *sorted(set("".join(TEXTS[:2])) - {"\n", " "})]
    merges = [("▁", "q"), ("q", "u"), ("▁", "qu"), ("i", "c"), ("ic", "k"), ("▁qu", "ick"), ("e", "n"), ("en", "c")]
    vocabulary += ["".join(merge) for merge in merges]
    model = {"type": "BPE", "vocab": {token: n for n, token in enumerate(vocabulary)}, "byte_fallback": True,
             "merges": [list(merge) for merge in merges], "unk_token": "<unk>", "fuse_unk": True}  # fmt: skip
    spaces = [{"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]
    unknown = {"id": 0, "content": "<unk>", "special": True, "normalized": False, "lstrip": False, "rstrip": False,
               "single_word": False}  # fmt: skip
    whole = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [unknown], "pre_tokenizer": None,
             "normalizer": {"type": "Sequence", "normalizers": spaces}, "post_processor": None, "decoder": None}  # fmt: skip
    return json.dumps(whole | {"model": model})


def long_token(letters="abcdefghijklmnopqrstuvwx"):
    """Return a byte-level BPE tokenizer with one long word, whose inner pieces are encoded letter by letter."""
    vocabulary = {token: n for n, token in enumerate([*SPECIAL_IDS, *characters_of_bytes()])}
    merges = [(letters[:n], letters[n]) for n in range(1, len(letters))]
    vocabulary |= {"".join(merge): len(vocabulary) + n for n, merge in enumerate(merges)}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.add_special_tokens(list(SPECIAL_IDS))
    return tokenizer.to_str()


MADE = {
    "byte-level BPE": byte_bpe,
    "with a space before a text": lambda: byte_bpe(add_prefix_space=True),
    "SentencePiece BPE": sentencepiece_bpe,
    "long token": long_token,
    "unigram": lambda: train("unigram", TEXTS * 20, 240, coverage=1.0).decode(),
    "bytes": lambda: train("bytes", TEXTS, 384).decode(),
    "wordpiece": lambda: train("wordpiece", TEXTS * 20, 380, coverage=1.0).decode(),
    "bpe": lambda: train("bpe", TEXTS * 20, 380, coverage=1.0).decode(),
}
INSIDE = ["byte-level BPE", "with a space before a text", "SentencePiece BPE", "unigram"]


@cache
def encoder(name):
    made = Encoder(Definition(name, json.loads(Tokenizer.from_str(MADE[name]()).to_str())), "tokenizers", "")
    return made, TokenTexts(made.definition)


def encode(name, texts):
    ids, offsets = encoder(name)[0].encode(pa.array(texts, pa.large_string()))
    return Ragged(ids.astype(np.int64), offsets)


def text(name, tokens):
    return b"".join(text_of(encoder(name)[0].definition, token) for token in tokens)


def alone(count):
    """Return (row of each document, spare tokens of each row). Every document has its own row, with room for
    what the cuts add.
    """
    return np.arange(count), np.full(count, GROWTH)


def parts_of(name, content, seed=0, drawn=None):
    count = len(content.sizes)
    drawn = np.random.default_rng(seed).random((count, 2)) if drawn is None else drawn
    made, cuts = encoder(name)[1].cut(content, np.ones(count, bool), drawn, *alone(count))
    lists = [made.tokens[a:b] for a, b in zip(made.offsets, made.offsets[1:], strict=False)]
    return [[p.tolist() for p in np.split(one, cut)] for one, cut in zip(lists, cuts, strict=True)]


def shortened(content, begin, end):
    """Return each document without its first `begin` and last `end` tokens, as if it were cut by a row."""
    lists = [content.tokens[a + begin : max(b - end, a + begin)]
             for a, b in zip(content.offsets, content.offsets[1:], strict=False)]  # fmt: skip
    return Ragged(np.concatenate(lists), np.concatenate([[0], np.cumsum([len(one) for one in lists])]))


@pytest.mark.long
@pytest.mark.parametrize("name", MADE)
@pytest.mark.parametrize("begin", [0, 1, 7])
def test_the_parts_say_the_document(name, begin):
    content = shortened(encode(name, [*TEXTS, "", "a", "é", "🙂", "ab"] * 8), begin, begin % 2)
    reserved = set(encoder(name)[0].definition.specials.values()) - {encoder(name)[0].definition.unknown_id}
    for number, parts in enumerate(parts_of(name, content)):
        tokens = content.tokens[content.offsets[number] : content.offsets[number + 1]].tolist()
        made = [token for part in parts for token in part]
        assert text(name, made) == text(name, tokens)
        assert len(tokens) - 2 * GROWTH < len(made) <= len(tokens) + GROWTH
        assert not reserved & set(made)


@pytest.mark.parametrize("name", ["byte-level BPE", "bytes"])
def test_a_part_has_the_ids_of_a_prompt_of_its_text(name):
    spaced = ["of   many  spaces: one   two\n\n   three"] * 200
    parts = [part for one in parts_of(name, encode(name, TEXTS * 30 + spaced)) for part in one]
    prompts = encode(name, [text(name, part).decode() for part in parts])
    assert [prompts.tokens[a:b].tolist() for a, b in zip(prompts.offsets, prompts.offsets[1:], strict=False)] == parts


def test_a_prompt_has_the_ids_of_the_parts_that_were_learned():
    name, made = "byte-level BPE", encoder("byte-level BPE")[0]
    prefix, middle, suffix = (made.specials[mark] for mark in (FIM_PREFIX, FIM_MIDDLE, FIM_SUFFIX))
    spaces = 0
    for parts in parts_of(name, encode(name, TEXTS * 10)):
        before, _, after = (text(name, part).decode() for part in parts)
        prompt = f"{FIM_PREFIX}{before}{FIM_SUFFIX}{after}{FIM_MIDDLE}"
        ids = read_prompt(prompt, made, FillInTheMiddle().prompt_format.names)
        assert ids == [prefix, *parts[0], suffix, *parts[2], middle]
        spaces += before.endswith(" ")
    assert spaces


@pytest.mark.long
@pytest.mark.parametrize("name", INSIDE)
def test_parts_are_whole_characters_and_cuts_are_inside_of_tokens(name):
    content = encode(name, TEXTS * 40)
    ends = [set(np.cumsum([0, *(len(text(name, [t])) for t in content.tokens[a:b])]).tolist())
            for a, b in zip(content.offsets, content.offsets[1:], strict=False)]  # fmt: skip
    inside = []
    for number, parts in enumerate(parts_of(name, content)):
        prefix = text(name, parts[0])
        assert all("\ufffd" not in text(name, part).decode() for part in parts)
        inside.append(len(prefix) not in ends[number])
    assert np.mean(inside) > (0.01 if name == "SentencePiece BPE" else 0.05)


@pytest.mark.long
@pytest.mark.parametrize("name", ["byte-level BPE", "unigram"])
@pytest.mark.parametrize("sample", ["quick", "大学 🙂", "क्षेत्र"])
def test_cuts_are_uniform_over_characters(name, sample):
    content = encode(name, [sample] * 4000)
    size = len(text(name, content.tokens[: content.offsets[1]]).decode())
    found = np.zeros((size + 1, size + 1))
    for parts in parts_of(name, content, seed=5):
        before, middle = (len(text(name, part).decode()) for part in parts[:2])
        found[before, before + middle] += 1
    rows, columns = np.triu_indices(size + 1)
    expected = np.where(rows == columns, 1, 2) * 4000 / (size + 1) ** 2
    degrees = len(rows) - 1
    chi2 = ((found[rows, columns] - expected) ** 2 / expected).sum()
    assert found.sum() == found[rows, columns].sum() == 4000
    assert abs(chi2 - degrees) < 4 * np.sqrt(2 * degrees)


@pytest.mark.parametrize("name", ["wordpiece", "bpe", "bytes"])
def test_where_texts_are_unknown_or_bytes_tokens_stay_as_they_are(name):
    content = encode(name, TEXTS * 5)
    made, cuts = encoder(name)[1].cut(content, np.ones(25, bool), np.random.default_rng(0).random((25, 2)), *alone(25))
    assert made is content
    assert (np.diff(cuts) >= 0).all()
    assert cuts.max() > 10


def test_a_row_that_begins_or_ends_inside_of_a_character_is_cut_between_tokens():
    name = "byte-level BPE"
    byte = {encoder(name)[0].definition.token_bytes(n): n for n in encoder(name)[0].definition.tokens if n >= 128}
    fragments = [byte[bytes([value])] for value in "語".encode()]
    for tokens in (fragments[1:], fragments[:2], [*fragments[1:], *fragments[:1]]):
        content = Ragged(np.array(tokens), np.array([0, len(tokens)]))
        for number in range(10):
            parts = parts_of(name, content, drawn=np.array([[number / 10, 0.5]]))[0]
            assert [token for part in parts for token in part] == tokens


def test_cuts_that_would_add_too_many_tokens_are_between_tokens():
    content = encode("long token", ["abcdefghijklmnopqrstuvwx abcdefghijklmnopqrstuvwx"] * 200)
    sizes = {sum(map(len, parts)) - content.sizes[0] for parts in parts_of("long token", content)}
    assert 0 in sizes
    assert 1 < max(sizes) <= GROWTH


def test_documents_of_a_row_grow_into_its_free_positions():
    content, drawn = encode("byte-level BPE", TEXTS * 20), np.random.default_rng(0).random((100, 2))
    rows, cut = np.arange(100) // 10, encoder("byte-level BPE")[1].cut
    free = np.arange(10) * 3
    made, cuts = cut(content, np.ones(100, bool), drawn, rows, free)
    unbounded, _ = cut(content, np.ones(100, bool), drawn, rows, np.full(10, 1000))
    grown, most = (np.bincount(rows, one.sizes - content.sizes) for one in (made, unbounded))
    assert (grown <= free).all()
    assert (most > free).sum() >= 3
    assert (grown[most <= free] == most[most <= free]).all()
    for number in range(100):
        ours, theirs = (one.tokens[one.offsets[number] : one.offsets[number + 1]] for one in (made, content))
        said = [text("byte-level BPE", part) for part in np.split(ours, cuts[number])]
        assert b"".join(said) == text("byte-level BPE", theirs)


def test_a_document_does_not_depend_on_the_next_one():
    """The next document begins inside a character, as if it were cut by a row."""
    name = "byte-level BPE"
    byte = {encoder(name)[0].definition.token_bytes(n): n for n in encoder(name)[0].definition.tokens if n >= 128}
    fragment = byte["語".encode()[1:2]]
    tokens = np.array([*encode(name, ["a cat"]).tokens, fragment, fragment])
    for drawn in np.random.default_rng(0).random((50, 2)):
        sizes = np.array([0, len(tokens) - 1, len(tokens)])
        first, second = (
            encoder(name)[1].cut(
                Ragged(tokens[: ends[-1]], ends), np.ones(count, bool), np.tile(drawn, (count, 1)), *alone(count)
            )
            for count, ends in ((1, sizes[:2]), (2, sizes))
        )
        assert second[1][0].tolist() == first[1][0].tolist()


def test_documents_that_are_not_chosen_stay_as_they_are():
    content = encode("byte-level BPE", TEXTS * 20)
    few = np.arange(100) % 3 == 0
    made, cuts = encoder("byte-level BPE")[1].cut(content, few, np.random.default_rng(0).random((100, 2)), *alone(100))
    assert (made.sizes[~few] == content.sizes[~few]).all()
    for number in np.flatnonzero(~few):
        ours, theirs = (one.tokens[one.offsets[number] : one.offsets[number + 1]] for one in (made, content))
        assert (ours == theirs).all()
    assert (cuts[few] >= 0).all()
    assert (cuts[few] <= made.sizes[few, None]).all()


def rows_of(name, count):
    content = encode(name, TEXTS)
    lists = [content.tokens[a:b].tolist() for a, b in zip(content.offsets, content.offsets[1:], strict=False)]
    return [[lists[(row + k) % len(lists)][: 40 * (k + 1)] for k in range(row % 4)] for row in range(count)]


def of(name, seed=3):
    return replace(context("decoder", seed), texts=TokenTexts(encoder(name)[0].definition))


def test_every_token_of_a_cut_document_is_predicted_and_rows_do_not_depend_on_others():
    batch, objective, here = (
        packed(rows_of("byte-level BPE", 24), frame=True),
        FillInTheMiddle(rate=0.8),
        of("byte-level BPE"),
    )
    whole = one_side(objective.apply(batch, of("byte-level BPE")))
    names = (FIM_PREFIX, FIM_SUFFIX, FIM_MIDDLE)
    cut = 0
    for (row, number), (tokens, targets, _) in whole.items():
        assert tokens[1:] == targets[:-1]
        assert targets[-1] == SPECIAL_IDS["<eos>"]
        marks = [tokens.count(SPECIAL_IDS[name]) for name in names]
        assert marks in ([0, 0, 0], [1, 1, 1])
        cut += marks[0]
        assert len(tokens) <= (batch.segments[row] == number).sum() + 3 + GROWTH
    assert 0.5 * len(whole) < cut < len(whole)
    for row in range(24):
        alone = one_side(objective.apply(chosen(batch, [row]), here))
        assert {key[1]: value for key, value in alone.items()} == {k[1]: v for k, v in whole.items() if k[0] == row}
    assert one_side(objective.apply(batch, of("byte-level BPE", seed=4))) != whole


@pytest.mark.parametrize("length", [16, 64])
def test_the_longest_document_stays_within_the_row(length):
    objective = FillInTheMiddle(rate=1.0)
    size = objective.stream_length(length, "decoder")
    ids = encode("long token", ["abcdefgh abcdefghijkl abc" * 20]).tokens
    for cut in (True, False):
        batch = packed(
            [[ids[: size - (not cut)].tolist()]] * 300, length=size, frame=True, cut=range(300) if cut else ()
        )
        made = objective.apply(batch, of("long token"))
        assert length - GROWTH <= (made.segments >= 0).sum(1).max() <= length
