"""Laws fitted to runs of several sizes separate the effect of size from that of the mixture."""

import numpy as np
import pytest

from gristmill.storage.store import read_json
from trainers.__main__ import main
from trainers.studies.laws import LAWS
from trainers.studies.laws.sized_law import SizedLaw

WEIGHTS = np.array([-1.5, -0.5, 0.4, 1.0])
TARGET = 1e9


def mixture_part(ratios):
    return 2.0 + np.exp(ratios @ WEIGHTS)


def runs(sizes, each, exponent, seed=0):
    """Return (mixtures, sizes, metric) of `each` runs per size."""
    ratios = np.random.default_rng(seed).dirichlet(np.ones(4), each * len(sizes))
    parameters = np.repeat(np.array(sizes), each)
    return ratios, parameters, mixture_part(ratios) + 400 * (parameters**-exponent - TARGET**-exponent)


def test_the_law_at_a_target_that_no_run_has_is_found_from_three_sizes():
    ratios, parameters, values = runs([1e6, 1e7, 1e8], 40, 0.4)
    features = np.concatenate([ratios, np.log(parameters / TARGET)[:, None]], axis=1)
    fitted = SizedLaw(LAWS["log_linear"], 1).fit(features, values)
    assert fitted.exponents == pytest.approx([0.4])
    others = np.random.default_rng(1).dirichlet(np.ones(4), 50)
    assert fitted.law.predict(others) == pytest.approx(mixture_part(others), abs=0.01)
    at = np.concatenate([others, np.zeros((50, 1))], axis=1)
    assert fitted.predict(at) == pytest.approx(fitted.law.predict(others))
    steps = 1e-6 * np.eye(5)
    numeric = [(fitted.predict(at[:2] + step) - fitted.predict(at[:2] - step)) / 2e-6 for step in steps]
    assert fitted.gradient(at[:2]) == pytest.approx(np.array(numeric).T, abs=1e-5)


@pytest.mark.long
def test_a_few_large_runs_shift_the_law_of_many_small_ones(tmp_path, capsys):
    small, large = runs([1e6], 60, 0.4), runs([TARGET], 12, 0.4, seed=1)
    parts = [np.concatenate(pair) for pair in zip(small, large, strict=True)]
    rows = [",".join(map(repr, [i, size, *row])) for i, (row, size) in enumerate(zip(*parts[:2], strict=True))]
    text = "\n".join(["index,parameters,a,b,c,d", *rows]).replace("np.float64(", "").replace(")", "")
    (tmp_path / "ratios.csv").write_text(text)
    (tmp_path / "metrics.csv").write_text("\n".join(["index,loss", *(f"{i},{v}" for i, v in enumerate(parts[2]))]))
    files = ["--ratios", f"{tmp_path}/ratios.csv", "--metrics", f"{tmp_path}/metrics.csv"]
    assert main(["study", "fit", *files, "--at", "parameters=1e9", "--output", f"{tmp_path}/fit.json"]) == 0
    assert read_json(tmp_path / "fit.json")["metrics"]["loss"]["cross_validation"]["error"] < 0.02
    settings = ["prior={a: 1, b: 1, c: 1, d: 1}", "kl=0", "draws=20", "--output", f"{tmp_path}/p.yaml"]
    assert main(["study", "propose", *files, "--at", "parameters=1e9", *settings]) == 0
    assert f"predicted {2 + np.exp(-1.5):.2f}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--at", "size=1e9"], "--at: got 'size', "),
        (["--at", "parameters=big"], "--at: got 'parameters=big', expected NAME=SIZE"),
        (["--at", "parameters=0"], "--at: got 'parameters=0', expected NAME=SIZE"),
        (["--at", "a=1"], "a: a value is missing or not above 0"),
        ([], "1 of 1 mixtures do not sum to 1"),
    ],
)
def test_bad_sizes_are_an_error_of_one_line(tmp_path, words, message, capsys):
    (tmp_path / "ratios.csv").write_text("index,parameters,a,b\n1,1000,0,1\n")
    (tmp_path / "metrics.csv").write_text("index,loss\n1,2\n")
    files = ["--ratios", f"{tmp_path}/ratios.csv", "--metrics", f"{tmp_path}/metrics.csv"]
    assert main(["study", "fit", *files, *words]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
