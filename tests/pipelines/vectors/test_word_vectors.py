"""Vector files, nearest neighbours and analogies."""

import numpy as np
import pytest

from gristmill.errors import UserError
from gristmill.storage.paths import local_path
from pipelines.__main__ import main
from pipelines.vectors.word_vectors import (
    WordVectors,
    answer_questions,
    complete_analogy,
    neighbours,
    read_vectors,
    write_vectors,
)


@pytest.fixture
def royal():
    """Words with three hand-picked dimensions: royalty, gender, and being a person."""
    meanings = {
        "man": (0, 1, 1), "woman": (0, -1, 1), "king": (1, 1, 1), "queen": (1, -1, 1), "throne": (2, 0, 0), "cat": (0, 0, -1),
    }  # fmt: skip
    return WordVectors(list(meanings), np.array(list(meanings.values()), np.float32))


def test_a_file_returns_what_was_written(tmp_path):
    random = np.random.default_rng(0)
    vectors = WordVectors(["a", "naïve", "東", "no\u00a0break", "x y"], random.normal(size=(5, 7)).astype(np.float32))
    path = local_path(str(tmp_path / "vectors.txt"))
    write_vectors(vectors, path)
    assert path.read_text().splitlines()[0] == "5 7"
    for place in (path, local_path(str(tmp_path))):  # the file, or its directory
        again = read_vectors(place)
        assert list(again.words) == list(vectors.words)
        np.testing.assert_allclose(again.matrix, vectors.matrix, rtol=1e-6)
    assert list(read_vectors(path, 2).words) == ["a", "naïve"]


def test_files_of_many_blocks_and_of_fasttext_are_read(tmp_path):
    path = local_path(str(tmp_path / "wiki.vec"))
    lines = "".join(f"w{i} {i} {-i} \n" for i in range(2500))  # fastText ends lines with a space
    path.write_text(f"2500 2\n{lines}")
    vectors = read_vectors(path)
    assert vectors.words[2499] == "w2499"
    np.testing.assert_array_equal(vectors.matrix[:, 0], np.arange(2500))
    np.testing.assert_array_equal(vectors.matrix[:, 1], -np.arange(2500))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a 1 2\n", r"x.txt:1: expected the numbers of words and of dimensions"),
        ("1 0\na\n", r"x.txt:1: expected the numbers"),
        ("2 2\na 1 2\n", r"x.txt:3: expected a word and 2 finite numbers"),
        ("2 2\na 1 2\nb 1\n", r"x.txt:3: expected a word and 2"),
        ("1 2\na 1 x\n", r"x.txt:2: expected a word in UTF-8 and 2 numbers"),
        ("1 2\na 1 nan\n", r"x.txt:2: expected a word and 2 finite"),
        ("2 1\na 1\na 2\n", r"x.txt:3: 'a' has a vector on an earlier line"),
    ],
)
def test_a_broken_file_is_refused_with_its_line(tmp_path, text, message):
    path = local_path(str(tmp_path / "x.txt"))
    path.write_text(text)
    with pytest.raises(UserError, match=message):
        read_vectors(path)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(UserError, match=r"no such file, and no directory with vectors.txt"):
        read_vectors(local_path(str(tmp_path)))


def test_neighbours_are_those_of_a_loop_over_cosines():
    random = np.random.default_rng(1)
    vectors = WordVectors([f"w{i}" for i in range(40)], random.normal(size=(40, 6)).astype(np.float32))
    cosines = {
        word: float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))
        for word, a in zip(vectors.words, vectors.matrix, strict=True)
        for b in vectors.matrix[7:8]
    }
    del cosines["w7"]
    expected = sorted(cosines, key=lambda word: -cosines[word])[:5]
    found = neighbours(vectors, "w7", 5)
    assert [each.word for each in found] == expected
    assert [each.score for each in found] == pytest.approx([cosines[word] for word in expected], abs=1e-6)
    assert len(neighbours(vectors, "w7", 1000)) == 39


def test_the_king_is_to_the_man_as_the_queen_to_the_woman(royal):
    best, *others = complete_analogy(royal, ("man", "king", "woman"), 3)
    assert best.word == "queen"
    assert not {each.word for each in others} & {"man", "king", "woman"}
    unit = {w: v / np.linalg.norm(v) for w, v in zip(royal.words, royal.matrix.astype(float), strict=True)}
    query = unit["king"] - unit["man"] + unit["woman"]
    assert best.score == pytest.approx(float(unit["queen"] @ query / np.linalg.norm(query)), abs=1e-6)


def test_questions_are_scored_by_section(royal, tmp_path):
    path = local_path(str(tmp_path / "questions.txt"))
    path.write_text(
        ": sexes\nMan King Woman Queen\nman king woman cat\n: others\nman king woman unknown\nking queen man woman\n"
    )
    sexes, others = answer_questions(royal, path)
    assert (sexes.section, sexes.questions, sexes.covered, sexes.correct) == ("sexes", 2, 2, 1)
    assert (others.section, others.questions, others.covered, others.correct) == ("others", 2, 1, 1)
    path.write_text(": s\none two three\n")
    with pytest.raises(UserError, match=r"questions.txt:2: got 3 words, expected four"):
        answer_questions(royal, path)


def test_the_commands_show_words_and_refuse_others(royal, tmp_path, capsys):
    path = local_path(str(tmp_path / "v.txt"))
    write_vectors(royal, path)
    assert main(["vectors", "neighbours", str(path), "king", "--count", "2"]) == 0
    assert capsys.readouterr().out.split()[1] == "man"
    assert main(["vectors", "analogy", str(path), "man", "king", "woman", "--count", "1"]) == 0
    assert capsys.readouterr().out.split()[1] == "queen"
    for words, message in (
        (["neighbours", str(path), "King"], "'King': no such word among 6; did you mean 'king'?"),
        (["neighbours", str(path), "king", "--count", "0"], "--count: got 0, expected 1 or more"),
        (["analogy", str(path), "man", "king"], "expected three words, A B C, or --questions FILE"),
    ):
        assert main(["vectors", *words]) != 0
        assert message in capsys.readouterr().err
