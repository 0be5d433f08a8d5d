"""Every kind of tokenizer that can be trained: reserved ids, unseen text, sentence positions, and published
examples.
"""

import hashlib
import json
import os
import random
import subprocess
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from tokenizer.encode import Encoder
from tokenizer.kinds.learned import blank_unknown, known_characters
from tokenizer.kinds.train import KINDS, REPRODUCIBLE, train
from tokenizer.kinds.unigram import train_unigram
from tokenizer.kinds.word_bpe import END_OF_WORD, train_word_bpe
from tokenizer.kinds.wordpiece import train_wordpiece
from tokenizer.vocabulary.specials import SPECIAL_IDS, SPECIALS

ROOT = Path(__file__).parents[2]
SIZES: dict[str, int | None] = dict.fromkeys(KINDS, 1000) | {"bytes": 384, "characters": None}
# White space between sentences, characters of one to four bytes, composed and not, and some that vocabularies do not know.
SENTENCES = [
    "The mill stands at the river.", "Été: naïve café, déjà vu!", "e\u0301te\u0301 is summer.", "中文句子。",
    "한국어 문장입니다.", "It's 🙂 and 👩‍👩‍👧 today.", "<mask> is no mask.", "x = {'a': [1, 2]}", "ﬁne ½ Ⅳ", "☃ ⁂ end.",
]  # fmt: skip
HOSTILE = st.lists(
    st.one_of(st.sampled_from(SPECIALS), st.text(st.characters(exclude_categories=["Cs"]), max_size=6), st.just(" ")),
    max_size=8,
).map("".join)


def strings(texts):
    return pa.array(texts, pa.large_string())


def each(tokens, offsets):
    return [tokens[start:stop].tolist() for start, stop in pairwise(offsets)]


def decoded(encoder, texts):
    return [[encoder.definition.tokens[number] for number in ids] for ids in each(*encoder.encode(strings(texts)))]


@pytest.fixture(scope="session")
def vocabularies(prose, tmp_path_factory):
    found = {}
    texts = [*prose[3:8], *SENTENCES[:6] * 3]
    for kind in KINDS:
        found[kind] = tmp_path_factory.mktemp(kind) / "tokenizer.json"
        found[kind].write_bytes(train(kind, texts, SIZES[kind], coverage=0.9999))
    return {kind: str(path) for kind, path in found.items()}


@pytest.fixture(scope="session", params=KINDS)
def kind(request):
    return request.param


@pytest.fixture(scope="session")
def any_kind(kind, vocabularies):
    return Encoder.load(vocabularies[kind])


def written(content, tmp_path):
    file = tmp_path / "tokenizer.json"
    file.write_bytes(content)
    return Encoder.load(str(file))


def test_reserved_ids_are_the_same_in_every_kind(kind, any_kind):
    assert (any_kind.kind, any_kind.vocab_size) == (kind, SIZES[kind] or any_kind.vocab_size)
    assert any_kind.specials == any_kind.definition.specials == SPECIAL_IDS
    library = {"byte_bpe": "gigatoken", "bytes": "numpy", "characters": "numpy"}.get(kind, "words")
    assert any_kind.library == library


@pytest.mark.long
@settings(max_examples=50)
@given(st.lists(HOSTILE, max_size=5))
def test_no_text_yields_a_reserved_id(any_kind, texts):
    tokens, _ = any_kind.encode(strings(texts))
    assert set(tokens[tokens < len(SPECIALS)].tolist()) <= {any_kind.definition.unknown_id}


@pytest.mark.long
def test_a_literal_special_is_the_characters_it_is(any_kind):
    for token in SPECIALS:
        (ids,) = each(*any_kind.encode(strings([f"a {token} b"])))
        assert SPECIAL_IDS["<unk>"] not in ids
        assert "".join(any_kind.decode(ids).split()) == f"a{token}b"


@pytest.mark.long
def test_transformers_reads_the_file_and_gives_the_same_ids(kind, any_kind, documents):
    from transformers import PreTrainedTokenizerFast

    named = {"pad_token": "<pad>", "unk_token": "<unk>", "mask_token": "<mask>", "eos_token": "<eos>"}
    loaded = PreTrainedTokenizerFast(tokenizer_file=any_kind.definition.path, **named)
    assert (loaded.pad_token_id, loaded.mask_token_id, len(loaded)) == (0, 4, any_kind.vocab_size)
    expected = [loaded(text, add_special_tokens=False)["input_ids"] for text in documents.to_pylist()]
    assert each(*any_kind.encode(documents)) == expected
    assert loaded("a <mask>", add_special_tokens=False)["input_ids"][-1] == 4


def test_a_slice_is_encoded_like_its_documents(any_kind, documents):
    whole = each(*any_kind.encode(documents))
    tokens, offsets = any_kind.encode(documents.slice(3, 9))
    assert each(tokens, offsets) == whole[3:12]
    assert (tokens.dtype, offsets.dtype, offsets[0]) == (np.uint16, np.int64, 0)
    for nothing in ([], ["", ""]):
        assert each(*any_kind.encode(strings(nothing))) == [[] for _ in nothing]


@pytest.mark.long
@settings(max_examples=30)
@given(
    chosen=st.lists(st.lists(st.sampled_from(SENTENCES), max_size=6), max_size=4),
    space=st.sampled_from([" ", "\n\n", " \t "]),
)
def test_sentences_begin_where_their_own_tokens_do(kind, any_kind, chosen, space):
    """With `bpe`, `wordpiece` and `unigram`, the tokens from one sentence start to the next equal those of
    the sentence encoded alone.
    """
    texts = [space.join(sentences) for sentences in chosen]
    places, place_offsets = [], [0]
    for sentences in chosen:
        position = 0
        for sentence in sentences:
            places.append(position)
            position += len((sentence + space).encode())
        place_offsets.append(len(places))
    tokens, offsets, begins = any_kind.encode_with_positions(
        strings(["before", *texts]).slice(1), np.array(places, np.int64), np.array(place_offsets)
    )
    assert each(tokens, offsets) == each(*any_kind.encode(strings(texts)))
    assert begins.dtype == np.int32
    for ids, sentences, (first, last) in zip(each(tokens, offsets), chosen, pairwise(place_offsets), strict=True):
        ends = [*begins[first:last].tolist(), len(ids)]
        parts = [ids[start:stop] for start, stop in pairwise(ends)]
        alone = each(*any_kind.encode(strings(sentences)))
        if kind == "characters":  # white space after a sentence is tokens of its own
            assert [part[: len(own)] for part, own in zip(parts, alone, strict=True)] == alone
        elif kind in ("byte_bpe", "bytes"):  # a token may hold the space before a sentence
            assert [any_kind.decode(part).strip() for part in parts] == sentences
        else:
            assert parts == alone


def test_a_place_may_be_anywhere_in_the_text(any_kind):
    """A position may be inside a character, in white space or at the end of the text."""
    text = "né  🙂 <sep> ☃ last"
    size = len(text.encode())
    places = np.arange(size + 1)
    tokens, _, found = any_kind.encode_with_positions(strings([text]), places, np.array([0, size + 1]))
    assert found[0] == 0
    assert found[-1] == len(tokens)
    assert (np.diff(found) >= 0).all()
    assert found[text.encode().index(b"last")] == len(tokens) - len(any_kind.encode(strings(["last"]))[0])
    for wrong in (-1, size + 1):
        with pytest.raises(ValueError, match=rf"document 1 of the batch: byte {wrong} is outside its {size} bytes"):
            any_kind.encode_with_positions(strings(["", text]), np.array([wrong]), np.array([0, 0, 1]))


@pytest.mark.long
@pytest.mark.parametrize("kind", sorted(REPRODUCIBLE - {"byte_bpe"}))
@pytest.mark.parametrize("threads", ["1", "4"])
def test_processes_threads_hash_seeds_and_order_change_nothing(kind, threads):
    texts = [f"{a}{b}{c} {c}{a}{b}\n{b}{b}{a}é🙂 {c}{b}" for a in "abcde" for b in "fghij" for c in "klmno"]
    size = {"bytes": 384, "characters": None}.get(kind, 220)
    code = "import hashlib, json, sys; from tokenizer.kinds.train import train; texts = json.load(sys.stdin); "
    finished = subprocess.run(
        [sys.executable, "-c", f"{code}print(hashlib.sha256(train({kind!r}, texts, {size})).hexdigest())"],
        input=json.dumps(random.Random(threads).sample(texts, len(texts))),
        env={**os.environ, "PYTHONHASHSEED": threads, "RAYON_NUM_THREADS": threads, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert finished.stdout.strip() == hashlib.sha256(train(kind, texts, size)).hexdigest()


# Sennrich et al. 2016.


def test_sennrichs_example(tmp_path):
    """Sennrich et al. 2016, figures 1 and 2: four merges learned from {low, lowest, newer, wider} segment
    `lower` as `low er·`. The test compares the segmentation because the first merges are ties.
    """
    words = ["low", "lowest", "newer", "wider"]
    symbols = {*"".join(words), END_OF_WORD}
    encoder = written(train_word_bpe(words, len(SPECIALS) + len(symbols) + 4), tmp_path)
    assert decoded(encoder, ["lower"]) == [["low", "er" + END_OF_WORD]]
    assert len(encoder.definition.data["model"]["merges"]) == 4
    assert encoder.vocab_size == len(SPECIALS) + len(symbols) + 4


def test_every_merge_is_of_a_most_frequent_pair(prose):
    """Replay algorithm 1 of Sennrich et al. 2016 over the word counts of real text."""
    words = Counter("".join(c if c.isalnum() else " " for c in prose[0] if c.isascii()).split())
    content = train_word_bpe([" ".join(words.elements())], 500, coverage=1)
    split = {(*word, END_OF_WORD): count for word, count in words.items()}
    for left, right in json.loads(content)["model"]["merges"]:
        pairs = Counter()
        for symbols, count in split.items():
            for pair in pairwise(symbols):
                pairs[pair] += count
        assert pairs[left, right] == max(pairs.values())
        split = {merged(symbols, (left, right)): count for symbols, count in split.items()}
    assert sum(split.values()) == words.total()


def merged(symbols, pair):
    found = []
    for symbol in symbols:
        if found and (found[-1], symbol) == pair and found[-1] is not None:
            found[-1] += symbol
        else:
            found.append(symbol)
    return tuple(found)


def test_the_suffix_of_the_library_is_something_else():
    """With `end_of_word_suffix` of `tokenizers`, the end-of-word mark is not a symbol of its own, so the
    product inserts the mark into the text instead.
    """
    plain = Tokenizer(models.BPE())
    plain.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    plain.train_from_iterator(
        ["low lowest newer wider"],
        trainers.BpeTrainer(vocab_size=18, end_of_word_suffix=END_OF_WORD, show_progress=False),
    )
    assert END_OF_WORD not in plain.get_vocab()


def test_words_and_marks(tmp_path):
    encoder = written(train_word_bpe(["it's two-fold, is it? "] * 4, 155), tmp_path)
    (tokens,) = decoded(encoder, ["it's two-fold, is it?"])
    words = "".join(tokens).split(END_OF_WORD)
    assert words == ["it", "'", "s", "two", "-", "fold", ",", "is", "it", "?", ""]
    assert decoded(encoder, [f"it{END_OF_WORD}is"]) == decoded(encoder, ["it is"])
    assert encoder.decode(encoder.encode(strings(["it  is\nfold"]))[0]) == "it is fold"


# BERT, T5, ByT5.


def test_bert_uncased_and_cased(tmp_path):
    texts = ["Été unaffable Unaffable été"] * 20
    lower = written(train_wordpiece(texts, 150, lowercase=True), tmp_path)
    assert decoded(lower, ["ÉTÉ"]) == decoded(lower, ["ete"])
    assert "<unk>" not in decoded(lower, ["ÉTÉ"])[0]
    cased = written(train_wordpiece(texts, 155), tmp_path)
    assert decoded(cased, ["ÉTÉ"]) == [["<unk>"]]
    assert "<unk>" not in decoded(cased, ["Été unaffable"])[0]
    pieces = decoded(cased, ["unaffableaffable"])[0]
    assert all(piece.startswith("##") for piece in pieces[1:])
    assert "".join(piece.removeprefix("##") for piece in pieces) == "unaffableaffable"


def test_pieces_are_the_longest_that_match(vocabularies, prose):
    """Encoding equals greedy longest-match-first segmentation from the left (Wu et al. 2016, section 4.1)."""
    encoder = Encoder.load(vocabularies["wordpiece"])
    known = set(encoder.definition.data["model"]["vocab"])
    for word in sorted({word for word in prose[5].split() if word.isalpha() and word.isascii()})[:300]:
        expected, rest = [], word
        while rest:
            mark = "##" if expected else ""
            piece = next((mark + rest[:n] for n in range(len(rest), 0, -1) if mark + rest[:n] in known), None)
            expected = [*expected, piece] if piece else ["<unk>"]
            rest = rest[len(piece) - len(mark) :] if piece else ""
        assert decoded(encoder, [word]) == [expected]


def test_t5_normalises_and_marks_spaces(vocabularies):
    encoder = Encoder.load(vocabularies["unigram"])
    assert decoded(encoder, ["  the\n\tﬁle "]) == decoded(encoder, ["the file"])
    assert "".join(decoded(encoder, ["the file"])[0]) == "▁the▁file"
    assert encoder.decode(encoder.encode(strings(["the\nfile"]))[0]) == "the file"
    assert SPECIAL_IDS["<extra_id_0>"] in encoder.definition.specials.values()


def test_the_segmentation_of_unigram_is_the_likeliest(vocabularies, prose):
    """The score of the encoded pieces equals that of the Viterbi path (Kudo 2018, equation 2)."""
    encoder = Encoder.load(vocabularies["unigram"])
    special = encoder.definition.specials
    score = {piece: value for piece, value in encoder.definition.data["model"]["vocab"] if piece not in special}
    for word in sorted({word for word in prose[5].split() if word.isalpha() and word.isascii()})[:300]:
        text, best = f"▁{word}", [0.0]
        for end in range(1, len(text) + 1):
            begins = [begin for begin in range(end) if text[begin:end] in score]
            best.append(max((best[begin] + score[text[begin:end]] for begin in begins), default=-np.inf))
        (pieces,) = decoded(encoder, [word])
        assert "".join(pieces) == text
        assert sum(score[piece] for piece in pieces) == pytest.approx(best[-1])


def test_byt5(vocabularies):
    """ByT5 reserves three ids and the product 128, so ByT5's ids are the product's minus 125."""
    from transformers import ByT5Tokenizer

    encoder, theirs = Encoder.load(vocabularies["bytes"]), ByT5Tokenizer()
    texts = [*SENTENCES, "", "\x00\x1f \U0010ffff", "</s>".replace("s", "z")]
    found = each(*encoder.encode(strings(texts)))
    assert found == [[value + 128 for value in text.encode()] for text in texts]
    expected = [theirs(text, add_special_tokens=False)["input_ids"] for text in texts]
    assert [[number - 125 for number in ids] for ids in found] == expected
    assert [encoder.decode(ids) for ids in found] == texts
    assert encoder.check(strings(texts), texts) == len(texts)


def test_published_bert(shared_data):
    encoder = Encoder.load(str(shared_data / "models" / "bert_uncased"))
    assert (encoder.kind, encoder.vocab_size, encoder.library) == ("wordpiece", 30522, "words")
    found = {name: number for name, number in encoder.specials.items() if number in (0, 100, 101, 102, 103)}
    assert found == {"<pad>": 0, "<unk>": 100, "<cls>": 101, "<sep>": 102, "<mask>": 103}
    assert encoder.encode(strings(["Hello, World!"]))[0].tolist() == [7592, 1010, 2088, 999]
    assert 103 not in encoder.encode(strings(["[MASK] [CLS]"]))[0]
    text = "Ünaffable. 中文 is  Chinese."
    places = np.array([0, len("Ünaffable. ".encode()), len("Ünaffable. 中文 is  ".encode())])
    tokens, _, begins = encoder.encode_with_positions(strings([text]), places, np.array([0, 3]))
    alone = [encoder.encode(strings([part]))[0] for part in ("Ünaffable.", "中文 is", "Chinese.")]
    assert begins.tolist() == [0, len(alone[0]), len(alone[0]) + len(alone[1])]
    np.testing.assert_array_equal(tokens, np.concatenate(alone))


# What may go wrong.


def test_characters_are_known_by_frequency_then_code_point():
    texts = ["aaaa bbb cc dd", "e\n"]
    assert known_characters(texts, 1) == "abcde"
    assert known_characters(texts, 11 / 12) == "abcd"
    assert known_characters(texts, 8 / 12) == "abc"
    assert known_characters(texts, 9 / 12) == "abc"
    assert list(blank_unknown(["abx☃c\nd"], "abcd")) == ["ab c\nd"]
    assert list(blank_unknown(["a-]^b"], "ab")) == ["a b"]
    assert list(blank_unknown(["ab\tc"], "")) == [" \t "]


@pytest.mark.parametrize("kind", ["bpe", "wordpiece", "unigram"])
def test_rare_characters_are_unknown(kind, tmp_path):
    texts = ["the mill and the river and the mill"] * 300 + ["☃"]
    encoder = written(train(kind, texts, 140 if kind == "unigram" else 150), tmp_path)
    assert "☃" not in "".join(encoder.definition.tokens.values())
    assert SPECIAL_IDS["<unk>"] in encoder.encode(strings(["☃"]))[0]
    assert SPECIAL_IDS["<unk>"] not in encoder.encode(strings(["the mill"]))[0]


@pytest.mark.parametrize(
    ("kind", "texts", "size", "knobs", "message"),
    [
        ("char", ["a"], 400, {}, "kind: got 'char', allowed byte_bpe, bpe, wordpiece, unigram, bytes"),
        ("bytes", ["a"], 400, {}, "vocab_size: got 400, bytes always has 384"),
        ("byte_bpe", ["a"], 400, {"lowercase": True}, "lowercase: got True, which byte_bpe does not have"),
        ("unigram", ["a"], 400, {"min_frequency": 2}, "min_frequency: got 2, which unigram does not have"),
        ("bpe", ["a"], 400, {"pattern": "gpt2"}, "pattern: got 'gpt2', which bpe does not have"),
        ("wordpiece", ["a"], 100, {}, "vocab_size: got 100, allowed 129 or more"),
        ("bpe", ["a"], 10**11, {}, "vocab_size: got 100000000000, allowed at most 16,777,216"),
        ("bpe", ["a"], 400, {"min_frequency": 10**30}, "min_frequency: got 10+, allowed 1 or more, below"),
        ("wordpiece", ["a a"], 400, {}, "the texts fill only 129"),
        ("wordpiece", [], 400, {}, "the texts fill only 128"),
        ("bpe", ["ab ab"], 400, {}, "the texts fill only 13"),
        ("bpe", ["abcdefgh"], 130, {}, "reserved tokens and the characters alone are 137"),
        ("unigram", [" "], 400, {}, "the texts are empty"),
        ("unigram", ["the mill " * 9], 4000, {}, "the texts fill only"),
        ("unigram", ["a"], 400, {"coverage": 1.5}, "coverage: got 1.5, allowed above 0 and at most 1"),
        ("bpe", ["fine", "a\ud800b"], 400, {}, r"texts\[1\]: lone surrogate at character 1"),
    ],
)
def test_wrong_requests_say_what_is_wrong(kind, texts, size, knobs, message):
    with pytest.raises(ValueError, match=message):
        train(kind, texts, size, **knobs)


def test_unigram_needs_room_for_its_characters():
    with pytest.raises(ValueError, match=r"for texts of 256 characters: .* not large enough"):
        train_unigram(["".join(map(chr, range(0x4E00, 0x4F00)))] * 3, 200, coverage=1)
