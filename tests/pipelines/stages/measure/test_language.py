"""The language stage on ordinary, short and unusual texts, with both models compared with their libraries."""

import base64
import os
import pickle
import random
import shutil
from pathlib import Path
from unicodedata import unidata_version

import pyarrow as pa
import pytest

from gristmill.config import parse
from gristmill.errors import UserError
from gristmill.storage.store import file_checksum
from pipelines.planning.corpus import load_corpus_config
from pipelines.planning.inventory import Inventory
from pipelines.planning.plan import make_plan
from pipelines.stages.measure.language import LANGUAGE, PARAGRAPHS, Language
from tests.conftest import train_fasttext

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
    assert result.schema == stage.writes()
    return list(zip(result["language"].to_pylist(), result["language_score"].to_pylist(), strict=True))


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    lines = [f"__label__de {GERMAN}", f"__label__en {ENGLISH}"] * 20
    (folder / "train.txt").write_text("\n".join(lines), encoding="utf-8")
    trained = train_fasttext(folder / "train.txt", dim=8, epoch=30, lr=0.5)
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
def test_no_answer_is_und_with_score_0(text):
    assert annotated(Language(), text) == [("und", 0.0)]


def test_min_bytes_counts_what_is_not_white_space():
    text = "a b c d e f g h i j k l m n o p q r s t"  # 20 letters
    assert annotated(Language(min_bytes=21), text) == [("und", 0.0)]
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

    stage = Language(models=(model,))
    stage.check()
    stage.setup()
    texts = [ENGLISH, GERMAN, f"{ENGLISH}\n\n{GERMAN}\r\n", "x" * 30, "\0" * 30, "🙂" * 10]
    peer = fasttext.load_model(model)
    for text, row in zip(texts, stage.annotate(table(*texts)).to_pylist(), strict=True):
        labels, probabilities = peer.predict(text.replace("\n", " "), 2)
        assert [f"__label__{row['language']}", f"__label__{row['language_2']}"] == list(labels)
        scores = [min(1.0, float(probability)) for probability in probabilities]
        assert [row["language_score"], row["language_2_score"]] == pytest.approx(scores, abs=1e-6)
    assert [language for language, _ in annotated(stage, ENGLISH, "", GERMAN)] == ["en", "und", "de"]


@pytest.mark.long
def test_texts_in_capitals_are_read_in_lower_case(model):
    """A text is lowercased if more than nine tenths of the letters read are capitals, in any script."""
    import fasttext

    peer = fasttext.load_model(model)
    tenth = "ABCDE FGHIj " * 3
    texts = [
        ENGLISH.upper(),
        f"{GERMAN.upper()} und so",
        tenth,
        f"{tenth} K",
        RUSSIAN.upper(),
        "12 + 34 = 46 " * 3,
        ENGLISH,
        f"{ENGLISH.upper()} {'東京' * 40}",  # letters without case are no capitals
    ]
    read = [texts[0].lower(), texts[1].lower(), tenth, texts[3].lower(), RUSSIAN.lower(), *texts[5:]]
    found = annotated(Language(models=(model,)), *texts)
    for text, (language, score) in zip(read, found, strict=True):
        (label,), (probability,) = peer.predict(text)
        assert (f"__label__{language}", score) == (label, pytest.approx(min(1.0, probability), abs=1e-6))
    assert found[0] != found[6]  # the capital at the beginning of a sentence is another word than the small one
    cut = Language(models=(model,), max_bytes=len(ENGLISH))
    assert annotated(cut, ENGLISH.upper() + "x" * 1000) == annotated(cut, ENGLISH.lower())
    assert annotated(Language(), ENGLISH.upper()) == annotated(Language(), ENGLISH.lower())
    assert annotated(Language(), ENGLISH.upper())[0][0] == "en"
    text = f"{ENGLISH.upper()}\n\n{'Ⱥ' * 100}\n\n{GERMAN}"  # Ⱥ is longer in lower case: positions are those of the text
    [row] = Language(models=(model,), paragraphs=True).annotate(table(text)).to_pylist()
    pieces = [text.encode()[p["start"] : p["end"]].decode() for p in row["language_paragraphs"]]
    assert pieces == text.split("\n\n")
    assert [p["language"] for p in row["language_paragraphs"]][2] == "de"


def test_fasttext_in_batches_keeps_the_order(model):
    texts = [GERMAN if row % 3 else ENGLISH for row in range(700)]
    expected = ["de" if row % 3 else "en" for row in range(700)]
    assert [language for language, _ in annotated(Language(models=(model,)), *texts)] == expected


def test_fasttext_says_nothing(model, capfd):
    annotated(Language(models=(model,)), ENGLISH)
    assert capfd.readouterr() == ("", "")


def test_output_depends_on_the_library_or_the_model_file(model):
    version, checksum = Language().depends()["models[0] resiliparse"], file_checksum(Path(model))
    unicode = {"unicode": unidata_version}
    assert Language(models=(model,)).depends() == {"models[0] xxh3_128": checksum} | unicode
    both = {"models[0] xxh3_128": checksum, "models[1] resiliparse": version} | unicode
    assert Language(models=(model, "resiliparse"), fallback_below=0.5).depends() == both
    assert Language().depends() == {"models[0] resiliparse": version} | unicode


def test_where_the_model_lies_is_not_part_of_a_step(model, corpus_file, tmp_path):
    text = corpus_file.read_text().replace("steps:\n", f"steps:\n  - language: {{models: [{model}]}}\n")
    corpus_file.write_text(text)
    elsewhere = shutil.copy(model, tmp_path / "same.bin")
    found = []
    for place in (model, elsewhere):
        config = load_corpus_config(corpus_file, [f"steps.language.models=[{place}]"])
        plan = make_plan(config, {source.name: Inventory((), ()) for source in config.sources})
        found.append(plan.step("language.web").fingerprint)
    assert found[0] == found[1]


def test_a_model_that_changed_after_planning_is_refused(model, tmp_path):
    path = Path(shutil.copy(model, tmp_path / "model.bin"))
    stage = Language(models=(str(path),))
    stage.depends()
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(UserError, match=r"model\.bin: its xxh3_128 is .*, the build was planned with"):
        pickle.loads(pickle.dumps(stage)).setup()


def test_the_second_guess_of_resiliparse():
    from resiliparse.parse.lang import detect_fast

    [row] = Language().annotate(table(ENGLISH)).to_pylist()
    (_, _), (name, distance) = detect_fast(ENGLISH, n_results=2)
    assert (row["language_2"], row["language_2_score"]) == (name, pytest.approx(1 - distance / 1200, abs=1e-6))
    assert Language().annotate(table("")).to_pylist()[0]["language_2"] == "und"


def test_paragraphs_and_the_share_of_the_documents_language(model):
    stage = Language(models=(model,), paragraphs=True)
    text = f"  {ENGLISH}\n\n{GERMAN}\n \nshort\n\n{ENGLISH}\n{ENGLISH}"
    result = stage.annotate(table("", text, "hi", GERMAN))
    assert result.schema == stage.writes() == pa.schema([*LANGUAGE, *PARAGRAPHS])
    empty, mixed, short, german = result.to_pylist()
    assert (empty["language_share"], empty["language_paragraphs"]) == (None, [])
    assert (short["language"], short["language_share"]) == ("und", None)
    assert [entry["language"] for entry in short["language_paragraphs"]] == ["und"]
    assert (german["language_share"], len(german["language_paragraphs"])) == (1, 1)
    pieces = [text.encode()[p["start"] : p["end"]].decode() for p in mixed["language_paragraphs"]]
    assert pieces == [ENGLISH, GERMAN, "short", f"{ENGLISH}\n{ENGLISH}"]
    assert [p["language"] for p in mixed["language_paragraphs"]] == ["en", "de", "und", "en"]
    english, other = len(ENGLISH) * 3 + 1, len(GERMAN)
    assert mixed["language_share"] == pytest.approx(english / (english + other))


def base64_lines(count: int) -> str:
    rng = random.Random(count)
    return "\n".join(base64.b64encode(rng.randbytes(57)).decode() for _ in range(count))


@pytest.mark.parametrize("prose", [ENGLISH, RUSSIAN])
def test_long_paragraphs_without_a_language_count_against_the_share(prose):
    """Lengths are in characters, even for scripts such as Cyrillic with two bytes per character."""
    prose = " ".join([prose] * 12)
    blob = base64_lines(len(prose) // 77 + 1)[: len(prose)]
    assert len(prose) == len(blob) > 200
    half, short, clean, blobs = (
        Language(paragraphs=True)
        .annotate(table(f"{prose}\n\n{blob}", f"{prose}\n\n{blob[:199]}", f"1.\n\n{prose}", f"{blob}\n\n{blob}"))
        .to_pylist()
    )
    assert [entry["language"] for entry in half["language_paragraphs"]][1] == "und"
    assert half["language_share"] == pytest.approx(0.5)
    assert short["language_share"] == clean["language_share"] == 1
    assert (blobs["language"], blobs["language_share"]) == ("und", None)


def test_paragraphs_end_where_the_beginning_does(model):
    stage = Language(models=(model,), paragraphs=True, max_bytes=len(ENGLISH) + 30)
    [row] = stage.annotate(table(f"{ENGLISH}\n\n{RUSSIAN}\n\n{GERMAN}")).to_pylist()
    pieces = [(p["start"], p["end"]) for p in row["language_paragraphs"]]
    assert pieces == [(0, len(ENGLISH)), (len(ENGLISH) + 2, len(ENGLISH) + 2 + len(RUSSIAN[:15].encode()))]


def test_a_file_that_is_no_model_is_an_error(tmp_path):
    path = tmp_path / "broken.ftz"
    path.write_bytes(b"not a model at all" * 100)
    with pytest.raises(UserError, match=r"broken\.ftz: not a supervised fastText model"):
        Language(models=(str(path),)).setup()


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        (
            {"models": ["resiliparse", "x/lid.176.ftz"]},
            r"models\[1\]: got 'x/lid.176.ftz', which is not a file; expected "
            "resiliparse, or the path of a fastText model .*doctor --fetch-lid` writes models/lid.176.ftz",
        ),
        ({"models": [__file__]}, r"models\[0\]: .*test_language.py does not begin as a fastText model does"),
        ({"models": []}, r"models: got \[\], expected one or more different models"),
        ({"models": ["resiliparse", "resiliparse"]}, "expected one or more different models"),
        (
            {"fallback_below": 0.5},
            "fallback_below: got 0.5 with 1 models, expected a score from 0 to 1 with several models",
        ),
        ({"min_bytes": 0}, "min_bytes: got 0, allowed 1 or more"),
        ({"max_bytes": 5}, "max_bytes: got 5, allowed min_bytes = 20 or more"),
    ],
)
def test_knobs_out_of_range(knobs, message):
    with pytest.raises(UserError, match=message.removeprefix("language: ")):
        parse(Language, knobs, where="corpus.yaml")


def test_the_next_model_decides_where_the_score_of_the_first_is_low(model):
    texts = [ENGLISH, RUSSIAN, GERMAN, "", f"{ENGLISH} {GERMAN}", "x" * 30]
    alone = [annotated(Language(models=(one,)), *texts) for one in (model, "resiliparse")]
    limit = (alone[0][0][1] + alone[0][1][1]) / 2  # it is less sure of Russian, which it does not know
    stage = Language(models=(model, "resiliparse"), fallback_below=limit)
    stage.check()
    result = stage.annotate(table(*texts))
    assert result.schema == stage.writes() == pa.schema([*LANGUAGE, ("language_model", pa.int8())])
    used = result["language_model"].to_pylist()
    expected = [
        int(score < limit and other[0] != "und" and bool(text))
        for text, (_, score), other in zip(texts, *alone, strict=True)
    ]
    assert used == expected
    assert (used[0], used[1]) == (0, 1)
    assert annotated_columns(result) == [alone[number][row] for row, number in enumerate(used)]
    assert result["language"][1].as_py() == "ru"
    backwards = Language(models=("resiliparse", model), fallback_below=1.0).annotate(table(*texts))
    assert annotated_columns(backwards) == [
        alone[0][row] if alone[0][row][0] != "und" else alone[1][row] for row in range(len(texts))
    ]


def annotated_columns(result):
    return list(zip(result["language"].to_pylist(), result["language_score"].to_pylist(), strict=True))


def test_both_models_decide_on_paragraphs(model):
    stage = Language(models=(model, "resiliparse"), fallback_below=1.0, paragraphs=True)
    [row] = stage.annotate(table(f"{ENGLISH}\n\n{RUSSIAN}\n\n{RUSSIAN}")).to_pylist()
    assert [paragraph["language"] for paragraph in row["language_paragraphs"]] == ["en", "ru", "ru"]


def test_labels_with_a_script_are_the_codes_of_the_other_models(tmp_path):
    """Labels with a script, as in GlotLID and OpenLID, become the codes that the other models use: `deu_Latn`
    becomes `de`.
    """
    lines = [f"__label__deu_Latn {GERMAN}", f"__label__eng_Latn {ENGLISH}", f"__label__arz_Arab {RUSSIAN}"] * 20
    (tmp_path / "train.txt").write_text("\n".join(lines), encoding="utf-8")
    train_fasttext(tmp_path / "train.txt", dim=8, epoch=30, lr=0.5).save_model(str(tmp_path / "tiny.bin"))
    found = annotated(Language(models=(str(tmp_path / "tiny.bin"),)), GERMAN, ENGLISH, RUSSIAN)
    assert [language for language, _ in found] == ["de", "en", "arz"]


@pytest.mark.parametrize(
    ("label", "code"),
    [("eng_Latn", "en"), ("cmn_Hani", "zh"), ("arb_Arab", "ar"), ("nob_Latn", "no"), ("als_Latn", "sq"), ("als", "als"),
     ("srp_Cyrl", "sr"), ("ace_Arab", "ace"), ("en", "en"), ("zxx_Zxxx", "zxx"), ("eng_latn", "eng_latn")],
)  # fmt: skip
def test_codes_of_labels(label, code):
    from pipelines.stages.measure.language_scripts import language_code

    assert language_code(label) == code


def test_every_two_letter_code_of_the_models_is_reached():
    """resiliparse and lid.176 use ISO 639-1 codes where they exist. `sh`, withdrawn from ISO 639-1, is mapped
    from `hbs`.
    """
    from resiliparse.parse.lang import supported_langs

    from pipelines.stages.measure.language_scripts import _CODES

    assert {language for language in supported_langs() if len(language) == 2} <= set(_CODES.values())
    assert all(len(long) == 3 and len(short) == 2 for long, short in _CODES.items())


@pytest.mark.parametrize(
    ("text", "script"),
    [(ENGLISH, "Latn"), (RUSSIAN, "Cyrl"), ("東京は日本の首都です。", "Jpan"), ("北京是中华人民共和国的首都。", "Hani"),
     ("서울은 대한민국의 수도이다.", "Hang"), ("2026-11-22", "Zyyy"), ("", "Zyyy"), ("አዲስ አበባ", "Zzzz"), ("ab Москва", "Cyrl"),
     ("١٢٣٤", "Zyyy"), ("२०२४ in", "Latn"), ("«»×", "Zyyy"), ("की in", "Latn"), ("की a", "Deva")],
)  # fmt: skip
def test_script_of_most_letters(text, script, model):
    for models in (("resiliparse",), (model,)):
        stage = Language(models=models, script=True)
        result = stage.annotate(table(text))
        assert result.schema == stage.writes()
        assert result["language_script"].to_pylist() == [script]


@pytest.mark.skipif("GRISTMILL_DATA" not in os.environ, reason="GRISTMILL_DATA is not set")
def test_lid_176():
    path = Path(os.environ["GRISTMILL_DATA"]) / "models" / "lid.176.ftz"
    found = annotated(Language(models=(str(path),)), ENGLISH, GERMAN, RUSSIAN)
    assert [language for language, _ in found] == ["en", "de", "ru"]
    assert min(score for _, score in found) > 0.8


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("서울은 대한민국의 수도이다.", "ko"),
        ("東京は日本の首都です。", "ja"),
        ("北京是中华人民共和国的首都。", "zh"),
        ("กรุงเทพเป็นเมืองหลวง", "th"),
        ("Η Αθήνα είναι η πρωτεύουσα.", "el"),
        ("ວຽງຈັນເປັນນະຄອນຫຼວງ", "lo"),
        ("Հայաստանի մայրաքաղաքն է", "hy"),
        ("አዲስ አበባ የኢትዮጵያ ዋና ከተማ", "und"),  # Amharic or Tigrinya
        ("दिल्ली भारत की राजधानी", "und"),  # Hindi, Marathi, Nepali
        ("2026-11-22 08:30:00 4711 0815", "und"),
        ("북한 North Korea and the city of Pyongyang", "und"),
    ],
)
def test_short_texts_have_the_language_of_a_script_that_one_language_writes(text, language):
    from pipelines.stages.measure.language_scripts import language_of_script

    found = language_of_script(text)
    assert (found[0] if found else "und") == language
    if found:
        assert annotated(Language(), text)[0][0] == language
        assert 0.9 <= found[1] <= 1
