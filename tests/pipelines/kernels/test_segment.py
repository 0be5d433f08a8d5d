import itertools
import re
import unicodedata
from functools import cache, lru_cache

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.kernels.text.buffers import blocks, text_buffers
from pipelines.kernels.text.segment import ABBREVIATIONS, segment, sentence_starts
from tests.pipelines.kernels.scripts import UNSPACED

PIECES = [
    *["word", "a", "I", "Dr", "vs", "J", "é", "e\u0301", "don't", "l’été", "3.14", "1,000", "12"],
    *["中文", "あ", "カナ", "한국", "ก็"],
    *[".", "!", "?", "…", "。", "！", "।", "...", "'", '"', "”", ")", "’", ",", "_", "-", "\u200b"],
    *["\u200d", "\ufe0f", "\u0301"],
    *[" ", "\n", "\n\n", "\n \n", "\t", "\u00a0", "\u3000", "\r\n", "\x85", "\0", "\U0001f600", "²", "ß", "E", "x"],
]
texts = st.lists(
    st.lists(st.sampled_from(PIECES) | st.characters(exclude_categories=["Cs"]), max_size=25).map("".join), max_size=6
)


category = cache(unicodedata.category)


@cache
def extends(character):
    return category(character)[0] == "M" or (category(character) == "Cf" and character != "\u200b")


def connects(character):
    return category(character) == "Pc"


@cache
def stands_alone(character):
    return category(character)[0] in "LN" and UNSPACED.match(character) is not None


def joins(text, i):
    before, after = text[i - 1 : i], text[i + 1 : i + 2]
    if not before or not after:
        return False
    if text[i] in "'’":
        return (before.isalpha() or extends(before)) and after.isalpha() and not stands_alone(after)
    return text[i] in ".," and before in "0123456789" and after in "0123456789"


@lru_cache(maxsize=1024)  # several signals ask for those of one text
def reference_words(text):
    words, current, alone = [], "", False
    for i, character in enumerate(text):
        if extends(character):
            current += character if current else ""
        elif category(character)[0] in "LN" or connects(character):
            if current and (alone or stands_alone(character)):
                words.append(current)
                current = ""
            current, alone = current + character, stands_alone(character)
        elif current and not alone and joins(text, i):
            current += character
        elif current:
            words.append(current)
            current, alone = "", False
    return [*words, current] if current else words


def reference_lines(text):
    return [line.strip() for line in text.split("\n") if line.strip()]


def reference_paragraphs(text):
    paragraphs, current = [], []
    for line in [*text.split("\n"), ""]:
        if line.strip():
            current.append(line)
        elif current:
            paragraphs.append("\n".join(current).strip())
            current = []
    return paragraphs


def belongs_to_word(before_stop):
    """Return whether a full stop after `before_stop` (the sentence so far, without trailing white space) is part of its last
    word.
    """
    i = len(before_stop)
    while i and (
        extends(before_stop[i - 1]) or category(before_stop[i - 1])[0] in "LN" or connects(before_stop[i - 1])
    ):
        i -= 1
    word, before = before_stop[i:], before_stop[:i]
    if not word or len(word.encode()) > 8:
        return False
    if re.fullmatch("[0-9]+", word):
        return not before
    characters = [character for character in word if not extends(character)]
    if len(characters) == 1:
        letter = word[0].isalpha() and not stands_alone(word[0])
        return letter and word not in ("I", "i") and not before.endswith(("'", "’"))
    return word.isascii() and word.lower() in ABBREVIATIONS


def reference_sentences(text):
    starts, opening = [0] if text else [], None
    ending, gap, feeds = "", False, 0
    for i, character in enumerate(text):
        if character.isspace():
            gap, feeds = True, feeds + (character == "\n")
            continue
        stop, wide = character in ".!?…‼⁇⁈⁉؟۔։।॥።၊။។៕。｡！？．", character in "。｡！？．"
        attached = stop or (not gap and (category(character) in ("Pe", "Pf", "Pi") or character in "\"'"))
        ended = ending == "wide" or (ending == "plain" and gap and category(character) != "Ll")
        if opening is None:
            opening = i
        elif feeds > 1 or (ended and not attached):
            starts.append(i)
            ending, opening = "", i
        if wide:
            ending = "wide"
        elif stop and not ending and not (character == "." and belongs_to_word(text[opening:i])):
            ending = "plain"
        elif not attached:
            ending = ""
        gap, feeds = False, 0
    return starts


def spans_of(spans, segments, d):
    offset = segments.offsets[d]
    text = segments.data[offset : segments.offsets[d + 1]].tobytes()
    chosen = slice(spans.offsets[d], spans.offsets[d + 1])
    places = zip(spans.starts[chosen] - offset, spans.ends[chosen] - offset, strict=True)
    return [text[start:end].decode() for start, end in places]


def segmented(documents, block_bytes=1 << 20):
    for _, _, offsets, data in blocks(*text_buffers(pa.array(documents, pa.large_string())), block_bytes):
        segments = segment(offsets, data)
        for d in range(len(offsets) - 1):
            yield tuple(
                spans_of(spans, segments, d)
                for spans in (segments.words, segments.lines, segments.paragraphs, segments.sentences)
            )


def sentences(text):
    return next(segmented([text]))[3]


@pytest.mark.long
@settings(deadline=None, max_examples=150)
@given(texts, st.sampled_from([1, 30, 1 << 20]))
def test_segmentation_is_that_of_plain_python(documents, block_bytes):
    found = list(segmented(documents, block_bytes))
    assert len(found) == len(documents)
    for text, (words, lines, paragraphs, sentences) in zip(documents, found, strict=True):
        assert words == reference_words(text)
        assert lines == reference_lines(text)
        assert paragraphs == reference_paragraphs(text)
        starts = reference_sentences(text)
        assert sentences == [text[a:b] for a, b in itertools.pairwise([*starts, len(text)])]


@settings(deadline=None, max_examples=60)
@given(texts)
def test_sentence_starts_cover_each_document(documents):
    array = pa.array(["padding", *documents], pa.large_string()).slice(1)
    offsets, starts = sentence_starts(array)
    assert offsets.dtype == starts.dtype == np.int64
    assert len(offsets) == len(documents) + 1
    for d, text in enumerate(documents):
        expected = [len(text[:start].encode()) for start in reference_sentences(text)]
        assert starts[offsets[d] : offsets[d + 1]].tolist() == expected


WORDS = {
    "I don't know, l’été vs. rock'n'roll": ["I", "don't", "know", "l’été", "vs", "rock'n'roll"],
    "well-known snake_case": ["well", "known", "snake_case"],
    "pi is 3.14, or 1,000.5; v1.2 ends.": ["pi", "is", "3.14", "or", "1,000.5", "v1.2", "ends"],
    "日本語とカタカナ and 한국어": [*"日本語とカタカナ", "and", "한국어"],
    "กินข้าว 25 จาน": ["กิ", "น", "ข้", "า", "ว", "25", "จ", "า", "น"],
    "ខ្មែរ မြန်မာ བོད་ཡིག": ["ខ្", "មែ", "រ", "မြ", "န်", "မာ", "བོད", "ཡིག"],
    "हिन्दी e\u0301te\u0301": ["हिन्दी", "e\u0301te\u0301"],
    "❤\ufe0f 😀 *** ©": [],
    "soft\u00adhyphen zero\u200bwidth": ["soft\u00adhyphen", "zero", "width"],
    "'quoted' dogs' ends'": ["quoted", "dogs", "ends"],
    "": [],
}


@pytest.mark.parametrize("text", WORDS)
def test_what_a_word_is(text):
    assert next(segmented([text]))[0] == WORDS[text]


SENTENCES = [
    ["He left. ", "She stayed! ", "Why? ", "Because..."],
    ["Dr. Smith met J. R. Tolkien vs. Mr. Jones at 5 p.m. today. ", "Then they left."],
    ["It is 3.14 or example.com. ", "So it is."],
    ['"Really?" he asked. ', '"Yes." ', "They went (at last.) ", "Home."],
    ["A heading without a stop\n\n", "A paragraph\nthat is wrapped. ", "Its second sentence.\n \n", "The next."],
    ["1. First item. ", "It has two.\n\n", "2. Second item."],
    ["In 1999. ", "Then 2000."],
    ["So am I. ", "I can't. ", "We don't. ", "Wait ... what? ", "Oh."],
    ["「你好。」", "他说。", "再见！", "end. ", "Next"],
    ["क्या? ", "हाँ। ", "ठीक"],
    ["  leading space. ", "Next."],
    ["   "],
]


@pytest.mark.parametrize("expected", SENTENCES)
def test_what_a_sentence_is(expected):
    assert sentences("".join(expected)) == expected


def test_an_empty_document_has_no_spans():
    assert list(segmented(["", "a", ""])) == [([], [], [], []), (["a"], ["a"], ["a"], ["a"]), ([], [], [], [])]


def test_a_ten_megabyte_word_and_a_million_empty_lines():
    word, blank = "é" * 5_000_000, "\n" * 1_000_000
    (words, lines, _, found), (*nothing, spaces) = segmented([word, blank])
    assert (words, lines, found) == ([word], [word], [word])
    assert nothing == [[], [], []]
    assert spaces == [blank]
