"""Scaling laws of ladders whose law is known, their predictions of larger runs, and files that do not define
a ladder.
"""

import numpy as np
import pytest

from gristmill.storage.store import read_json
from tests.trainers.studies.study_files import finish, opened, write_study
from trainers.__main__ import main
from trainers.studies.laws.scaling_law import fit_scaling
from trainers.studies.outcomes.study_ladder import fit_ladder, ladder_of, read_ladder
from trainers.studies.running.study_directory import results_of

PUBLISHED = {"E": 1.69, "A": 406.4, "B": 410.7, "a": 0.34, "b": 0.28}
"""Hoffmann et al. (2022), equation 10."""


def loss(parameters, tokens):
    law = PUBLISHED
    return law["E"] + law["A"] / parameters ** law["a"] + law["B"] / tokens ** law["b"]


def ladder(noise, seed=0, sizes=5):
    parameters, tokens = (
        np.repeat(10.0 ** np.linspace(7, 10, sizes), 5),
        np.tile(10.0 ** np.linspace(8, 11, 5), sizes),
    )
    values = loss(parameters, tokens) * np.exp(noise * np.random.default_rng(seed).normal(size=len(tokens)))
    return parameters, tokens, values


def test_a_ladder_without_noise_gives_the_law_that_made_it():
    fit = fit_scaling(*ladder(0.0), draws=2)
    assert fit.law.coefficients() == pytest.approx(PUBLISHED, rel=1e-6)
    assert fit.law.model_share == pytest.approx(0.28 / 0.62, abs=1e-6)


@pytest.mark.long
def test_the_intervals_hold_the_truth_in_most_ladders():
    inside = []
    for seed in range(3):
        fit = fit_scaling(*ladder(0.01, seed), draws=24)
        for name in ("E", "a", "b"):
            low, high = fit.interval([law.coefficients()[name] for law in fit.resampled])
            inside.append(low <= PUBLISHED[name] <= high)
    assert np.mean(inside) > 0.7


def write(path, columns):
    rows = zip(*columns.values(), strict=True)
    path.write_text("\n".join([",".join(columns), *(",".join(map(str, row)) for row in rows)]))


@pytest.mark.long
def test_the_largest_model_is_predicted_from_the_others(tmp_path, capsys):
    parameters, tokens, values = ladder(0.005)
    write(
        tmp_path / "ladder.csv",
        {"run": [f"r{i}" for i in range(25)], "parameters": parameters, "tokens": tokens, "loss": values},
    )
    assert main(["study", "scaling", "--runs", f"{tmp_path}/ladder.csv", "--output", f"{tmp_path}/law.json"]) == 0
    printed = capsys.readouterr().out
    record = read_json(tmp_path / "law.json")
    assert [row["run"] for row in record["held_out"]] == ["r20", "r21", "r22", "r23", "r24"]
    for row in record["held_out"]:
        assert row["predicted"] == pytest.approx(loss(row["parameters"], row["tokens"]), rel=0.05)
    assert sum(row["low"] <= row["measured"] <= row["high"] for row in record["held_out"]) >= 4
    assert "measured values lie in their interval" in printed
    assert record["intervals"]["a"][0] < record["law"]["a"] < record["intervals"]["a"][1]


def test_a_ladder_of_three_sizes_has_none_to_hold_out(tmp_path):
    parameters, tokens, values = ladder(0.0, sizes=3)
    values[4] = np.nan
    names = [f"r{i}" for i in range(15)]
    write(tmp_path / "ladder.csv", {"run": names, "tokens": tokens, "parameters": parameters, "loss": values})
    read = read_ladder(tmp_path / "ladder.csv")
    assert (read.missing, len(read.runs)) == (("r4",), 14)
    found = fit_ladder(read, draws=2)
    assert found.held_out == ()
    assert found.reason == (
        "the largest model cannot be held out: parameters: the runs have 2 different values; a scaling law needs 3 or more"
    )


def test_a_run_without_a_metric_of_weight_zero_is_on_the_ladder(tmp_path, corpus_directory):
    study, root = opened(write_study(tmp_path, corpus_directory), "proposal.weights={code: 1}")
    finish(root, study.proxies)
    finish(root, study.proxies[:1], metrics={"code": 2.5})
    found = ladder_of(study, results_of(root, study.proxies))
    assert (found.missing, len(found.runs)) == ((), len(study.proxies))
    assert found.losses[found.runs.index(study.proxies[0].name)] == 2.5


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("run,tokens,loss\na,1,2\n", "has no column parameters"),
        ("run,parameters,tokens,loss,error\na,1,2,3,4\n", "has the metrics loss, error; choose one with --metric"),
        ("run,parameters,tokens\na,1,2\n", "has the metrics none"),
        ("run,parameters,tokens,loss\na,0,2,3\n", "a: parameters or tokens are missing or not above 0"),
        ("run,parameters,tokens,loss\na,200,,3\n", "a: parameters or tokens are missing or not above 0"),
        ("run,parameters,tokens,loss\na,1,2,3\n", "parameters: the runs have 1 different values"),
        ("run,parameters,tokens,loss\n" + "".join(f"{i},{i},{i},3\n" for i in (1, 2, 3)), "3 runs have a value"),
        ("run,parameters,tokens,loss\n" + "".join(f"{i},{i},{i},-3\n" for i in range(1, 9)), "allowed above 0"),
    ],
)
def test_a_file_that_makes_no_ladder_is_an_error_of_one_line(tmp_path, rows, message, capsys):
    (tmp_path / "ladder.csv").write_text(rows)
    assert main(["study", "scaling", "--runs", f"{tmp_path}/ladder.csv"]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


STUDY = """\
name: ladder
output: {root}
corpora: [{corpus}]
recipe: llama_tiny
settings: {{batch.sequences: 4, data.sequence_length: 64}}
design: {{kind: grid, seeds: 2, axes: {{model.layers: [1, 2, 3, 4], budget.tokens: [1e4, 2e4, 4e4, 8e4]}}}}
proxies: {{tokens: 5e3}}
metrics: {{tokens: 512}}
proposal: {{weights: {{code: 3, plays: 1}}}}
"""


@pytest.mark.long
def test_the_runs_of_a_study_are_a_ladder(tmp_path, corpus_directory, capsys):
    """The metrics are shifted so that their weighted mean follows the published law."""
    file = write_study(tmp_path, corpus_directory, STUDY)
    assert main(["study", "scaling", str(file)]) == 2
    assert "no run has finished; train them with `study run`" in capsys.readouterr().err
    study, root = opened(file)
    largest, lost = [run for run in study.points if run.job.model.layers == 4], study.points[0]
    for run in study.points:
        parameters, tokens = 10 ** (6 + run.job.model.layers), 1e5 * run.job.budget.tokens
        mean = loss(parameters, tokens)
        metrics = {"code": mean - 0.1, "plays": mean + 0.3}
        state = {"state": "failed", "metrics": {}} if run is lost else {"metrics": metrics}
        finish(root, [run], parameters=parameters, tokens=tokens, **state)
    assert main(["study", "scaling", str(root.parent / "tiny.yaml")]) == 0
    printed = capsys.readouterr().out
    record = read_json(root / "scaling.json")
    assert str(root / "scaling.json") in printed
    assert "mean of the metrics, 31 runs" in printed
    assert record["law"] == pytest.approx(PUBLISHED | {"model_share": 0.28 / 0.62}, rel=1e-4)
    assert {row["run"] for row in record["held_out"]} == {run.name for run in largest}
    assert all(row["predicted"] == pytest.approx(row["measured"], rel=1e-4) for row in record["held_out"])
    assert lost.name not in record["runs"]


def test_a_study_or_a_file_is_needed(capsys):
    assert main(["study", "scaling"]) == 2
    assert "give a STUDY or --runs FILE" in capsys.readouterr().err
