import random

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.config import parse
from gristmill.errors import ConfigError
from pipelines.contracts.edits import apply_edits, check_edits
from pipelines.kernels.signals.c4 import VARIANTS
from pipelines.stages.decide.c4_lines import TESTS, C4Lines
from pipelines.stages.measure.peer_signals import PeerSignals
from pipelines.stages.measure.quality_signals import QualitySignals
from tests.pipelines.kernels.reference_signals import CURLY, KEPT, LOREM, MARKER, holds
from tests.pipelines.kernels.reference_signals import c4_lines as reference_lines

PIECES = [
    *[
        "word ",
        "a",
        "I",
        " ",
        "\n",
        "\r\n",
        "\r",
        "\x85",
        "\u2028",
        "\x0b",
        ".",
        "...",
        "!",
        '"',
        "'",
        "”",
        "\u0301",
        "\xa0",
    ],
    *[
        "[1]",
        "[]",
        "[12",
        "[edit]",
        "[citation needed]",
        "[",
        "]",
        "{",
        "Lorem Ipsum",
        "lorem ",
        "JavaScript",
        "java",
        "script",
    ],
    *["privacy policy", "use", "s cookies", "use of cookies", "中文", "don't ", "3[2].5", "x" * 999, "Mr. A"],
    *["one two three four five. ", "Five words are in here!\n"],
]
texts = st.lists(st.lists(st.sampled_from(PIECES), max_size=25).map("".join), max_size=4)


def edits_of(rules, *documents):
    text = pa.array(documents, pa.large_string())
    table = C4Lines(rules).annotate(pa.table({"text": text}))
    assert table.schema == C4Lines(rules).writes()
    column = table["edits"].combine_chunks()
    check_edits(text, column)
    return text, column


def cleaned(rules, document):
    text, column = edits_of(rules, document)
    return apply_edits(text, column)[0].as_py(), [edit["rule"] for edit in column[0].as_py()]


# By hand from the sources: (line, the rule that removes it in the paper, tfds, datatrove; None keeps it).
LINES = [
    ("One two three four five.", None, None, None),
    ("One two three four five!\t", None, None, None),
    ("One two three four five?", None, None, None),
    ('He said "two three four five"', None, None, None),
    ("He said “two three four five”", None, "terminal_punctuation", "terminal_punctuation"),
    ("He said 'two three four five'", "terminal_punctuation", "terminal_punctuation", None),
    ("One two three four five", "terminal_punctuation", "terminal_punctuation", "terminal_punctuation"),
    ("One two three four five...", None, "terminal_punctuation", "terminal_punctuation"),
    ("One two three four five…", "terminal_punctuation", "terminal_punctuation", "terminal_punctuation"),
    ("", "blank", "blank", "blank"),
    (" \t", "blank", "blank", "blank"),
    ("One two three four.", "few_words", "few_words", None),
    ("One two.", "few_words", "few_words", "few_words"),
    ("One two three well-known.", None, "few_words", None),  # five words of ours, four between white space
    ("One two three four $.", "few_words", None, None),
    (f"One two three four {'x' * 1000}.", None, "long_word", "long_word"),
    (f"One two three four {'x' * 999}.", None, None, None),
    (f"One two three four {'é' * 999}.", None, None, None),
    ("Please turn on JavaScript, will you.", "javascript", "javascript", "javascript"),
    ("Turn on javascripts.", "few_words", "few_words", "javascript"),
    ("Read the Terms of Use before that.", "policy", "policy", "policy"),
    ("This page uses cookies for all things.", "policy", "policy", "policy"),
    ("Here { javascript } is not code at all.", "javascript", "javascript", "javascript"),
]


@pytest.mark.parametrize(("line", "expected"), [(line, rules) for line, *rules in LINES], ids=range(len(LINES)))
def test_which_lines_go_and_why(line, expected):
    before, after = "This line stays as it is.", "And this one stays as well."
    for variant, rule in zip(VARIANTS, expected, strict=True):
        text, rules = cleaned(variant, f"{before}\n{line}\n{after}")
        kept = [before, after] if rule else [before, line if variant == "paper" else line.strip(), after]
        assert text == "\n".join(kept), variant
        assert [name for name in rules if name != "c4.blank"] == (
            [f"c4.{rule}"] if rule not in (None, "blank") else []
        ), variant


@pytest.mark.parametrize("line", ["Some lorem ipsum in a good line.", "A { in a good line here."])
def test_a_line_for_which_the_page_goes_stays(line):
    assert [cleaned(variant, line) for variant in VARIANTS] == [(line, [])] * 3


def test_citation_markers_are_removed_from_kept_lines():
    line = "One[1] two three[edit] four[] five six.[citation needed]"
    markers = ["c4.citation"] * 4
    for variant in VARIANTS:
        assert cleaned(variant, line) == ("One two three four five six.", markers)
        assert cleaned(variant, "No end[1] mark is here[2]")[1] == ["c4.terminal_punctuation"]
        assert cleaned(variant, "Not [a] marker, [nor 1] this [one.")[1] == []
    spaced = "One two three four five. [1]"
    assert cleaned("paper", spaced) == ("One two three four five. ", ["c4.citation"])
    assert cleaned("tfds", spaced) == cleaned("datatrove", spaced) == ("", ["c4.terminal_punctuation"])
    assert cleaned("tfds", "One two [1] three four.")[1] == ["c4.few_words"]
    assert cleaned("datatrove", "One [1] two.")[1] == ["c4.citation"]  # three words, with the marker


def test_blank_lines_and_indentation_go():
    text = "\n \n  One two three four five.\n\n\tOne two three four five.\r\n \n"
    assert cleaned("paper", text) == ("One two three four five.\nOne two three four five.\r\n", ["c4.blank"] * 3)
    for variant in ("tfds", "datatrove"):
        assert cleaned(variant, text)[0] == "One two three four five.\nOne two three four five."


@given(texts, st.sampled_from(("tfds", "datatrove")))
def test_what_the_codes_leave_is_the_stripped_lines_joined(documents, variant):
    text, column = edits_of(variant, *documents)
    for before, after in zip(documents, apply_edits(text, column).to_pylist(), strict=True):
        lines = [before[r.start : r.end] for r in reference_lines(before, variant) if r.verdict in (KEPT, LOREM, CURLY)]
        assert "\n".join(after.splitlines()) == "\n".join(MARKER.sub("", line.strip()) for line in lines)


def test_what_ends_a_line():
    text = "One two three four five.\rNo mark\r\nNo mark\x85No mark\u2028One two three four five."
    kept = "One two three four five."
    assert cleaned("tfds", text) == (f"{kept}\r{kept}", ["c4.terminal_punctuation"] * 3)
    assert cleaned("paper", text) == (f"No mark\x85No mark\u2028{kept}", ["c4.terminal_punctuation"])


@pytest.mark.long
@settings(deadline=None, max_examples=80)
@given(texts, st.sampled_from(VARIANTS))
def test_lines_and_reasons_are_those_of_plain_python(documents, variant):
    _, column = edits_of(variant, *documents)
    for document, edits in zip(documents, column.to_pylist(), strict=True):
        parts = [(document.encode()[edit["start"] : edit["end"]].decode().strip(), edit["rule"][3:]) for edit in edits]
        removed = [(line, rule) for line, rule in parts if rule not in ("blank", "citation")]
        lines = [(document[r.start : r.end].strip(), r.verdict) for r in reference_lines(document, variant)]
        assert removed == [(line, verdict) for line, verdict in lines if line and verdict not in (KEPT, LOREM, CURLY)]
        assert not any(part for part, rule in parts if rule == "blank")


@settings(deadline=None, max_examples=50)
@given(texts, st.sampled_from(VARIANTS))
def test_edits_leave_the_kept_lines(documents, variant):
    text, column = edits_of(variant, *documents)
    stay = (KEPT, LOREM, CURLY)
    for before, after in zip(documents, apply_edits(text, column).to_pylist(), strict=True):
        lines = [before[r.start : r.end] for r in reference_lines(before, variant) if r.verdict in stay]
        clean = [MARKER.sub("", line).strip() for line in lines]
        assert [line.strip() for line in breaks(after, variant)] == clean


@pytest.mark.long
@settings(deadline=None, max_examples=80)
@given(texts, st.sampled_from(VARIANTS), st.sets(st.sampled_from(TESTS)))
def test_single_tests_are_left_out(documents, variant, without):
    """With some tests left out, lines, reasons and counts equal those of the plain Python reference without
    these tests.
    """
    text = pa.array(documents, pa.large_string())
    table = C4Lines(variant, tuple(sorted(without))).annotate(pa.table({"text": text}))
    check_edits(text, table["edits"].combine_chunks())
    for document, row in zip(documents, table.to_pylist(), strict=True):
        lines = list(reference_lines(document, variant, without))
        full = [line for line in lines if document[line.start : line.end].strip()]
        removed = [line.verdict for line in full if line.verdict not in (KEPT, LOREM, CURLY)]
        assert [e["rule"][3:] for e in row["edits"] if e["rule"] not in ("c4.blank", "c4.citation")] == removed
        assert row["c4_sentences"] == sum(line.sentences for line in full)
        holding = [sum(line.verdict == test for line in lines) for test in (LOREM, CURLY)]
        if variant == "paper":
            pieces = [document[line.start : line.end] for line in lines]
            holding = [sum(holds(piece, "lorem ipsum") for piece in pieces), sum("{" in piece for piece in pieces)]
            holding = [0 if test in without else count for test, count in zip((LOREM, CURLY), holding, strict=True)]
        assert [row["c4_lorem_ipsum"], row["c4_curly_bracket"]] == holding


@pytest.mark.long
@given(texts)
def test_with_all_tests_the_counts_are_those_of_the_signals(documents):
    docs = pa.table({"text": pa.array(documents, pa.large_string())})
    for variant in VARIANTS:
        signals = (QualitySignals() if variant == "paper" else PeerSignals()).annotate(docs)
        table = C4Lines(variant).annotate(docs)
        for name, signal in (("sentences", "sentences"), ("lorem_ipsum", "lorem_ipsum"), ("curly_bracket", "curly")):
            assert table[f"c4_{name}"].to_pylist() == signals[f"c4_{signal}_{variant}"].to_pylist()


def test_a_line_whose_end_mark_is_not_required_meets_the_later_tests():
    lines = "No end mark here\nTwo words\nWe love javascript here\nLorem ipsum in a menu\nA privacy policy line"
    stage = C4Lines("datatrove", ("terminal_punctuation",))
    table = stage.annotate(pa.table({"text": pa.array([lines], pa.large_string())}))
    row = table.to_pylist()[0]
    rules = [edit["rule"] for edit in row["edits"] if edit["rule"] != "c4.blank"]
    assert rules == ["c4.few_words", "c4.javascript", "c4.policy"]
    assert (row["c4_sentences"], row["c4_lorem_ipsum"]) == (1, 1)


def test_a_test_that_is_not_known():
    with pytest.raises(
        ConfigError, match="without: got 'terminal_punct', no such test; did you mean 'terminal_punctuation'"
    ):
        parse(C4Lines, {"rules": "tfds", "without": ["terminal_punct"]}, "demo.yaml: steps[1].c4_lines")


def breaks(text, variant):
    return text.removesuffix("\n").split("\n") if variant == "paper" and text else text.splitlines()


@pytest.mark.long
def test_neighbours_order_and_slices_change_nothing():
    rng = random.Random(7)
    documents = ["".join(rng.choices(PIECES, k=30)) for _ in range(60)]
    for variant in VARIANTS:
        whole = edits_of(variant, *documents)[1].to_pylist()
        assert whole == [edits_of(variant, document)[1].to_pylist()[0] for document in documents]
        assert edits_of(variant, *documents[::-1])[1].to_pylist() == whole[::-1]
        padded = pa.table({"text": pa.array(["x", *documents, "y"], pa.large_string())}).slice(1, 60)
        assert C4Lines(variant).annotate(padded)["edits"].to_pylist() == whole


def test_a_phrase_across_two_documents_is_none():
    assert edits_of("tfds", "One two three four java", "script five six seven eight.")[1].to_pylist()[1] == []


def test_no_documents_and_blank_ones():
    assert edits_of("tfds")[1].to_pylist() == []
    assert cleaned("tfds", "") == ("", [])
    assert cleaned("paper", "\n \n") == ("", ["c4.blank"])


def test_a_variant_that_is_not_known():
    with pytest.raises(ConfigError, match="rules: got 'c4', allowed: paper, tfds, datatrove"):
        parse(C4Lines, {"rules": "c4"}, "demo.yaml: steps[1].c4_lines")
