"""Word lists against a plain search: whole words, phrases, scripts without spaces, and sentences."""

import pickle
import random
import re

import pyarrow as pa
import pytest

from gristmill.config import parse
from gristmill.errors import UserError
from pipelines.stages.measure.word_list import WordList


@pytest.fixture
def make(tmp_path):
    def stage(*entries, **knobs):
        path = tmp_path / "list.txt"
        path.write_text("\n".join(["# a list", "", *entries]), encoding="utf-8")
        made = WordList((str(path),), **knobs)
        made.check()
        made.setup()
        return made

    return stage


def annotated(stage, *texts):
    ids = pa.array([row.to_bytes(16) for row in range(len(texts))], pa.binary(16))
    result = stage.annotate(pa.table({"id": ids, "text": pa.array(texts, pa.large_string())}))
    assert result.schema == stage.writes()
    return [tuple(row.values()) for row in result.to_pylist()]


def test_counts_ratios_and_sentences(make):
    stage = make("fool", "old goat", column="bad")
    assert stage.writes().names == ["bad_count", "bad_ratio", "bad_sentences", "bad_sentence_ratio"]
    text = "You FOOL, you fool! Foolish is not it. That old  goat... Fine."
    words = len("".join(re.findall(r"\w+", text)))
    assert annotated(stage, text, "Nothing here.", "") == [
        (3, pytest.approx((4 + 4 + 7) / words), 2, pytest.approx(2 / 4)),
        (0, 0.0, 0, 0.0),
        (0, None, 0, None),
    ]


@pytest.mark.parametrize(
    ("entries", "text", "count"),
    [
        (["bi-curious"], "Bi curious, bi-curious and bicurious", 2),
        (["a", "a b", "a b c"], "a b c a b a c", 3),  # the longest of those that begin together
        (["a b", "b c"], "a b c", 1),  # none overlap
        (["stone mill"], "A stone. Mill of it.", 0),  # not across sentences
        (["häuser", "ΟΔΟΣ"], "HÄUSER οδος Häusern", 2),
        (["笨蛋"], "你这个笨蛋！笨 蛋，大笨蛋们", 2),
        (["バカ"], "バカな、とバカ", 2),
        (["ﾊﾞｶ"], "ﾊﾞｶﾃﾞｽ、ｵﾊﾞｶ", 2),
        (["bad"], "bad々bad", 2),
        (["ꦲꦤ"], "ꦕꦲꦤꦕꦲꦤ", 2),  # Javanese
        (["bad"], "bad笨bad 笨badly", 2),  # a word ends beside such a script
        (["don't"], "Don't, don’t, dont", 2),
        (["x_1"], "x_1 x 1", 1),
    ],
)
def test_what_an_occurrence_is(entries, text, count, make):
    assert annotated(make(*entries), text)[0][0] == count


def test_random_texts_against_a_regular_expression(make):
    generator = random.Random(4)
    entries = ["a", "bb", "a bb", "ccc a bb", "ä", "bb bb"]
    texts = [
        " ".join(generator.choices(["a", "bb", "ccc", "ä", "A", "Bb"], k=generator.randrange(40))) for _ in range(200)
    ]
    pattern = re.compile(r"\b(?:" + "|".join(sorted(entries, key=len, reverse=True)) + r")\b")
    expected = [len(pattern.findall(text.lower())) for text in texts]
    assert [row[0] for row in annotated(make(*entries), *texts)] == expected


@pytest.fixture
def harmless(tmp_path):
    def listed(*entries):
        (tmp_path / "harmless.txt").write_text("\n".join(entries), encoding="utf-8")
        return (str(tmp_path / "harmless.txt"),)

    return listed


def test_an_occurrence_near_a_harmless_word_does_not_count(make, harmless):
    stage = make("breast", "cold fish", unless_near=harmless("cancer", "for dinner"), window=2)
    counted = {
        "Breast cancer.": 0,
        "A breast. Of cancer": 0,
        "A breast of the cancer": 1,
        "cancer": 0,
        "breast": 1,  # the cancer before it is of another document
        "Cold fish for dinner": 0,
        "Cold fish, bread for dinner": 1,  # three words from the beginning of one phrase to that of the other
    }
    assert [row[0] for row in annotated(stage, *counted)] == list(counted.values())
    text = "What a breast! It is not about cancer. A breast it is. Breast cancer."
    size = len("".join(re.findall(r"\w+", text)))
    # The first and the second breast are five and two words from a cancer.
    assert annotated(stage, text) == [(1, pytest.approx(6 / size), 1, pytest.approx(1 / 4))]


@pytest.mark.parametrize("window", [1, 3, 7, 100])
def test_random_windows_against_plain_python(window, make, harmless):
    generator = random.Random(window)
    stage = make("bad", "worse bad", unless_near=harmless("ok"), window=window)
    tokens, weights = ["bad", "x", "y", "ok", "bad. It", "z."], [2, 6, 6, 1, 1, 1]
    documents = [" ".join(generator.choices(tokens, weights, k=generator.randrange(30))) for _ in range(300)]
    expected = []
    for words in (re.findall(r"\w+", document) for document in documents):
        near = [words[max(0, at - window) : at + window + 1] for at, word in enumerate(words) if word == "bad"]
        expected.append(sum("ok" not in around for around in near))
    assert [row[0] for row in annotated(stage, *documents)] == expected
    assert max(expected) > 1


def test_a_sliced_table_gives_the_same_rows(make):
    stage = make("a")
    docs = pa.table({"text": pa.array(["a b", "", "c a. a", "d"], pa.large_string())})
    assert stage.annotate(docs.slice(1)).to_pylist() == stage.annotate(docs).to_pylist()[1:]


def test_unsearchable_entries_are_counted_and_reported_once(make, tmp_path):
    """Published lists contain such entries: symbols within a word, emoji, and enumeration items."""
    stage = make(
        "fine words",
        "s&m",
        "🖕",
        "13.",
        "@ss",
        "グループ・セックス",
        "ネオ・ナチ",
        "voor, zijn",
        "C++",
        "“quoted word”",
    )
    where = tmp_path / "list.txt"
    assert stage.notice() == (
        f"symbols that belong to no word: 5 of 10 entries of {where} (lines 4, 5, 6, 7, 11) will not be searched"
    )
    found = annotated(
        stage, "13 s m 🖕 ss C", "fine words", "ネオ・ナチ グループセックス", "voor zijn", "a quoted word"
    )
    assert [row[0] for row in found] == [0, 1, 1, 1, 1]
    assert make("fine").notice() == ""


# Entries of each list that hold symbols which belong to no word; all others are loaded.
LOST = {"en": 2, "ja": 1, "zh": 1}


def test_the_lists_of_c4_load_as_published(shared_data):
    files = sorted(
        path for path in (shared_data / "toxicity" / "ldnoobw").iterdir() if not path.suffix and path.name != "LICENSE"
    )
    assert len(files) == 28
    for path in files:
        entries = [line for line in path.read_text(encoding="utf-8-sig").splitlines() if line.strip()]
        stage = WordList((str(path),))
        stage.setup()
        lost = LOST.get(path.name, 0)
        assert (
            stage.notice().startswith(f"symbols that belong to no word: {lost} of {len(entries)} ")
            if lost
            else not stage.notice()
        )
        found = [row[0] for row in annotated(stage, *(f"{entry}。" for entry in entries))]
        assert sum(count == 0 for count in found) <= lost
        spread = [row[0] for row in annotated(stage, *(f"前{entry}後" for entry in entries))]
        if path.name in ("ja", "zh", "th"):
            assert sum(count > 0 for count in spread) >= len(entries) - lost


def test_lists_that_cannot_be_used(make, tmp_path):
    with pytest.raises(UserError, match=r"list\.txt: no entry consists of words; use another list"):
        make("a$$", "🖕")
    (tmp_path / "list.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match=r"list\.txt: not UTF-8 at byte 0"):
        WordList((str(tmp_path / "list.txt"),)).setup()


def test_the_lists_are_known_by_their_content(make, tmp_path):
    stage = make("a")
    assert set(stage.depends()) == {"unicode", "files[0] xxh3_128"}
    (tmp_path / "list.txt").write_text("b")
    with pytest.raises(UserError, match="a file changed after the build was planned"):
        pickle.loads(pickle.dumps(stage)).setup()


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"files": []}, "files: got an empty list"),
        ({"files": ["nowhere.txt"]}, r"files\[0\]: got 'nowhere.txt'"),
        ({"column": "-"}, "column: got '-'"),
        ({"text": "id"}, "text: got 'id'"),
        ({"unless_near": ["nowhere.txt"]}, r"unless_near\[0\]: got 'nowhere.txt'"),
        ({"window": 0}, "window: got 0, allowed 1 or more"),
    ],
)
def test_knobs_out_of_range(knobs, message, tmp_path):
    (tmp_path / "list.txt").write_text("a")
    with pytest.raises(UserError, match=message):
        parse(WordList, {"files": [str(tmp_path / "list.txt")], **knobs}, where="corpus.yaml")
