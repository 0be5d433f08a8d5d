"""Weights and caps of studies for domains of any level, and the limits of a two-phase study."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from gristmill.errors import ConfigError
from tests.trainers.studies.study_files import opened, write_study
from trainers.studies.designs.level_weights import leaf_caps, leaf_settings, leaf_weights
from trainers.studies.proposals.proposal_settings import ProposalSettings

TOKENS = {"books": 100, "web:de": 100, "web:en:q1": 300, "web:en:q2": 100}


def test_a_name_is_shared_among_the_leaves_that_no_longer_name_covers():
    weights = leaf_weights({"web": 0.6, "web:en:q2": 0.3, "books": 0}, TOKENS, "prior")
    assert weights == pytest.approx({"books": 0, "web:de": 0.15, "web:en:q1": 0.45, "web:en:q2": 0.3})
    assert leaf_weights({"maths": 0.5}, TOKENS, "prior") == {"maths": 0.5}  # refused by those who know all names
    with pytest.raises(ConfigError, match=r"prior.web:en: web:en:q1, web:en:q2 are all of its domains"):
        leaf_weights({"web:en": 1, "web:en:q1": 1, "web:en:q2": 1}, TOKENS, "prior")


def test_a_cap_holds_for_each_leaf_below_its_name():
    assert leaf_caps({"web": 2.0, "web:de": 4.0}, TOKENS, "max_epochs") == {
        "web:de": 4.0,
        "web:en:q1": 2.0,
        "web:en:q2": 2.0,
    }


def test_without_weights_a_source_counts_once(phases):
    sources = {name: SimpleNamespace(tokens=tokens) for name, tokens in TOKENS.items()}
    corpus = SimpleNamespace(train=sources, validation=sources)
    study = replace(phases("anneal=null").study, proposal=ProposalSettings())
    settings = leaf_settings(study, corpus, tuple(TOKENS))
    assert settings.metric_weights(tuple(TOKENS)).tolist() == pytest.approx([0.5, 0.1, 0.3, 0.1])
    measured = ("books", "web:de")
    assert leaf_settings(study, corpus, measured).metric_weights(measured).tolist() == pytest.approx([0.5, 0.5])


@pytest.fixture
def phases(tmp_path, corpus_directory):
    return lambda *changes: opened(write_study(tmp_path, corpus_directory), "anneal=0.25", *changes)[0]


def test_in_two_phases_the_prior_comes_first(phases):
    study = phases()
    run = study.points[3]
    (stage,) = run.job.data.stages
    assert (stage.until_tokens, stage.weights) == (3750, study.mixture(study.prior))
    assert run.job.data.weights == run.weights != stage.weights
    assert study.candidate("prior", run.weights, 0).job.data.stages[0].until_tokens == 7500
    entries = "design={kind: list, baseline: a, entries: {a: {}, b: {weights: {code: 1}}}}"
    alone = phases("confirmation=null", entries).points[-1]
    assert (alone.weights, alone.job.data.stages[0].until_tokens) == ({"code": 1}, 3750)
    assert alone.job.data.stages[0].weights == study.mixture(study.prior)


def test_a_cap_covers_both_phases(phases):
    """With the prior as its mixture, the target reads 3.86 epochs of code, three quarters of them in the
    first phase.
    """
    study = phases("proposal.max_epochs={code: 4}", "target.tokens=50e3")
    code = study.domains.index("code")
    tokens = study.corpus.train["code"].tokens
    read = 0.75 * 50_000 * study.prior[code]
    most = study.constraints.upper[code]
    assert read + most * 0.25 * 50_000 == pytest.approx(4 * tokens, rel=1e-3)
    assert phases("proposal.max_epochs={code: 2}").constraints.upper[code] == 0


def test_a_cap_over_both_phases_needs_the_tokens_of_its_domains(phases):
    names = phases().domains
    empty, *rest = names
    sizes = ", ".join([f"{empty}: 0", *(f"{name}: 1000000" for name in rest)])
    prior = ", ".join(f"{name}: 1" for name in names)
    limits = ("proposal.max_epochs=4", "target.tokens=50e3", f"proposal.prior={{{prior}}}")
    study = phases(*limits, f"proposal.tokens={{{sizes}}}")
    assert study.constraints.upper.tolist() == [0, *[1] * len(rest)]
    incomplete = phases(*limits, f"proposal.tokens={{{empty}: 1000}}")
    with pytest.raises(ConfigError, match=rf"tokens.{rest[0]}: missing; a cap in epochs needs the tokens"):
        _ = incomplete.constraints


@pytest.mark.parametrize("anneal", ["0", "1", "-1"])
def test_the_second_phase_is_a_share(phases, anneal):
    with pytest.raises(ConfigError, match=r"anneal: got .*, allowed above 0 and below 1"):
        phases(f"anneal={anneal}")
