"""`columns` of sources: the steps that they stand for, and what is refused before any source is read."""

import pytest
import yaml

from gristmill.errors import ConfigError, SourceError
from pipelines.planning.corpus import load_corpus_config, plain_config
from pipelines.planning.inventory import Inventory, Read
from pipelines.planning.plan import make_plan
from pipelines.planning.source_check import check_sample
from pipelines.reading.entries.listing import list_files
from pipelines.reading.sources.source import Source

STEPS = [{"text_hash": {}}, {"dedup_exact": {}}]


def load(tmp_path, sources, steps=STEPS):
    path = tmp_path / "c.yaml"
    parsed = [{"name": f"s{number}", "root": "x", "format": "jsonl", **each} for number, each in enumerate(sources)]
    path.write_text(yaml.safe_dump({"name": "c", "output": "out", "sources": parsed, "steps": steps}))
    return load_corpus_config(path)


def plan(config):
    return make_plan(config, {source.name: Inventory((), ()) for source in config.sources})


def test_sources_with_the_same_columns_share_a_step(tmp_path):
    same = {"columns": {"score": "int", "day": {"field": "at.day", "type": "date"}}}
    config = load(tmp_path, [same, {}, {"columns": {"score": "int"}}, same])
    own = [(step.name, step.sources, {*step.stage.columns}) for step in config.steps[:-2]]
    assert own == [("source_columns", ("s0", "s3"), {"score", "day"}), ("source_columns_2", ("s2",), {"score"})]
    labels = [step.label for step in plan(config).steps if step.name.startswith("source_columns")]
    assert labels == ["source_columns.s0", "source_columns.s3", "source_columns_2.s2"]


def test_the_resolved_file_reads_as_the_same_configuration(tmp_path):
    config = load(tmp_path, [{"columns": {"score": "int", "n": {"field": "a.b"}}}])
    again = tmp_path / "again.yaml"
    again.write_text(yaml.safe_dump(plain_config(config)))
    assert load_corpus_config(again) == config
    assert "source_columns" not in again.read_text()


def test_a_source_without_columns_keeps_its_identity():
    source = Source("s", "x", "jsonl")
    assert "columns" not in Read(source).knobs()
    assert Read(Source("s", "x", "jsonl", columns={"a": "int"})).knobs()["columns"] == {"a": "int"}


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({}, "columns: got an empty mapping"),
        ({"a": "integer"}, r"columns\.a: got 'integer', expected Literal"),
        ({"text": "string"}, "columns.text: expected letters"),
        ({"a-b": "int"}, "columns.a-b: expected letters"),
        ({"body": {"field": "text"}}, "columns.body: got 'text', the text or the URL"),
        ({"a": {"field": "b", "type": "date", "first": 4}}, "first: got 4 for the type date"),
    ],
)
def test_bad_columns_are_refused(tmp_path, columns, message):
    with pytest.raises(ConfigError, match=message):
        load(tmp_path, [{"columns": columns}])


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ({"signal": "day", "at_least": 2015}, "'day': day holds timestamp.us., its bound is 2015.0, expected a date such as"),
        ({"signal": "score", "at_least": "2015-01-01"}, "score holds int64, its bound is '2015-01-01', expected a number"),
        ({"signal": "score", "at_least": "many"}, "at_least: got 'many', expected a number, or a date such as"),
        ({"signal": "day", "at_least": "2016-01-01", "at_most": "2015-12-31"}, "got 2016-01-01, above at_most 2015-12-31"),
        ({"signal": "licence", "one_of": ["a"]}, "'licence', which no earlier step writes"),
        (
            {"signal": "score", "at_least": 1, "when": {"source": ["s1"]}},
            "no step writes for the source s1; limit the rule by `when: {source: .s0.}`.*columns` of s1",
        ),
    ],
)  # fmt: skip
def test_rules_that_do_not_fit_a_column(tmp_path, rule, message):
    with pytest.raises(ConfigError, match=message):
        plan(load(tmp_path, [{"columns": {"score": "int", "day": "date"}}, {}], [{"filter": [rule]}]))


def test_a_date_by_source_in_a_mapping(tmp_path):
    bounds = {"s0": "2015-01-01", "default": None}
    rule = {"signal": "day", "per": "source", "at_least": bounds, "null": "keep"}
    assert plan(load(tmp_path, [{"columns": {"day": "date"}}], [{"filter": [rule]}]))


def test_one_column_has_one_type(tmp_path):
    with pytest.raises(
        ConfigError, match=r"'s1': columns\.a: got float, but int in source 's0'; a column has one type"
    ):
        plan(load(tmp_path, [{"columns": {"a": "int"}}, {"columns": {"a": "float"}}]))


def test_wrong_types_stop_a_plan(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "x", "n": 1}\n' + '{"text": "x", "n": "one"}\n' * 3)
    source = Source(name="s", root=str(tmp_path), format="jsonl", columns={"n": "int"})
    with pytest.raises(
        SourceError, match=r"1 of its first 4 records .* 3 `wrong_type` .*; check `columns: {'n': 'int'}`"
    ):
        check_sample(source, list_files(source))
