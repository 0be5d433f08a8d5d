"""Wikitext constructs from real pages, and the text that remains of them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.reading.formats.dumps.wikitext import plain_text

CASES = {
    "bold and italic": ("'''Bold''' and ''italic'', '''''both''''', l''''homme'''", "Bold and italic, both, l'homme"),
    "link": ("A [[cat]], [[Dog (animal)|dog]]s, [[:Category:Cats]].", "A cat, dogs, Category:Cats."),
    "external link": (
        "See [https://x.org/a?b the site], [https://x.org] or https://y.org.",
        "See the site, or https://y.org.",
    ),
    "brackets": ("He [sic] said [that is] so.", "He [sic] said [that is] so."),
    "file": ("[[File:A.jpg|thumb|200px|A [[cat]] in {{lang|fr|x}} [http://x y]]]After", "After"),
    "category": ("Text\n\n[[Category:Cats]]\n[[Kategorie:Katzen|Hund]]", "Text"),
    "template": ("{{Infobox\n| name = {{nowrap|A {{b}}}}\n| x = [[y]]\n}}\nText {{cite|a}}more.", "Text more."),
    "table": (
        "Before\n{| class=wikitable\n! a\n|-\n| {{x|1}} || [[b]]\n{|\n| nested\n|}\n|}\nAfter",
        "Before\n\nAfter",
    ),
    "table in a template": ("a{{t|\n{|\n| x\n|}\n}}b", "ab"),
    "template ends where a table would": ("a{{t\n|x=1\n|}}b", "ab"),
    "ref": (
        'One.<ref>{{cite web|url=http://x}}</ref> Two.<ref name="a" /> Three.<ref name=b>x</ref>',
        "One. Two. Three.",
    ),
    "comment": ("a<!-- [[b]] \n\n -->c<!-- open", "ac"),
    "nowiki": ("<nowiki>'''[[x]] {{y}}</nowiki> &lt;b&gt; <nowiki/>z", "'''[[x]] {{y}} <b> z"),
    "math": ("Let <math>x_{{i}} < 2</math> be", "Let x_{{i}} < 2 be"),
    "code": ('<syntaxhighlight lang="c">\nif (a[[1]]) {\n  b;\n}\n</syntaxhighlight>', "\nif (a[[1]]) {\n  b;\n}"),
    "headings": ("Intro\n== A ==\ntext\n=== B ===\n== References ==\n<references/>\n", "Intro\nA\ntext"),
    "heading over a smaller one": ("== A ==\n=== B ===\ntext", "A\nB\ntext"),
    "lists": ("* one\n** two\n# three\n; term\n: indented", "one\ntwo\nthree\nterm\nindented"),
    "html": ('a<br />b <span style="x">c</span> <sup>2</sup> x < y <unknown> 1', "a\nb c 2 x < y <unknown> 1"),
    "entities": ("a&nbsp;b &amp;amp; &eacute; &ndash;", "a b &amp; é –"),
    "magic words": ("__NOTOC__\na __init__ b", "a __init__ b"),
    "empty parentheses": ("Paris ({{IPA|x}}; {{lang|y}}) is", "Paris is"),
    "gallery": ("a\n<gallery>\nFile:x.jpg|[[y]]\n</gallery>\nb", "a\n\nb"),
    "html table": ("a<table><tr><td><table>x</table>y</td></tr></table>b", "ab"),
    "unclosed": ("a {{b\nc [[d\n<ref>e\n'''f", "a {{b\nc [[d\n<ref>e\nf"),
    "unclosed gallery before a ref": ("a<gallery>b<ref>c</ref>d", "a<gallery>bd"),
    "closed twice": ("a}} b]] c</ref> |}", "a}} b]] c</ref> |}"),
}


@pytest.mark.parametrize(("wikitext", "text"), CASES.values(), ids=CASES)
def test_constructs(wikitext: str, text: str) -> None:
    assert plain_text(wikitext, ("kategorie",)) == text.strip("\n")


PIECE = st.sampled_from(
    ["{{", "}}", "[[", "]]", "{|", "|}", "\n", "|", "<ref>", "</ref>", "<nowiki>", "</nowiki>", "<!--", "-->", "''", "=", "a ",
     "<math>", "\x7f0\x7f", "*", "[http://x ", "]", "File:", "(", ")"]
)  # fmt: skip


@given(st.lists(PIECE, max_size=30))
def test_every_text_gives_a_text(pieces: list[str]) -> None:
    text = plain_text("".join(pieces))
    assert "\x7f" not in text


@pytest.mark.long
@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "unit",
    [
        "{{", "[[", "<ref>", "<!--", "{|\n", "\n{{\n{|", "[http://x ", "[[File:", "<nowiki>", "''", "(", "<", "=", "}} {|",
        "<ref", " ",
    ],
)  # fmt: skip
def test_pathological_pages_take_linear_time(unit: str) -> None:
    """Quadratic time on 60,000 repetitions would take minutes."""
    plain_text("[a" + unit * 60_000)


@pytest.mark.long
@pytest.mark.timeout(120)
def test_links_that_nest_deeply_take_linear_time() -> None:
    text = plain_text("[[a label|" * 300_000 + "x" + "]]" * 300_000)
    assert text.startswith("[[a label|[[a label|")
    assert plain_text("[[a|" * 16 + "x" + "]]" * 16) == "x"
    assert plain_text("[[a|" * 17 + "x" + "]]" * 17) == "[[a|x]]"
