"""`classifier train` with `kind: columns`: both ways of naming classes, both methods, and the stage with the trained model."""

import gzip
import json

import numpy as np
import pytest

from gristmill.errors import ConfigError, UserError
from gristmill.storage.store import read_json
from pipelines.__main__ import main
from pipelines.classifiers.classifier_metrics import roc_auc
from pipelines.classifiers.column_training import BoostedKnobs, Fit, RegressionKnobs, fit_logistic
from pipelines.classifiers.train_classifier import load_classifier_config, train
from pipelines.stages.score.column_model import ModelColumn, load_model, probability
from tests.pipelines.scored_corpora import build_corpus, fields, plan_corpus, rows_of, write_records

COLUMNS = "columns: {good: 1, bad: -1, noise: 0}\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("columns")
    for seed, (name, shift) in enumerate((("ref", 1.0), ("books", 1.2), ("web", -0.2))):
        write_records(place / f"{name}.jsonl", shift, 250, seed)
    build_corpus(plan_corpus(place, "out", [fields()], ("ref", "books", "web"), 4000))
    return place


def write_config(tmp_path, folder, method="regression", classes=None, more=""):
    classes = classes or f'positive: ["{folder}/out:ref", "{folder}/out:books"]\nnegative: ["{folder}/out:web"]\n'
    path = tmp_path / "c.yaml"
    path.write_text(
        f"kind: columns\noutput: {tmp_path}/model\nmethod: {method}\n{COLUMNS}{classes}held_out: 0.3\n{more}"
    )
    return path


def values(count=600, seed=0):
    random = np.random.default_rng(seed)
    rows = random.normal(size=(count, 4))
    rows[:, 3] = np.round(rows[:, 3])
    odds = 1.5 * rows[:, 0] - rows[:, 1] + np.where(rows[:, 3] > 0, rows[:, 2], 0)
    positive = random.random(count) < 1 / (1 + np.exp(-odds))
    rows[random.random(rows.shape) < 0.1] = np.nan
    return rows, positive


def fit_of(method, signs=(0, 0, 0, 0), **boosted):
    columns = tuple(ModelColumn(name, ({},)) for name in "abcd")
    return Fit(method, columns, signs, RegressionKnobs(), BoostedKnobs(**boosted), 0)


@pytest.mark.long
@pytest.mark.parametrize(
    "knobs",
    [{"trees": 40}, {"trees": 3, "leaves": 2}, {"trees": 15, "min_documents": 1, "l2": 3.0, "learning_rate": 0.5}],
)
@pytest.mark.parametrize("signs", [(0, 0, 0, 0), (1, -1, 0, 1)])
def test_exported_trees_predict_as_scikit_learn(knobs, signs):
    ensemble = pytest.importorskip("sklearn.ensemble")
    rows, positive = values()
    model = fit_of("boosted", signs, **knobs).train(rows, positive, np.ones(len(rows)))
    peer = ensemble.HistGradientBoostingClassifier(
        max_iter=knobs["trees"], max_leaf_nodes=knobs.get("leaves", 31), learning_rate=knobs.get("learning_rate", 0.1),
        min_samples_leaf=knobs.get("min_documents", 20), l2_regularization=knobs.get("l2", 0), monotonic_cst=list(signs),
        early_stopping=False, random_state=0,
    ).fit(rows, positive)  # fmt: skip
    other = np.vstack([values(seed=9)[0], np.full((1, 4), np.nan), rows[:5] * 1e9, np.zeros((1, 4))])
    odds, contributions = model.evaluate(other)
    np.testing.assert_allclose(probability(odds), peer.predict_proba(other)[:, 1], rtol=0, atol=1e-6)
    rest = odds - contributions.sum(1)
    np.testing.assert_allclose(rest, rest[0], atol=1e-9)  # what no column contributes is the same for all


@pytest.mark.long
def test_a_regression_is_scikit_learns():
    linear = pytest.importorskip("sklearn.linear_model")
    rows, positive = values()
    model = fit_of("regression").train(rows, positive, np.ones(len(rows)))
    standard = np.nan_to_num((rows - np.nanmean(rows, 0)) / np.nanstd(rows, 0))
    peer = linear.LogisticRegression(C=1.0, tol=1e-10, max_iter=10_000).fit(standard, positive)
    np.testing.assert_allclose(model.arrays["weights"], peer.coef_[0], atol=1e-6)
    np.testing.assert_allclose(probability(model.evaluate(rows)[0]), peer.predict_proba(standard)[:, 1], atol=1e-6)


def test_a_weight_of_the_wrong_sign_is_0_and_the_others_fit_without_it():
    rows, positive = values()
    rows = np.nan_to_num(rows)
    ones = np.ones(len(rows))
    free, bound = (fit_logistic(rows, positive, ones, signs, 1.0) for signs in ((0, 0, 0, 0), (-1, -1, 1, 0)))
    assert free[1] > 0.5
    assert bound[1] == 0
    np.testing.assert_allclose(
        np.delete(bound, 1), fit_logistic(rows[:, 1:], positive, ones, (-1, 1, 0), 1.0), atol=1e-7
    )


def test_a_weighted_document_counts_as_often():
    rows, positive = values(80)
    rows, weights = np.nan_to_num(rows), np.random.default_rng(0).integers(1, 4, 80)
    often = np.repeat(np.arange(80), weights)
    signs = (0, 1, -1, 0)
    weighted = fit_logistic(rows, positive, weights.astype(float), signs, 0.5)
    np.testing.assert_allclose(
        weighted, fit_logistic(rows[often], positive[often], np.ones(len(often)), signs, 0.5), atol=1e-8
    )


@pytest.mark.long
@pytest.mark.parametrize("method", ["regression", "boosted"])
def test_a_contrast_of_sources_trains_a_model_that_the_stage_uses(folder, tmp_path, capsys, method):
    if method == "boosted":
        pytest.importorskip("sklearn")
    path = write_config(tmp_path, folder, method, more="balance: sources\nboosted: {trees: 20}\n")
    assert main(["classifier", "train", str(path)]) == 0
    out = capsys.readouterr().out
    facts = read_json(tmp_path / "model" / "metrics.json")
    assert f"ROC-AUC {facts['held_out']['roc_auc']:.4f}" in out
    assert facts["held_out"]["roc_auc"] > 0.85
    assert facts["contributions"]["good"] > facts["contributions"]["noise"]
    assert [entry["source"] for entry in facts["leave_one_source_out"]] == ["scored:ref", "scored:books"]
    assert facts["learned"] == "class"
    card = (tmp_path / "model" / "MODEL_CARD.md").read_text()
    assert "| good | up | " in card
    assert facts["model"]["xxh3_128"] in card
    plan = plan_corpus(folder, f"{method}-use", [fields(), f"score: {{method: {method}, model: {tmp_path}/model}}"])
    rows = rows_of(build_corpus(plan), ("good", "bad", "noise", "score", "score_contributions"))
    model = load_model(tmp_path / "model" / "model.safetensors", facts["model"]["xxh3_128"])
    numbers = np.array([[row[name] for name in ("good", "bad", "noise")] for row in rows.values()], float)
    known = ~np.isnan(numbers).all(1)
    scores = np.array([row["score"] for row in rows.values()], float)
    assert (np.isnan(scores) == ~known).all()
    np.testing.assert_array_equal(scores[known], probability(model.evaluate(numbers[known])[0]))
    assert roc_auc(scores[known], np.array([name.startswith("ref") for name in rows])[known]) > 0.85


def test_training_again_gives_the_same_file(folder, tmp_path):
    path = write_config(tmp_path, folder)
    train(load_classifier_config(path, []), overwrite=False)
    first = (tmp_path / "model" / "model.safetensors").read_bytes()
    train(load_classifier_config(path, []), overwrite=True)
    assert (tmp_path / "model" / "model.safetensors").read_bytes() == first
    train(load_classifier_config(path, ["seed=3"]), overwrite=True)
    assert (tmp_path / "model" / "model.safetensors").read_bytes() != first


@pytest.fixture
def labels(folder, tmp_path):
    """A file of labels for 200 documents of `web`: positive where the column `good` is above 0."""
    rows = rows_of(build_corpus(plan_corpus(folder, "out", [fields()], ("ref", "books", "web"), 4000)), ("good",))
    web = [(name, row["good"]) for name, row in rows.items() if name.startswith("web/")][:200]
    file = tmp_path / "labels.jsonl.gz"
    entries = [{"id": name, "label": "positive" if (good or 0) > 0 else "negative"} for name, good in web]
    file.write_bytes(gzip.compress("".join(f"{json.dumps(entry)}\n" for entry in entries).encode()))
    return file


def label_classes(folder, file):
    return f'labels: ["{file}"]\ncorpora: ["{folder}/out"]\n'


def test_labelled_ids_train_a_model(folder, tmp_path, labels):
    facts = train(
        load_classifier_config(write_config(tmp_path, folder, classes=label_classes(folder, labels)), []),
        overwrite=True,
    )
    assert sum(c["train"] + c["held_out"] for c in facts["classes"].values()) == 200
    assert [source["source"] for c in facts["classes"].values() for source in c["sources"]] == ["web", "web"]
    assert facts["held_out"]["roc_auc"] > 0.9
    assert "| positive | scored | web |" in (tmp_path / "model" / "MODEL_CARD.md").read_text()


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ('{"id": "web/web.jsonl#1", "label": "positive"}\n{"id": "web/web.jsonl#9999", "label": "negative"}\n',
         r"l.jsonl:2: the corpora in `corpora` have no document with this id \(1 of 2 labels have none\)"),
        ('{"id": "web/web.jsonl#1", "label": "positive"}\n', r"labels: all 1 labels are positive; a classifier needs"),
        ('{"id": "web/web.jsonl#1", "label": "good"}\n', r'l.jsonl:1: expected {"id": "SOURCE/PATH#RECORD", "label"'),
        ('\n["web/web.jsonl#1"]\n', r"l.jsonl:2: expected"),
        ('{"id": "web", "label": "negative"}\n', r"l.jsonl:1: the id is not of the form source/path#record"),
        ('{"id": "web/a#1", "label": "negative"}\n{"id": "web/a#1", "label": "positive"}\n',
         r"l.jsonl:2: this id has another label in .*l.jsonl:1"),
        ("", r"labels: .*l.jsonl hold no label"),
    ],
)  # fmt: skip
def test_files_of_labels_that_do_not_fit(folder, tmp_path, lines, message):
    (tmp_path / "l.jsonl").write_text(lines)
    path = write_config(tmp_path, folder, classes=label_classes(folder, tmp_path / "l.jsonl"))
    with pytest.raises(UserError, match=message):
        train(load_classifier_config(path, []), overwrite=False)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("columns={goof: 1}", r"columns.goof: the source 'ref' of the corpus 'scored' has no such column; did you mean 'good'"),
        ('negative=["{out}:ref"]', r"negative: the source 'ref' of the corpus 'scored' is also in positive"),
        ("documents_per_class=15", r"positive: \d+ documents for training and \d+ held out, expected at least 10 of each"),
    ],
)  # fmt: skip
def test_contrasts_that_do_not_fit(folder, tmp_path, change, message):
    config = load_classifier_config(write_config(tmp_path, folder), [change.replace("{out}", f"{folder}/out")])
    with pytest.raises(UserError, match=message):
        train(config, overwrite=False)


@pytest.mark.long
def test_a_constant_column_is_refused(tmp_path):
    for name in ("ref", "web"):
        rows = [json.dumps({"text": f"{name} {number}", "same": 7, "size": number}) for number in range(60)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(rows))
    build_corpus(plan_corpus(tmp_path, "out", [fields(["same", "size"])]))
    classes = f'positive: ["{tmp_path}/out:ref"]\nnegative: ["{tmp_path}/out:web"]\n'
    path = write_config(tmp_path, tmp_path, classes=classes)
    with pytest.raises(UserError, match=r"columns.same: is 7 in all \d+ training documents; leave it out"):
        train(load_classifier_config(path, ["columns={size: 0, same: 0}"]), overwrite=False)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("columns={}", "columns: got none"),
        ("columns.good=2", "columns.good: got 2, expected 1, -1 or 0"),
        ("labels=[a.jsonl]", "positive: expected `positive` and `negative`, or `labels` and `corpora`; got labels, negative"),
        ("method=forest", "method: got 'forest', expected one of"),
        ("regression.l2=0", "regression.l2: got 0.0, expected a number above 0"),
        ("boosted.leaves=1", "boosted.leaves: got 1, expected 2 or more"),
        ("kind=column", "kind: got 'column', expected one of .*'embeddings', 'columns'; did you mean 'columns'"),
    ],
)  # fmt: skip
def test_configurations_out_of_range(folder, tmp_path, change, message):
    with pytest.raises(ConfigError, match=message):
        load_classifier_config(write_config(tmp_path, folder), [change])


def test_columns_that_mean_something_else_are_refused_by_the_plan(folder, tmp_path):
    train(load_classifier_config(write_config(tmp_path, folder), []), overwrite=False)
    score = f"score: {{method: regression, model: {tmp_path}/model}}"
    other = fields().replace('"field": "good"', '"field": "noise"')
    with pytest.raises(
        ConfigError,
        match=r"the column 'good' of ref is not the one that .*: knobs.columns.good.field is 'noise' here and was 'good' there",
    ):
        plan_corpus(folder, "other", [other, score])
    again = plan_corpus(folder, "same", [fields(), score], ("web",), 9000)
    assert again.step("score").identity["depends"].keys() == {"model xxh3_128"}
    assert str(tmp_path) not in json.dumps(again.step("score").identity)
    with pytest.raises(ConfigError, match="reads the column 'bad', which no earlier step writes"):
        plan_corpus(folder, "less", [fields(["good"]), score])


def test_without_scikit_learn_the_command_that_installs_it_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "sklearn.ensemble", None)
    rows, positive = values(40)
    with pytest.raises(UserError, match=r"scikit-learn, which is not installed; run: pip install .*probe"):
        fit_of("boosted").train(rows, positive, np.ones(40))
