"""Declarations of the texts and columns that stages read are parsed, and printed as they were written."""

import pytest

from pipelines.contracts.reads import EDITED_TEXT, TEXT, Column, Drop, Text, column_named


@pytest.mark.parametrize(
    ("spelling", "text"),
    [("text", TEXT), ("edited_text", EDITED_TEXT), ("text@c4_lines", Text(edited=True, upto="c4_lines"))],
)
def test_a_text_is_spelled_as_it_is_parsed(spelling, text):
    assert Text.parse(spelling) == text
    assert text.name == spelling


@pytest.mark.parametrize("spelling", ["", "text@", "Text", "edited_text@a", "texts", "text @a"])
def test_other_spellings_are_refused(spelling):
    with pytest.raises(ValueError, match=r"^text: got .*, allowed: text, text@STEP, edited_text$"):
        Text.parse(spelling)


def test_names_of_columns_are_not_a_language():
    assert [column_named(name) for name in ("text", "edited_text", "drop")] == [TEXT, EDITED_TEXT, Drop()]
    for name in ("text@c4_lines", "minhash?", "step:a", "quantiles"):
        assert column_named(name) == Column(name)
