"""Edits: applied, composed and mapped back, against a plain reference that processes one document at a time."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.contracts.document import is_empty
from pipelines.contracts.edits import (
    _VISIBLE,
    apply_edits,
    check_edits,
    compose,
    edited_lengths,
    edits_column,
    find_emptied,
    map_back,
    no_edits,
)

TEXT = st.text(st.sampled_from("ab é漢🙂\n"), max_size=12)


@st.composite
def edits_of(draw, text):
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


@pytest.mark.long
@given(documents())
def test_apply_equals_editing_each_document(case):
    texts, edits = case
    column = edits_column(edits)
    check_edits(large(texts), column)
    expected = [plainly(text, own) for text, own in zip(texts, edits, strict=True)]
    assert apply_edits(large(texts), column).to_pylist() == expected
    lengths = np.array([len(text.encode()) for text in texts])
    assert edited_lengths(lengths, column).tolist() == [len(text.encode()) for text in expected]


@pytest.mark.long
@given(documents())
def test_apply_honours_slices(case):
    texts, edits = case
    shifted = large(["padding", *texts]).slice(1)
    assert apply_edits(shifted, edits_column([[], *edits]).slice(1)).to_pylist() == [
        plainly(text, own) for text, own in zip(texts, edits, strict=True)
    ]


@pytest.mark.long
@given(documents(), st.data())
def test_later_edits_of_edited_text_map_back_to_the_stored_text(case, data):
    """If the first edits are deletions, applying the composed edits equals applying one after the other."""
    texts, edits = case
    first = edits_column([[(low, high, "", rule) for low, high, _, rule in own] for own in edits])
    edited = apply_edits(large(texts), first)
    second = edits_column([data.draw(edits_of(text)) for text in edited.to_pylist()])
    mapped = map_back(first, second)
    check_edits(large(texts), mapped)
    assert apply_edits(large(texts), compose([first, mapped])).to_pylist() == apply_edits(edited, second).to_pylist()


@pytest.mark.long
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


@pytest.mark.long
@given(TEXT, st.data())
def test_composed_edits_are_the_unions_of_those_that_overlap(text, data):
    """In any order of steps, edits that only touch stay separate, and each union has the replacement of one
    of its edits.
    """
    steps = [[(*edit[:3], f"{k}") for edit in data.draw(edits_of(text))] for k in range(data.draw(st.integers(1, 4)))]
    unions = []
    for edit in sorted(edit for step in steps for edit in step):
        if unions and edit[0] < max(other[1] for other in unions[-1]):
            unions[-1].append(edit)
        else:
            unions.append([edit])
    found = [tuple(edit.values()) for edit in compose([edits_column([step]) for step in steps])[0].as_py()]
    assert [edit[:2] for edit in found] == [(u[0][0], max(edit[1] for edit in u)) for u in unions]
    for (low, high, replacement, rule), union in zip(found, unions, strict=True):
        assert (replacement, rule) in [edit[2:] for edit in union]
        last = max(union, key=lambda edit: edit[3])
        if last[:2] == (low, high):
            assert (replacement, rule) == last[2:]
    check_edits(large([text]), compose([edits_column([step]) for step in steps]))


def origins(text, edits):
    """Return, for each byte of the edited text, the range of the stored text that it stands for."""
    ranges, at = [], 0
    for low, high, replacement, _ in edits:
        ranges += [(k, k + 1) for k in range(at, low)] + [(low, high)] * len(replacement.encode())
        at = high
    return [*ranges, *((k, k + 1) for k in range(at, len(text.encode())))]


@pytest.mark.long
@given(TEXT, st.data())
def test_mapping_back_covers_what_the_edited_bytes_stand_for(text, data):
    first = data.draw(edits_of(text))
    edited, ranges = plainly(text, first), origins(text, first)
    second = data.draw(edits_of(edited))
    expected = []
    for start, end, replacement, rule in second:
        low, high = min(r[0] for r in ranges[start:end]), max(r[1] for r in ranges[start:end])
        if expected and low < expected[-1][1]:  # both touch one replacement
            low, high = expected[-1][0], max(high, expected.pop()[1])
        expected.append((low, high, replacement, rule))
    mapped = map_back(edits_column([first]), edits_column([second]))
    assert [tuple(edit.values()) for edit in mapped[0].as_py()] == expected
    check_edits(large([text]), mapped)
    replaced = {place for place, (low, high) in enumerate(ranges) if any(e[0] <= low and high <= e[1] for e in first)}
    if not any(replaced.intersection(range(start, end)) for start, end, *_ in second):
        both = compose([edits_column([first]), mapped])
        untouched = all(
            e[1] <= m[0] or m[1] <= e[0] or (m[0] <= e[0] and e[1] <= m[1]) for e in first for m in expected
        )
        assert not untouched or apply_edits(large([text]), both)[0].as_py() == plainly(edited, second)


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


def test_where_edits_overlap_text_that_was_put_there_stays():
    assert composed([(0, 6, "", "x")], [(4, 8, "<X>", "y")]) == [(0, 8, "<X>", "y")]
    assert composed([(0, 4, "<X>", "x")], [(2, 9, "", "y")]) == [(0, 9, "<X>", "x")]
    assert composed([(0, 6, "", "x")], [(4, 6, "<X>", "y")]) == [(0, 6, "", "x")]


@pytest.mark.long
@given(documents(), st.data())
def test_a_document_is_emptied_by_the_step_after_which_it_is_blank(case, data):
    texts, first = case
    later = [[data.draw(edits_of(text)) for text in texts] for _ in range(data.draw(st.integers(0, 2)))]
    columns = [edits_column(edits) for edits in (first, *later)]
    found = [find_emptied(large(texts), columns[: k + 1]).tolist() for k in range(len(columns))]
    for row in range(len(texts)):
        for k in range(len(columns)):
            left = apply_edits(large(texts), compose(columns[: k + 1]))[row].as_py()
            edited = bool(columns[k][row].as_py())
            assert found[k][row] == (edited and is_empty(left))


@pytest.mark.long
@given(TEXT, st.data())
def test_edits_that_put_text_there_empty_no_document(text, data):
    removals = [edits_column([[(low, high, "", "r") for low, high, *_ in data.draw(edits_of(text))]]) for _ in range(2)]
    puts = edits_column([[(low, high, "<X>", "p") for low, high, *_ in data.draw(edits_of(text))]])
    before, after = (apply_edits(large([text]), compose(columns)) for columns in (removals, [*removals, puts]))
    assert not is_empty(after[0].as_py()) or is_empty(before[0].as_py())


@pytest.mark.long
def test_no_invisible_character_begins_with_a_byte_that_says_it_is_visible():
    invisible = [chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000 and is_empty(chr(code))]
    assert len(invisible) > 200
    assert not any(_VISIBLE[character.encode()[0]] for character in invisible)


def test_white_space_of_any_kind_is_nothing_and_null_edits_are_none():
    texts = large(["\ufeff\u3000a\u2003\x85\xa0\u200b", "\u3042a", "漢a", "éa", "a", "b"])
    edits = [
        edits_column(
            [[(texts[k].as_py().encode().index(b"a"), len(texts[k].as_py().encode().split(b"a")[0]) + 1, "", "r")]]
        )
        for k in range(5)
    ]
    column = pa.concat_arrays([*edits, pa.nulls(1, edits[0].type)])
    assert find_emptied(texts, [column]).tolist() == [True, False, False, False, True, False]
    assert find_emptied(texts.slice(3), [column.slice(3)]).tolist() == [False, True, False]


def test_adjacent_edits_both_stay():
    assert composed([(0, 3, "a", "x")], [(3, 5, "b", "y")]) == [(0, 3, "a", "x"), (3, 5, "b", "y")]


def test_an_edit_that_touches_a_replacement_covers_what_was_replaced():
    applied = edits_column([[(0, 5, "<EMAIL>", "x")]])
    mapped = map_back(applied, edits_column([[(3, 9, "", "y")]]))
    assert [(e["start"], e["end"]) for e in mapped[0].as_py()] == [(0, 7)]


@pytest.mark.long
@pytest.mark.timeout(120)
def test_a_document_of_many_edits_takes_linear_time():
    """Every edit of the second step overlaps one of the first."""
    count = 20_000
    first = edits_column([[(10 * i, 10 * i + 5, "", "a") for i in range(count)]])
    second = edits_column([[(10 * i + 3, 10 * i + 7, "<X>", "b") for i in range(count)]])
    merged, mapped = compose([first, second])[0], map_back(first, second)[0]
    assert merged[-1].as_py() == {"start": 10 * count - 10, "end": 10 * count - 3, "replacement": "<X>", "rule": "b"}
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


@pytest.mark.long
@given(documents(), st.data())
def test_steps_composed_at_once_equal_steps_composed_one_after_another(case, data):
    texts, first = case
    steps = [edits_column(first)]
    for _ in range(data.draw(st.integers(1, 3))):
        steps.append(edits_column([data.draw(edits_of(text)) for text in texts]))
    one_by_one = steps[0]
    for step in steps[1:]:
        one_by_one = compose([one_by_one, step])
    assert compose(steps) == one_by_one


@pytest.mark.long
@given(documents(), st.data())
def test_each_document_is_composed_and_mapped_back_as_if_alone(case, data):
    texts, first = case
    columns = [edits_column(first), edits_column([data.draw(edits_of(text)) for text in texts])]
    edited = [len(text.encode()) for text in apply_edits(large(texts), columns[0]).to_pylist()]
    cut = data.draw(st.integers(0, max(edited)))
    new = edits_column([[(0, min(cut, size), "", "n")] if min(cut, size) else [] for size in edited])
    both, mapped = compose(columns), map_back(columns[0], new)
    for row in range(len(texts)):
        assert both[row] == compose([column.slice(row, 1) for column in columns])[0]
        assert mapped[row] == map_back(columns[0].slice(row, 1), new.slice(row, 1))[0]


def test_where_no_edit_covers_the_others_the_winner_takes_the_whole_range():
    steps = [[(0, 4, "", "a")], [(3, 8, "", "b")], [(7, 9, "X", "c")], [(1, 2, "", "d"), (20, 22, "", "d")]]
    found = compose([edits_column([step]) for step in steps])[0].as_py()
    assert [tuple(edit.values()) for edit in found] == [(0, 9, "X", "c"), (20, 22, "", "d")]
