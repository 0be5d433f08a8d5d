"""The lines of two extractions are merged in page order, and a line that both have is written once."""

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.reading.web.choice.merged_lines import join_lines, letters_of, merge_lines, split_lines


def merged(first: str, second: str) -> list[tuple[str, bool, bool]]:
    return [(line.text, line.first, line.second) for line in merge_lines(split_lines(first), split_lines(second))]


def test_lines_that_only_one_text_has_stay_where_they_are_on_the_page() -> None:
    first = "Menu\n\nThe mill\n\n  • turns\n  • grinds\n\nShare this\n\nThe end."
    second = "The mill\n- turns\n- grinds\nIts wheel is new.\nThe end."
    assert merged(first, second) == [
        ("Menu", True, False),
        ("The mill", True, True),
        ("- turns", True, True),
        ("- grinds", True, True),
        ("Share this", True, False),
        ("Its wheel is new.", False, True),
        ("The end.", True, True),
    ]


def test_a_line_within_a_longer_one_is_written_once() -> None:
    whole, halves = "One sentence here. Another one there.", "One sentence here.\nAnother one there."
    assert merged(whole, halves) == [(line, True, True) for line in halves.split("\n")]
    assert merged(halves, whole) == [(whole, True, True)]


def test_empty_lines_are_kept_and_lines_without_letters_are_not() -> None:
    assert join_lines(split_lines("\n\na\nb\n\n---\n\n\nc\n")) == "a\nb\n\nc"


def test_tables_and_code_are_one_line_of_markdown() -> None:
    text = "# a\n\n| b | c |\n|---|---|\n| d | e |\n\n````\nf\n\n```\n\ng\n````\nh\n\n```\nnever closed\ni"
    lines = split_lines(text, markdown=True)
    assert [line.key for line in lines] == ["a", "bcde", "fg", "h", "neverclosedi"]
    assert join_lines(lines) == text


def test_lines_that_begin_alike_are_one_line_unless_others_do() -> None:
    first = "The area of a circle of radius r is $\\pi r^2$, as everyone knows."
    second = "The area of a circle of radius r is, as everyone knows."
    assert merged(first, second) == [(second, True, True)]
    lines = merge_lines(split_lines(first), split_lines(second), re.compile(r"\$"))
    assert [line.text for line in lines] == [first]
    twice = "The area of a circle of radius s is another."
    assert len(merged(f"{first}\n{twice}", second)) == 3


@given(*[st.lists(st.sampled_from(["a", "b", "c", "nine letters", "more than nine letters"]), max_size=8)] * 2)
def test_no_line_of_either_text_is_lost(first: list[str], second: list[str]) -> None:
    lines = merge_lines(split_lines("\n".join(first)), split_lines("\n".join(second)))
    assert [line.text for line in lines if line.second] == second
    there = letters_of("".join(line.text for line in lines))
    assert all(letters_of(line) in there for line in first)
    assert all(
        line.text in first or letters_of(line.text) in letters_of("".join(first)) for line in lines if line.first
    )
    assert all(line.first or line.second for line in lines)


@pytest.mark.long
def test_looking_for_lines_within_lines_is_limited() -> None:
    first = "\n".join(f"line number {number} of the first" for number in range(12_000))
    second = "\n".join(["the same line again"] * 6_000 + [f"other line number {n}" for n in range(12_000)])
    # without the limit, half a minute
    begin = time.process_time()
    assert len(merge_lines(split_lines(first), split_lines(second + "\n" + second))) == 48_000
    assert time.process_time() - begin < 10
