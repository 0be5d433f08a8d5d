"""RefinedWeb's line-wise corrections: which lines are corrected and how, byte offsets, and the share of
affected words.
"""

import time

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.contracts.edits import apply_edits, check_edits
from pipelines.stages.decide.refinedweb_lines import REMOVED, RefinedwebLines

PIECES = [
    "word ",
    "WORD ",
    "3 likes",
    "12,5",
    "Sign in",
    " read more",
    "…",
    "items in cart",
    "\n",
    "\n\n",
    " ",
    "中文",
    "é",
    ".",
]
texts = st.lists(st.lists(st.sampled_from(PIECES), max_size=20).map("".join), max_size=3)


def cleaned(*documents):
    text = pa.array(documents, pa.large_string())
    table = RefinedwebLines().annotate(pa.table({"text": text}))
    edits = table["edits"].combine_chunks()
    check_edits(text, edits)
    rules = [[edit["rule"].removeprefix("refinedweb.") for edit in row] for row in edits.to_pylist()]
    return list(zip(apply_edits(text, edits).to_pylist(), rules, table[REMOVED].to_pylist(), strict=True))


LINES = [
    ("CLICK HERE TO SUBSCRIBE now", "uppercase", ""),
    ("NASA and ESA said so", None, None),
    ("2020-11-22 10:30", "numeric", ""),
    ("--- *** ---", None, None),
    ("3 likes", "counter", ""),
    ("1.2k Views", "counter", ""),
    ("3 likes make a picture popular", None, None),
    ("Menu", "one_word", ""),
    ("中文", "one_word", ""),
    ("Sign in to see the whole story", "pattern", "to see the whole story"),
    ("Sign-in", "one_word", ""),
    ("The mayor spoke today. Read more...", "pattern", "The mayor spoke today."),
    ("You have 2 items in cart now", "pattern", "You have 2  now"),
    ("Sign in and read more", "pattern", "and"),
    ("She wanted to read more books this year", None, None),
    ("Sign in to your account with the name and the password you chose", None, None),  # 13 words
]


@pytest.mark.parametrize(("line", "rule", "left"), LINES, ids=range(len(LINES)))
def test_which_lines_are_corrected_and_how(line, rule, left):
    before, after = "This line stays as it is, é.", "And this one stays as well."
    ((text, rules, share),) = cleaned(f"{before}\n  {line}\n{after}")
    words = len(line.split())
    total = words + len(before.split()) + len(after.split())
    assert share == pytest.approx(words / total if rule else 0)
    assert set(rules) == ({rule} if rule else set())
    middle = f"  {line}\n" if rule is None else f"  {left}\n" if left else ""
    assert text == f"{before}\n{middle}{after}"


@pytest.mark.parametrize(
    "line", [f"1{' ' * 200_000}x", f"{'.' * 200_000} x", f"sign in{'-' * 200_000}x", "read more " * 4 + "." * 200_000]
)
def test_a_line_of_odd_characters_takes_linear_time(line):
    started = time.perf_counter()
    cleaned(line)
    assert time.perf_counter() - started < 2


def test_empty_and_blank_texts_have_no_share():
    assert cleaned("", " \n\n") == [("", [], None), (" \n\n", [], None)]


@given(texts)
def test_edits_fall_on_characters_and_neighbours_change_nothing(documents):
    assert cleaned(*documents) == [cleaned(document)[0] for document in documents]


def test_the_columns_have_the_prefix():
    assert RefinedwebLines(prefix="a_").writes().names == ["drop", "edits", f"a_{REMOVED}"]
