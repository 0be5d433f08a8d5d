"""The classifier stage against the fastText library, for documents, lines and sentences."""

import pickle
import shutil
from pathlib import Path

import pyarrow as pa
import pytest

from gristmill.config import parse, plain
from gristmill.errors import ConfigError, UserError
from gristmill.storage.store import file_checksum, write_json
from pipelines.stages.score.classifier import Classifier
from tests.conftest import train_fasttext

KIND = "What a lovely garden. The roses are in bloom."
RUDE = "You are a fool. Go away you fool."


def table(*texts):
    ids = pa.array([row.to_bytes(16) for row in range(len(texts))], pa.binary(16))
    return pa.table({"id": ids, "text": pa.array(texts, pa.large_string())})


def annotated(stage, *texts):
    result = stage.annotate(table(*texts))
    assert result.schema == stage.writes()
    return result.to_pylist()


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    (folder / "train.txt").write_text(f"__label__kind {KIND}\n__label__rude {RUDE}\n" * 20)
    model = train_fasttext(folder / "train.txt", dim=8, epoch=20, lr=0.5, wordNgrams=2, bucket=100)
    model.save_model(str(folder / "model.bin"))
    return model, folder / "model.bin"


def test_scores_are_those_of_the_library(library):
    model, path = library
    stage = Classifier(model=str(path), label="rude", column="toxicity")
    stage.check()
    stage.setup()
    texts = [KIND, RUDE, f"{KIND}\n\n{RUDE}", "", "never seen", " \n\t"]
    for text, row in zip(texts, annotated(stage, *texts), strict=True):
        known = dict(zip(*model.predict(text.replace("\n", " "), -1), strict=True))
        assert row == {"toxicity": pytest.approx(min(1, known["__label__rude"]), abs=1e-6)}
    assert annotated(stage) == []
    assert stage.annotate(table(*texts).slice(1, 3)).to_pylist() == stage.annotate(table(*texts)).to_pylist()[1:4]


def test_the_best_label_is_that_of_the_library(library):
    model, path = library
    stage = Classifier(model=str(path), best_label=True, column="topic")
    stage.setup()  # which of the labels is scored does not matter
    texts = [KIND, RUDE, f"{KIND}\n\n{RUDE}", "", "never seen"]
    for text, row in zip(texts, annotated(stage, *texts), strict=True):
        (label,), (probability,) = model.predict(text.replace("\n", " "), 1)
        assert row["topic_label"] == label.removeprefix("__label__")
        assert row["topic"] == pytest.approx(min(1, probability), abs=1e-6)
    assert annotated(stage) == []
    assert Classifier(model=str(path)).writes().names == ["classifier_score"]
    with pytest.raises(
        ConfigError, match="best_label: got true with unit: line, but the labels of a document's lines differ"
    ):
        parse(Classifier, {"model": str(path), "best_label": True, "unit": "line"}, "x")
    assert "best_label" not in plain(Classifier(model=str(path)))


def test_sentences_the_highest_and_the_mean_by_bytes(library):
    model, path = library
    stage = Classifier(model=str(path), label="rude", unit="sentence")
    mixed, kind, empty = annotated(stage, f"{KIND} {RUDE}", KIND, "")
    sentences = ["What a lovely garden. ", "The roses are in bloom. ", "You are a fool. ", "Go away you fool."]
    scores = [min(1, dict(zip(*model.predict(text, -1), strict=True))["__label__rude"]) for text in sentences]
    mean = sum(score * len(text) for score, text in zip(scores, sentences, strict=True)) / sum(map(len, sentences))
    assert mixed == pytest.approx({"classifier_score": max(scores), "classifier_score_mean": mean}, abs=1e-6)
    assert kind["classifier_score"] < 0.5 < mixed["classifier_score"]
    assert empty == {"classifier_score": None, "classifier_score_mean": None}


def test_lines_the_highest_and_the_mean_by_bytes(library):
    model, path = library
    stage = Classifier(model=str(path), label="rude", unit="line")
    lines = [KIND, RUDE, f"{KIND} {RUDE}"]
    mixed, empty = annotated(stage, f"{lines[0]}\n  \n{lines[1]}\n\n\n{lines[2]}\n", " \n")
    scores = [min(1, dict(zip(*model.predict(text, -1), strict=True))["__label__rude"]) for text in lines]
    mean = sum(score * len(text) for score, text in zip(scores, lines, strict=True)) / sum(map(len, lines))
    assert mixed == pytest.approx({"classifier_score": max(scores), "classifier_score_mean": mean}, abs=1e-6)
    assert empty == {"classifier_score": None, "classifier_score_mean": None}


def test_a_directory_holds_a_model_and_its_metrics(library, tmp_path):
    _, path = library
    shutil.copy(path, tmp_path / "model.bin")
    checksum = file_checksum(path)
    assert (
        Classifier(model=str(tmp_path)).depends()
        == Classifier(model=str(path)).depends()
        == {"model xxh3_128": checksum}
    )
    write_json(tmp_path / "metrics.json", {"model": {"xxh3_128": checksum}})
    assert Classifier(model=str(tmp_path)).depends() == {"model xxh3_128": checksum}
    write_json(tmp_path / "metrics.json", {"model": {"xxh3_128": "0" * 32}})
    with pytest.raises(UserError, match=r"metrics\.json next to it is for 0000"):
        Classifier(model=str(tmp_path)).depends()
    assert list(Classifier(model=str(path), unit="line").depends()) == ["model xxh3_128", "unicode"]


def test_a_model_that_changed_and_a_label_it_lacks_are_errors(library, tmp_path):
    path = Path(shutil.copy(library[1], tmp_path / "copy.bin"))
    with pytest.raises(UserError, match=r"copy\.bin: has no label 'positive'; its labels: (kind, rude|rude, kind)"):
        Classifier(model=str(path)).setup()
    stage = Classifier(model=str(path), label="rude")
    stage.depends()
    path.write_bytes(path.read_bytes() + b"x")
    with pytest.raises(UserError, match=r"copy\.bin: its xxh3_128 is"):
        pickle.loads(pickle.dumps(stage)).setup()


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"model": "nowhere.bin"}, "model: got 'nowhere.bin', expected a fastText model file"),
        ({"model": __file__}, "model: .*test_classifier.py does not begin as a fastText model does"),
        ({"column": "a b"}, "column: got 'a b'"),
        ({"text": "drop"}, "text: got 'drop', allowed: text, text@STEP, edited_text"),
    ],
)
def test_knobs_out_of_range(knobs, message, library):
    with pytest.raises(UserError, match=message):
        parse(Classifier, {"model": str(library[1]), **knobs}, where="corpus.yaml")
