import re

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.stages.measure.quality_signals import SIGNALS, QualitySignals
from tests.pipelines.kernels import reference_signals as reference


def measure(*texts):
    return QualitySignals().annotate(pa.table({"text": pa.array(texts, pa.large_string())}))


def signals(text):
    return measure(text).to_pylist()[0]


def test_columns_are_those_declared_and_described():
    table = measure("a", "")
    assert table.schema == QualitySignals().writes() == SIGNALS
    for name in SIGNALS.names:
        assert f"| {re.sub('[0-9]+gram', 'Ngram', name)} |" in QualitySignals.__doc__


def test_a_document_counted_by_hand():
    text = "The cat #1 sat...\n\n• On the mat…\n- and that's 3.5 © of it\n\n  \nWith all."
    found = signals(text)
    words = ["The", "cat", "1", "sat", "On", "the", "mat", "and", "that's", "3.5", "of", "it", "With", "all"]
    expected = {
        "n_bytes": len(text.encode()),
        "n_chars": len(text),
        "n_lines": 4,
        "n_paragraphs": 3,
        "n_sentences": 4,
        "word_count": len(words),
        "mean_word_length": np.float32(sum(map(len, words)) / len(words)),
        "hash_to_word_ratio": np.float32(1 / 14),
        "ellipsis_to_word_ratio": np.float32(2 / 14),
        "bullet_line_ratio": 0.5,
        "ellipsis_line_ratio": 0.5,
        "alpha_word_ratio": np.float32(12 / 17),  # all but #1, •, -, 3.5 and ©
        "stop_word_count": 4,  # the (twice), and, of, with; "that's" is another word than "that"
    }
    assert {name: found[name] for name in expected} == expected


@pytest.mark.long
@pytest.mark.parametrize("text", ["", " \n\t\u3000 ", "\n" * 1000])
def test_where_there_is_nothing_to_divide_by_a_ratio_is_null(text):
    found = signals(text)
    assert (found["n_bytes"], found["n_chars"]) == (len(text.encode()), len(text))
    for name in SIGNALS.names[2:]:
        # Some denominators of RedPajama-v2 are characters or lines with the blank ones.
        nothing = None if pa.types.is_floating(SIGNALS.field(name).type) else 0
        assert found[name] == reference.signals(text).get(name, nothing), name


def test_symbols_without_words():
    found = signals("### … ***")
    assert found["word_count"] == 0
    assert found["hash_to_word_ratio"] is found["mean_word_length"] is None
    assert found["alpha_word_ratio"] == 0


@pytest.mark.parametrize(
    ("text", "count"), [("...", 1), ("......", 2), (".....", 1), (". . .", 0), ("…", 1), ("….…...", 3), ("..\n.", 0)]
)
def test_ellipses_do_not_overlap(text, count):
    assert signals(f"w {text}")["ellipsis_to_word_ratio"] == count


def test_stop_words_in_any_case_each_once():
    assert signals("THE the be To oF and that have with")["stop_word_count"] == 8
    assert signals("The the THE theology bean")["stop_word_count"] == 1


def test_a_ratio_of_exactly_a_threshold_is_the_float32_of_it():
    ten_words = "# " + "word " * 10
    assert measure(ten_words)["hash_to_word_ratio"][0].as_py() == np.float32(0.1)


BULLETS = "•‣⁃▶◀◦●○■□▪▫–*-"
pieces = st.sampled_from(
    ["the", "Be", "word", "é", "中", "#", "...", ".", "…", " ", "\n", "\n\n", "\t", "12", "\u0301", *BULLETS]
)
texts = st.lists(st.lists(pieces | st.characters(exclude_categories=["Cs"]), max_size=30).map("".join), max_size=6)


@pytest.mark.long
@settings(deadline=None, max_examples=100)
@given(texts)
def test_signals_are_those_of_plain_python(documents):
    table = measure(*documents).to_pylist()
    assert len(table) == len(documents)
    for text, found in zip(documents, table, strict=True):
        lines = [line.strip() for line in text.split("\n") if line.strip()]
        tokens = text.split()
        assert (found["n_bytes"], found["n_chars"], found["n_lines"]) == (len(text.encode()), len(text), len(lines))
        ellipses = text.count("...") + text.count("…")
        expected = {
            "hash_to_word_ratio": (text.count("#"), found["word_count"]),
            "ellipsis_to_word_ratio": (ellipses, found["word_count"]),
            "bullet_line_ratio": (sum(line[0] in BULLETS for line in lines), len(lines)),
            "ellipsis_line_ratio": (sum(line.endswith(("...", "…")) for line in lines), len(lines)),
            "alpha_word_ratio": (sum(any(map(str.isalpha, token)) for token in tokens), len(tokens)),
        }
        for name, (part, whole) in expected.items():
            assert found[name] == (np.float32(part / whole) if whole else None), name


def test_neighbours_and_order_change_nothing():
    documents = [f"{'word ' * k}\n• {'...' * (k % 3)}\n\nThe end. {chr(0x4E00 + k)}" for k in range(50)]
    whole = measure(*documents).to_pylist()
    assert whole == [signals(text) for text in documents]
    assert measure(*documents[::-1]).to_pylist() == whole[::-1]
    padded = pa.table({"text": pa.array(["x", *documents, "y"], pa.large_string())}).slice(1, 50)
    assert QualitySignals().annotate(padded).to_pylist() == whole


def test_no_documents():
    assert measure().num_rows == 0
    assert measure().schema == SIGNALS


GOLDEN = {
    1: "023ef6cdeeed353a",
    2: "d9f95bc02a213343",
    3: "e3031fbf684238c6",
    4: "13709f42a236e7dc",
    5: "1fe9b59a94f57f55",
}  # version -> checksum of the output below; a change of output needs a new version of the stage
GOLDEN_TEXT = (
    "Dr. Who's 3.14 – “Ωmega”… 中文，かな。 #tag\n\n• İstanbul\n- नमस्ते दुनिया। The end..."
    + "中文維基，" * 3
    + "กินข้าว" * 2
)


def test_golden_output():
    digest = xxhash.xxh3_64_hexdigest(repr(signals(GOLDEN_TEXT)).encode())
    assert GOLDEN.get(QualitySignals.version) == digest, "the output changed: raise QualitySignals.version"
