"""Studies that keep the ratios of an earlier proposal: exact ratios, caps and floors of each domain, and the
steps from runs to page.
"""

import numpy as np
import pytest
import yaml

from gristmill.errors import ConfigError
from tests.trainers.studies.study_files import finish, opened, write_study
from trainers.config.pretraining import Data
from trainers.studies.designs.reused_ratios import VIRTUAL, ReusedRatios
from trainers.studies.outcomes.study_steps import fit_step, propose_step, read_full_proposal, read_proposal
from trainers.studies.outcomes.study_verdict import candidate_runs
from trainers.studies.page.study_page import write_study_page
from trainers.studies.planning.plan_study import plan_lines, plan_study
from trainers.studies.proposals.constraints import build_constraints
from trainers.studies.proposals.proposal_settings import ProposalSettings
from trainers.studies.running.study_directory import results_of

EARLIER = {"code": 0.7, "plays": 0.2, "gone": 0.1}  # a domain that the new corpus lacks
RATIO = 0.7 / 0.2


@pytest.fixture
def file(tmp_path, corpus_directory):
    (tmp_path / "earlier.yaml").write_text(yaml.safe_dump({"weights": EARLIER}))
    file = write_study(tmp_path, corpus_directory)
    file.write_text(file.read_text() + f"reuse: {{proposal: {tmp_path / 'earlier.yaml'}}}\n")
    return file


def kept(weights):
    return weights["code"] / weights["plays"] == pytest.approx(RATIO, rel=1e-12)


@pytest.mark.long
def test_a_study_varies_the_new_domain_and_keeps_the_ratios_of_the_others(file):
    study, root = opened(file)
    assert study.domains == ("notes", VIRTUAL)
    tokens = {name: source.tokens for name, source in study.corpus.train.items()}
    assert study.prior == pytest.approx(
        [tokens["notes"] / sum(tokens.values()), 1 - tokens["notes"] / sum(tokens.values())]
    )
    for run in (*study.proxies, study.candidate("x", study.mixture(np.array([0.25, 0.75])), 0)):
        assert sorted(run.job.data.weights) == ["code", "notes", "plays"]
        assert sum(run.weights.values()) == pytest.approx(1, abs=1e-9)
        assert kept(run.weights)
    assert len({run.weights["notes"] for run in study.points}) == len(study.points) == 25
    finish(root, study.proxies)
    fit = fit_step(study, root, results_of(root, study.proxies))
    assert fit.table.domains == study.domains
    proposal = propose_step(study, root, fit.table, fit.laws)
    again, _ = read_full_proposal(root)
    assert (again.domains, again.ratios.tolist()) == (study.domains, pytest.approx(proposal.ratios, abs=1e-9))
    weights = read_proposal(study, root)
    assert kept(weights)
    assert weights["notes"] < 0.02  # useless, as planted
    written = yaml.safe_load((root / "proposal.yaml").read_text())["weights"]
    assert kept(Data(weights=written).weights)
    runs = candidate_runs(study, root)
    assert [kept(run.weights) for run in runs[:3]] == [True, True, False]  # a mixture in `own` is what it says
    page = write_study_page(study, root).read_text()
    assert "<b>reused</b> stands for these domains together" in page
    lines = "\n".join(plan_lines(plan_study(study, root, 1)))
    assert "the study varies notes, reused; reused is code 77.78%, plays 22.22%" in lines


def test_a_proposal_made_before_the_study_stopped_reusing_is_read_by_its_weights(file):
    study, root = opened(file)
    weights = {"code": 0.4, "notes": 0.5, "plays": 0.1}
    root.mkdir(exist_ok=True)
    (root / "proposal.yaml").write_text(yaml.safe_dump({"weights": weights, "shares": {"notes": 0.5, VIRTUAL: 0.5}}))
    assert kept(read_proposal(study, root))
    study, _ = opened(file, "reuse=null")
    assert read_proposal(study, root) == weights


def test_caps_and_floors_hold_for_each_kept_domain():
    tokens = {"a": 1000, "b": 400, "new": 500}
    reused = ReusedRatios({"a": 0.25, "b": 0.75})
    settings = ProposalSettings(tokens=tokens, target_tokens=2000, max_epochs=2.0, floors={"a": 0.1, "new": 0.05})
    reduced = reused.settings(settings)
    its = build_constraints(("new", VIRTUAL), reduced.floors, {}, reduced.tokens, 2000, reduced.epoch_caps)
    # b may be read 2 x 400 / 2000 = .4 of the run, so all of them .4 / .75; a's floor of .1 is .1 / .25 of them.
    assert its.upper == pytest.approx([0.5, 0.4 / 0.75])
    assert its.lower == pytest.approx([0.05, 0.4])
    whole = build_constraints(("a", "b", "new"), settings.floors, {}, tokens, 2000, 2.0)
    for share in np.linspace(0, 1, 101):
        mixture = reused.expand({"new": 1 - share, VIRTUAL: share})
        there = whole.contains(np.array([list(mixture.values())]), 1e-9)[0]
        assert its.contains(np.array([[1 - share, share]]), 1e-9)[0] == there
    caps = reused.settings(ProposalSettings(tokens=tokens, target_tokens=2000, max_epochs={"a": 0.1}))
    assert caps.max_epochs == pytest.approx({VIRTUAL: 0.1 * 1000 / 0.25 / 1400})
    assert reused.settings(ProposalSettings(tokens=tokens, max_epochs=None)).max_epochs is None
    empty = ProposalSettings(tokens={"a": 0, "b": 0, "new": 500}, target_tokens=2000, max_epochs=2.0)
    its = reused.settings(empty)
    upper = build_constraints(("new", VIRTUAL), {}, {}, its.tokens, 500, its.epoch_caps).upper
    assert upper.tolist() == [1, 0]


def test_settings_of_kept_domains_that_cannot_hold_are_errors():
    reused, tokens = ReusedRatios({"a": 1.0, "b": 0.0}), {"a": 10, "b": 10, "new": 10}
    with pytest.raises(ConfigError, match=r"fixed.a: its ratio is kept"):
        reused.settings(ProposalSettings(tokens=tokens, fixed={"a": 0.1}))
    with pytest.raises(ConfigError, match=r"floors.b: got 0.1, its kept ratio is 0"):
        reused.settings(ProposalSettings(tokens=tokens, floors={"b": 0.1}))
    with pytest.raises(ConfigError, match=r"tokens.b: missing"):
        reused.settings(ProposalSettings(tokens={"a": 10, "new": 10}))


@pytest.mark.parametrize(
    ("reuse", "message"),
    [
        (
            "{proposal: PATH, domains: [code, pays]}",
            "got 'pays', .*earlier.yaml has no such domain; did you mean 'plays'",
        ),
        ("{proposal: PATH, domains: [code, gone]}", "got 'gone', the corpus has no such domain"),
        ("{proposal: PATH, domains: [code]}", "1 domains with 0.7 of the weight are kept"),
        ("{proposal: STUDY}", "has no mapping `weights`"),
    ],
)
def test_files_and_names_that_do_not_fit_are_errors(file, tmp_path, reuse, message):
    reuse = reuse.replace("PATH", str(tmp_path / "earlier.yaml")).replace("STUDY", str(file))
    with pytest.raises(ConfigError, match=message):
        opened(file, f"reuse={reuse}")


def test_keeping_all_domains_leaves_nothing_to_vary(file, tmp_path):
    (tmp_path / "earlier.yaml").write_text("weights: {code: 1, notes: 1, plays: 1}\n")
    with pytest.raises(ConfigError, match="leaves nothing to vary"):
        opened(file)
