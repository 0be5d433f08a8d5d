"""`classifier train` with `kind: embeddings`: fits against scikit-learn, and the stage with the trained model."""

import json
import random

import numpy as np
import pyarrow as pa
import pytest
from scipy.stats import spearmanr

from gristmill.config import parse
from gristmill.errors import ConfigError, UserError
from gristmill.storage.store import file_checksum, read_json
from pipelines.__main__ import main
from pipelines.classifiers.column_examples import ColumnExamples
from pipelines.classifiers.train_classifier import load_classifier_config, train
from pipelines.classifiers.train_embeddings import EmbeddingClassifierConfig, fit_embeddings
from pipelines.contracts.stage import annotate_checked
from pipelines.stages.score.column_model import ModelColumn
from pipelines.stages.score.embedding_classifier import EmbeddingClassifier
from pipelines.stages.score.embedding_model import EmbeddingModel, load_embedding_model, save_embedding_model
from tests.pipelines.scored_corpora import build_corpus, plan_corpus, rows_of
from tests.pipelines.stages.dedup.test_dedup_spans import Backwards
from tests.pipelines.stages.score.small_encoder import save_encoder

GOOD, BAD = ["milla", "stono", "river"], ["sacka", "breado", "dusta"]
FILLER = ["beama", "gearo", "floura", "watero"]


def examples_of(count=400, width=12, seed=0):
    rng = np.random.default_rng(seed)
    values = rng.normal(size=(count, width)) * rng.uniform(0.1, 2, width)
    targets = values @ rng.normal(size=width) + rng.normal(size=count) + 2
    column = ModelColumn("embedding", ({"stage": "transformer_embeddings"},))
    held_out = np.arange(count) % 5 == 0
    return ColumnExamples((column,), values, targets, targets >= 2, held_out, np.zeros(count, int), ("c:s",), {})


def knobs(l2, scores=()):
    return EmbeddingClassifierConfig("o", scores=scores, threshold=2.0 if scores else None, l2=l2)


@pytest.mark.parametrize("l2", [0.5, 10.0])
def test_models_are_scikit_learns(l2):
    linear = pytest.importorskip("sklearn.linear_model")
    examples = examples_of()
    rows = ~examples.held_out
    values = examples.values[rows]
    standard = (examples.values - values.mean(0)) / values.std(0)
    peer = linear.LogisticRegression(C=1 / l2, tol=1e-10, max_iter=10_000).fit(standard[rows], examples.positive[rows])
    found, _ = fit_embeddings(examples, rows, knobs(l2)).score(examples.values)
    np.testing.assert_allclose(found, peer.predict_proba(standard)[:, 1], atol=1e-6)
    ridge = linear.Ridge(alpha=l2).fit(standard[rows], examples.targets[rows])
    found, _ = fit_embeddings(examples, rows, knobs(l2, ("s.jsonl",))).score(examples.values)
    np.testing.assert_allclose(found, ridge.predict(standard), atol=1e-9)


def test_contributions_sum_to_the_value_and_rows_do_not_depend_on_each_other():
    examples = examples_of()
    model = fit_embeddings(examples, ~examples.held_out, knobs(1.0))
    vectors = examples.values.astype(np.float16)
    values, contributions = model.evaluate(vectors)
    np.testing.assert_allclose(values, model.arrays["intercept"][0] + contributions.sum(1), atol=1e-12)
    assert [model.evaluate(vectors[[row]])[0][0] for row in range(50)] == values[:50].tolist()
    axis = np.diff(
        [examples.values[~examples.held_out & (examples.positive == side)].mean(0) for side in (False, True)], axis=0
    )
    offsets = vectors - model.arrays["center"]
    along = offsets @ axis[0] * (model.arrays["weights"] @ axis[0]) / (axis[0] @ axis[0])
    np.testing.assert_allclose(contributions[:, 0], along, atol=1e-9)


def test_a_number_that_is_the_same_in_all_training_documents_has_no_weight():
    examples = examples_of()
    examples.values[:, 3] = 0.1
    other = examples.values[:5].copy()
    other[:, 3] = 0.2
    for scores in ((), ("s.jsonl",)):
        model = fit_embeddings(examples, ~examples.held_out, knobs(1.0, scores))
        np.testing.assert_allclose(model.score(other)[0], model.score(examples.values[:5])[0], atol=1e-9)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A directory with an encoder, a built corpus `out`, and judged scores. The sources `ref` and `books`
    have mostly good words, `web` mostly bad ones.
    """
    place = tmp_path_factory.mktemp("vectors")
    save_encoder(place / "encoder")
    draw, scores = random.Random(5), []
    for name, share in (("ref", 0.8), ("books", 0.8), ("web", 0.2)):
        lines = []
        for number in range(120):
            good = sum(draw.random() < share for _ in range(8))
            words = [draw.choice(GOOD) for _ in range(good)] + [draw.choice(BAD) for _ in range(8 - good)]
            words += draw.choices(FILLER, k=3)
            draw.shuffle(words)
            lines.append(json.dumps({"text": " ".join(words)}))
            scores.append({"id": f"{name}/{name}.jsonl#{number}", "score": good / 2})
        lines.append(json.dumps({"text": "milla that nobody judged"}))
        (place / f"{name}.jsonl").write_text("".join(f"{line}\n" for line in lines))
    (place / "scores.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in scores))
    build_corpus(plan_corpus(place, "out", [embed(place)], ("ref", "books", "web"), 2000))
    return place


def embed(place, tokens=32):
    return f"transformer_embeddings: {{model: {place}/encoder, max_tokens: {tokens}}}"


def write_config(tmp_path, folder, documents=None):
    documents = documents or f'positive: ["{folder}/out:ref", "{folder}/out:books"]\nnegative: ["{folder}/out:web"]\n'
    path = tmp_path / "c.yaml"
    path.write_text(f"kind: embeddings\noutput: {tmp_path}/model\n{documents}held_out: 0.3\n")
    return path


@pytest.mark.long
def test_a_contrast_trains_a_model_that_the_stage_uses_and_inspect_explains(folder, tmp_path, capsys):
    assert main(["classifier", "train", str(write_config(tmp_path, folder))]) == 0
    facts = read_json(tmp_path / "model" / "metrics.json")
    assert f"ROC-AUC {facts['held_out']['roc_auc']:.4f} on held-out" in capsys.readouterr().out
    assert facts["held_out"]["roc_auc"] > 0.95
    assert [entry["source"] for entry in facts["leave_one_source_out"]] == ["scored:ref", "scored:books"]
    assert facts["learned"] == "class"
    card = (tmp_path / "model" / "MODEL_CARD.md").read_text()
    assert "logistic regression of the 32 numbers of `embedding`" in card
    use = f"embedding_classifier: {{model: {tmp_path}/model}}"
    steps = [embed(folder), use, "filter: [{signal: embedding_score, at_least_quantile: 0.5, null: keep}]"]
    plan = plan_corpus(folder, "use", steps, ("ref", "web"))
    corpus = build_corpus(plan)
    rows = rows_of(corpus, ("embedding", "embedding_score", "embedding_score_contributions", "drop"))
    means = [
        np.mean([row["embedding_score"] for name, row in rows.items() if name.startswith(source)])
        for source in ("ref", "web")
    ]
    assert means[0] > 0.8 > 0.2 > means[1]
    constants = [
        np.log(row["embedding_score"] / (1 - row["embedding_score"]))
        - sum(row["embedding_score_contributions"].values())
        for row in rows.values()
        if 0.001 < row["embedding_score"] < 0.999
    ]
    np.testing.assert_allclose(constants, constants[0], atol=1e-3)
    assert main(["inspect", str(folder / "use"), "--doc", "ref/ref.jsonl#1"]) == 0
    assert "between_means +" in capsys.readouterr().out
    parts = plan_corpus(folder, "parts", steps, ("ref", "web"), part_bytes=700)
    assert rows_of(build_corpus(parts, Backwards()), ("embedding_score", "drop")) == {
        name: {each: row[each] for each in ("embedding_score", "drop")} for name, row in rows.items()
    }
    first = file_checksum(tmp_path / "model" / "model.safetensors")
    train(load_classifier_config(tmp_path / "c.yaml", []), overwrite=True)
    assert file_checksum(tmp_path / "model" / "model.safetensors") == first


@pytest.mark.long
def test_a_document_without_a_vector_has_no_score_and_trains_nothing(folder, tmp_path):
    model = EmbeddingModel("logistic", ModelColumn("embedding", ({},)), {
        "center": np.zeros(2), "weights": np.ones(2), "axis": np.array([1.0, 0.0]), "intercept": np.zeros(1),
    })  # fmt: skip
    save_embedding_model(model, tmp_path / "model.safetensors")
    stage = EmbeddingClassifier(str(tmp_path))
    kind = pa.list_(pa.float16(), 2)
    for vectors, scores in (([None, [0, 0], None], [None, 0.5, None]), ([None], [None]), ([], [])):
        found = annotate_checked(stage, pa.table({"embedding": pa.array(vectors, kind)}))
        assert found["embedding_score"].to_pylist() == scores
        assert [each is None for each in found["embedding_score_contributions"].to_pylist()] == [
            s is None for s in scores
        ]
    some = f"{embed(folder)}\n    sources: [web]"
    build_corpus(plan_corpus(folder, "some", [some], ("ref", "web")))
    config = load_classifier_config(write_config(tmp_path, folder), [f'positive=["{folder}/some:ref"]'])
    with pytest.raises(
        UserError, match=r"embedding: embedding: the source 'ref' of the corpus 'scored' has no such column"
    ):
        train(config, overwrite=True)


def test_vectors_of_another_encoder_are_refused_by_the_plan(folder, tmp_path):
    train(load_classifier_config(write_config(tmp_path, folder), []), overwrite=False)
    use = f"embedding_classifier: {{model: {tmp_path}/model}}"
    with pytest.raises(
        ConfigError, match=r"the column 'embedding' of ref is not the one .*: knobs.max_tokens is 16 here"
    ):
        plan_corpus(folder, "other", [embed(folder, 16), use])
    with pytest.raises(ConfigError, match="reads the column 'embedding', which no earlier step writes"):
        plan_corpus(folder, "none", [use])
    vector = '{"columns": {"embedding": {"field": "score", "type": "float"}}}'
    with pytest.raises(ConfigError):
        plan_corpus(folder, "numbers", [f"record_fields: {vector}", use])


@pytest.mark.long
def test_a_judges_scores_train_a_ridge_regression(folder, tmp_path, capsys):
    documents = f'scores: ["{folder}/scores.jsonl"]\nthreshold: 2.5\ncorpora: ["{folder}/out"]\n'
    assert main(["classifier", "train", str(write_config(tmp_path, folder, documents))]) == 0
    facts = read_json(tmp_path / "model" / "metrics.json")
    held = facts["held_out"]
    assert f"Spearman {held['spearman']:.4f}, F1 {held['f1']:.4f}" in capsys.readouterr().out
    assert held["spearman"] > 0.9
    assert held["f1"] > 0.85
    assert [entry["source"] for entry in facts["by_source"]] == ["scored:ref", "scored:books", "scored:web"]
    assert all("spearman_left_out" in entry for entry in facts["by_source"][:2])
    assert facts["learned"] == "class"
    assert facts["warnings"][0].startswith("3 of 363 kept documents")
    card = (tmp_path / "model" / "MODEL_CARD.md").read_text()
    assert f"| Spearman's rank correlation | {held['spearman']:.4f} |" in card
    assert "ridge regression of the 32 numbers" in card
    plan = plan_corpus(
        folder, "judged", [embed(folder), f"embedding_classifier: {{model: {tmp_path}/model, column: edu}}"]
    )
    rows = rows_of(build_corpus(plan), ("edu",))
    given = {each["id"]: each["score"] for each in map(json.loads, (folder / "scores.jsonl").read_text().splitlines())}
    both = [(row["edu"], given[name]) for name, row in rows.items() if name in given]
    assert len(both) == 240
    assert spearmanr(both).statistic > 0.9
    assert np.abs(np.diff(both)).mean() < 0.5


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("threshold=1", "threshold: got 1.0, expected a number with `scores`, and none without"),
        ("scores=[a.csv]", "positive: expected `positive` and `negative`, or .*; got negative, positive, scores"),
        ("l2=0", "l2: got 0.0, expected a number above 0"),
        ("held_out=0", "held_out: got 0.0, expected a number between 0 and 1"),
        ("documents_per_class=0", "documents_per_class: got 0, expected 1 or more"),
    ],
)
def test_configurations_out_of_range(folder, tmp_path, change, message):
    with pytest.raises(ConfigError, match=message):
        load_classifier_config(write_config(tmp_path, folder), [change])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            "embedding=embeding",
            r"embedding: embeding: the source 'ref' .* has no such column; did you mean 'embedding'",
        ),
        ("documents_per_class=15", r"positive: \d+ documents for training and \d+ held out, expected at least 10"),
    ],
)
def test_corpora_that_do_not_fit(folder, tmp_path, change, message):
    with pytest.raises(UserError, match=message):
        train(load_classifier_config(write_config(tmp_path, folder), [change]), overwrite=False)


@pytest.mark.long
def test_vectors_of_two_encoders_are_not_mixed(folder, tmp_path):
    build_corpus(plan_corpus(folder, "shorter", [embed(folder, 16)], ("web",)))
    config = load_classifier_config(write_config(tmp_path, folder), [f'negative=["{folder}/shorter"]'])
    with pytest.raises(UserError, match="was measured in another way than in the sources before it"):
        train(config, overwrite=False)


def test_files_that_are_no_models_are_refused(tmp_path):
    def saved(**changes):
        arrays = {
            "center": np.zeros(3),
            "weights": np.ones(3),
            "axis": np.zeros(3),
            "intercept": np.zeros(1),
            **changes,
        }
        path = tmp_path / "m.safetensors"
        save_embedding_model(EmbeddingModel("logistic", ModelColumn("embedding", ({},)), arrays), path)
        return path

    path = saved()
    assert load_embedding_model(path, file_checksum(path)).width == 3
    for changes in (
        {"axis": np.zeros(2)},
        {"weights": np.full(3, np.nan)},
        {"extra": np.zeros(3)},
        {"center": np.zeros((1, 3))},
    ):
        path = saved(**changes)
        with pytest.raises(UserError, match="is not a model of embeddings"):
            load_embedding_model(path, file_checksum(path))
    (tmp_path / "model.pkl").write_bytes(b"\x80\x04\x95 a pickle")
    with pytest.raises(ConfigError, match=r"model: got '.*model.pkl', expected a directory with model.safetensors"):
        parse(EmbeddingClassifier, {"model": str(tmp_path / "model.pkl")}, "c.yaml")
    (tmp_path / "model.safetensors").write_bytes(b"\x80\x04\x95 a pickle")
    with pytest.raises(UserError, match="is not a model of embeddings"):
        parse(EmbeddingClassifier, {"model": str(tmp_path)}, "c.yaml")
