"""Bounds that depend on the value of a column: each document gets its own bound, and mistakes are reported."""

import json

import pyarrow as pa
import pytest

from gristmill.config import parse, plain
from gristmill.errors import ConfigError
from pipelines.__main__ import main
from pipelines.stages.decide.filter import Filter

BY_LANGUAGE = {"signal": "x", "per": "lang", "at_least": {"en": 3, "ko": 1.5, "default": 1}}
LANGUAGES = pa.array(["en", "en", "ko", "ko", "zh", "zh", None, None]).dictionary_encode()
VALUES = pa.array([3, 2.9, 1.5, 1.4, 1, 0.9, 1, 0.9], pa.float32())


def filter_of(*rules):
    return parse(Filter, {"rules": list(rules)}, "c.yaml: steps[0].filter")


def dropped(stage, **columns):
    return stage.annotate(pa.table(columns))["drop"].to_pylist()


def test_each_document_meets_the_bound_of_its_group():
    stage = filter_of(BY_LANGUAGE)
    assert [each.name for each in stage.reads()] == ["x", "lang"]
    assert dropped(stage, x=VALUES, lang=LANGUAGES) == [None, "x"] * 4
    assert parse(Filter, plain(stage), "again") == stage


def test_no_bound_for_the_others():
    stage = filter_of({**BY_LANGUAGE, "at_least": {"en": 3, "default": None}})
    assert dropped(stage, x=VALUES, lang=LANGUAGES) == [None, "x", *[None] * 6]
    nothing = pa.array([None, None, float("nan"), float("nan")], pa.float32())
    assert dropped(stage, x=nothing, lang=["en", "zh", "en", "zh"]) == ["x", None, "x", None]


def test_one_side_by_group_and_the_other_for_all():
    stage = filter_of({**BY_LANGUAGE, "at_most": 4})
    assert dropped(stage, x=[4.1, 4.0, 1.4, 2.0], lang=["en", "ko", "ko", "zh"]) == ["x", None, "x", None]


def test_whole_numbers_as_groups_and_norwegian():
    stage = filter_of({"signal": "x", "per": "status", "at_most": {"404": 0, "-1": 3, "default": 9}})
    assert dropped(stage, x=[1, 1, 4, 9, 10], status=[404, 200, -1, 5, 5]) == ["x", None, "x", None, "x"]


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ({"per": "lang", "at_least": {"en": 1}}, r"rules\[0\].at_least: got bounds for en without `default`"),
        ({"per": "lang", "at_least": {}}, r"got bounds for nothing without `default`"),
        ({"at_least": {"en": 1, "default": 0}}, "at_least: got a mapping of bounds without `per`"),
        ({"per": "lang", "at_least": 1}, "per: got 'lang' without a quantile or a mapping of bounds"),
        ({"per": "lang", "at_least": {"default": None}}, "a mapping without a bound"),
        ({"per": "lang", "at_least": {"en": "much", "default": 0}}, r"at_least.en: got 'much', expected a number"),
        (
            {"per": "lang", "at_least": {"en": 5, "default": 0}, "at_most": {"ko": 1, "default": 3}},
            "at_least: got 5.0, above at_most 3.0 for en",
        ),
        (
            {"per": "lang", "at_least": {"default": 2}, "at_most": {"ko": 1, "default": 3}},
            "at_least: got 2.0, above at_most 1.0 for ko",
        ),
    ],
)
def test_mistakes(rule, message):
    with pytest.raises(ConfigError, match=message):
        filter_of({"signal": "x", **rule})


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (pa.bool_(), "per: group holds bool; bounds by value need a column of text or integers"),
        (pa.float32(), "per: group holds float; bounds by value need"),
        (pa.int32(), "but at_least has the key 'en'; expected integers, without leading zeros, and `default`"),
    ],
)
def test_groups_that_keys_cannot_name(kind, message):
    stage = filter_of({**BY_LANGUAGE, "per": "group"})
    with pytest.raises(ConfigError, match=message):
        stage.check_types(pa.schema([("x", pa.float32()), ("group", kind)]))
    stage.check_types(pa.schema([("x", pa.int64()), ("group", pa.dictionary(pa.int32(), pa.string()))]))


@pytest.fixture
def corpus(tmp_path, monkeypatch):
    for source, most in (("long", 30), ("short", 12)):
        lines = (json.dumps({"text": " ".join(f"word{n}" for n in range(count))}) for count in range(1, most))
        (tmp_path / f"{source}.jsonl").write_text("".join(f"{line}\n" for line in lines))
    path = tmp_path / "c.yaml"
    sources = "".join(f"  - {{name: {s}, root: {tmp_path}/{s}.jsonl, format: jsonl}}\n" for s in ("long", "short"))
    path.write_text(
        f"name: c\noutput: {tmp_path}/out\nsources:\n{sources}steps:\n  - quality_signals: {{}}\n"
        "  - filter:\n      - {signal: word_count, per: source, at_least: {long: 11, no: 2, default: 6}}\n"
    )
    assert main(["build", str(path), "--in-process"]) == 0
    return path


def test_builds_questions_and_pages_agree(corpus, tmp_path, capsys):
    out = tmp_path / "out"
    report = json.loads((out / "report.json").read_text())
    assert {row["source"]: row["dropped"] for row in report["funnel"]} == {
        "long": {"word_count": 10}, "short": {"word_count": 5},
    }  # fmt: skip
    page = (out / "report.html").read_text()
    assert "≥ (source: long 11, no 2, default 6)" in page
    capsys.readouterr()
    assert (
        main(["whatif", str(corpus), "--set", "filter.word_count.at_least.default=4", "--full", "--samples", "0"]) == 0
    )
    answer = capsys.readouterr().out
    assert "5 → 3" in answer
    assert "default: 4" in answer
    assert main(["whatif", str(corpus), "--set", "filter.word_count.at_least={default: 3}", "--full"]) == 0
    assert "10 → 2" in capsys.readouterr().out
    assert main(["inspect", str(out), "--doc", "short/short.jsonl#2"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert (
        "word_count is 3, source is short, kept is at least (11 for long, 2 for no, 6 for default; by source)" in said
    )
    assert main(["whatif", str(corpus), "--set", "filter.word_count.at_most.long=4"]) == 2
    assert "at_most of word_count is not a mapping of bounds; leave out .long" in capsys.readouterr().err
