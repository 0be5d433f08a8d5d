"""Text similarity without training: cosines of stock states, correlations against scipy's, and inputs that
cannot be compared.
"""

import json

import numpy as np
import pytest
from scipy.stats import pearsonr, spearmanr

from gristmill.errors import UserError
from tests.trainers.evaluation.probing.test_probing import reader_of, stock_states
from tests.trainers.evaluation.scored_models import ids_of
from tests.trainers.tasks.writing import write_lines
from trainers.__main__ import main
from trainers.evaluation.probing.text_similarity import COUNTS, layer_similarities
from trainers.tasks.load_task import load_task
from trainers.tasks.read_examples import read_examples

PAIRS = [
    ("the cat sat", "a cat sat on the mat", 3.0),
    ("unhappy dogfish barked loudly", "the mat", 0.5),
    ("mat", "mat", 5.0),
    ("a cat on the mat while", "twenty gates", 0.0),
    ("the cat barked", "the dogfish sat", 2.5),
]
TASK = """kind: regress
files: {dev: dev.jsonl, test: test.jsonl}
unlabelled: [test]
columns: {text: a, text_b: b, label: y}
metrics: [pearson]
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("similarity")
    (made / "near.yaml").write_text(TASK)
    write_lines(made / "dev.jsonl", [{"a": a, "b": b, "y": y} for a, b, y in PAIRS])
    write_lines(made / "test.jsonl", [{"a": a, "b": b} for a, b, _ in PAIRS])
    return made


def cosine(one, other):
    return float(one @ other / np.linalg.norm(one) / np.linalg.norm(other))


@pytest.mark.long
@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_correlations_are_scipys_of_the_cosines_of_stock_states(folder, name):
    reader = reader_of(name, folder)
    examples = read_examples(load_task(str(folder / "near.yaml")), "dev", None)
    found = layer_similarities(reader, examples, ["0", "2"], ["mean", "first", "last"])
    assert [(each.layer, each.pooling) for each in found] == [
        (COUNTS, ""),
        *((layer, pooling) for layer in ("0", "2") for pooling in ("mean", "first", "last")),
    ]
    for each in found[1:]:
        expected = []
        for pair in PAIRS:
            vectors = []
            for text in pair[:2]:
                ((states, marks),) = stock_states(name, folder, text)
                own = states[int(each.layer), marks : marks + len(ids_of(folder, text))]
                vectors.append(
                    {"mean": own.mean(0), "first": states[int(each.layer), 0], "last": own[-1]}[each.pooling]
                )
            expected.append(cosine(*vectors))
        gold = [pair[2] for pair in PAIRS]
        if np.ptp(expected) > 1e-6:  # the first position's embedding is always the same
            assert each.pearson.value == pytest.approx(pearsonr(gold, expected)[0], abs=1e-4)
            assert each.spearman.value == pytest.approx(spearmanr(gold, expected)[0], abs=1e-6)
        assert each.spearman.low <= each.spearman.value <= each.spearman.high
        assert each.spearman.n == 5


def test_the_baseline_is_the_cosine_of_token_counts(folder):
    reader = reader_of("bert", folder)
    examples = read_examples(load_task(str(folder / "near.yaml")), "dev", None)
    found, _ = layer_similarities(reader, examples, ["0"], ["mean"])
    expected = []
    for pair in PAIRS:
        ids = [ids_of(folder, text) for text in pair[:2]]
        known = sorted({*ids[0], *ids[1]})
        expected.append(cosine(*(np.array([its.count(token) for token in known], float) for its in ids)))
    assert found.spearman.value == pytest.approx(spearmanr([pair[2] for pair in PAIRS], expected)[0], abs=1e-9)


@pytest.mark.long
def test_the_command_prints_a_row_for_each_layer_and_writes_scores(decoder_run, folder, tmp_path, capsys):
    output = tmp_path / "s.json"
    words = [f"task={folder}/near.yaml", "layers=0,1", "pooling=mean,last"]
    assert main(["similarity", str(decoder_run), *words, "--output", str(output)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines[:6]] == [
        ["layer", "pooling"], ["counts", "-"], ["0", "mean"], ["0", "last"], ["1", "mean"], ["1", "last"]
    ]  # fmt: skip
    saved = json.loads(output.read_text())
    assert (saved["task"], saved["split"], len(saved["layers"])) == ("near", "dev", 5)
    assert f"{saved['layers'][1]['spearman']['value']:.4f}" in lines[2]


def test_hidden_gold_is_refused(folder):
    examples = read_examples(load_task(str(folder / "near.yaml")), "test", None)
    with pytest.raises(UserError, match="near: test: its gold is hidden; name another split"):
        layer_similarities(reader_of("bert", folder), examples, ["0"], ["mean"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["layers=all"], "task: give task=stsb, or task=FILE.yaml"),
        (["task=stsb", "pooling=token"], "pooling: got 'token', allowed mean, first, last"),
        (["task=stsb", "layer=1"], "did you mean 'layers'?"),
        (["task=stsb", "--output", "x.html"], "--output: got x.html, expected a name that ends in .json"),
    ],
)
def test_bad_input_is_one_line(decoder_run, words, message, capsys):
    assert main(["similarity", str(decoder_run), *words]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_a_task_of_another_kind_is_refused(decoder_run, tmp_path, capsys):
    write_lines(tmp_path / "dev.jsonl", [{"a": "a cat", "y": 1.0}, {"a": "a mat", "y": 2.0}])
    (tmp_path / "one.yaml").write_text(
        "kind: regress\nfiles: {dev: dev.jsonl}\ncolumns: {text: a, label: y}\nmetrics: [pearson]\n"
    )
    assert main(["similarity", str(decoder_run), f"task={tmp_path}/one.yaml"]) == 2
    assert "task: one has one text; similarity needs numbers for pairs of texts (regress), such as stsb" in (
        capsys.readouterr().err
    )
