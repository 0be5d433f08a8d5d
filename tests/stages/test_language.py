"""The language stage: what it says for plain cases, short and odd texts, both models against their libraries."""

import os
from pathlib import Path

import pyarrow as pa
import pytest

from pipelines.contracts.config import parse
from pipelines.contracts.errors import UserError
from pipelines.contracts.store import file_checksum
from pipelines.stages.language import LANGUAGE, Language

ENGLISH = (
    "It was a bright cold day in the town, and the people who lived there had gone out to look at the river. They said "
    "that the water had never been so high before, and that it would surely reach the houses by the evening."
)
GERMAN = (
    "Es war ein heller kalter Tag in der Stadt, und die Menschen, die dort lebten, waren hinausgegangen, um auf den "
    "Fluss zu schauen. Sie sagten, dass das Wasser noch nie so hoch gewesen sei und bald die Häuser erreichen werde."
)
RUSSIAN = (
    "Это был ясный холодный день в городе, и люди, которые там жили, вышли посмотреть на реку. Они говорили, что вода "
    "никогда ещё не была так высока и что к вечеру она непременно дойдёт до домов."
)


def table(*texts):
    ids = pa.array([row.to_bytes(16) for row in range(len(texts))], pa.binary(16))
    return pa.table({"id": ids, "text": pa.array(texts, pa.large_string())})


def annotated(stage, *texts):
    result = stage.annotate(table(*texts))
    assert result.schema == stage.writes() == LANGUAGE
    return list(zip(result["language"].to_pylist(), result["language_score"].to_pylist(), strict=True))


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A tiny supervised fastText model that tells German from English."""
    import fasttext

    folder = tmp_path_factory.mktemp("model")
    lines = [f"__label__de {GERMAN}", f"__label__en {ENGLISH}"] * 20
    (folder / "train.txt").write_text("\n".join(lines), encoding="utf-8")
    # Below 11 threads part of the matrix stays uninitialised memory in this build of fastText.
    trained = fasttext.train_supervised(str(folder / "train.txt"), dim=8, epoch=30, lr=0.5, thread=11, verbose=0)
    trained.save_model(str(folder / "tiny.bin"))
    return str(folder / "tiny.bin")


def test_resiliparse_names_the_language():
    languages = [language for language, _ in annotated(Language(), ENGLISH, GERMAN, RUSSIAN)]
    assert languages == ["en", "de", "ru"]


def test_golden():
    assert annotated(Language(), ENGLISH) == [("en", pytest.approx(1 - 502 / 1200, abs=1e-6))]


def test_score_is_one_minus_distance_over_1200():
    from resiliparse.parse.lang import detect_fast

    for text in (ENGLISH, GERMAN * 2, RUSSIAN * 3):
        [(language, score)] = annotated(Language(), text)
        name, distance = detect_fast(text)
        assert (language, score) == (name, pytest.approx(1 - distance / 1200, abs=1e-6))


@pytest.mark.parametrize("text", ["", " \n\t ", "short", "     a very     \n", "12 + 34 = 46 * 7 / 8 - 9 + 10 ^ 11 ="])
def test_no_answer_is_null_with_score_0(text):
    assert annotated(Language(), text) == [(None, 0.0)]


def test_min_bytes_counts_what_is_not_white_space():
    text = "a b c d e f g h i j k l m n o p q r s t"  # 20 letters
    assert annotated(Language(min_bytes=21), text) == [(None, 0.0)]
    assert annotated(Language(min_bytes=20), text) == annotated(Language(min_bytes=1), text)


def test_only_the_beginning_is_looked_at_and_no_character_is_split():
    assert annotated(Language(max_bytes=len(ENGLISH)), ENGLISH + RUSSIAN * 50) == annotated(Language(), ENGLISH)
    for limit in range(40, 48):
        [(language, score)] = annotated(Language(max_bytes=limit), RUSSIAN)
        whole = RUSSIAN.encode()[:limit].decode("utf-8", "ignore")
        assert [(language, score)] == annotated(Language(), whole)


def test_no_documents():
    assert annotated(Language()) == []


def test_a_sliced_table_gives_the_same_rows():
    docs = table(ENGLISH, GERMAN, RUSSIAN)
    assert Language().annotate(docs.slice(1)).to_pylist() == Language().annotate(docs).to_pylist()[1:]


def test_fasttext_equals_its_library(model):
    import fasttext

    stage = Language(model=model)
    stage.check()
    stage.setup()
    texts = [ENGLISH, GERMAN, f"{ENGLISH}\n\n{GERMAN}\r\n", "x" * 30, "\0" * 30, "🙂" * 10]
    peer = fasttext.load_model(model)
    for text, (language, score) in zip(texts, annotated(stage, *texts), strict=True):
        labels, probabilities = peer.predict(text.replace("\n", " "))
        assert f"__label__{language}" == labels[0]
        assert score == pytest.approx(min(1.0, probabilities[0]), abs=1e-6)
    assert [language for language, _ in annotated(stage, ENGLISH, "", GERMAN)] == ["en", None, "de"]


def test_fasttext_in_batches_keeps_the_order(model):
    texts = [GERMAN if row % 3 else ENGLISH for row in range(700)]
    expected = ["de" if row % 3 else "en" for row in range(700)]
    assert [language for language, _ in annotated(Language(model=model), *texts)] == expected


def test_fasttext_says_nothing(model, capfd):
    annotated(Language(model=model), ENGLISH)
    assert capfd.readouterr() == ("", "")


def test_output_depends_on_the_library_and_the_model_file(model):
    assert list(Language().depends()) == ["resiliparse"]
    depends = Language(model=model).depends()
    assert set(depends) == {"fasttext-numpy2", "model xxh3_128"}
    assert depends["model xxh3_128"] == file_checksum(Path(model))


def test_a_file_that_is_no_model_is_an_error(tmp_path):
    path = tmp_path / "broken.ftz"
    path.write_bytes(b"not a model at all" * 100)
    with pytest.raises(UserError, match=r"broken\.ftz: not a supervised fastText model"):
        Language(model=str(path)).setup()


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"model": "resiliparce"}, "language: model: got 'resiliparce', which is no file; expected resiliparse"),
        ({"min_bytes": 0}, "min_bytes: got 0, allowed from 1"),
        ({"max_bytes": 5}, "max_bytes: got 5, allowed from min_bytes = 20"),
    ],
)
def test_knobs_out_of_range(knobs, message):
    with pytest.raises(ValueError, match=message.removeprefix("language: ")):
        parse(Language, knobs, where="corpus.yaml")


@pytest.mark.skipif("GRISTMILL_DATA" not in os.environ, reason="GRISTMILL_DATA is not set")
def test_lid_176():
    path = Path(os.environ["GRISTMILL_DATA"]) / "models" / "lid.176.ftz"
    found = annotated(Language(model=str(path)), ENGLISH, GERMAN, RUSSIAN)
    assert [language for language, _ in found] == ["en", "de", "ru"]
    assert min(score for _, score in found) > 0.8
