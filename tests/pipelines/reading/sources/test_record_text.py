"""Texts composed of several fields or turns: what becomes text, what stays in `meta`, and records without
text.
"""

import csv
import io
import json

import pyarrow as pa
import pytest

from gristmill.config import parse
from gristmill.errors import ConfigError, SourceError
from pipelines.reading.sources.record_text import NoTextError, RecordText
from pipelines.reading.sources.source import Source


def composed(record, **fields):
    text = RecordText(**fields)
    text.check()
    return text.take(record), record


@pytest.mark.parametrize(
    ("record", "fields", "expected"),
    [
        ({"a": "1", "b": "2", "c": 3}, {"fields": ("b", "a")}, ("2\n\n1", {"c": 3})),
        ({"a": {"b": {"c": "1"}, "d": 2}}, {"fields": ("a.b.c",)}, ("1", {"a": {"d": 2}})),
        ({"a": {"b": {"c": "1"}}}, {"fields": ("a.b.c",)}, ("1", {})),
        ({"a.b": "dot", "a": {"b": "nested"}}, {"fields": ("a.b",)}, ("dot", {"a": {"b": "nested"}})),
        ({"a": "1", "b": None, "c": ""}, {"fields": ("a", "b", "c", "d", "a.x")}, ("1", {})),
        ({"m": [{"role": "u", "content": "1"}, {"role": "a", "content": "2"}]}, {"turns": "m"}, ("u: 1\n\na: 2", {})),
        ({"m": [{"content": "1"}, {"role": "a"}, {"role": "a", "content": ""}]}, {"turns": "m"}, (": 1", {})),
        ({"m": [{"v": {"t": "1"}}], "x": {"y": []}}, {"turns": "m", "template": "{v.t}{v.t} {}"}, ("11 {}", {"x": {"y": []}})),
        ({"m": [{"role": "{content}", "content": "{role}"}]}, {"turns": "m"}, ("{content}: {role}", {})),
        ({"d": {"m": [{"role": "u", "content": "1"}]}, "s": "0"}, {"fields": ("s",), "turns": "d.m", "join": ""}, ("0u: 1", {})),
        ({"a": "1", "b": "2", "c": 3}, {"fields": ("a",), "target": "b"}, ("1\n\u20292", {"c": 3})),
        ({"t": {"en": "1", "de": "2"}}, {"fields": ("t.en",), "target": "t.de"}, ("1\n\u20292", {})),
        ({"a": "1\u2029", "b": "\u20292\u2029"}, {"fields": ("a",), "target": "b"}, ("1\n\n\u2029\n2\n", {})),
        ({"a": "1\u2029", "b": None}, {"fields": ("a",), "target": "b"}, ("1\n", {})),
        ({"b": "2"}, {"fields": ("a",), "target": "b"}, ("2", {})),
        ({"a": " ", "b": "2"}, {"fields": ("a",), "target": "b"}, ("2", {})),
    ],
)  # fmt: skip
def test_texts(record, fields, expected):
    assert composed(record, **fields) == expected


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ({}, "no_text"),
        ({"a": None, "m": []}, "no_text"),
        ({"a": 1}, "text_not_string"),
        ({"a": ["x"]}, "text_not_string"),
        ({"m": "x"}, "text_not_string"),
        ({"m": ["x"]}, "text_not_string"),
        ({"m": [{"role": "u", "content": [{"text": "x"}]}]}, "text_not_string"),
        ({"m": [{"role": 1, "content": "x"}]}, "text_not_string"),
    ],
)
def test_records_without_a_text(record, reason):
    with pytest.raises(NoTextError) as raised:
        composed(record, fields=("a",), turns="m")
    assert raised.value.reason == reason


@pytest.mark.parametrize(
    ("record", "reason"), [({"a": " ", "b": ""}, "no_text"), ({"a": "x", "b": 1}, "text_not_string")]
)
def test_records_without_both_sides(record, reason):
    with pytest.raises(NoTextError) as raised:
        composed(record, fields=("a",), target="b")
    assert raised.value.reason == reason


@pytest.mark.parametrize("records", [1, 100])  # fewer are stored one by one
def test_no_text_of_a_record_holds_a_border(read, records):
    sides = {"en": "a\u2029\u2028b", "de": "c\r\n\u2029e\u0301"}
    content = "\n".join([json.dumps(sides)] * records).encode()
    found = read("a.jsonl", content, format="jsonl", text=RecordText(("en",), target="de"))
    assert found.texts == ["a\n\nb\n\u2029c\n\n\u00e9"] * records
    plain = read("a.jsonl", content, format="jsonl", text=RecordText(("en", "de"), join="|"))
    assert plain.texts == ["a\n\nb|c\n\n\u00e9"] * records


def test_every_format_of_records_gives_the_same(read):
    rows = [{"id": n, "title": f"T{n}", "body": f"é{n}", "url": f"https://a.example/{n}"} for n in range(3)]
    rows[1]["title"] = ""
    sink = io.StringIO()
    writer = csv.DictWriter(sink, rows[0])
    writer.writeheader()
    writer.writerows(rows)
    arrow = io.BytesIO()
    table = pa.Table.from_pylist(rows)
    with pa.ipc.new_stream(arrow, table.schema) as stream:
        stream.write_table(table)
    contents = {
        "jsonl": "\n".join(map(json.dumps, rows)), "json": json.dumps(rows), "csv": sink.getvalue(), "arrow": arrow.getvalue()
    }  # fmt: skip
    for kind, content in contents.items():
        data = content if isinstance(content, bytes) else content.encode()
        found = read(f"a.{kind}", data, format=kind, text=RecordText(("title", "body")))
        assert found.texts == ["T0\n\né0", "é1", "T2\n\né2"], kind
        assert found.urls == [row["url"] for row in rows], kind
        assert [json.loads(meta)["id"] for meta in found.metas] == ([0, 1, 2] if kind != "csv" else ["0", "1", "2"]), (
            kind
        )


def test_broken_records(read):
    lines = ['{"a": "x"', '["a"]', '{"a": "\\ud800"}', '{"b": NaN, "a": "ok"}', '{"a": 1e999, "b": "x"}', "{}"]
    found = read("a.jsonl", "\n".join(lines).encode(), format="jsonl", text=RecordText(("a",)))
    assert found.texts == ["ok"]
    assert [each[2] for each in found.bad] == ["not_json", "not_object", "lone_surrogate", "no_text", "no_text"]
    long = json.dumps({"m": [{"role": "r" * 60, "content": "c"}] * 20})
    turns = RecordText(turns="m", template="{role}{role}{role}{content}")
    assert read("b.jsonl", long.encode(), format="jsonl", text=turns, max_document_bytes=2000).bad[0][2] == "oversized"


def test_columns_that_are_missing(read):
    arrow = io.BytesIO()
    table = pa.table({"body": ["x"]})
    with pa.ipc.new_stream(arrow, table.schema) as stream:
        stream.write_table(table)
    with pytest.raises(SourceError, match=r"has no column 'title', which `text` names; its columns are body"):
        read("a.arrow", arrow.getvalue(), format="arrow", text=RecordText(("title", "body")))
    with pytest.raises(SourceError, match="has no field 'title' or 'body'"):
        read("a.csv", b"body\nx\n", format="csv", text=RecordText(("title", "body")))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"text": {}}, "expected `fields` or `turns`"),
        ({"text": {"turns": "m", "template": "x"}}, "expected names of fields in braces"),
        ({"text": {"fields": ["a"]}, "format": "text"}, "records of format text have no fields with texts"),
        ({"text": {"fields": ["a"]}, "text_field": "b"}, "name it among `fields` of `text`"),
        ({"text": {"fields": ["a"]}, "oversized": "split"}, "a text of several fields is not cut"),
        ({"text": {"fields": ["a"]}, "columns": {"a": "int"}}, "the text or the URL of a record"),
    ],
)
def test_fields_that_do_not_fit(fields, message):
    with pytest.raises(ConfigError, match=message.replace("(", r"\(")):
        parse(Source, {"name": "s", "root": "x", "format": "jsonl"} | fields, "c.yaml")
