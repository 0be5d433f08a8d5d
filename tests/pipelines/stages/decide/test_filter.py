import pyarrow as pa
import pytest

from gristmill.config import parse, plain
from gristmill.errors import ConfigError
from pipelines.stages.decide.filter import Filter
from pipelines.stages.decide.rules import Rule
from pipelines.stages.measure.quality_signals import SIGNALS

GOPHER = Filter((Rule(rules="gopher_quality@massivetext"),))
# A document that every rule of the set keeps.
GOOD = {
    "word_count": 100,
    "mean_word_length": 5.0,
    "hash_to_word_ratio": 0.0,
    "ellipsis_to_word_ratio": 0.0,
    "bullet_line_ratio": 0.0,
    "ellipsis_line_ratio": 0.0,
    "alpha_word_ratio": 1.0,
    "stop_word_count": 8,
}


def drops(stage, rows, schema=None):
    schema = schema or pa.schema([SIGNALS.field(name) for name in GOOD])
    table = stage.annotate(pa.Table.from_pylist(rows, schema=schema))
    assert table.schema == stage.writes()
    return table["drop"].to_pylist()


def test_the_first_rule_that_fails_gives_the_reason():
    bad = {**GOOD, "mean_word_length": 1.0, "word_count": 3, "stop_word_count": 0}
    assert drops(GOPHER, [bad, {**bad, "word_count": None}, GOOD]) == [
        "gopher_quality.word_count",
        "gopher_quality.mean_word_length",
        None,
    ]


def parsed(*rules):
    return parse(Filter, {"rules": list(rules)}, "demo.yaml: steps[2].filter")


def test_sets_names_and_defaults():
    stage = parsed(
        {"signal": "lang", "one_of": ["en", "de"]},
        {"signal": "lang", "none_of": ["de"], "name": "german"},
        {"signal": "score", "at_least": 0.5, "at_most": 2},
    )
    schema = pa.schema([("lang", pa.dictionary(pa.int32(), pa.string())), ("score", pa.float32())])
    rows = [("en", 0.5), ("fr", 0.1), ("de", 3.0), (None, 2.0), ("en", 2.01), (None, None), ("en", float("nan"))]
    found = drops(stage, [{"lang": lang, "score": score} for lang, score in rows], schema)
    assert found == [None, "lang", "german", "lang", "score", "lang", "score"]
    assert [each.name for each in stage.reads()] == ["lang", "score"]
    assert parse(Filter, plain(stage), "again") == stage


def test_numbers_and_booleans_in_sets():
    stage = parsed({"signal": "status", "one_of": [200, 203]}, {"signal": "ok", "none_of": [False]})
    schema = pa.schema([("status", pa.int32()), ("ok", pa.bool_())])
    rows = [{"status": 200, "ok": True}, {"status": 404, "ok": True}, {"status": 203, "ok": False}]
    assert drops(stage, rows, schema) == [None, "status", "ok"]


def test_bounds_of_integers_that_float64_cannot_hold():
    for kind in (pa.int64(), pa.uint64()):
        table = pa.table({"count": pa.array([5, 2**53 + 1, 2**63 - 1, None], kind)})
        rules = (Rule(signal="count", at_least=10.0, at_most=1e18),)
        assert [d is None for d in Filter(rules).annotate(table)["drop"].to_pylist()] == [False, True, False, False]


def test_no_documents():
    assert drops(GOPHER, []) == []


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ([], r"rules: got an empty list"),
        ([{}], r"rules\[0\].signal: got None with rules None, expected exactly one of the two"),
        ([{"rules": "gopher"}], r"rules\[0\].rules: no set named 'gopher'; allowed: c4@datatrove, c4@paper"),
        ([{"rules": "gopher_quality@massivetext", "at_least": 1}], r"has its own tests and names; remove at_least"),
        ([{"rules": "gopher_quality@massivetext", "signal": "x"}], r"expected exactly one of the two"),
        (
            [{"signal": "x"}],
            r"rules\[0\].signal: 'x' has no test; add at_least, at_most, one_of, none_of or a quantile",
        ),
        ([{"signal": "x", "at_least": 2, "at_most": 1}], r"at_least: got 2.0, above at_most 1.0"),
        ([{"signal": "x", "atleast": 2}], r"rules\[0\].atleast: no such field in Rule; did you mean 'at_least'"),
        ([{"signal": "x", "at_least": 2}, {"signal": "x", "at_most": 3}], r"rules\[1\]: 'x' also names rules\[0\]"),
        (
            [{"rules": "gopher_quality@massivetext"}] * 2,
            r"rules\[1\]: 'gopher_quality.word_count' also names rules\[0\]",
        ),
    ],
)
def test_rules_with_no_test_or_contradictory_ones(rules, message):
    with pytest.raises(ConfigError, match=message):
        parsed(*rules)


def test_a_test_that_does_not_fit_the_column():
    schema = pa.schema([("lang", pa.string())])
    with pytest.raises(ConfigError, match="rule 'lang': lang holds string, at_least and at_most need numbers"):
        drops(parsed({"signal": "lang", "at_least": 1}), [{"lang": "en"}], schema)
    with pytest.raises(ConfigError, match="rule 'n': n holds int32, which cannot be any of"):
        drops(parsed({"signal": "n", "one_of": ["en"]}), [{"n": 1}], pa.schema([("n", pa.int32())]))


def test_a_rule_or_a_set_may_be_for_some_documents_only():
    stage = parsed(
        {"signal": "language", "one_of": ["en", "ko"]},
        {"signal": "score", "at_least": 0.8, "when": {"language": ["en"]}, "name": "english"},
        {"signal": "score", "at_least": 0.4, "when": {"language": ["ko"], "source": ["web"]}, "name": "korean"},
    )
    assert [each.name for each in stage.reads()] == ["language", "score", "source"]
    schema = pa.schema(
        [("language", pa.string()), ("score", pa.float32()), ("source", pa.dictionary(pa.int32(), pa.string()))]
    )
    rows = [("en", 0.9, "web"), ("en", 0.7, "web"), ("ko", 0.7, "web"), ("ko", 0.3, "web"), ("ko", 0.3, "wiki")]
    rows += [("fr", 0.9, "web"), (None, 0.1, "web")]
    found = drops(stage, [dict(zip(schema.names, row, strict=True)) for row in rows], schema)
    assert found == [None, "english", None, "korean", None, "language", "language"]
    whole = parsed({"rules": "gopher_quality@massivetext", "when": {"language": ["en"]}})
    schema = pa.schema([*(SIGNALS.field(name) for name in GOOD), ("language", pa.string())])
    bad = {**GOOD, "word_count": 3}
    assert drops(whole, [{**bad, "language": "en"}, {**bad, "language": "fr"}], schema) == [
        "gopher_quality.word_count",
        None,
    ]
    with pytest.raises(ConfigError, match=r"when.language: got an empty list"):
        parsed({"signal": "score", "at_least": 0.8, "when": {"language": []}})
    with pytest.raises(ConfigError, match="score holds float, which cannot be any of"):
        drops(
            parsed({"signal": "score", "at_least": 1, "when": {"score": ["high"]}}),
            [{"score": 0.5}],
            pa.schema([("score", pa.float32())]),
        )
