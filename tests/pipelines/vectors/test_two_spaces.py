"""Alignment of two vector spaces, words that moved between them, and the commands."""

import numpy as np
import pytest
from scipy.stats import ortho_group

from gristmill.errors import UserError
from gristmill.storage.paths import local_path
from pipelines.__main__ import main
from pipelines.vectors.align_spaces import align_spaces, read_dictionary, seed_pairs, split_pairs
from pipelines.vectors.moved_words import find_moved_words
from pipelines.vectors.word_vectors import WordVectors, read_vectors, write_vectors

SIZE, DIMENSIONS = 400, 12


@pytest.fixture
def spaces():
    """A clustered space, and a rotated, noisy copy in which a third of the words have other names."""
    random = np.random.default_rng(5)
    centres = random.normal(size=(20, DIMENSIONS))
    matrix = centres[np.arange(SIZE) % 20] + random.normal(size=(SIZE, DIMENSIONS)) * 0.6
    turned = (matrix + random.normal(size=matrix.shape) * 0.08) @ ortho_group.rvs(DIMENSIONS, random_state=random)
    names = [f"{i}" if i % 4 == 0 else f"w{i}" for i in range(SIZE)]
    other = [f"x{i}" if i % 3 == 0 else name for i, name in enumerate(names)]
    return WordVectors(names, matrix.astype(np.float32)), WordVectors(other, turned.astype(np.float32))


def test_a_turned_space_is_found_from_numerals_and_checked_on_words_without_a_common_name(spaces):
    source, target = spaces
    pairs = seed_pairs(source, target, "numerals")
    assert pairs == [(f"{i}", f"{i}") for i in range(0, SIZE, 4) if i % 3]
    alignment = align_spaces(source, target, pairs, held_out=0.3)
    assert alignment.refined.csls.share(1) > 0.9
    assert alignment.refined.pairs > 2 * alignment.seeds.pairs  # refinement found pairs that no seed named
    np.testing.assert_allclose(alignment.rotation @ alignment.rotation.T, np.eye(DIMENSIONS), atol=1e-5)
    renamed = [i for i in range(SIZE) if i % 3 == 0]
    nearest = (alignment.source.matrix[renamed] @ alignment.target.matrix.T).argmax(axis=1)
    assert (nearest == renamed).mean() > 0.9


def test_unrelated_spaces_are_at_chance(spaces):
    source, _ = spaces
    other = np.random.default_rng(9).normal(size=(SIZE, DIMENSIONS)).astype(np.float32)
    target = WordVectors(source.words, other)
    alignment = align_spaces(source, target, seed_pairs(source, target, "identical"), refinements=0)
    assert alignment.refined == alignment.seeds
    assert alignment.seeds.csls.share(1) < 0.05
    assert alignment.seeds.csls.words > 50


def test_held_out_pairs_do_not_change_the_map(spaces):
    """Without refinement, the map depends on the training pairs alone. Wrong partners for held-out words
    change only the scores.
    """
    source, target = spaces
    pairs = seed_pairs(source, target, "identical")
    train, held_out = split_pairs(pairs, 0.3, 0)
    assert sorted(train + held_out) == sorted(pairs)
    assert 0.2 < len(held_out) / len(pairs) < 0.4
    wrong = [(a, held_out[k - 1][1]) for k, (a, _) in enumerate(held_out)]
    right = align_spaces(source, target, pairs, held_out=0.3, refinements=0)
    misled = align_spaces(source, target, train + wrong, held_out=0.3, refinements=0)
    np.testing.assert_array_equal(right.rotation, misled.rotation)
    assert right.seeds.csls.at[1] > misled.seeds.csls.at[1]


def test_a_word_with_several_translations_is_one_word_and_on_one_side(spaces, tmp_path):
    source, target = spaces
    path = local_path(str(tmp_path / "dictionary.txt"))
    path.write_text("".join(f"w{i} w{i}\nw{i} w{i + 4}\n" for i in range(1, SIZE - 4) if i % 4) + "w1 absent\n")
    pairs = read_dictionary(path, source, target)
    assert ("w1", "w1") in pairs
    assert ("w1", "absent") not in pairs
    train, held_out = split_pairs(pairs, 0.5, 3)
    assert not {a for a, _ in train} & {a for a, _ in held_out}
    alignment = align_spaces(source, target, pairs, held_out=0.5, seed=3, refinements=1)
    assert alignment.seeds.csls.words == len({a for a, _ in held_out})
    at = alignment.seeds.csls.at
    assert at[1] <= at[5] <= at[10] <= alignment.seeds.csls.words
    path.write_text("a b c\n")
    with pytest.raises(UserError, match=r"dictionary.txt:1: got 3 words, expected a word and its translation"):
        read_dictionary(path, source, target)
    path.write_bytes(b"w1 w1\nw\xff w2\n")
    with pytest.raises(UserError, match=r"dictionary.txt:2: is not UTF-8"):
        read_dictionary(path, source, target)


def test_the_words_that_were_moved_are_found(spaces):
    source, _ = spaces
    random = np.random.default_rng(6)
    matrix = source.matrix.copy()
    matrix[[10, 20, 30]] = matrix[[11, 21, 31]]  # they take the places of others
    turned = (matrix + random.normal(size=matrix.shape) * 0.05) @ ortho_group.rvs(DIMENSIONS, random_state=random)
    new = WordVectors([*source.words[:-1], "new"], turned.astype(np.float32))
    displacement = find_moved_words(source, new, SIZE)
    assert len(displacement.words) == SIZE - 1
    farthest = displacement.farthest(3, near=1)
    assert {each.word for each in farthest} == {source.words[k] for k in (10, 20, 30)}
    assert all(each.now == [source.words[source.rows[each.word] + 1]] for each in farthest)
    assert all(each.distance > 5 * displacement.quantiles(0.5)[0] for each in farthest)
    assert len(find_moved_words(source, new, 100).words) == 100


def test_spaces_that_cannot_be_compared(spaces):
    source, target = spaces
    narrow = WordVectors(target.words, target.matrix[:, :3])
    strange = WordVectors([f"y{i}" for i in range(SIZE)], target.matrix)
    with pytest.raises(UserError, match=r"vectors of 12 and of 3 dimensions"):
        align_spaces(source, narrow, seed_pairs(source, narrow, "identical"))
    with pytest.raises(UserError, match=r"0 pairs of words to fit and 0 held out, expected at least 10 of each"):
        align_spaces(source, strange, seed_pairs(source, strange, "identical"))
    with pytest.raises(UserError, match=r"vectors of 12 and of 3 dimensions"):
        find_moved_words(source, narrow, 100)
    with pytest.raises(UserError, match=r"0 words are in both, expected at least 10"):
        find_moved_words(source, strange, 100)


def test_the_commands_align_and_compare(spaces, tmp_path, capsys):
    files = [local_path(str(tmp_path / f"{name}.txt")) for name in ("a", "b")]
    for space, path in zip(spaces, files, strict=True):
        write_vectors(space, path)
    names = [str(path) for path in files]
    assert main(["vectors", "align", *names, str(tmp_path / "both"), "--refinements", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(",")[0] for line in lines] == ["seeds", "seeds", "refined", "refined"]
    mapped, target = (read_vectors(local_path(str(tmp_path / "both" / f"{name}.txt"))) for name in ("source", "target"))
    row = mapped.rows["w3"]
    assert (mapped.unit[row] @ target.unit.T).argmax() == row  # which is called x3 there
    assert main(["vectors", "moved", *names, "--count", "2"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 3
    for words, message in (
        (["align", *names, str(tmp_path / "both")], "both: exists; name another directory, or use --overwrite"),
        (
            ["align", *names, str(tmp_path / "c"), "--held-out", "1"],
            "--held-out: got 1.0, expected a number between 0 and 1",
        ),
        (["align", *names, str(tmp_path / "c"), "--refinements", "-1"], "--refinements: got -1, expected 0 or more"),
        (["align", *names, str(tmp_path / "c"), "--most", "0"], "--most: got 0, expected 1 or more"),
        (["align", *names, str(tmp_path / "c"), "--most", "60"], "held out, expected at least 10 of each"),
        (["moved", *names, "--most", "0"], "--most: got 0, expected 1 or more"),
    ):
        assert main(["vectors", *words]) != 0
        assert message in capsys.readouterr().err
