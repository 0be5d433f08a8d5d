import json
import multiprocessing
import pickle
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models

from tokenizer.encode import Encoder
from tokenizer.kinds.byte_bpe import LLAMA3
from tokenizer.kinds.character_vocabulary import character_vocabulary
from tokenizer.vocabulary.definition import characters_of_bytes
from tokenizer.vocabulary.specials import SPECIAL_IDS, SPECIALS

# Any text that UTF-8 can hold: control characters and NUL, right-to-left, emoji, unassigned code points.
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


def strings(texts: list[str]) -> pa.LargeStringArray:
    return pa.array(texts, pa.large_string())


def each(tokens, offsets):
    return [tokens[start:stop] for start, stop in pairwise(offsets)]


def test_facts_of_a_trained_vocabulary(encoder):
    assert (encoder.kind, encoder.vocab_size, encoder.library) == ("byte_bpe", 2000, "gigatoken")
    assert encoder.specials == SPECIAL_IDS
    assert encoder.dtype == np.uint16


def test_a_directory_will_do(trained):
    assert Encoder.load(str(Path(trained).parent)).vocab_size == 2000


def test_shapes_and_types(encoder, documents):
    tokens, offsets = encoder.encode(documents)
    assert (tokens.dtype, offsets.dtype) == (np.uint16, np.int64)
    assert offsets.shape == (len(documents) + 1,)
    assert (offsets[0], offsets[-1]) == (0, len(tokens))
    assert tokens.flags.c_contiguous


@pytest.mark.parametrize("library", ["gigatoken", "tokenizers"])
def test_decoding_gives_every_text_back(any_trained, documents, library):
    encoder = Encoder.load(any_trained, library)
    found = [encoder.decode(ids) for ids in each(*encoder.encode(documents))]
    assert found == documents.to_pylist()


@pytest.fixture(scope="module")
def both(any_trained):
    return Encoder.load(any_trained, "gigatoken"), Encoder.load(any_trained, "tokenizers")


@pytest.mark.long
@settings(max_examples=100, deadline=None)
@given(st.lists(TEXTS, max_size=8))
def test_any_unicode_survives_and_both_libraries_agree(both, texts):
    fast, plain = (each(*encoder.encode(strings(texts))) for encoder in both)
    assert [ids.tolist() for ids in fast] == [ids.tolist() for ids in plain]
    assert [both[0].decode(ids) for ids in fast] == texts


@pytest.mark.parametrize("library", ["gigatoken", "tokenizers"])
@pytest.mark.parametrize("form", ["{0}", "x{0}", "{0}x", "a {0} b", "{0}{0}", "<{0}>", "{0}\n{0}"])
def test_every_literal_special_is_encoded_as_characters(trained, library, form):
    encoder = Encoder.load(trained, library)
    texts = [form.format(token) for token in SPECIALS]
    tokens, offsets = encoder.encode(strings(texts))
    assert tokens.min() >= len(SPECIALS)
    assert [encoder.decode(ids) for ids in each(tokens, offsets)] == texts


def test_specials_decode_as_themselves(encoder):
    assert encoder.decode(list(range(128))) == "".join(SPECIALS)
    assert encoder.decode([]) == ""


def test_both_libraries_give_the_same_ids(both, documents):
    fast, fast_offsets = both[0].encode(documents)
    plain, plain_offsets = both[1].encode(documents)
    np.testing.assert_array_equal(fast, plain)
    np.testing.assert_array_equal(fast_offsets, plain_offsets)
    assert fast.dtype == plain.dtype


def test_threads_and_repetition_change_nothing(encoder, documents):
    tokens, offsets = encoder.encode(documents)
    for parallel in (True, True, False):
        again, again_offsets = encoder.encode(documents, parallel=parallel)
        np.testing.assert_array_equal(again, tokens)
        np.testing.assert_array_equal(again_offsets, offsets)


@pytest.mark.parametrize("library", ["gigatoken", "tokenizers"])
def test_a_slice_is_encoded_like_its_documents(trained, documents, library):
    encoder = Encoder.load(trained, library)
    whole = each(*encoder.encode(documents))
    tokens, offsets = encoder.encode(documents.slice(3, 9))
    assert offsets[0] == 0
    for found, expected in zip(each(tokens, offsets), whole[3:12], strict=True):
        np.testing.assert_array_equal(found, expected)


def test_a_slice_with_a_null_outside_it(encoder):
    texts = pa.array(["one", None, "two", "three"], pa.large_string())
    tokens, offsets = encoder.encode(texts.slice(2, 2))
    assert [encoder.decode(ids) for ids in each(tokens, offsets)] == ["two", "three"]
    with pytest.raises(ValueError, match="document 1 of the batch: its text is null"):
        encoder.encode(texts)


@pytest.mark.parametrize("library", ["gigatoken", "tokenizers"])
@pytest.mark.parametrize("texts", [[], [""], ["", ""]])
def test_nothing_gives_nothing(trained, library, texts):
    encoder = Encoder.load(trained, library)
    for documents in (strings(texts), strings(["x", *texts, "y"]).slice(1, len(texts))):
        tokens, offsets = encoder.encode(documents)
        assert (len(tokens), tokens.dtype, offsets.dtype) == (0, np.uint16, np.int64)
        assert offsets.tolist() == [0] * (len(texts) + 1)
        assert encoder.token_starts(tokens, offsets).tolist() == []


@pytest.mark.long
@pytest.mark.parametrize(
    ("size", "dtype", "library"), [(65536, np.uint16, "tokenizers"), (65537, np.uint32, "gigatoken")]
)
def test_ids_are_as_wide_as_the_vocabulary_needs(trained, edited, size, dtype, library):
    model = json.loads(Path(trained).read_text())["model"]
    model["vocab"].update({f"unused{number}": number for number in range(2000, size)})
    encoder = Encoder.load(edited(model=model), library)
    assert encoder.vocab_size == size
    tokens, _ = encoder.encode(strings(["some text"]))
    assert tokens.dtype == dtype
    assert encoder.decode(tokens) == "some text"
    np.testing.assert_array_equal(tokens, Encoder.load(trained).encode(strings(["some text"]))[0])


def test_other_pre_tokenizers_go_to_tokenizers(edited):
    pieces = [{"type": "Digits", "individual_digits": True}, byte_level()]
    encoder = Encoder.load(edited(pre_tokenizer={"type": "Sequence", "pretokenizers": pieces}))
    assert encoder.library == "tokenizers"
    assert encoder.library_reason.startswith("gigatoken: ")
    tokens, _ = encoder.encode(strings(["in 1999"]))
    assert encoder.decode(tokens) == "in 1999"
    assert encoder.check(strings(["in 1999"]), ["x"]) == 0


def test_a_library_that_cannot_is_refused(edited):
    path = edited(pre_tokenizer={"type": "Digits", "individual_digits": True})
    with pytest.raises(ValueError, match=r"gigatoken cannot read it .* use library='tokenizers'"):
        Encoder.load(path, "gigatoken")


def test_settings_that_change_ids_are_taken_out(trained, edited):
    model = {**json.loads(Path(trained).read_text())["model"], "dropout": 0.9}
    cut = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
    filled = {
        "strategy": {"Fixed": 99},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 0,
        "pad_type_id": 0,
    }
    begin = {"SpecialToken": {"id": "<bos>", "type_id": 0}}
    wrap = {
        "type": "TemplateProcessing",
        "single": [begin, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {"<bos>": {"id": "<bos>", "ids": [1], "tokens": ["<bos>"]}},
    }
    path = edited(model=model, truncation=cut, padding={**filled, "pad_token": "<pad>"}, post_processor=wrap)
    documents = strings(["a text of more than two tokens"])
    expected, _ = Encoder.load(trained).encode(documents)
    for library in ("gigatoken", "tokenizers"):
        np.testing.assert_array_equal(Encoder.load(path, library).encode(documents)[0], expected)


def test_a_vocabulary_that_reaches_a_reserved_id_is_refused(trained, edited):
    data = json.loads(Path(trained).read_text())
    word = "".join(data["model"]["merges"][-1])
    reached = {**data["added_tokens"][0], "content": word, "id": data["model"]["vocab"][word]}
    encoder = Encoder.load(edited(added_tokens=[*data["added_tokens"], reached]))
    text = Encoder.load(trained).decode([reached["id"]])
    with pytest.raises(
        ValueError, match=rf"document 1 of the batch: token 0 is the reserved .* \(id {reached['id']}\)"
    ):
        encoder.encode(strings(["", text]))


def test_a_difference_between_the_libraries_is_an_error(encoder, monkeypatch):
    def off_by_one(self, texts, parallel):
        tokens, offsets = Encoder._encode_gigatoken(self, texts, parallel)
        tokens = tokens.copy()
        tokens[offsets[1:][np.diff(offsets) > 3] - 1] += 1
        return tokens, offsets

    monkeypatch.setattr(Encoder, "_encode_hf", off_by_one)
    monkeypatch.setitem(encoder.definition.__dict__, "specials", {})
    expected = r"document plays/b.txt#7: at token \d+ gigatoken \S+ has id \d+, tokenizers \S+ has id \d+"
    with pytest.raises(ValueError, match=expected):
        encoder.check(strings(["", "1 2 3 4 5 6 7 8 9"]), ["plays/a.txt#0", "plays/b.txt#7"])


def test_a_missing_token_is_a_difference_too(encoder, monkeypatch):
    def shorter(self, texts, parallel):
        tokens, offsets = Encoder._encode_gigatoken(self, texts, parallel)
        return tokens[:-1], np.minimum(offsets, len(tokens) - 1)

    monkeypatch.setattr(Encoder, "_encode_hf", shorter)
    monkeypatch.setitem(encoder.definition.__dict__, "specials", {})
    with pytest.raises(ValueError, match=r"document last: at token 2 .* tokenizers .* has no token"):
        encoder.check(strings(["x", "+1+"]), ["first", "last"])


def test_check_covers_the_literal_specials(encoder, monkeypatch):
    seen: list[str] = []
    compare = Encoder._compare

    def watched(self, texts, names):
        seen.extend(texts.to_pylist())
        compare(self, texts, names)

    monkeypatch.setattr(Encoder, "_compare", watched)
    assert encoder.check(strings(["one"]), ["one"]) == 1
    assert all(any(token in text for text in seen) for token in SPECIALS)


def test_token_starts_are_the_bytes_where_tokens_begin(encoder, documents):
    tokens, offsets = encoder.encode(documents)
    starts = encoder.token_starts(tokens, offsets)
    assert starts.dtype == np.int64
    for text, ids, begins in zip(documents.to_pylist(), each(tokens, offsets), each(starts, offsets), strict=True):
        data = text.encode()
        pieces = [encoder.definition.token_bytes(int(token)) for token in ids]
        ends = [*begins[1:].tolist(), len(data)] if len(ids) else []
        assert [data[start:end] for start, end in zip(begins.tolist(), ends, strict=True)] == pieces


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(TEXTS, st.lists(st.floats(0, 1), max_size=4)), max_size=5))
def test_a_byte_is_found_in_the_token_that_holds_it(encoder, drawn):
    texts = [text for text, _ in drawn]
    places = [sorted(int(share * len(text.encode())) for share in shares) for text, shares in drawn]
    tokens, offsets = encoder.encode(strings(texts))
    starts = each(encoder.token_starts(tokens, offsets), offsets)
    flat = np.array([place for some in places for place in some], np.int64)
    place_offsets = np.cumsum([0, *map(len, places)])
    expected = [
        len(begins) if place == len(text.encode()) else int(np.searchsorted(begins, place, side="right")) - 1
        for text, begins, some in zip(texts, starts, places, strict=True)
        for place in some
    ]
    found = encoder.token_offsets(tokens, offsets, flat, place_offsets)
    assert found.dtype == np.int32
    assert found.tolist() == expected


def test_a_sentence_begins_with_the_token_that_carries_its_space(encoder):
    text = "It is one. It is two.\n\nIt is three."
    tokens, offsets = encoder.encode(strings([text]))
    places = np.array([text.index("It is one"), text.index("It is two"), text.index("It is three")])
    begins = encoder.token_offsets(tokens, offsets, places, np.array([0, 3]))
    parts = [encoder.decode(tokens[start:stop]) for start, stop in zip(begins, [*begins[1:], None], strict=True)]
    assert [part.strip() for part in parts] == ["It is one.", "It is two.", "It is three."]
    assert "".join(parts) == text


@pytest.mark.parametrize("place", [-1, 4])
def test_a_place_outside_its_document_is_an_error(encoder, place):
    tokens, offsets = encoder.encode(strings(["one", "two"]))
    with pytest.raises(ValueError, match=f"document 1 of the batch: byte {place} is outside its 3 bytes"):
        encoder.token_offsets(tokens, offsets, np.array([0, place]), np.array([0, 1, 2]))


def byte_level(**changes):
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True, **changes}


def split(pattern, **settings):
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False} | settings


@pytest.mark.parametrize(
    ("pieces", "reason"),
    [
        ([byte_level(use_regex=False)], "would ignore use_regex: false of ByteLevel"),
        ([split(LLAMA3), byte_level(use_regex=False, add_prefix_space=True)], "would ignore a setting of ByteLevel"),
        ([split(LLAMA3, behavior="Removed"), byte_level(use_regex=False)], "would ignore a setting of Split"),
        ([split(LLAMA3, behavior="Contiguous"), byte_level(use_regex=False)], "would ignore a setting of Split"),
        (
            [{"type": "FixedLength", "length": 3}, split(LLAMA3), byte_level(use_regex=False)],
            "would ignore FixedLength",
        ),
    ],
)
def test_what_gigatoken_would_ignore_goes_to_tokenizers(edited, pieces, reason):
    whole = pieces[0] if len(pieces) == 1 else {"type": "Sequence", "pretokenizers": pieces}
    path = edited(pre_tokenizer=whole)
    encoder = Encoder.load(path)
    assert (encoder.library, encoder.library_reason) == ("tokenizers", f"gigatoken: {reason}")
    with pytest.raises(ValueError, match=f"gigatoken cannot read it \\({reason}\\); use library='tokenizers'"):
        Encoder.load(path, "gigatoken")


def test_the_matches_of_a_regex_may_be_written_as_what_is_kept(trained, edited):
    kept = [split(LLAMA3, behavior="Removed", invert=True), byte_level(use_regex=False)]
    encoder = Encoder.load(edited(pre_tokenizer={"type": "Sequence", "pretokenizers": kept}))
    assert encoder.library == "gigatoken"
    assert encoder.check(strings(["in 1999, it's\n\n so"]), ["x"]) == 1


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"normalizer": {"type": "NFC"}}, r"normalises text first \(NFC\)"),
        ({"pre_tokenizer": byte_level(add_prefix_space=True)}, "add_prefix_space"),
        ({"pre_tokenizer": {"type": "Whitespace"}}, "is bpe"),
        ({"model": {"type": "WordPiece", "vocab": {"[UNK]": 0, "one": 1}, "unk_token": "[UNK]"}}, "is wordpiece"),
        ({"model": {"type": "Unigram", "vocab": [["<unk>", 0.0], ["a", -1.0]], "unk_id": 0}}, "is unigram"),
    ],
)
def test_byte_positions_need_bytes(edited, changes, reason):
    if "model" in changes:
        wordpiece = {"continuing_subword_prefix": "##", "max_input_chars_per_word": 100}
        model = {**(wordpiece if changes["model"]["type"] == "WordPiece" else {}), **changes["model"]}
        changes = {"model": model, "added_tokens": [], "pre_tokenizer": {"type": "Whitespace"}, "decoder": None}
    encoder = Encoder.load(edited(**changes))
    tokens, offsets = encoder.encode(strings(["one"]))
    with pytest.raises(ValueError, match=rf"byte positions of tokens .*{reason}"):
        encoder.token_starts(tokens, offsets)


@pytest.mark.parametrize(
    ("cutters", "model", "reason"),
    [
        ([{"type": "WhitespaceSplit"}, byte_level()], {}, r"may change it \(WhitespaceSplit\)"),
        (
            [{"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}, byte_level()],
            {},
            r"may change it \(Metaspace\)",
        ),
        (
            [{"type": "Split", "pattern": {"String": " "}, "behavior": "Removed", "invert": False}, byte_level()],
            {},
            r"may change it \(Split\)",
        ),
        ([byte_level(), byte_level()], {}, "replaces bytes by characters twice"),
        ([byte_level()], {"end_of_word_suffix": "</w>"}, r"marks parts of words \(end_of_word_suffix\)"),
        ([byte_level()], {"ignore_merges": True}, None),
        (
            [
                {"type": "Split", "pattern": {"String": " "}, "behavior": "Isolated", "invert": False},
                {"type": "Digits", "individual_digits": True},
                {"type": "Punctuation", "behavior": "Contiguous"},
                byte_level(),
            ],
            {},
            None,
        ),
    ],
)
def test_ids_are_bytes_only_if_nothing_changes_the_text(edited, cutters, model, reason):
    vocabulary = {character: number for number, character in enumerate(characters_of_bytes())}
    longer = {"one": 256, "e</w>": 257}
    path = edited(
        model={"type": "BPE", "vocab": vocabulary | longer, "merges": [], **model},
        added_tokens=[],
        pre_tokenizer={"type": "Sequence", "pretokenizers": cutters},
    )
    texts = strings(["one", " one, two  né 12"])
    encoder, plain = Encoder.load(path), Encoder.load(path, "tokenizers")
    assert encoder.kind == ("byte_bpe" if reason or model else "bytes")
    (tokens, offsets), (expected, _) = encoder.encode(texts), plain.encode(texts)
    np.testing.assert_array_equal(tokens, expected)
    if reason:
        with pytest.raises(ValueError, match=rf"byte positions of tokens .*{reason}"):
            encoder.token_starts(tokens, offsets)
    else:
        lengths = encoder.definition.byte_lengths()[tokens]
        assert lengths.sum() == sum(len(text.encode()) for text in texts.to_pylist())


def test_byte_positions_need_every_byte(trained, edited):
    model = json.loads(Path(trained).read_text())["model"]
    del model["vocab"]["Ā"]  # the byte 0
    encoder = Encoder.load(edited(model=model), "tokenizers")
    with pytest.raises(ValueError, match="has no token for some bytes"):
        encoder.token_starts(np.zeros(0, np.uint16), np.zeros(1, np.int64))


def test_the_unknown_token_is_the_one_special_that_text_may_yield(edited):
    unknown = {"id": 0, "content": "[UNK]", "single_word": False, "lstrip": False, "rstrip": False}
    model = {"type": "WordPiece", "vocab": {"[UNK]": 0, "one": 1}, "unk_token": "[UNK]"}
    path = edited(
        model={**model, "continuing_subword_prefix": "##", "max_input_chars_per_word": 100},
        added_tokens=[{**unknown, "normalized": False, "special": True}],
        pre_tokenizer={"type": "Whitespace"},
        decoder=None,
    )
    encoder = Encoder.load(path)
    assert (encoder.kind, encoder.library) == ("wordpiece", "tokenizers")
    assert encoder.encode(strings(["one two"]))[0].tolist() == [1, 0]


@pytest.mark.parametrize("kind", ["characters", "word_level", "wordpiece", "unigram", "bpe"])
def test_a_text_that_tokenizers_cannot_encode_is_named(tmp_path, kind):
    file, vocabulary = tmp_path / "tokenizer.json", {"a": 0, "b": 1, "c": 2}
    model = {
        "characters": None,
        "word_level": models.WordLevel(vocabulary, unk_token="[UNK]"),
        "wordpiece": models.WordPiece(vocabulary, unk_token="[UNK]"),
        "unigram": models.Unigram([("a", -1.0), ("b", -2.0)]),
        "bpe": models.BPE(vocabulary, [], unk_token="<unk>"),
    }[kind]
    file.write_bytes(Tokenizer(model).to_str().encode() if model else character_vocabulary(["abc"], "error"))
    encoder = Encoder.load(str(file), "tokenizers" if kind == "characters" else None)
    assert (encoder.kind, encoder.library) == (kind, "tokenizers")
    message = r"tokenizer\.json: tokenizers cannot encode a character of a text \(.+\); train the tokenizer on text"
    with pytest.raises(ValueError, match=message):
        encoder.encode(strings(["a", "abz", "b"]))
    with pytest.raises(ValueError, match=message):
        encoder.encode_with_positions(strings(["a", "abz"]), np.zeros(2, np.int64), np.arange(3))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "not a Hugging Face tokenizer.json"),
        (b"{}", "not a Hugging Face tokenizer.json"),
        (b"\xff\xfe", "not UTF-8"),
        (b'{"model": {"type": "BPE", "vocab": {}, "merges": []}}', "the vocabulary is empty"),
    ],
)
def test_broken_files_are_named(tmp_path, content, message):
    file = tmp_path / "tokenizer.json"
    file.write_bytes(content)
    with pytest.raises(ValueError, match=rf"tokenizer\.json: .*{message}"):
        Encoder.load(str(file))


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ValueError, match="no such tokenizer"):
        Encoder.load(str(tmp_path))


def test_an_encoder_travels_to_other_processes(encoder, documents):
    copy = pickle.loads(pickle.dumps(encoder))
    assert copy.library == encoder.library
    np.testing.assert_array_equal(copy.encode(documents)[0], encoder.encode(documents)[0])


@pytest.mark.long
def test_a_spawned_process_gives_the_same_ids(encoder):
    texts = ["one two", "", "<mask> 🙂"]
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        found = pool.apply(encode_elsewhere, (encoder.definition.path, texts))
    assert found == encoder.encode(strings(texts))[0].tolist()


def encode_elsewhere(path: str, texts: list[str]) -> list[int]:
    return Encoder.load(path).encode(strings(texts))[0].tolist()


@pytest.mark.slow
def test_both_libraries_agree_on_every_kind_of_character(both):
    """Each library has its own Unicode tables of letters, digits and white space, and these decide where a
    text is split.
    """
    # All of the first two planes; a sample of the others, which are ideographs, private or unassigned throughout.
    points = [point for point in (*range(0x20000), *range(0x20000, 0x110000, 61)) if not 0xD800 <= point < 0xE000]
    lines = [f"a{chr(point)}1{chr(point)} {chr(point)}.{chr(point)}" for point in points]
    documents = strings(["\n".join(lines[start : start + 64]) for start in range(0, len(lines), 64)])
    names = [hex(points[start]) for start in range(0, len(lines), 64)]
    assert both[0].check(documents, names) == len(names)


def test_a_token_with_a_character_that_is_no_byte_is_its_own_text(trained, edited):
    model = json.loads(Path(trained).read_text())["model"]
    model["vocab"]["<unused token>"] = 2000
    encoder = Encoder.load(edited(model=model))
    assert encoder.definition.token_bytes(2000) == b"<unused token>"
    assert encoder.token_starts(*encoder.encode(strings(["some"])))[0] == 0
