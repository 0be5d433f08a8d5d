"""Scores computed from columns: exact ranks, the contribution of each column, and invalid input that is
refused.
"""

from functools import partial

import numpy as np
import pyarrow as pa
import pytest
from scipy.stats import rankdata

from gristmill.config import parse
from gristmill.errors import ConfigError, UserError
from gristmill.storage.store import read_json
from pipelines.__main__ import main
from pipelines.cluster.local import LocalCluster
from pipelines.contracts.lineage import open_corpus
from pipelines.stages.decide.pareto_sampling import ParetoSampling
from pipelines.stages.score import rank_sum
from pipelines.stages.score.column_model import ColumnModel, ModelColumn, load_model, probability, save_model
from pipelines.stages.score.score import ColumnScore
from tests.pipelines.scored_corpora import NAMES, build_corpus, fields, rows_of, write_records
from tests.pipelines.scored_corpora import plan_corpus as plan_scored

WEIGHTS = {"good": 2, "bad": -1, "noise": 0.5}
FILTER = "filter: [{signal: score, at_least_quantile: 0.25, null: keep}]"
RANKED = "score: {method: rank_sum, columns: {good: 2, bad: -1, noise: 0.5}}"
plan_corpus = partial(plan_scored, part_bytes=700)  # two parts of each source


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("score")
    write_records(place / "ref.jsonl", 1.0, 50, seed=1)
    write_records(place / "web.jsonl", 0.0, 50, seed=2)
    return place


@pytest.fixture(scope="module")
def ranked(folder):
    return build_corpus(plan_corpus(folder, "ranked", [fields(), RANKED, FILTER]))


def table_of(corpus):
    rows = rows_of(corpus, (*NAMES, "score", "score_contributions", "drop"))
    values = np.array([[row[name] for name in NAMES] for row in rows.values()], float)
    return rows, values


def test_scores_are_weighted_means_of_ranks(ranked):
    rows, values = table_of(ranked)
    ranks = np.full(values.shape, 0.5)
    for column, known in zip(range(len(NAMES)), ~np.isnan(values).T, strict=True):
        ranks[known, column] = (rankdata(values[known, column]) - 0.5) / known.sum()
    ranks[:, 1] = 1 - ranks[:, 1]
    expected = ranks @ np.abs(list(WEIGHTS.values())) / 3.5
    scores = np.array([row["score"] for row in rows.values()], float)
    empty = np.isnan(values).all(1)
    assert np.isnan(scores[empty]).all()
    assert empty.sum() >= 2
    np.testing.assert_allclose(scores[~empty], expected[~empty], rtol=1e-12)
    for row in rows.values():
        if row["score"] is not None:
            assert 0.5 + sum(row["score_contributions"].values()) == pytest.approx(row["score"], abs=1e-6)
            assert all(row["score_contributions"][name] == 0 for name in NAMES if row[name] is None)
    assert {row["score_contributions"] for row in rows.values() if row["score"] is None} == {None}


def test_quantile_rules_and_random_choices_work_on_the_score(ranked):
    rows, _ = table_of(ranked)
    scores = sorted(row["score"] for row in rows.values() if row["score"] is not None)
    threshold = scores[int(0.25 * len(scores))]
    for row in rows.values():
        assert (row["drop"] == "score") is (row["score"] is not None and row["score"] < threshold)
    docs = pa.concat_tables(part.table(("id", "score")) for part in ranked.parts())
    kept = ParetoSampling("score", 0.5).annotate(docs)["drop"].is_null().to_pylist()
    assert all(alive for alive, score in zip(kept, docs["score"].to_pylist(), strict=True) if score is None)
    assert 0 < sum(kept) < len(kept)


@pytest.mark.long
def test_what_if_answers_for_a_score(ranked, folder, capsys):
    assert main(["whatif", str(folder / "ranked.yaml"), "--set", "filter.score.at_least_quantile=0.5", "--full"]) == 0
    lines = capsys.readouterr().out.splitlines()
    plan = plan_corpus(folder, "half", [fields(), RANKED, FILTER.replace("0.25", "0.5")])
    dropped = {
        row["source"]: row["dropped"]["score"] for row in build_corpus(plan).manifest.funnel if row["step"] == "filter"
    }
    told = next(line.split()[1:] for line in lines if line.startswith("score "))
    assert [int(told[2]), int(told[5])] == [dropped["ref"], dropped["web"]]


def test_inspect_shows_what_each_column_contributes(ranked, folder, capsys):
    identifier, row = next((i, r) for i, r in table_of(ranked)[0].items() if r["score"] is not None)
    assert main(["inspect", str(folder / "ranked"), "--doc", identifier]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if "score_contributions" in line)
    for name, number in row["score_contributions"].items():
        assert f"{name} {number:+.3g}" in line


class Backwards(LocalCluster):
    def map(self, function, items, label):
        for position, result in super().map(function, items[::-1], label):
            yield len(items) - 1 - position, result


@pytest.mark.long
@pytest.mark.parametrize(("part_bytes", "rows"), [(150, 4_000_000), (150, 20), (5000, 7), (5000, 1)])
def test_parts_ranges_and_the_order_of_tasks_change_no_score(ranked, folder, monkeypatch, part_bytes, rows):
    monkeypatch.setattr(rank_sum, "ROWS_PER_PARTITION", rows)
    plan = plan_corpus(folder, f"parts{part_bytes}of{rows}", [fields(), RANKED], part_bytes=part_bytes)
    scores = rows_of(build_corpus(plan, Backwards()), ("score", "score_contributions"))
    assert scores == rows_of(ranked, ("score", "score_contributions"))


@pytest.mark.long
def test_a_killed_step_goes_on(folder, ranked, monkeypatch):
    plan = plan_corpus(folder, "killed", [fields(), RANKED], part_bytes=400)

    class Killed(LocalCluster):
        left = 17

        def map(self, function, items, label):
            def killed(item):
                if function.__module__.startswith("pipelines.stages.score"):
                    self.left -= 1
                    if self.left < 0:
                        raise KeyboardInterrupt
                return function(item)

            yield from super().map(killed, items, label)

    for left in (3, 17, 30):
        Killed.left = left
        with pytest.raises(KeyboardInterrupt):
            build_corpus(plan, Killed())
    assert rows_of(build_corpus(plan), ("score",)) == rows_of(ranked, ("score",))
    assert not (plan.config.place / plan.step("score").directory / "work").exists()


@pytest.mark.long
def test_a_dropped_document_is_ranked_and_a_changed_filter_changes_no_score(folder, ranked):
    plans = [
        plan_corpus(folder, f"after{bound}", [fields(), f"filter: [{{signal: good, at_least: {bound}}}]", RANKED])
        for bound in (0, 1)
    ]
    assert len({plan.step("score").fingerprint for plan in plans}) == 1
    assert rows_of(build_corpus(plans[1]), ("score",)) == rows_of(ranked, ("score",))


@pytest.mark.long
def test_a_source_without_a_column_has_the_middle_rank(folder):
    steps = [fields(), f"{fields(['noise']).replace('noise', 'other', 1)}\n    name: more\n    sources: [ref]"]
    plan = plan_corpus(folder, "some", [*steps, "score: {method: rank_sum, columns: {good: 1, other: 1}}"])
    for identifier, row in rows_of(build_corpus(plan), ("other", "score_contributions")).items():
        if identifier.startswith("web") and row["score_contributions"]:
            assert row["score_contributions"]["other"] == 0


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ([fields(["good"]), "score: {method: rank_sum, columns: {good: 1, noise: 1}}"], "reads the column 'noise', which no"),
        (["language: {}", "score: {method: rank_sum, columns: {language: 1}}"], "the column language holds .*string.*, expected"),
        ([fields(), "score: {method: rank_sum, columns: {good: 0}}"], "columns.good: got 0.0, expected a weight"),
        ([fields(), "score: {method: rank_sum}"], "columns: got none, expected the columns to rank"),
        ([fields(), "score: {method: rank_sum, columns: {good: 1}, model: m}"], "model: got 'm' with the method rank_sum"),
        ([fields(), "score: {method: boosted, model: model.pkl}"], "model: got 'model.pkl', expected a directory with"),
        ([fields(), "score: {method: boosted, columns: {good: 1}}"], "columns: got some with the method boosted"),
        ([fields(), "score: {method: rank_sum, columns: {good: 1}, column: text}"], "column: got 'text', expected letters"),
    ],
)  # fmt: skip
def test_mistakes_are_found_by_the_plan(folder, steps, message):
    with pytest.raises(ConfigError, match=message):
        plan_corpus(folder, "wrong", steps)


@pytest.mark.parametrize(
    ("field", "message"),
    [("missing", "the column x has no value in any document"), ("same", r"the column x is 3 in all \d+ documents")],
)
def test_a_column_that_ranks_nothing_is_refused(tmp_path, field, message):
    (tmp_path / "web.jsonl").write_text('{"text": "a", "same": 3}\n{"text": "b", "same": 3}\n{"text": "c"}\n')
    steps = [
        f"record_fields: {{columns: {{x: {{field: {field}, type: float}}}}}}",
        "score: {method: rank_sum, columns: {x: 1}}",
    ]
    with pytest.raises(UserError, match=message):
        build_corpus(plan_corpus(tmp_path, "out", steps, ["web"]))


MEANING = {"stage": "record_fields", "version": 1, "knobs": {}, "depends": {}}


def regression(**arrays):
    columns = tuple(ModelColumn(name, (MEANING,)) for name in ("a", "b"))
    known = {"intercept": [0.5], "means": [1, 2], "scales": [2, 4], "weights": [1, -3], **arrays}
    return ColumnModel("regression", columns, {name: np.array(value, float) for name, value in known.items()})


def trees(**arrays):
    known = {
        "intercept": np.array([0.1]), "roots": np.array([0, 3]), "columns": np.array([0, -1, -1, -1], np.int32),
        "thresholds": np.array([1.5, 0, 0, 0]), "lefts": np.array([1, 0, 0, 0]), "rights": np.array([2, 0, 0, 0]),
        "missing_left": np.array([True, False, False, False]), "expected": np.array([0.25, -1, 1, 0.5]), **arrays,
    }  # fmt: skip
    return ColumnModel("boosted", (ModelColumn("a", (MEANING,)),), known)


def test_a_regression_counts_a_missing_value_as_the_mean(tmp_path):
    save_model(regression(), tmp_path / "m.safetensors")
    model = load_model(tmp_path / "m.safetensors", checksum_of(tmp_path / "m.safetensors"))
    odds, contributions = model.evaluate(np.array([[3, np.nan], [1, 6]]))
    assert odds.tolist() == [1.5, -2.5]
    assert contributions.tolist() == [[1, 0], [0, -3]]
    assert probability(np.array([-800.0, 0.0, 800.0])).tolist() == [0.0, 0.5, 1.0]


def test_trees_send_values_and_missing_ones_as_their_nodes_say():
    odds, contributions = trees().evaluate(np.array([[1.5], [1.6], [np.nan]]))
    assert odds == pytest.approx([-0.4, 1.6, -0.4])
    assert contributions[:, 0].tolist() == [-1.25, 0.75, -1.25]


def checksum_of(path):
    from gristmill.storage.store import file_checksum

    return file_checksum(path)


@pytest.mark.parametrize(
    "model",
    [
        regression(weights=[1.0]), regression(scales=[[1.0, 2.0]]), regression(extra=[1.0]),
        trees(rights=np.array([4, 0, 0, 0])), trees(lefts=np.array([0, 0, 0, 0])), trees(roots=np.array([0, 4])),
        trees(columns=np.array([1, -1, -1, -1], np.int32)), trees(columns=np.array([0, -1, -1, -1])),
        trees(lefts=np.array([-1, 0, 0, 0])), trees(expected=np.zeros(3)),
    ],
)  # fmt: skip
def test_a_model_whose_arrays_do_not_fit_is_refused(tmp_path, model):
    """The kernel does not check bounds, so the arrays must be checked on loading."""
    path = tmp_path / "m.safetensors"
    save_model(model, path)
    with pytest.raises(UserError, match="is not a model of columns"):
        load_model(path, checksum_of(path))


def test_other_files_are_no_models(tmp_path):
    path = tmp_path / "m.safetensors"
    path.write_bytes(b"\x80\x04\x95 a pickle")
    with pytest.raises(UserError, match="is not a model of columns"):
        parse(ColumnScore, {"method": "boosted", "model": str(path)}, "c.yaml")
    save_model(regression(), path)
    with pytest.raises(ConfigError, match=r"method: got 'boosted', but the model in .* is 'regression'"):
        parse(ColumnScore, {"method": "boosted", "model": str(path)}, "c.yaml")
    with pytest.raises(UserError, match=r"its xxh3_128 is .*, but the build was planned with 00"):
        load_model(path, "00")


def test_equal_models_are_equal_files(tmp_path):
    for name in "ab":
        save_model(trees(), tmp_path / f"{name}.safetensors")
    assert (tmp_path / "a.safetensors").read_bytes() == (tmp_path / "b.safetensors").read_bytes()


def test_documents_are_conserved(ranked, folder):
    manifest = read_json(next(folder.glob("ranked/score-*/manifest.json")))
    assert {source: (c["in"], c["kept"], c["dropped"]) for source, c in manifest["counts"].items()} == {
        "ref": (51, 51, {}), "web": (51, 51, {}),
    }  # fmt: skip
    assert manifest["facts"]["documents"] == 102
    assert manifest["facts"]["without_score"] >= 2


@pytest.mark.long
def test_a_forgotten_document_leaves_the_scores_of_the_others(folder, ranked):
    corpus = build_corpus(plan_corpus(folder, "forgot", [fields(), RANKED]))
    before = rows_of(corpus, ("score", "score_contributions"))
    (folder / "ids").write_text("web/web.jsonl#3\n")
    assert main(["forget", str(folder / "forgot"), "--ids", str(folder / "ids")]) == 0
    after = rows_of(open_corpus(folder / "forgot"), ("score", "score_contributions"))
    assert before.pop("web/web.jsonl#3")
    assert after == before
