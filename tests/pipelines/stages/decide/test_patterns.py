"""User-defined regular expressions: counts and texts equal those of Python's `re`, time is linear, and what
is not supported is refused.
"""

import re
import time
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pipelines
from gristmill.config import parse
from gristmill.errors import ConfigError, UserError
from pipelines.contracts.edits import apply_edits, check_edits
from pipelines.stages.decide.patterns import PatternRule, Patterns

# Expressions on which RE2 and Python agree, with a replacement.
AGREE = [
    (r"\[[0-9]+\]", ""),
    (r"(?m)^.*cookies.*$\n?", ""),
    (r"([0-9]{1,3})[ ]€", r"EUR \1"),
    (r"(a)(b)?c", r"<\2|\1|\0>"),
    (r"\bthe\b", "THE"),
    (r"中文?|é", "x\n"),
    (r"^a|bc0", r"\\"),
]
PIECES = [
    "a",
    "b",
    "abc",
    "the ",
    "[12]",
    "[3]",
    "12 €",
    "0",
    " ",
    "\n",
    "cookies",
    "中",
    "中文",
    "é",
    "e\u0301",
    "😀",
    ".",
]
texts = st.lists(st.lists(st.sampled_from(PIECES), max_size=20).map("".join), min_size=1, max_size=4)


def run(rules, *documents):
    stage = Patterns(rules=tuple(PatternRule(**rule) for rule in rules))
    stage.check()
    text = pa.array(documents, pa.large_string())
    table = stage.annotate(pa.table({"text": text}))
    counts = {name: table[name].to_pylist() for name in stage.never_null()}
    if "edits" not in table.column_names:
        return list(documents), counts, []
    edits = table["edits"].combine_chunks()
    check_edits(text, edits)
    return apply_edits(text, edits).to_pylist(), counts, [[edit["rule"] for edit in row] for row in edits.to_pylist()]


@pytest.mark.long
@pytest.mark.parametrize(("pattern", "replacement"), AGREE, ids=[pattern for pattern, _ in AGREE])
@given(documents=texts)
def test_counts_and_texts_are_those_of_python(pattern, replacement, documents):
    python = re.sub(r"\\0", r"\\g<0>", replacement)
    expected = [re.subn(pattern, python, text, flags=re.ASCII) for text in documents]
    found, counts, _ = run([{"name": "x", "pattern": pattern, "replacement": replacement}], *documents)
    assert found == [text for text, _ in expected]
    assert counts == {"x_count": [number for _, number in expected]}


def test_rules_that_only_count_write_no_edits():
    found, counts, rules = run([{"name": "x", "pattern": "A", "ignore_case": True}], "aAb", "b", "")
    assert (found, counts, rules) == (["aAb", "b", ""], {"x_count": [2, 0, 0]}, [])


def test_the_earlier_rule_wins_where_two_overlap():
    rules = [
        {"name": "inner", "pattern": "bc", "replacement": "-"},
        {"name": "count", "pattern": "[a-z]"},
        {"name": "outer", "pattern": "[a-d]+", "replacement": "+"},
    ]
    found, counts, edits = run(rules, "abcd ab bc", "xa")
    assert found == ["a-d + -", "x+"]
    assert counts == {"inner_count": [2, 0], "count_count": [8, 2], "outer_count": [3, 1]}
    assert edits[0] == ["patterns.inner", "patterns.outer", "patterns.inner"]


def test_an_expression_that_explodes_elsewhere_takes_linear_time():
    started = time.process_time()
    _, counts, _ = run([{"name": "x", "pattern": r"(a+)+$", "replacement": ""}], "a" * 200_000 + "b")
    assert counts == {"x_count": [0]}
    assert time.process_time() - started < 5


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ({"pattern": "("}, "missing )"),
        ({"pattern": "a)(b", "replacement": ""}, "unexpected )"),  # valid within the parentheses of `expression`
        ({"pattern": r"(?=a)"}, "invalid perl operator"),
        ({"pattern": r"(a)\1"}, "invalid escape sequence"),
        ({"pattern": "a*"}, "also matches nothing at all"),
        ({"pattern": r"\b"}, "also matches nothing at all"),
        ({"pattern": r"\C"}, r"\C matches a part of a character"),
        ({"pattern": "a{1001}"}, "invalid repetition size"),
        ({"pattern": "((a{100}){100}){100}"}, "bad repetition operator|invalid repetition|too large"),
        ({"pattern": "a", "replacement": r"\1"}, "replacement"),
        ({"pattern": "a", "replacement": r"\x"}, r"expected \0 to \8"),
        ({"pattern": "a", "replacement": "\x01"}, "no control characters"),
        ({"name": "a b", "pattern": "a"}, "expected letters, digits and underscores"),
    ],
)
def test_rules_that_are_refused(rule, message):
    with pytest.raises(ConfigError) as refused:
        parse(Patterns, {"rules": [{"name": "x"} | rule]}, "c.yaml")
    assert re.search(message if "|" in message else re.escape(message), str(refused.value))


def test_stages_that_are_refused():
    for rules, message in (
        ([], "expected at least one rule"),
        ([{"name": "x", "pattern": "a"}] * 2, "two are named x"),
    ):
        with pytest.raises(ConfigError, match=message):
            parse(Patterns, {"rules": rules}, "c.yaml")
    with pytest.raises(UserError, match="a text holds U\\+0001"):
        run([{"name": "x", "pattern": "a"}], "\x01a\x02\x03")


def test_the_example_of_the_docs(tmp_path, monkeypatch):
    page = (Path(__file__).parents[4] / "docs/rule_sets.md").read_text()
    example = re.search(r"\n## Patterns of your own\n.*?```yaml\n(.*?)```", page, re.DOTALL)[1]
    (tmp_path / "c.yaml").write_text(example)
    (tmp_path / "notes").mkdir()
    notes = [
        "On 3/12/2020 it rained.[4]",
        "[1]",
        "Please accept all cookies.\nWe ACCEPT COOKIES.\nA text.",
        "On 2020-12-3 it rained.",
    ]
    for number, text in enumerate(notes):
        (tmp_path / f"notes/{number}.txt").write_text(text)
    monkeypatch.chdir(tmp_path)
    corpus = pipelines.build("c.yaml", in_process=True)
    assert corpus.documents().read_all()["text"].to_pylist() == ["On 2020-12-3 it rained."]
    verdicts = corpus.verdicts(["footnote_count", "date_count", "cookies_count"]).read_all()
    assert verdicts["drop"].to_pylist() == [None, "patterns.empty", "cookies_count", "dedup_exact"]
    assert verdicts["date_count"].to_pylist() == [1, 0, 0, 0]
