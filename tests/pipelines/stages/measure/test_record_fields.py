"""Fields of the source records are copied into columns."""

import json
from datetime import datetime

import pyarrow as pa
import pytest

from gristmill.config import parse
from gristmill.errors import ConfigError
from pipelines.reading.sources.record_field import RecordField
from pipelines.stages.measure.record_fields import RecordFields

RECORDS = [
    {"date": "2021-03-05T10:00:00Z", "score": 2.5, "source": {"name": "arxiv"}, "tags": ["a"], "year": 2021},
    {"date": "19", "score": "0.25", "source.name": "books", "source": {"name": "x"}, "tags": None, "year": "2021"},
    {"date": None, "score": True, "source": "flat", "year": 2021.0},
    {"score": "NaN", "source": {}, "tags": {"b": 1}},
    None,
]
YAML = {
    "year": {"field": "date", "first": 4},
    "score": {"field": "score", "type": "float"},
    "origin": {"field": "source.name"},
    "tags": {"field": "tags"},
    "whole": {"field": "year"},
}


def annotate(records, columns):
    meta = pa.chunked_array([pa.array([None if each is None else json.dumps(each) for each in records], pa.string())])
    return parse(RecordFields, {"columns": columns}, "x").annotate(pa.table({"meta": meta}))


def test_values_of_each_type_and_of_nested_fields():
    table = annotate(RECORDS, YAML)
    assert table.to_pydict() == {
        "year": ["2021", "19", None, None, None],
        "score": [2.5, 0.25, None, None, None],
        "origin": ["arxiv", "books", None, None, None],
        "tags": ['["a"]', None, None, '{"b":1}', None],
        "whole": ["2021", "2021", "2021.0", None, None],
    }
    assert table.schema == parse(RecordFields, {"columns": YAML}, "x").writes()


TYPES = {
    "int": [(7, 7), ("-07", -7), (2**63 - 1, 2**63 - 1), (2**63, None), (7.0, None), (True, None), ("7.0", None), ("7 ", None)],
    "float": [(7, 7.0), (0.5, 0.5), ("1e3", 1000.0), (10**400, None), ("1e999", None), ("nan", None), ("1_0", None)],
    "bool": [(True, True), ("false", False), (1, None), ("True", None)],
    "date": [
        ("2015-03-04", datetime(2015, 3, 4)), ("2015-03-04T05:06:07.5", datetime(2015, 3, 4, 5, 6, 7, 500_000)),
        ("2015-03-04T01:00:00+02:00", datetime(2015, 3, 3, 23)), ("2015-03-04T05:06:07Z", datetime(2015, 3, 4, 5, 6, 7)),
        (2015, None), ("March 2015", None), ("2015-13-01", None), ("0001-01-01T00:00:00+05:00", None),
    ],
    "string": [("x", "x"), ("", ""), ("\ud800", None), ({"a": "\ud800"}, None), ({"a": "ü"}, '{"a":"ü"}')],
}  # fmt: skip


@pytest.mark.parametrize("kind", TYPES)
def test_values_of_another_type_are_null(kind):
    records = [{"field": value} for value, _ in TYPES[kind]] + [{"field": None}, {}, {"field": " "}]
    column = annotate(records, {"column": {"field": "field", "type": kind}})["column"]
    expected = [value for _, value in TYPES[kind]] + [None, None, " " if kind == "string" else None]
    assert column.to_pylist() == expected


@pytest.mark.parametrize("kind", TYPES)
def test_a_source_refuses_exactly_what_becomes_null(kind):
    field = RecordField("field", kind)
    for value, expected in TYPES[kind]:
        if expected is None or (kind == "string" and not isinstance(value, str)):
            with pytest.raises(ValueError):
                field.read({"field": value})
        else:
            assert field.read({"field": value}) == expected


def test_no_documents_give_empty_columns():
    assert annotate([], YAML).to_pydict() == {name: [] for name in YAML}


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({}, "columns: got an empty mapping"),
        ({"text": {"field": "a"}}, "columns.text: expected letters"),
        ({"a b": {"field": "a"}}, "columns.a b: expected letters"),
        ({"a": {"field": "a", "first": 0}}, "columns.a.first: got 0 for the type string, expected 1 or more"),
        ({"a": {"field": "a", "type": "int", "first": 2}}, "columns.a.first: got 2 for the type int"),
        ({"a": {"field": "a", "type": "number"}}, "columns.a.type: got 'number'"),
        ({"a": {}}, "columns.a.field: missing"),
    ],
)
def test_bad_columns_are_refused(columns, message):
    with pytest.raises(ConfigError, match=message):
        parse(RecordFields, {"columns": columns}, "x")
