"""The study commands on existing results, and what they refuse."""

import pytest

from gristmill.storage.store import read_json
from tests.trainers.studies.study_files import finish, opened, write_study
from trainers.__main__ import main
from trainers.studies.outcomes.study_steps import read_proposal
from trainers.studies.outcomes.study_verdict import candidate_runs
from trainers.studies.running.study_directory import register


@pytest.fixture
def file(tmp_path, corpus_directory):
    return write_study(tmp_path, corpus_directory)


@pytest.mark.long
def test_every_part_runs_from_the_files_of_the_study(file, capsys):
    study, root = opened(file)
    finish(root, study.proxies)
    assert main(["study", "fit", str(file)]) == 0
    assert "25 runs, 3 domains" in capsys.readouterr().out
    assert main(["study", "confirm", str(file)]) == 2
    assert "has no proposal.yaml yet; make it with `study propose`" in capsys.readouterr().err
    assert main(["study", "propose", str(file)]) == 0
    assert f"{root / 'proposal.yaml'}" in capsys.readouterr().out
    finish(root, candidate_runs(study, root))
    assert main(["study", "run", str(file), "--workers", "2"]) == 0  # nothing is left to train
    printed = capsys.readouterr().out
    assert "0 to train" in printed
    assert "the baseline" in printed
    assert read_json(root / "confirmation.json")["baseline"] == "prior"
    for verb in ("plan", "confirm", "report"):
        assert main(["study", verb, str(root)]) == 0  # the directory stands for its file
    tables = ["--ratios", str(root / "ratios.csv"), "--metrics", str(root / "metrics.csv")]
    assert main(["study", "fit", *tables]) == 0
    weights = read_proposal(study, root)
    assert main(["study", "propose", *tables, "kl=0.001", "prior={code: 1, notes: 1, plays: 1}", "draws=20"]) == 0
    assert max(weights, key=weights.get) in capsys.readouterr().out


def test_a_page_with_another_rule_than_the_registered_one_is_refused(file, capsys):
    study, root = opened(file)
    register(study.study, root)
    finish(root, study.proxies)
    assert main(["study", "report", str(file)]) == 0
    page = (root / "report.html").read_bytes()
    assert main(["study", "report", str(file), "confirmation.level=0.6"]) != 0
    assert "confirmation differs from what was registered before the first run" in capsys.readouterr().err
    assert (root / "report.html").read_bytes() == page


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["fit"], "give a STUDY, or both --ratios and --metrics"),
        (["fit", "FILE", "--ratios", "x.csv"], "give a STUDY, or both --ratios and --metrics"),
        (["fit", "--ratios", "x.csv"], "give a STUDY, or both --ratios and --metrics"),
        (["fit", "FILE"], "no run has finished; train them with `study run`"),
        (["fit", "--ratios", "x.csv", "--metrics", "x.csv", "--seed", "-1"], "--seed: got -1, allowed 0 or more"),
        (["report", "FILE"], "no run has finished"),
        (["plan", "FILE", "other.yaml"], "'other.yaml': expected one study"),
        (["plan", "FILE", "--workers", "0"], "--workers: got 0, allowed 1 or more"),
        (["plan", "name=x"], "STUDY: missing"),
        (["plan", "none.yaml"], "none.yaml: no such file"),
        (["plan", "FILE", "corpora=[nowhere]"], "nowhere"),
    ],
)
def test_what_is_refused_is_one_line(file, words, message, capsys):
    assert main(["study", *(str(file) if word == "FILE" else word for word in words)]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
