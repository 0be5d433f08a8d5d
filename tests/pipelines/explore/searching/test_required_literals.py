"""The literals that a regular expression requires must never rule out a text that matches."""

import random

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from pipelines.explore.searching.required_literals import required_literals


@pytest.mark.parametrize(
    ("pattern", "literals"),
    [
        ("the mill", ["the mill"]),
        (r"licen[cs]e", ["licen"]),
        (r"ab+cd", ["ab"]),
        (r"abc+d", ["abc"]),
        (r"abc?de", ["ab"]),
        (r"abc{0,3}def", ["def"]),
        (r"colou?r|\bhue\b", ["colo", "hue"]),
        (r"(?:the|a) mill\.$", [" mill."]),
        (r"(?P<article>the (big )?)mill", ["mill"]),
        (r"[]a|b]cd", ["cd"]),
        (r"x[^]|)]y[[:alpha:]]zz", ["zz"]),
        (r"Größe\d+ 水車小屋", ["Größe"]),
        (r"a|", None),
        (r"\d+", None),
        (r"mill|\d+", None),
        ("(?i)mill", None),
        (r"(a|(?i)b)mill", None),
        (r"\Qa.b\E", None),
        (r"\x41bc", None),
        (r"\pNabc", None),
        (r"abc{,3}", None),
        (r"[]a[b]cd", None),
    ],
)
def test_literals(pattern, literals):
    assert required_literals(pattern) == literals


def random_pattern(choose, depth=0):
    """Return a random regular expression in RE2's syntax over few characters, so that it often matches."""
    atoms = ["a", "b", "é", "水", r"\.", ".", "[ab]", "[^a]", "[]b]", r"[\]é]", r"\w", r"\b", r"\n", "^"]
    pieces = []
    for _ in range(choose.randint(1, 4)):
        atom = choose.choice(atoms)
        if depth < 2 and choose.random() < 0.3:
            atom = f"{choose.choice(['(', '(?:', '(?P<n>'])}{random_pattern(choose, depth + 1)})".replace(
                "?P<n>", "?:", depth
            )
        if atom not in ("^", r"\b"):
            atom += choose.choice(["", "", "", "*", "+", "?", "{2}", "{0,1}", "+?", "*?"])
        pieces.append(atom)
    return "".join(pieces) + (f"|{random_pattern(choose, depth + 1)}" if choose.random() < 0.2 else "")


def test_no_text_that_matches_lacks_all_literals():
    choose = random.Random(5)
    texts = ["".join(choose.choices("ab.é水 \n]", k=choose.randint(0, 8))) for _ in range(300)]
    required = 0
    for _ in range(400):
        pattern = random_pattern(choose)
        if pattern.count("?P<n>") > 1:
            continue
        literals = required_literals(pattern)
        if literals is not None:
            required += 1
            matches = pc.match_substring_regex(pa.array(texts), pattern).to_pylist()
            for text, matched in zip(texts, matches, strict=True):
                assert not matched or any(literal in text for literal in literals), (pattern, text, literals)
    assert required > 50
