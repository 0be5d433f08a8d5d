"""Fields of records as columns."""

import json

import pyarrow as pa
import pytest

from gristmill.config import parse
from gristmill.errors import ConfigError
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
    "score": {"field": "score", "type": "number"},
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


def test_no_documents_give_empty_columns():
    assert annotate([], YAML).to_pydict() == {name: [] for name in YAML}


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({}, "columns: got an empty mapping"),
        ({"text": {"field": "a"}}, "columns.text: expected letters"),
        ({"a b": {"field": "a"}}, "columns.a b: expected letters"),
        ({"a": {"field": "a", "first": 0}}, "columns.a.first: got 0 for a text, expected 1 or more"),
        ({"a": {"field": "a", "type": "number", "first": 2}}, "columns.a.first: got 2 for a number"),
        ({"a": {"field": "a", "type": "int"}}, "columns.a.type: got 'int'"),
        ({"a": {}}, "columns.a.field: missing"),
    ],
)
def test_bad_columns_are_refused(columns, message):
    with pytest.raises(ConfigError, match=message):
        parse(RecordFields, {"columns": columns}, "x")
