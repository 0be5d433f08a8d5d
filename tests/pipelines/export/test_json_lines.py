"""JSON lines of an export: dates, and numbers that JSON cannot represent."""

import gzip
import io
import json
import math
from datetime import datetime

import pyarrow as pa

import pipelines
from pipelines.__main__ import main
from pipelines.export.export_formats import write_jsonl


def test_dates_are_iso_8601_and_numbers_are_those_of_json():
    days = [datetime(2015, 3, 4), datetime(1969, 12, 31, 23, 59, 59, 250_000), None]
    table = pa.table(
        {
            "created": pa.array(days, pa.timestamp("us")),
            "day": pa.array(days, pa.timestamp("us")).cast(pa.date32(), safe=False),
            "score": pa.array([math.nan, -math.inf, 0.5], pa.float32()),
            "open": [True, None, False],
        }
    )
    sink = io.BytesIO()
    write_jsonl(table.schema, sink, iter([table]))
    rows = [json.loads(line, parse_constant=float.fromhex) for line in gzip.decompress(sink.getvalue()).splitlines()]
    assert rows == [
        {"created": "2015-03-04T00:00:00", "day": "2015-03-04", "score": None, "open": True},
        {"created": "1969-12-31T23:59:59.250000", "day": "1969-12-31", "score": None, "open": None},
        {"created": None, "day": None, "score": 0.5, "open": False},
    ]


def test_dates_that_python_lacks_are_null():
    kinds = [
        pa.date32(),
        pa.date64(),
        *(pa.timestamp(unit, zone) for unit in ("s", "ms", "us") for zone in (None, "UTC")),
    ]
    days = pa.array([-719_163, -719_162, 2_932_896, 2_932_897], pa.int32()).cast(pa.date32())
    table = pa.table([days.cast(kind) for kind in kinds], [str(kind) for kind in kinds])
    sink = io.BytesIO()
    write_jsonl(table.schema, sink, iter([table]))
    rows = [json.loads(line) for line in gzip.decompress(sink.getvalue()).splitlines()]
    assert [{value and value[:10] for value in row.values()} for row in rows] == [
        {None}, {"0001-01-01"}, {"9999-12-31"}, {None},
    ]  # fmt: skip
    zones = ("Asia/Tokyo", "-05:00")  # there, the first and the last day begin or end outside the range
    table = pa.table([days[1:3].cast(pa.timestamp("s")).cast(pa.timestamp("s", zone)) for zone in zones], zones)
    write_jsonl(table.schema, sink := io.BytesIO(), iter([table]))
    assert set(gzip.decompress(sink.getvalue()).splitlines()) == {b'{"Asia/Tokyo": null, "-05:00": null}'}


def test_columns_with_dates_can_be_read_again(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [{"text": f"text {n}", "created": f"2015-03-0{n + 1}T05:06:07+02:00", "score": n} for n in range(3)]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    corpus = """
name: mine
output: {output}
sources: [{{name: s, root: {root}, format: jsonl, columns: {{created: date, score: int}}}}]
steps:
  - text_hash: {{}}
  - dedup_exact: {{}}
  - learn_tokenizer: {{kind: bytes}}
  - shards: {{tokenizer: learn_tokenizer}}
"""
    (tmp_path / "a.yaml").write_text(corpus.format(output="first", root="a.jsonl"))
    first = pipelines.build("a.yaml", in_process=True)
    assert main(["export", "first", "lines", "--format", "jsonl", "--columns", "created,score"]) == 0
    (tmp_path / "b.yaml").write_text(corpus.format(output="second", root="lines/data"))
    second = pipelines.build("b.yaml", in_process=True)
    columns = ["text", "created", "score"]
    read = [each.documents(columns[1:]).read_all().select(columns) for each in (first, second)]
    assert read[0].equals(read[1])
    assert read[0]["created"][0].as_py() == datetime(2015, 3, 1, 3, 6, 7)
