"""Lines of printed pages: what is removed, and what is joined."""

import pytest

from pipelines.reading.rich.page_lines import join_pages


def test_running_heads_and_page_numbers_go():
    pages = [
        f"{'A Book of Mills' if n % 2 else 'The Wheel'}\r\n \r\nBody {letter} begins,\r\nand {letter} ends.\r\n{n + 3}\r\n"
        for n, letter in enumerate("ghjkmn")
    ]
    lines = [line for letter in "ghjkmn" for line in (f"Body {letter} begins,", f"and {letter} ends.")]
    assert join_pages(pages) == "\n".join(lines)


@pytest.mark.parametrize(
    "numbers", [["i", "ii", "iii"], ["Page 1 of 3", "Page 2 of 3", "Page 3 of 3"], ["- 9 -", "- 10 -", "- 11 -"]]
)
def test_page_numbers_of_all_kinds(numbers):
    texts = ["one ends here", "two ends there", "three ends nowhere"]
    assert join_pages([f"{text}\n{number}" for text, number in zip(texts, numbers, strict=True)]) == "\n".join(texts)


def test_lines_that_do_not_repeat_stay():
    assert join_pages(["42"]) == "42"
    assert (
        join_pages(["Head\na\nb\nc\nd\ne", "Other\nf\ng\nHead\nh\ni"]) == "Head\na\nb\nc\nd\ne\nOther\nf\ng\nHead\nh\ni"
    )
    assert join_pages(["Head\nx", "Head\ny"]) == "x\ny"
    assert join_pages(["Head\nx", "Head\ny", "z\nw", "v\nu"]) == "Head\nx\nHead\ny\nz\nw\nv\nu"  # two of four pages
    assert join_pages([]) == ""


@pytest.mark.parametrize(
    ("page", "text"),
    [
        ("the exam-\nple of it", "the example\nof it"),
        ("the exam\ufffe\nple of it", "the example\nof it"),
        ("the exam\u00ad\nple", "the example"),
        ("a long-wind\u2010\n  ed tale", "a long-winded\ntale"),
        ("a well-\nknown man, as well-known as he", "a well-known\nman, as well-known as he"),
        ("to re-\nsign, re-sign or resign", "to resign,\nre-sign or resign"),
        ("Jean-\nPaul", "Jean-\nPaul"),
        ("1990-\n1995", "1990-\n1995"),
        ("and so -\nthey said", "and so -\nthey said"),
        ("exa-\nmi-\nna-\ntion", "examination"),
        ("x-\nray", "xray"),
        ("ends with a hy-", "ends with a hy-"),
        ("co\ufffeop and X\x02Y, a co-op", "co-op and X-Y, a co-op"),
        ("manip\x02ulation", "manipulation"),
        ("e\ufb03cient \ufb01nal \ufb06", "efficient final st"),
        ("Über-\nraschung  \nund", "Überraschung\nund"),
    ],
)
def test_divided_words_are_joined(page, text):
    assert join_pages([page]) == text


def test_a_word_goes_on_after_a_page():
    assert join_pages(["Head\nthe mill-\n1", "Head\ners grind\n2"]) == "the millers\ngrind"
