"""`classifier train` with `kind: judged`: files of scores, agreement with the judge, and the stage with the trained model."""

import csv
import gzip
import json
import random

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy.stats import spearmanr

from gristmill.errors import ConfigError, UserError
from gristmill.storage.store import read_json
from pipelines.__main__ import main
from pipelines.classifiers.column_examples import read_labels
from pipelines.classifiers.graded_metrics import agreement, at_threshold, graded_calibration, spearman
from pipelines.classifiers.judge_scores import read_judge_scores
from pipelines.classifiers.train_classifier import load_classifier_config, train
from pipelines.contracts.document import document_id, file_key
from tests.pipelines.scored_corpora import build_corpus, plan_corpus, rows_of

GOOD, BAD = ["theorem", "lemma", "proof", "integer", "converges"], ["cheap", "offer", "click", "prize", "winner"]
FILLER = ["the", "of", "and", "is", "in", "to", "we", "this"]
COUNT = 150


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A directory with a corpus of two sources, each with good and bad words, and a judge's scores from 0 to
    4 for most documents.
    """
    place, draw, rows = tmp_path_factory.mktemp("judged"), random.Random(2), []
    for name in ("web", "forum"):
        lines = []
        for number in range(COUNT):
            score = draw.randrange(5)
            words = draw.choices(GOOD, k=3 * score) + draw.choices(BAD, k=12 - 3 * score) + draw.choices(FILLER, k=6)
            draw.shuffle(words)
            lines.append(json.dumps({"text": f"{' '.join(words)}. Number {number} of {name}."}))
            rows.append((f"{name}/{name}.jsonl#{number}", score))
        lines.append(json.dumps({"text": "nobody judged this one"}))
        (place / f"{name}.jsonl").write_text("".join(f"{line}\n" for line in lines))
    write_scores(place / "scores.jsonl", rows)
    build_corpus(plan_corpus(place, "out", ["text_hash: {}"], ("web", "forum"), 2000))
    return place


def write_scores(path, rows):
    path.write_text("".join(f"{json.dumps({'id': name, 'score': score})}\n" for name, score in rows))


def write_config(tmp_path, folder, more="", scores=None):
    path = tmp_path / "c.yaml"
    path.write_text(
        f'kind: judged\noutput: {tmp_path}/model\ncorpora: ["{folder}/out"]\nscores: ["{scores or folder / "scores.jsonl"}"]\n'
        f"threshold: 3\nheld_out: 0.3\nfasttext: {{dim: 8, epoch: 40, lr: 0.5, bucket: 1000}}\n{more}"
    )
    return path


@pytest.mark.long
def test_a_threshold_distils_the_judge_into_two_classes(folder, tmp_path, capsys):
    assert main(["classifier", "train", str(write_config(tmp_path, folder))]) == 0
    out, facts = capsys.readouterr().out, read_json(tmp_path / "model" / "metrics.json")
    held = facts["held_out"]
    assert (
        f"Spearman {held['spearman']:.4f}, F1 {held['f1']:.4f} on {held['documents']} held-out documents"
        in " ".join(out.split())
    )
    assert held["spearman"] > 0.7
    assert held["f1"] > 0.9
    assert "mean_absolute_error" not in held
    assert sum(each["train"] + each["held_out"] for each in facts["classes"].values()) == 2 * COUNT
    assert [entry["source"] for entry in facts["by_source"]] == ["scored:web", "scored:forum"]
    assert facts["learned"] == "class"
    assert all(entry["spearman_left_out"] > 0.6 for entry in facts["by_source"])
    assert "2 of 302 kept documents of `corpora` have no score" in out
    card = (tmp_path / "model" / "MODEL_CARD.md").read_text()
    assert f"| F1 | {held['f1']:.4f} |" in card
    assert "2 of 302 kept documents" in card
    assert "expected_value" not in card
    plan = plan_corpus(folder, "use", [f"classifier: {{model: {tmp_path}/model}}"], ("web", "forum"))
    rows = rows_of(build_corpus(plan), ("classifier_score",))
    given = read_judge_scores([str(folder / "scores.jsonl")], "score")
    judged = np.array([given[identifier(name)][0] for name in rows if identifier(name) in given])
    found = np.array([row["classifier_score"] for name, row in rows.items() if identifier(name) in given])
    assert at_threshold(found >= 0.5, judged >= 3)["f1"] > 0.9


def identifier(printed):
    source, _, rest = printed.partition("/")
    path, _, record = rest.rpartition("#")
    return document_id(file_key(source, path), int(record))


@pytest.mark.long
def test_bins_distil_the_scores_themselves(folder, tmp_path):
    facts = train(
        load_classifier_config(write_config(tmp_path, folder, "bins: [1, 2, 3, 4]\nbalance: repeat\n"), []),
        overwrite=False,
    )
    held = facts["held_out"]
    assert held["spearman"] > 0.85
    assert held["mean_absolute_error"] < 0.6
    assert sorted(map(float, facts["model"]["labels"])) == [0, 1, 2, 3, 4]
    assert len(set(facts["trained_on"].values())) == 1
    assert "expected_value: true" in (tmp_path / "model" / "MODEL_CARD.md").read_text()
    step = f"classifier: {{model: {tmp_path}/model, expected_value: true, column: edu}}"
    rows = rows_of(build_corpus(plan_corpus(folder, "bins", [step], ("web", "forum"))), ("edu",))
    given = dict(map(scored, (folder / "scores.jsonl").read_text().splitlines()))
    both = [(row["edu"], given[name]) for name, row in rows.items() if name in given]
    assert spearmanr(both).statistic > 0.85
    assert 0 <= min(both)[0] < 1 < 3 < max(both)[0] <= 4.001


def scored(line):
    entry = json.loads(line)
    return entry["id"], entry["score"]


@pytest.mark.long
def test_a_model_that_learned_its_sources_says_so(tmp_path, capsys):
    """Each source marks liked documents with a word of its own, so a model trained without that source cannot
    know the word.
    """
    draw, rows = random.Random(7), []
    for name, words in (("web", ("amber", "stone")), ("forum", ("delta", "river"))):
        lines = []
        for number in range(COUNT):
            liked = draw.random() < 0.5
            lines.append({"text": f"{words[not liked]} {' '.join(draw.choices(FILLER, k=3))} {draw.randrange(40)}"})
            rows.append((f"{name}/{name}.jsonl#{number}", 4 if liked else 0))
        (tmp_path / f"{name}.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    write_scores(tmp_path / "scores.jsonl", rows)
    build_corpus(plan_corpus(tmp_path, "out", ["text_hash: {}"], ("web", "forum"), 2000))
    assert main(["classifier", "train", str(write_config(tmp_path, tmp_path))]) == 0
    facts = read_json(tmp_path / "model" / "metrics.json")
    assert facts["learned"] == "source"
    assert all(entry["spearman"] > 0.8 for entry in facts["by_source"])
    assert "it learned its sources rather than the judge's scores" in capsys.readouterr().out
    assert "This model learned its sources" in (tmp_path / "model" / "MODEL_CARD.md").read_text()


def save(path, rows):
    if path.suffix == ".parquet":
        pq.write_table(pa.table({"id": [name for name, _ in rows], "score": [score for _, score in rows]}), path)
    elif ".csv" in path.name:
        with gzip.open(path, "wt", newline="") if path.suffix == ".gz" else path.open("w", newline="") as sink:
            writer = csv.writer(sink)
            writer.writerows(
                [("score", "id", "note"), *((score, name, 'a "note", of\ntwo lines') for name, score in rows)]
            )
    else:
        content = "".join(f"{json.dumps({'id': name, 'score': score})}\n\n" for name, score in rows).encode()
        path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


@pytest.mark.parametrize("name", ["s.jsonl", "s.jsonl.gz", "s.csv", "s.csv.gz", "s.parquet"])
def test_files_of_all_formats_hold_the_same_scores(tmp_path, name):
    save(tmp_path / name, [("web/a.jsonl#1", 2.5), ("web/b#c.jsonl#2", 0.0)])
    found = read_judge_scores([str(tmp_path / name)], "score")
    assert {key: score for key, (score, _) in found.items()} == {
        identifier("web/a.jsonl#1"): 2.5, identifier("web/b#c.jsonl#2"): 0.0,
    }  # fmt: skip


ROW = '{"id": "web/a#1", "score": 1}\n'


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("s.jsonl", f'{ROW}{{"id": "web/a#2"}}\n{{"id": "web/a#3", "score": null}}\n',
         r"s.jsonl:2: has no number in the field 'score' \(2 of 3 rows have none\). Have these documents judged again"),
        ("s.csv", "id,score\nweb/a#1,1\nweb/a#2,\n", r"s.csv:3: has no number in the field 'score' \(1 of 2"),
        ("s.csv", "id,score\nweb/a#1,nan\n", r"s.csv:2: has no number"),
        ("s.csv", "id,scores\nweb/a#1,1\n", r"s.csv: has no field 'score'; did you mean 'scores'"),
        ("s.jsonl", f'{ROW}{{"id": "web/a#1", "score": 2}}\n', r"s.jsonl:2: this id has another score in .*s.jsonl:1"),
        ("s.jsonl", f'{ROW}{{"id": "web/a#2", "score": 1}}\n', "all 2 scores are 1; nothing can be learned from one value"),
        ("s.jsonl", f'{ROW}{{"score": 2}}\n', r"s.jsonl:2: has no id; expected SOURCE/PATH#RECORD"),
        ("s.jsonl", f'{ROW}{{"id": "web", "score": 2}}\n', r"s.jsonl:2: the id is not of the form source/path#record"),
        ("s.jsonl", f"{ROW}[1]\n", r's.jsonl:2: expected {"id": "SOURCE/PATH#RECORD", "score": NUMBER}'),
        ("s.jsonl", "", "hold no score; expected rows with the fields 'id' and 'score'"),
        ("s.txt", ROW, "scores: got '.*s.txt', expected a file .jsonl, .jsonl.gz, .csv, .csv.gz, .parquet"),
        ("s.jsonl.gz", ROW, r"s.jsonl.gz: cannot be read"),
        ("s.parquet", ROW, r"s.parquet: cannot be read"),
        ("absent/s.csv", None, "cannot be read"),
    ],
)  # fmt: skip
def test_files_of_scores_that_do_not_fit(tmp_path, name, content, message):
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(UserError, match=message):
        read_judge_scores([str(tmp_path / name)], "score")


def test_a_damaged_gzip_file_is_named(tmp_path):
    file = tmp_path / "s.jsonl.gz"
    data = bytearray(gzip.compress(ROW.encode()))
    data[10] = 0xFF
    file.write_bytes(data)
    for read in (read_labels, lambda files: read_judge_scores(files, "score")):
        with pytest.raises(UserError, match=r"s\.jsonl\.gz: cannot be read \(.+\)"):
            read([str(file)])


def test_scores_that_do_not_fit_the_corpora(folder, tmp_path):
    rows = [("web/web.jsonl#1", 1), ("web/web.jsonl#9999", 4), ("web/web.jsonl#2", 4)]
    write_scores(tmp_path / "s.jsonl", rows)
    config = load_classifier_config(write_config(tmp_path, folder, scores=tmp_path / "s.jsonl"), [])
    with pytest.raises(UserError, match=r"s.jsonl:2: the corpora in `corpora` have no document with this id \(1 of 3"):
        train(config, overwrite=False)
    for change, message in (
        (
            "threshold=9",
            r"threshold: 0 documents for training and 0 held out have scores at or above 9, expected at least 10",
        ),
        (
            "bins=[1, 1.2, 1.5]",
            r"bins: 0 training documents have scores from 1.2 to 1.5, expected at least 10; remove a bound",
        ),
    ):
        with pytest.raises(UserError, match=message):
            train(load_classifier_config(write_config(tmp_path, folder), [change]), overwrite=False)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("scores=[]", "scores: expected at least one"),
        ("bins=[2, 1]", r"bins: got \[2.0, 1.0\], expected ascending bounds"),
        ("threshold=.nan", "threshold: got nan, expected a number"),
        ("documents=0", "documents: got 0, expected 1 or more"),
        ("kind=judge", "kind: got 'judge', expected one of .*; did you mean 'judged'"),
    ],
)
def test_configurations_out_of_range(folder, tmp_path, change, message):
    with pytest.raises(ConfigError, match=message):
        load_classifier_config(write_config(tmp_path, folder), [change])


def test_measures_are_those_of_scikit_learn():
    metrics = pytest.importorskip("sklearn.metrics")
    rng = np.random.default_rng(1)
    judged = rng.integers(0, 6, 500).astype(float)
    predicted = judged + rng.normal(size=500)
    found = agreement(predicted, judged, 3.0)
    assert found["spearman"] == pytest.approx(spearmanr(predicted, judged).statistic)
    assert found["f1"] == pytest.approx(metrics.f1_score(judged >= 3, predicted >= 3))
    assert found["precision"] == pytest.approx(metrics.precision_score(judged >= 3, predicted >= 3))
    assert found["recall"] == pytest.approx(metrics.recall_score(judged >= 3, predicted >= 3))
    assert found["mean_absolute_error"] == pytest.approx(metrics.mean_absolute_error(judged, predicted))
    assert found["roc_auc"] == pytest.approx(metrics.roc_auc_score(judged >= 3, predicted))
    rows, error = graded_calibration(predicted, judged)
    assert [row["documents"] for row in rows] == [50] * 10
    assert error == pytest.approx(np.mean([abs(row["mean_score"] - row["mean_judged"]) for row in rows]))
    assert graded_calibration(judged, judged)[1] == pytest.approx(0, abs=1e-12)
    assert spearman(np.ones(5), np.arange(5.0)) is None


@pytest.mark.long
def test_expected_values_need_labels_that_are_numbers(folder, tmp_path):
    from pipelines.stages.score.classifier import Classifier

    train(load_classifier_config(write_config(tmp_path, folder), []), overwrite=False)
    stage = Classifier(model=f"{tmp_path}/model", expected_value=True)
    stage.check()
    with pytest.raises(UserError, match="expected_value needs labels that are numbers; its labels: "):
        stage.setup()
    for other in ({"unit": "line"}, {"best_label": True}):
        with pytest.raises(ValueError, match="expected_value: got true with"):
            Classifier(model=f"{tmp_path}/model", expected_value=True, **other).check()
