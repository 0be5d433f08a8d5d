"""Counts add up by rule and by reason, and are written as `in`, `kept`, `dropped`, `quarantined`."""

from dataclasses import replace

import pyarrow as pa

from pipelines.contracts.document_counts import Counts, ReadCounts, count_drops, parse_counts

WEB = Counts(10, 6, {"short": 3}, {"empty": 1})
READ = ReadCounts(5, 4, {}, {"not_json": 1}, 900, 2)


def test_sums_are_by_rule_and_reason():
    assert WEB + Counts(5, 2, {"short": 1, "copy": 2}) == Counts(15, 8, {"short": 4, "copy": 2}, {"empty": 1})
    assert ReadCounts(10, 8, {}, {"not_json": 2}, 1800, 4) == READ + READ
    tweets = replace(READ, replaced={"urls": 3, "user_names": 1})
    assert (tweets + READ + tweets).replaced == {"urls": 6, "user_names": 2}
    assert Counts() + WEB == WEB


def test_a_lost_document_shows():
    assert WEB.left == WEB.arrived
    assert Counts(10, 6, {"short": 3}).left == 9


def test_facts_have_the_names_and_the_order_of_manifests():
    assert list(WEB.facts().items()) == [
        ("in", 10),
        ("kept", 6),
        ("dropped", {"short": 3}),
        ("quarantined", {"empty": 1}),
    ]
    assert list(READ.facts())[4:] == ["decoded_bytes", "control_characters"]
    for counts in (WEB, READ, replace(READ, replaced={"urls": 3})):
        assert parse_counts(counts.facts()) == counts
        assert type(parse_counts(counts.facts())) is type(counts)
    assert Counts.parse(WEB.facts() | {"spans": {}, "spared": 3}) == WEB


def test_drops_of_a_part_are_counted_by_rule():
    table = pa.table({"drop": pa.array(["b", None, "a", "b"])})
    assert count_drops(table) == Counts(4, 1, {"a": 1, "b": 2})
    assert list(count_drops(table).dropped) == ["a", "b"]
    assert count_drops(pa.table({"x": [1, 2]})) == Counts(2, 2)
