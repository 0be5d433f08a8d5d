"""Rights reservations as columns: which declarations count, and for which documents they are known."""

import json

import pyarrow as pa
import pytest

from gristmill.config import parse
from gristmill.errors import ConfigError
from pipelines.stages.measure.reservations import RESERVATIONS, Reservations


def columns(*metas, **knobs):
    texts = pa.array([None if meta is None else json.dumps(meta) for meta in metas], pa.string())
    table = parse(Reservations, knobs, "c.yaml").annotate(pa.table({"meta": texts}))
    assert table.schema == RESERVATIONS
    return table.to_pylist()


def robots(agents=(), **fields):
    return columns({"charset": "utf-8", "replaced": 0, **fields}, agents=list(agents))[0]["robots"]


def test_a_page_that_declares_nothing_reserves_nothing_and_other_documents_are_unknown():
    page, text, record, nothing, read_elsewhere = columns(
        {"charset": "utf-8", "replaced": 0}, {"title": "x"}, {"charset": "utf-8"}, None, {"robots": "noai"}
    )
    assert page == {
        "robots": "",
        "robots_noindex": False,
        "robots_noai": False,
        "tdm_reserved": False,
        "tdm_policy": None,
    }
    assert set(text.values()) == set(record.values()) == set(nothing.values()) == {None}
    assert read_elsewhere["robots_noai"] is True
    assert columns() == []
    assert columns({"charset": "utf-8", "replaced": 0, "robots": "noai", "half": "\ud800"})[0]["robots"] == "noai"


@pytest.mark.parametrize(
    ("field", "values", "found"),
    [
        ("robots", ["NoIndex, nofollow", "noai"], "noai nofollow noindex"),
        ("robots", ["none"], "none"),
        ("robots", ["googlebot: noai"], ""),
        ("x_robots_tag", ["noarchive", "max-snippet: 20, noai"], "max-snippet noai noarchive"),
        ("x_robots_tag", ["ccbot: noindex, noai", "nofollow"], "nofollow"),
        ("x_robots_tag", ["*: noai"], "noai"),
        (
            "x_robots_tag",
            ["noai, unavailable_after: 25 Jun 2026 15:00:00 PST, noindex"],
            "noai noindex unavailable_after",
        ),
        ("x_robots_tag", ["", ",,", "::", "\u0000 <b>"], ""),
    ],
)
def test_directives(field, values, found):
    assert robots(**{field: values}) == found


def test_directives_for_a_crawler_count_if_it_is_named():
    header = ["ccbot: noindex, noai", "gptbot: noarchive"]
    assert robots(["CCBot"], x_robots_tag=header) == "noai noindex"
    assert columns({"x_robots_tag": ["none"]})[0]["robots_noindex"] is True


@pytest.mark.parametrize(("values", "reserved"), [(["1"], True), (["0", "1"], True), (["0"], False), (["yes"], False)])
def test_tdm_reservations(values, reserved):
    row = columns({"tdm_reservation": values, "tdm_policy": ["https://a.example/p.json", "b"]})[0]
    assert (row["tdm_reserved"], row["tdm_policy"]) == (reserved, "https://a.example/p.json")


def test_an_agent_is_a_name():
    with pytest.raises(ConfigError, match=r"agents\[0\]: got 'two words', expected the name of a crawler"):
        columns(agents=["two words"])
