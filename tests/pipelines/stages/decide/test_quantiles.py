import json

import numpy as np
import pyarrow as pa
import pytest

from gristmill.errors import ConfigError
from pipelines.building.build import build
from pipelines.cluster.local import LocalCluster
from pipelines.contracts.document import document_id, file_key
from pipelines.contracts.lineage import open_corpus
from pipelines.planning.corpus import load_corpus_config
from pipelines.planning.inventory import take_inventory
from pipelines.planning.plan import make_plan
from pipelines.stages.decide.quantiles import _keys, _Task, _value, count_values
from pipelines.stages.decide.rules import Quantile


def built(tmp_path, rules, part_bytes=8000, name="q", before="", poison=None):
    """Build two sources of documents with known word counts, up to the filter; return the rows (source, word
    count and drop) and the plan.
    """
    for source, sizes in (("a", range(1, 61)), ("b", [5] * 20 + [*range(100, 140)])):
        root = tmp_path / "raw" / source
        root.mkdir(parents=True, exist_ok=True)
        (root / "x.jsonl").write_text("".join(json.dumps({"text": "word " * n, "id": n}) + "\n" for n in sizes))
    path = tmp_path / f"{name}.yaml"
    path.write_text(
        f"name: q\noutput: {tmp_path}/{name}\nsources:\n"
        + "".join(
            f"  - {{name: {s}, root: {tmp_path}/raw/{s}, format: jsonl, part_bytes: {part_bytes}}}\n" for s in "ab"
        )
        + f"steps:\n  - quality_signals: {{}}\n{before}  - filter: {json.dumps(rules)}\n"
    )
    config = load_corpus_config(path)
    plan = make_plan(config, take_inventory(config.sources, tmp_path / name), poison)
    build(plan, LocalCluster(), lambda line: None)
    corpus = open_corpus(tmp_path / name)
    table = pa.concat_tables(
        part.table(("source", "word_count", "drop")).cast(
            pa.schema([("source", pa.string()), ("word_count", pa.int32()), ("drop", pa.string())])
        )
        for source in "ab"
        for part in corpus.parts(source)
    )
    return table.to_pylist(), plan


def kept(rows, source=None):
    return [row["word_count"] for row in rows if row["drop"] is None and source in (None, row["source"])]


@pytest.mark.parametrize(("signal", "kind"), [("url", "string"), ("url_blocked", "bool")])
def test_a_quantile_of_a_column_without_an_order_is_refused_before_the_build(tmp_path, signal, kind):
    rules = [{"signal": "word_count", "at_least": 1, "name": "before"}, {"signal": signal, "at_least_quantile": 0.5}]
    before = "  - url_rules: {}\n"
    with pytest.raises(ConfigError, match=f"filter: {signal} holds {kind}, a quantile needs numbers or dates"):
        built(tmp_path, rules, before=before)


def test_groups_by_a_column_of_lists_are_refused_before_the_build(tmp_path):
    rules = [{"signal": "word_count", "at_least_quantile": 0.5, "per": "language_paragraphs"}]
    with pytest.raises(
        ConfigError, match=r"filter: per: language_paragraphs holds list<.*expected texts, numbers, dates"
    ):
        built(tmp_path, rules, before="  - language: {paragraphs: true}\n")


def test_a_quantile_over_the_corpus_is_the_order_statistic(tmp_path):
    rows, _ = built(tmp_path, [{"signal": "word_count", "at_least_quantile": 0.75, "at_most_quantile": 0.9}])
    every = sorted(row["word_count"] for row in rows)
    low, high = every[int(0.75 * len(every))], every[int(np.ceil(0.9 * len(every))) - 1]
    assert sorted(kept(rows)) == [count for count in every if low <= count <= high]
    assert {row["drop"] for row in rows} == {None, "word_count"}


def test_a_document_withheld_from_the_filter_leaves_the_thresholds_as_they_are(tmp_path):
    rules = [{"signal": "word_count", "at_least_quantile": 0.75}]
    expected, _ = built(tmp_path, rules)
    aside = document_id(file_key("a", "x.jsonl"), 59)
    found, _ = built(tmp_path, rules, name="aside", poison={("filter", "a"): (aside.hex(),)})
    assert [row["drop"] for row in found] == [*(row["drop"] for row in expected[:59]), "poison"] + [
        row["drop"] for row in expected[60:]
    ]


@pytest.mark.long
def test_a_quantile_per_source_keeps_ties_together(tmp_path):
    rows, _ = built(tmp_path, [{"signal": "word_count", "at_least_quantile": 0.2, "per": "source"}])
    assert kept(rows, "a") == list(range(13, 61))
    assert len(kept(rows, "b")) == 60  # a third are fives: the fifth lowest is one, and all of them stay


@pytest.mark.long
def test_parts_do_not_matter_and_earlier_drops_do(tmp_path):
    rules = [{"signal": "word_count", "at_least_quantile": 0.5}]
    assert built(tmp_path, rules)[0] == built(tmp_path, rules, 2500, "small")[0]
    dropped = built(
        tmp_path, rules, name="first", before="  - filter: [{signal: word_count, at_least: 50}]\n    name: f\n"
    )
    # 11 documents of a with 50 to 60 words and 40 of b are left; the median is over them.
    assert sorted(kept(dropped[0])) == sorted([*range(50, 61), *range(100, 140)])[25:]


@pytest.mark.long
@pytest.mark.timeout(120)
def test_a_group_for_every_document_costs_a_sort():
    count = 30_000
    table = pa.table({"x": np.arange(count), "name": [f"n{i % 15_000}" for i in range(count)]})

    class Whole:
        rows = count

        def table(self, names):
            return table.select(names)

        def drop(self):
            return pa.nulls(count, pa.string())

    request = Quantile("x", "at_least", 0.5, "name")
    found = count_values(_Task(Whole(), (request,), None))
    assert len(found) == 15_000
    assert all(sum(counts.values()) == 2 for counts in found.values())
    bins = {at: next(iter(counts)) for at, counts in found.items()}
    fine = count_values(_Task(Whole(), (request,), bins))
    assert [_value(key, pa.int32()) for key in fine[0, "n7"]] == [7, 15_007]


def test_the_plan_computes_thresholds_in_a_step_of_their_own(tmp_path):
    _, plan = built(tmp_path, [{"signal": "word_count", "at_least_quantile": 0.5}])
    assert plan.step("filter.a").files == {"quantiles": "filter_quantiles"}
    assert plan.step("filter_quantiles").identity["knobs"]["requests"][0]["q"] == 0.5


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ({"signal": "word_count", "at_least_quantile": 1.5}, "at_least_quantile: got 1.5, allowed from 0 to 1"),
        (
            {"signal": "word_count", "at_least": 1, "per": "source"},
            "per: got 'source' without a quantile or a mapping of bounds",
        ),
        ({"signal": "word_count", "at_least_quantile": 0.5, "per": "sourc"}, "reads the column 'sourc'"),
    ],
)
def test_mistakes(tmp_path, rule, message):
    with pytest.raises(ConfigError, match=message):
        built(tmp_path, [rule])


def test_keys_order_as_values_do():
    values = [-np.inf, -1e300, -1.5, -1e-320, -0.0, 1e-320, 0.1, 0.5, 1.0, 3e10, np.inf]
    keys = _keys(pa.array([*values, None, float("nan")])).tolist()
    assert keys == sorted(keys)
    assert [_value(key, pa.float64()) for key in keys] == values
    for whole, kind in (
        ([-(2**63), -5, 0, 7, 2**62 + 1], pa.int64()),
        ([0, 7, 2**63, 2**64 - 1], pa.uint64()),
    ):
        assert [_value(key, kind) for key in sorted(_keys(pa.array(whole, kind)).tolist())] == whole


@pytest.mark.parametrize("count", [1, 2, 9, 10, 11, 50, 100, 1000])
def test_ranks_keep_the_share_they_name(count):
    """As it is written: 0.14 of 50 is 7, though 0.14 * 50 is a little more."""
    values = np.arange(count)
    for q, thousandths in ((n / 1000, n) for n in range(1001)):
        upper = values >= values[Quantile("x", "at_least", q, "").rank(count)]
        lower = values <= values[Quantile("x", "at_most", q, "").rank(count)]
        assert upper.sum() == max(count - thousandths * count // 1000, 1)
        assert lower.sum() == max(-(-thousandths * count // 1000), 1)
