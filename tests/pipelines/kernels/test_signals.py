"""Signals equal the plain-Python reference, in a batch with any other documents. Adversarial documents are
measured, too.
"""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.kernels.signals.counts import count
from pipelines.kernels.signals.peer_counts import count_peers
from pipelines.kernels.signals.token_tables import WITH_STOP
from pipelines.kernels.text.buffers import blocks, text_buffers
from pipelines.kernels.text.segment import segment
from pipelines.stages.measure.peer_signals import PeerSignals
from pipelines.stages.measure.quality_signals import QualitySignals
from pipelines.stages.measure.signal_columns import PEER_SIGNALS, SIGNALS, derive, derive_peers
from tests.pipelines.kernels import reference_signals as reference

ALL_SIGNALS = pa.schema([*SIGNALS, *PEER_SIGNALS])
PIECES = [
    *[
        "the",
        "The",
        "to",
        "of",
        "word",
        "a",
        "I",
        "É",
        "Ǆ",
        "don't",
        "we’ve",
        "'s",
        "It's",
        "AT",
        "U.S.",
        "e.g.",
        "Mr.",
    ],
    *["3.14", "1,000", "10%", "$5", "5€", "+1", "co-op", "a--b", "x—y", "a/b", "a.B", "x:y", "²", "Ⅷ", "٣", "_", "ʰ"],
    *[
        "https://example.com/a?b",
        "me@mail.example.org",
        "example.com",
        "a.b",
        "...",
        "..",
        "….",
        ".",
        ",",
        "!",
        "?",
        '"',
    ],
    *[
        "”",
        "’",
        "'",
        "(",
        ")",
        "[",
        "]",
        "{",
        "}",
        "[1]",
        "[edit]",
        "[citation needed]",
        "[12",
        "#",
        "•",
        "-",
        "–",
        "—",
    ],
    *["lorem ipsum", "Lorem Ipsum", "java[1]script", "JavaScript", "terms of use", "Privacy policy", "use of cookies"],
    *[
        "uses cookies",
        "use cookies",
        "cookie policy",
        "中文",
        "あ。",
        "한국",
        "हाँ।",
        "\u0301",
        "\u200b",
        "\U0001f600",
        "\u00ad",
    ],
    *["one two three four five six. ", "again and again and again "],
    *[" ", " ", " ", "\n", "\n\n", "\n \n", "\t", "\r\n", "\r", "\x0b", "\x1c", "\x85", "\u2028", "\u00a0", "\0"],
]
texts = st.lists(
    st.lists(st.sampled_from(PIECES) | st.characters(exclude_categories=["Cs"]), max_size=40).map("".join), max_size=5
)
# Few different words and lines: n-grams that repeat, overlap and tie.
repetitive = st.lists(
    st.lists(st.sampled_from(["a ", "b ", "cc ", "a\n", "b.\n\n", "中"]), max_size=60).map("".join), max_size=5
)


def measured(documents, block_bytes=1 << 20):
    offsets, data = text_buffers(pa.array(documents, pa.large_string()))
    found = []
    for measure, formulas in ((lambda *block: count(segment(*block)), derive), (count_peers, derive_peers)):
        counted = [measure(*block) for _, _, *block in blocks(offsets, data, block_bytes)]
        counts = {name: np.concatenate([block[name] for block in counted]) for name in counted[0]}
        found.append(formulas({"bytes": np.diff(offsets), **counts}).to_pylist())
    return [ours | peers for ours, peers in zip(*found, strict=True)]


def expected(text):
    found = reference.signals(text)
    whole = [field.name for field in ALL_SIGNALS if pa.types.is_integer(field.type)]
    return {name: v if v is None or name in whole else float(np.float32(v)) for name, v in found.items()}


@pytest.mark.long
@settings(deadline=None, max_examples=150)
@given(texts | repetitive, st.sampled_from([1, 60, 1 << 20]))
def test_signals_are_those_of_plain_python(documents, block_bytes):
    for text, found in zip(documents, measured(documents, block_bytes) if documents else [], strict=True):
        for name, value in expected(text).items():
            if name == "unigram_entropy" and value is not None:  # a sum of floats
                assert found[name] == pytest.approx(value, rel=1e-6, abs=1e-6)
            else:
                assert found[name] == value, name


def test_the_reference_knows_every_column_but_those_tested_with_the_stage():
    assert len(ALL_SIGNALS) - len(reference.signals("a")) == 13
    assert set(reference.signals("a")) < set(ALL_SIGNALS.names)


@pytest.mark.long
def test_every_plane_of_unicode():
    points = [*range(0x3000), *range(0x3000, 0xD800, 7), *range(0xE000, 0x110000, 97)]
    lines = [f"a{chr(c)}b {chr(c)}. {chr(c)}{chr(c)}\n9{chr(c)}" for c in points]
    documents = ["\n".join(lines[k : k + 500]) for k in range(0, len(lines), 500)]
    for text, found in zip(documents, measured(documents), strict=True):
        for name, value in expected(text).items():
            assert found[name] == (pytest.approx(value, rel=1e-6) if name == "unigram_entropy" else value), name


BROKEN = [
    b"\xff",
    b"a\xc3",
    b"\xe4\xb8",
    b". \xf0\x9f\x98",
    b"\x80\x80\x80",
    b"\xf7\xbf\xbf\xbf",
    b"\xe2\x80",
    b"[\xe2",
    b"\xed\xa0\x80",
]


@pytest.mark.long
@settings(deadline=None, max_examples=150)
@given(st.lists(st.binary(max_size=12) | st.sampled_from(BROKEN), min_size=1, max_size=5))
def test_bytes_that_are_not_utf8_are_read_within_bounds(documents):
    # Each document by itself, at the end of its buffer, gives what it gives before other documents.
    array = pa.array(documents, pa.large_binary()).view(pa.large_string())
    for stage in (QualitySignals(), PeerSignals()):
        together = stage.annotate(pa.table({"text": array})).to_pylist()
        for k, document in enumerate(documents):
            alone = pa.array([document], pa.large_binary()).view(pa.large_string())
            assert stage.annotate(pa.table({"text": alone})).to_pylist() == [together[k]]


def share(text, name):
    return measured([text])[0][name]


# Derived by hand: (text, column, value).
TABLE = [
    ("a b a b a", "top_2gram_char_ratio", 4 / 5),  # "a b" twice: four words; "b a" is as frequent and comes later
    ("a b c a b d", "top_2gram_char_ratio", 4 / 6),
    ("a a a", "top_2gram_char_ratio", 1),  # two occurrences that share a word
    ("a b c d", "top_2gram_char_ratio", 0),
    ("one two three four five x one two three four five", "dup_5gram_char_ratio", 38 / 39),
    ("one two three four five x one two three four five", "dup_6gram_char_ratio", 0),
    ("ab\ncd\nab\nab", "dup_line_ratio", 0.5),
    ("ab\ncd\nab\nab", "dup_line_char_ratio", 0.5),
    ("ab\ncd\n\nx\n\nab\ncd", "dup_paragraph_ratio", 1 / 3),
    ("ab\ncd\n\nx\n\nab\ncd", "dup_paragraph_char_ratio", 5 / 11),
    ("a a a", "top_2gram_char_ratio_datatrove", 6 / 5),  # "a a", 3 characters, twice
    ("a b", "top_2gram_char_ratio_datatrove", 1),  # once is enough
    ("a", "top_2gram_char_ratio_datatrove", None),
    ("a b a c", "unigram_entropy", 1.5 * np.log(2)),
    ("a b a c", "unique_word_ratio", 0.75),
    ("Five words are in here. Not here.\nNor in this line\nBut {this} one has them too!", "c4_sentences_paper", 3),
    ("Five words are in here.\nThis {one} has five words too!", "c4_curly_tfds", 1),
    ("Five words are in here.\nno end {", "c4_curly_tfds", 0),  # the line was dropped before
    ("Five words are in here.\nno end {", "c4_curly_paper", 1),
]


@pytest.mark.parametrize(("text", "name", "value"), TABLE)
def test_values_derived_by_hand(text, name, value):
    assert share(text, name) == (None if value is None else pytest.approx(value, rel=1e-6))


def test_words_that_keep_their_full_stop_are_those_the_fast_path_leaves_to_the_rules():
    for word in WITH_STOP.split():
        assert len(word) <= 8
        assert word[0].isupper() or "." in word[:-1] or len(word) == 3


def adversarial(scale):
    words = 10_000_000 // scale
    yield "é" * (32_000_000 // scale), {"word_count": 1, "n_sentences": 1, "word_count_datatrove": 1}
    yield "\n" * words, {"word_count": 0, "n_lines": 0, "dup_line_ratio": None}
    yield "ab " * words, {"word_count": words, "dup_10gram_char_ratio": 1, "top_2gram_char_ratio": 1}
    yield "x\n" * words, {"n_lines": words, "dup_line_ratio": float(np.float32((words - 1) / words))}
    yield "!" * words, {"word_count": 0, "word_count_datatrove": 0}
    yield "a.b-" * (words // 4), {"n_lines": 1}
    yield "[1" * words, {"n_lines": 1, "c4_sentences_tfds": 0}
    yield "a\r" * words, {"n_lines": 1}


def check_adversarial(scale):
    for text, some in adversarial(scale):
        found = measured([text])[0]
        assert {name: found[name] for name in some} == some


def test_adversarial_documents():
    check_adversarial(100)


@pytest.mark.slow
def test_adversarial_documents_at_the_limit():
    check_adversarial(1)
