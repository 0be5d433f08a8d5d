"""Proposals for laws with a known best mixture: the tie set contains the optimum and shrinks as runs are
added, and constraints hold.
"""

from functools import lru_cache

import numpy as np
import pytest
import yaml
from scipy.optimize import minimize as scipy_minimise

from gristmill.config import parse
from gristmill.errors import ConfigError
from trainers.__main__ import main
from trainers.studies.laws import LAWS
from trainers.studies.laws.law_set import LawSet, fit_laws
from trainers.studies.proposals.baselines import baseline_mixtures
from trainers.studies.proposals.constraints import build_constraints
from trainers.studies.proposals.objective import MixtureObjective, minimise
from trainers.studies.proposals.proposal_settings import ProposalSettings
from trainers.studies.proposals.propose import propose, residual_inflation
from trainers.studies.proposals.tie_set import TieSet

DOMAINS = tuple("abcdef")
NOISE = 0.02
EFFECTS = np.array([[-3, -0.5, 0.2, 0.1, 0, 0.5], [0.3, -2.5, 0, -0.2, 0.1, 0.4], [0, -0.1, -2, -0.3, 0.2, 0.1]])
PRIOR = dict.fromkeys(DOMAINS, 1.0)


def changed(column, values):
    effects = EFFECTS.copy()
    effects[:, column] = values
    return effects


CASES = {
    "plain": (EFFECTS, {}),
    "a cap that binds": (
        EFFECTS,
        {"tokens": dict.fromkeys(DOMAINS, 1000), "target_tokens": 2000, "max_epochs": {"a": 0.5}},
    ),
    "a useless domain": (changed(3, 0.4), {}),
    "two interchangeable domains": (changed(1, EFFECTS[:, 0]), {}),
    "a domain that harms": (changed(5, 1.5), {}),
}


def truth(ratios, effects):
    return 1 + np.exp(ratios @ effects.T)


@lru_cache(maxsize=4)
def fitted(case, runs, seed, draws):
    generator = np.random.default_rng(seed)
    ratios = generator.dirichlet(np.ones(6), runs)
    values = truth(ratios, CASES[case][0]) + NOISE * generator.normal(size=(runs, 3))
    missing = np.zeros(values.shape, bool)
    return fit_laws([LAWS["log_linear"]] * 3, DOMAINS, "xyz", ratios, values, missing, draws, seed), ratios


def study(case, runs, seed, draws=40, **settings):
    """Return (proposal, tie set, constraints, true optimum) of a study of noisy runs."""
    effects, more = CASES[case]
    laws, ratios = fitted(case, runs, seed, draws)
    wanted = ProposalSettings(**{"kl": 0.0, "prior": PRIOR, "max_epochs": None, **more, **settings})
    proposal = propose(laws, ratios, wanted, seed)
    limits = (wanted.floors, wanted.fixed, wanted.tokens, wanted.target_tokens, wanted.epoch_caps)
    constraints = build_constraints(DOMAINS, *limits)
    objective = MixtureObjective(laws, np.full(3, 1 / 3), wanted.kl, wanted.prior_of(DOMAINS))
    ties = TieSet(objective, proposal.ratios, residual_inflation(runs, 7)).calibrate(constraints)
    bounds = list(zip(constraints.lower, constraints.upper, strict=True))
    found = scipy_minimise(
        lambda x: truth(x, effects).mean(),
        constraints.project(np.full(6, 1 / 6)),
        method="SLSQP",
        bounds=bounds,
        constraints=[{"type": "eq", "fun": lambda x: x.sum() - 1}],
        options={"ftol": 1e-14},
    )
    best = found.x
    if np.array_equal(effects[:, 0], effects[:, 1]):  # every split between the two is best: take that of the proposal
        first = proposal.ratios[0] / proposal.ratios[:2].sum()
        best[:2] = best[:2].sum() * np.array([first, 1 - first])
    return proposal, ties, constraints, best


@pytest.mark.long
@pytest.mark.parametrize("case", ["a cap that binds"])
def test_the_optimum_ties_and_little_is_lost(case):
    proposal, ties, constraints, best = study(case, 48, 0, draws=20)
    assert constraints.contains(proposal.ratios[None], 1e-6)[0]
    assert ties.contains(best[None])[0]
    assert proposal.tied_share < 0.1
    regret = truth(proposal.ratios, CASES[case][0]).mean() - truth(best, CASES[case][0]).mean()
    assert regret < 2 * NOISE
    worse = {each.name: each.difference for each in proposal.compared}
    assert worse["uniform"] > 0.1


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_the_optimum_ties_in_19_of_20_seeds_and_the_set_shrinks(case):
    widths = []
    for runs in (32, 64):
        results = [study(case, runs, seed) for seed in range(20)]
        assert sum(bool(ties.contains(best[None])[0]) for _, ties, _, best in results) >= 19
        assert np.mean([proposal.tied_share for proposal, *_ in results]) < 0.1
        widths.append(np.mean([np.ptp(proposal.ranges, axis=1).mean() for proposal, *_ in results]))
        for proposal, _, constraints, best in results:
            assert constraints.contains(proposal.ratios[None], 1e-6)[0]
            assert truth(proposal.ratios, CASES[case][0]).mean() - truth(best, CASES[case][0]).mean() < 2 * NOISE
    assert widths[1] < widths[0]


@pytest.mark.long
def test_floors_fixed_shares_and_the_prior_hold():
    proposal, *_ = study("plain", 32, 1, draws=20, floors={"f": 0.1}, fixed={"b": 0.25})
    assert proposal.ratios[5] >= 0.1 - 1e-9
    assert proposal.ratios[1] == pytest.approx(0.25, abs=1e-9)
    pulled, *_ = study("plain", 32, 1, draws=20, kl=100.0)
    assert pulled.ratios == pytest.approx(np.full(6, 1 / 6), abs=0.01)


@pytest.mark.long
def test_without_the_tokens_of_every_domain_the_epochs_are_unknown():
    proposal, *_ = study("a cap that binds", 32, 1, draws=20, tokens={"a": 1000})
    assert proposal.epochs is None
    assert proposal.ratios[0] <= 0.25 + 1e-9


def test_a_law_without_derivatives_is_searched_by_samples():
    """The law is the truth rounded to hundredths, a step function whose gradient is 0 almost everywhere."""

    class Steps:
        is_convex = is_smooth = False

        def predict(self, ratios):
            return truth(ratios, EFFECTS[:1])[:, 0].round(2)

    laws = LawSet(DOMAINS, ("x",), (Steps(),), ())
    limits = build_constraints(DOMAINS, {"f": 0.05}, {"b": 0.1})
    found = minimise(MixtureObjective(laws, np.ones(1), 0.0, np.full(6, 1 / 6)), limits)
    assert limits.contains(found[None], 1e-9)[0]
    best = 0.85 * np.eye(6)[0] + [0, 0.1, 0, 0, 0, 0.05]
    assert truth(found, EFFECTS[:1])[0] < truth(best, EFFECTS[:1])[0] + 0.02


def test_random_mixtures_are_feasible_and_spread():
    limits = build_constraints("abc", {"a": 0.2}, {}, {"b": 100}, 1000, {"b": 3.0})
    mixtures = limits.sample(1000)
    assert limits.contains(mixtures, 1e-9).all()
    assert mixtures[:, 1].max() > 0.25
    assert mixtures.mean(axis=0)[1] == pytest.approx(0.1385, abs=0.015)  # the mean of b with density .8 - b up to .3


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"floors": {"z": 0.1}}, "floors.z: no such domain"),
        ({"floors": {"a": 0.7}, "fixed": {"b": 0.5}}, "floors: with the fixed shares they sum to 1.2"),
        (
            {"tokens": dict.fromkeys(DOMAINS, 10), "target_tokens": 1000, "max_epochs": 4.0},
            "provide at most 0.24 of 1,000",
        ),
        (
            {"tokens": dict.fromkeys(DOMAINS, 10), "target_tokens": 20, "max_epochs": 1.0, "fixed": {"a": 0.9}},
            "fixed.a",
        ),
        ({"prior": {"a": 1.0}}, "prior.b: missing"),
        ({"prior": {**PRIOR, "z": 1.0}}, "prior.z: no such domain"),
        ({"prior": None}, "prior: missing"),
        ({"weights": {"q": 1.0}}, "weights.q: no such metric"),
    ],
)
def test_settings_that_cannot_hold_are_errors(settings, message):
    with pytest.raises(ConfigError) as error:
        study("plain", 16, 0, draws=20, **settings)
    assert message in str(error.value)


@pytest.mark.parametrize(("name", "value"), [("kl", -1.0), ("draws", 3), ("floors", {"a": -0.1}), ("prior", {"a": 0})])
def test_settings_out_of_range_are_errors(name, value):
    with pytest.raises(ConfigError, match=name):
        parse(ProposalSettings, {name: value}, "proposal.yaml")


def test_the_command_writes_weights_for_a_run(tmp_path, capsys):
    ratios = np.random.default_rng(0).dirichlet(np.ones(3), 24).round(6)
    ratios[:, 0] = 1 - ratios[:, 1:].sum(axis=1)
    losses = 1 + np.exp(ratios @ [-1, 0, 1])
    rows = [",".join(map(str, [i, *row])) for i, row in enumerate(ratios)]
    (tmp_path / "ratios.csv").write_text("\n".join(["index,web,code,noise", *rows]))
    (tmp_path / "metrics.csv").write_text("\n".join(["index,loss", *(f"{i},{loss}" for i, loss in enumerate(losses))]))
    files = ["--ratios", f"{tmp_path}/ratios.csv", "--metrics", f"{tmp_path}/metrics.csv"]
    output = ["--output", f"{tmp_path}/proposal.yaml"]
    settings = ["tokens={web: 300, code: 500, noise: 900}", "target_tokens=1000", "max_epochs=2", "kl=0", "draws=20"]
    assert main(["study", "propose", *files, *output, *settings]) == 0
    record = yaml.safe_load((tmp_path / "proposal.yaml").read_text())
    assert record["weights"] == pytest.approx({"web": 0.6, "code": 0.4, "noise": 0.0}, abs=1e-4)
    assert record["epochs"]["web"] == pytest.approx(2, abs=1e-3)
    assert set(record["baselines"]) == {"prior", "uniform", "temperature", "unimax"}
    assert "prior" in capsys.readouterr().out


@pytest.mark.parametrize("most", [2, 2.0])
def test_unimax_reads_a_domain_at_most_as_often_as_the_settings_allow(most):
    settings = ProposalSettings(tokens={"a": 10, "b": 1000}, target_tokens=500, max_epochs=most)
    assert baseline_mixtures(settings, ("a", "b"))["unimax"] == pytest.approx([0.04, 0.96])
