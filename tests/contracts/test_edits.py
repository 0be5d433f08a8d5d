"""Edits: applied, composed and mapped back, against a plain reference that works on one document at a time."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.contracts.edits import (
    apply_edits,
    check_edits,
    compose,
    edited_lengths,
    edits_column,
    map_back,
    no_edits,
)

TEXT = st.text(st.sampled_from("ab é漢🙂\n"), max_size=12)


@st.composite
def edits_of(draw, text):
    """Sorted, separate edits on code-point boundaries of a text."""
    bounds = [0, *np.cumsum([len(c.encode()) for c in text]).tolist()]
    cuts = sorted(draw(st.sets(st.sampled_from(bounds), max_size=6)))
    pairs = list(zip(cuts[::2], cuts[1::2], strict=False))
    return [(low, high, draw(st.sampled_from(["", "X", "<É>"])), "rule") for low, high in pairs if low < high]


@st.composite
def documents(draw):
    texts = draw(st.lists(TEXT, min_size=1, max_size=4))
    return texts, [draw(edits_of(text)) for text in texts]


def plainly(text, edits):
    data = text.encode()
    for low, high, replacement, _ in reversed(edits):
        data = data[:low] + replacement.encode() + data[high:]
    return data.decode()


def large(texts):
    return pa.array(texts, pa.large_string())


@given(documents())
def test_apply_equals_editing_each_document(case):
    texts, edits = case
    column = edits_column(edits)
    check_edits(large(texts), column)
    expected = [plainly(text, own) for text, own in zip(texts, edits, strict=True)]
    assert apply_edits(large(texts), column).to_pylist() == expected
    lengths = np.array([len(text.encode()) for text in texts])
    assert edited_lengths(lengths, column).tolist() == [len(text.encode()) for text in expected]


@given(documents())
def test_apply_honours_slices(case):
    texts, edits = case
    shifted = large(["padding", *texts]).slice(1)
    assert apply_edits(shifted, edits_column([[], *edits]).slice(1)).to_pylist() == [
        plainly(text, own) for text, own in zip(texts, edits, strict=True)
    ]


@given(documents(), st.data())
def test_later_edits_of_edited_text_map_back_to_the_stored_text(case, data):
    """With deletions and separate edits, applying both composed equals applying one after the other."""
    texts, edits = case
    first = edits_column([[(low, high, "", rule) for low, high, _, rule in own] for own in edits])
    edited = apply_edits(large(texts), first)
    second = edits_column([data.draw(edits_of(text)) for text in edited.to_pylist()])
    mapped = map_back(first, second)
    check_edits(large(texts), mapped)
    assert apply_edits(large(texts), compose([first, mapped])).to_pylist() == apply_edits(edited, second).to_pylist()


@given(TEXT, st.data())
def test_no_byte_that_a_step_removed_comes_back(text, data):
    columns = [edits_column([[(low, high, "", "r") for low, high, *_ in data.draw(edits_of(text))]]) for _ in range(3)]
    composed = compose(columns)
    check_edits(large([text]), composed)
    removed = set()
    for column in columns:
        for edit in column[0].as_py():
            removed.update(range(edit["start"], edit["end"]))
    kept = bytes(byte for position, byte in enumerate(text.encode()) if position not in removed)
    assert apply_edits(large([text]), composed)[0].as_py().encode() == kept


def composed(first, second):
    return [tuple(edit.values()) for edit in compose([edits_column([first]), edits_column([second])])[0].as_py()]


def test_a_later_edit_swallows_earlier_ones_inside_it():
    assert composed([(2, 4, "a", "x"), (6, 8, "b", "x")], [(2, 9, "c", "y")]) == [(2, 9, "c", "y")]
    assert composed([(2, 4, "a", "x")], [(2, 4, "c", "y")]) == [(2, 4, "c", "y")]


def test_where_edits_overlap_the_longer_wins_and_covers_both():
    assert composed([(0, 6, "long", "x")], [(4, 8, "short", "y")]) == [(0, 8, "long", "x")]
    assert composed([(4, 8, "short", "x")], [(0, 6, "long", "y")]) == [(0, 8, "long", "y")]


def test_at_equal_length_the_earlier_step_wins():
    assert composed([(0, 4, "first", "x")], [(2, 6, "second", "y")]) == [(0, 6, "first", "x")]


def test_adjacent_edits_both_stay():
    assert composed([(0, 3, "a", "x")], [(3, 5, "b", "y")]) == [(0, 3, "a", "x"), (3, 5, "b", "y")]


def test_an_edit_that_touches_a_replacement_covers_what_was_replaced():
    applied = edits_column([[(0, 5, "<EMAIL>", "x")]])
    mapped = map_back(applied, edits_column([[(3, 9, "", "y")]]))
    assert [(e["start"], e["end"]) for e in mapped[0].as_py()] == [(0, 7)]


@pytest.mark.timeout(120)
def test_a_document_of_many_edits_takes_linear_time():
    """Every edit of the second step overlaps one of the first; 5 seconds are 30 times what it takes."""
    count = 20_000
    first = edits_column([[(10 * i, 10 * i + 5, "", "a") for i in range(count)]])
    second = edits_column([[(10 * i + 3, 10 * i + 7, "<X>", "b") for i in range(count)]])
    merged, mapped = compose([first, second])[0], map_back(first, second)[0]
    assert merged[-1].as_py() == {"start": 10 * count - 10, "end": 10 * count - 3, "replacement": "", "rule": "a"}
    assert mapped[count // 4].as_py()["start"] == 5 * count + 8


def test_compose_of_nothing_keeps_the_rows():
    assert len(compose([no_edits(3), no_edits(3)])) == 3


@pytest.mark.parametrize(
    ("edits", "message"),
    [([(0, 9, "", "r")], "outside"), ([(2, 2, "", "r")], "outside"), ([(0, 2, "", "r")], "splits a character"),
     ([(0, 1, "", "r"), (0, 3, "", "r")], "overlap")],
)  # fmt: skip
def test_bad_edits_are_refused(edits, message):
    with pytest.raises(AssertionError, match=message):
        check_edits(large(["aé!"]), edits_column([edits]))
