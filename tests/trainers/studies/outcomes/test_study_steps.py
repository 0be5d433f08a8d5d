"""The steps from results to tables, laws, proposal, verdict and page, with a planted truth and no training."""

import re
import shutil
from dataclasses import replace

import numpy as np
import pytest
import yaml

from gristmill.errors import ConfigError, UserError
from gristmill.storage.store import read_json
from tests.trainers.studies.study_files import finish, opened, planted, write_study
from trainers.commands.settings import read_weights
from trainers.config.pretraining import Data
from trainers.engine.hardware.footprint import footprint
from trainers.studies.laws.log_linear import LogLinear
from trainers.studies.outcomes.study_ladder import ladder_of
from trainers.studies.outcomes.study_steps import (
    FIT,
    PROPOSAL,
    fit_step,
    fitted_laws,
    propose_step,
    read_full_proposal,
    read_proposal,
)
from trainers.studies.outcomes.study_table import (
    metric_noise,
    missing_lines,
    run_table,
    unmeasured_lines,
    write_tables,
)
from trainers.studies.outcomes.study_verdict import candidate_runs, judge, verdict_lines
from trainers.studies.page.study_page import _swarm, collect, write_study_page
from trainers.studies.planning.plan_study import calibration_runs, plan_lines, plan_study
from trainers.studies.proposals.propose import proposal_record
from trainers.studies.run_table import read_run_table
from trainers.studies.running.study_directory import results_of


@pytest.fixture
def file(tmp_path, corpus_directory):
    return write_study(tmp_path, corpus_directory)


@pytest.fixture
def finished(file):
    study, root = opened(file)
    finish(root, study.proxies)
    return study, root, results_of(root, study.proxies)


@pytest.fixture(scope="module")
def fit_once(corpus_directory, tmp_path_factory):
    """What `fit_step` returns for a study like that of `finished`, and the path of the file that it writes."""
    study, root = opened(write_study(tmp_path_factory.mktemp("fit"), corpus_directory))
    finish(root, study.proxies)
    return fit_step(study, root, results_of(root, study.proxies)), root / FIT


@pytest.fixture
def fitted(finished, fit_once):
    """The study and directory of `finished` with the file of `fit_step` in place, and what `fit_step`
    returned.
    """
    study, root, _ = finished
    fit, written = fit_once
    shutil.copy(written, root / FIT)
    return study, root, fit


def test_tables_are_read_again_as_they_were_written(finished):
    study, root, results = finished
    table = run_table(study, results)
    assert (table.runs[0], table.domains, table.metrics) == ("prior", ("code", "notes", "plays"), ("code", "plays"))
    write_tables(table, root)
    again = read_run_table(root / "ratios.csv", root / "metrics.csv")
    assert again.runs == table.runs
    assert np.abs(again.ratios - table.ratios).max() < 1e-12
    assert (again.values == table.values).all()


def test_a_diverged_run_is_censored_and_a_failed_one_left_out(finished, file):
    study, root, _ = finished
    finish(root, [study.points[3]], state="diverged", metrics={}, reason="6 steps in a row are not finite")
    finish(root, [study.points[4]], state="failed", metrics={}, reason="RuntimeError: x")
    results = results_of(root, study.points)
    table = run_table(study, results)
    assert len(table.runs) == len(study.points) - 1
    assert table.censored[3].all()
    assert table.censored.sum() == 2
    lines = "\n".join(missing_lines(study.points, results))
    assert "1 of 25 runs diverged and count as no better than the worst: swarm-03/seed-0 (6 steps in a row" in lines
    assert "1 of 25 runs failed and are left out" in lines
    assert "1 of 25 runs diverged and are left out: swarm-03" in "\n".join(
        missing_lines(study.points, results, censors=False)
    )
    write_tables(table, root)
    assert read_run_table(root / "ratios.csv", root / "metrics.csv").censored.sum() == 2


def test_the_swarm_is_drawn_without_a_metric_that_no_run_has(file):
    study, root = opened(file)
    finish(root, study.proxies, metrics={"code": 2.5})
    found = collect(study, root)
    assert "left out, because no run has a value: plays" in found.missing
    assert [run.value for run in _swarm(found)] == [2.5] * len(study.points)


def test_noise_is_the_spread_of_the_anchors(finished):
    study, _, results = finished
    noise = {row.metric: row for row in metric_noise(study, results, run_table(study, results))}
    values = [results[run.key].metrics["code"] for run in study.anchors]
    assert noise["code"].noise == pytest.approx(np.std(values, ddof=1))
    assert noise["code"].signal > noise["code"].noise


@pytest.mark.long
def test_a_planted_truth_is_found_and_confirmed(fitted, file):
    study, root, fit = fitted
    assert min(each.validation.agreement.spearman for each in fit.fits) > 0.95
    with pytest.raises(UserError, match=r"has no proposal.yaml yet"):
        candidate_runs(study, root)
    proposal = propose_step(study, root, fit.table, fit.laws)
    weights = read_proposal(study, root)
    assert sum(weights.values()) == pytest.approx(1, abs=1e-5)
    assert weights["notes"] < 0.02  # useless
    assert weights["code"] > study.prior[0]  # best of all, and the prior has little of it
    assert proposal.domains == study.domains
    runs = candidate_runs(study, root)
    assert len({run.key for run in runs}) == len(runs) == 9
    assert [run.entry for run in runs[:3]] == ["proposal", "prior", "more_code"]
    finish(root, runs)
    verdict = judge(study, runs, results_of(root, runs))
    assert {each.entry: each.verdict for each in verdict.overall}["proposal"] == "better"
    assert verdict_lines(verdict, 0.95)[1].split()[-1] == "better"
    # Code is worth more on code, and costs something on plays.
    by_metric = {name: {e.entry: e.verdict for e in rows} for name, rows in verdict.by_metric.items()}
    assert (by_metric["code"]["more_code"], by_metric["plays"]["more_code"]) == ("better", "worse")
    page = write_study_page(study, root).read_text()
    assert "Is more code worth it?" in page
    assert re.search(r"proposal \(\d+% code, \d+% plays, [\d.]+% notes\) is better than prior", page)
    assert "compared in models of 10k parameters after 10k tokens" in page
    assert "<b>" not in page.partition('class="lead"')[2].partition("</p>")[0]  # no entry answers the question
    # Differences, shares, two scatters, three curves, and the mixtures.
    assert len(re.findall("<svg class=.chart", page)) == 8
    (lines,) = re.findall(r'aria-label="Mixtures and their metric">(.*?)</svg>', page)
    assert lines.count("<path") == len(study.points)
    best = min(study.points, key=lambda run: sum(planted(run).values()))
    assert f"the best is {best.entry} with {sum(planted(best).values()) / 2:.4f}" in lines
    assert "<script" not in page
    record = read_json(root / "fit.json")
    assert record["noise"]["code"]["anchors"] == 3
    assert set(record["curves"]) == {"code", "notes", "plays"}
    assert page.count('aria-label="Metrics by the share of') == 3
    assert "some runs did not record it" in page  # energy


@pytest.mark.long
def test_the_mixture_of_doremi_is_compared_and_confirmed(fit_once, file):
    study, root = opened(file, "doremi={}", "confirmation.candidates=[proposal, prior, doremi]", "confirmation.own={}")
    reference, proxy = study.doremi
    assert reference.keeps_export
    assert reference.key not in {run.key for run in study.proxies}  # an anchor keeps no export
    assert proxy.reference == reference.key
    assert proxy.job.data.weights == pytest.approx({"code": 1 / 3, "notes": 1 / 3, "plays": 1 / 3})
    assert study.candidate("x", proxy.weights, 0).job.online_weights is None
    plan = plan_study(study, root, 1)
    assert [(stage.name, stage.runs) for stage in plan.stages] == [("proxies", 27), ("doremi", 2), ("confirmation", 9)]
    proxies, doremi = plan.stages[:2]
    assert doremi.flops / 2 == pytest.approx(4 / 3 * proxies.flops / 27, rel=0.01)  # the second costs 5 / 3 of a proxy
    finish(root, study.proxies)
    fit, written = fit_once  # of the same runs
    shutil.copy(written, root / FIT)
    before = propose_step(study, root, fit.table, fit.laws)
    assert "doremi" not in {each.name for each in before.compared}
    with pytest.raises(UserError, match="doremi has no mixture, because its run has not been trained"):
        candidate_runs(study, root)
    assert "doremi has no mixture, because its run has not been trained" in write_study_page(study, root).read_text()
    finish(root, study.doremi, domain_weights={"code": 0.5, "notes": 0.1, "plays": 0.4})
    assert "`study propose` renews it" in write_study_page(study, root).read_text()
    proposal = propose_step(study, root, fit.table, fit.laws)
    (its,) = (each for each in proposal.compared if each.name == "doremi")
    assert its.ratios.tolist() == [0.5, 0.1, 0.4]
    assert its.difference > 0
    runs = candidate_runs(study, root)
    assert runs[2].job.data.weights == {"code": 0.5, "notes": 0.1, "plays": 0.4}
    page = write_study_page(study, root).read_text()
    assert "doremi" in page
    assert "renews it" not in page


def test_doremi_without_its_section_is_an_error(file):
    with pytest.raises(ConfigError, match="got 'doremi'; add the section doremi"):
        opened(file, "confirmation.candidates=[prior, doremi]", "confirmation.own={}")


@pytest.mark.long
def test_a_proposal_is_what_a_run_takes_as_weights(fitted):
    study, root, fit = fitted
    proposal = propose_step(study, root, fit.table, fit.laws)
    data = read_weights(Data(weights=str(root / PROPOSAL)))
    assert data.weights == yaml.safe_load((root / PROPOSAL).read_text())["weights"]
    assert read_weights(Data(weights="uniform")).weights == "uniform"
    (root / "empty.yaml").write_text("predicted: 3\n")
    with pytest.raises(ConfigError, match="has no mapping `weights`"):
        read_weights(Data(weights=str(root / "empty.yaml")))
    with pytest.raises(ConfigError, match="no such file"):
        read_weights(Data(weights=str(root / "none.yaml")))
    (root / PROPOSAL).write_text("predicted: 3\n")
    with pytest.raises(UserError, match="lacks the mapping 'weights'; make it again with `study propose`"):
        read_proposal(study, root)
    record = proposal_record(proposal) | {"basis": "x"}
    prior = record["baselines"]["prior"]
    damaged = {
        "lacks the mapping 'shares'": record | {"shares": "code"},
        "in shares: weights.code: got 'x'": record | {"shares": {"code": "x"}},
        "is damaged": record | {"baselines": {"prior": prior | {"weights": prior["weights"] | {"code": "x"}}}},
    }
    for message, content in damaged.items():
        (root / PROPOSAL).write_text(yaml.safe_dump(content))
        with pytest.raises(UserError, match=message):
            read_full_proposal(root)


@pytest.mark.parametrize(
    ("weights", "message"),
    [("{code: x}", "got 'x', expected a number"), ("{code: -1}", "got -1.0, allowed 0"), ("{code: 0}", "all are 0")],
)
def test_a_proposal_with_invalid_weights_is_an_error_of_one_line(file, weights, message):
    study, root = opened(file)
    root.mkdir()
    (root / PROPOSAL).write_text(f"weights: {weights}\n")
    with pytest.raises(ConfigError, match=f"proposal.yaml: weights.*{message}"):
        candidate_runs(study, root)


def test_the_page_adds_up_the_energy_of_all_runs(file):
    study, root = opened(file)
    cost = footprint({"read": 6e9}, 3600, "cpu", 1).plain()
    finish(root, study.proxies, cost=cost)
    page = write_study_page(study, root).read_text()
    total = len(study.proxies) * cost["kwh"]
    assert total == pytest.approx(27 * 1.58 * 12 / 1000)
    assert f"{total:.2g} kWh" in page
    assert "12 W x 1 thread, Lannelongue et al., 2021; PUE 1.58" in page
    finish(root, study.proxies[:1], cost=footprint({"read": 6e9}, 3600, "Abacus 9", 1).plain())
    assert "energy unknown: no nominal power is known for Abacus 9" in write_study_page(study, root).read_text()


@pytest.mark.long
def test_the_page_begins_with_the_answer_if_an_entry_gives_it(fitted, file):
    _, _, fit = fitted
    answers = {}
    for name in ("proposal", "more_code"):
        study, root = opened(file, f"answered_by={name}")
        propose_step(study, root, fit.table, fit.laws)
        finish(root, candidate_runs(study, root))
        lead = write_study_page(study, root).read_text().partition('<p class="lead">')[2].partition("</p>")[0]
        answers[name] = lead
        assert f"</b> {name} (" in lead
    runs = candidate_runs(study, root)
    word = {each.entry: each.verdict for each in judge(study, runs, results_of(root, runs)).overall}
    assert answers["proposal"].startswith("<b>Yes.</b>")
    expected = {"better": "Yes.", "worse": "No.", "tie": "Not measurably."}[word["more_code"]]
    assert answers["more_code"].startswith(f"<b>{expected}</b>")
    with pytest.raises(ConfigError, match=r"answered_by: got 'prior', allowed the candidates .*: proposal, more_code"):
        opened(file, "answered_by=prior")


def test_the_page_lists_runs_with_the_shares_of_their_domains(file):
    entries = "{a: {}, b: {weights: {code: 3, plays: 1}}, c: {settings: {data.weights: uniform}}}"
    study, root = opened(file, "confirmation=null", f"design={{kind: list, baseline: a, entries: {entries}}}")
    finish(root, study.points)
    page = write_study_page(study, root).read_text()
    rows = {entry: page.partition(f"{entry}/seed-0")[2].partition("</tr>")[0] for entry in "bc"}
    shares = {entry: re.findall(r">(\d+\.?\d*) %<", row) for entry, row in rows.items()}
    assert shares == {"b": ["75.0", "0", "25.0"], "c": ["33.3", "33.3", "33.3"]}


def test_a_page_without_a_verdict_says_so(finished):
    study, root, _ = finished
    page = write_study_page(study, root).read_text()
    assert "There is no verdict yet: the confirmation has not run" in page
    assert "has no fit.json yet; make it with `study fit`" in page


@pytest.mark.long
def test_the_page_reads_the_fit_and_says_when_it_is_out_of_date(fitted, file, monkeypatch):
    study, root, fit = fitted
    proposal = propose_step(study, root, fit.table, fit.laws)
    again, _ = read_full_proposal(root)
    assert again.ratios == pytest.approx(proposal.ratios, abs=1e-9)
    assert proposal_record(again) == proposal_record(proposal)
    monkeypatch.setattr(LogLinear, "fit", lambda *_: pytest.fail("the page fits a law"))
    page = write_study_page(study, root).read_text()
    assert f"Spearman {fit.fits[0].validation.agreement.spearman:.3f}" in page
    assert "renews it" not in page
    fullest = re.findall(r"var\((--\w+)\) 75%, transparent\)\">([+-])", page)
    assert fullest
    assert set(fullest) <= {("--kept", "-"), ("--lost", "+")}
    finish(root, study.points[:1], metrics={"code": 2.0, "plays": 2.0})
    page = write_study_page(study, root).read_text()
    assert "fit.json is older than the runs or settings of the study: `study fit` renews it" in page
    changed, _ = opened(file, "proposal.kl=0.1")
    assert "proposal.yaml is older" in write_study_page(changed, root).read_text()
    (root / PROPOSAL).write_text("weights: {code: 0.5, plays: 0.5}\n")
    assert "make it again with `study propose`" in write_study_page(study, root).read_text()


@pytest.mark.long
def test_a_proposal_uses_the_laws_that_were_fitted_before(fitted):
    study, root, fit = fitted
    laws = fitted_laws(study, root, fit.table)
    assert laws.laws[0].parameters() == fit.laws.laws[0].parameters()
    assert fitted_laws(study, root, replace(fit.table, values=fit.table.values + 1)) is None


def test_a_study_without_results_has_nothing_to_fit(file):
    study, root = opened(file)
    with pytest.raises(UserError, match="no run has finished; train them with `study run`"):
        fit_step(study, root, {})


def test_held_out_text_without_targets_is_left_out(finished):
    study, root, results = finished
    finish(root, study.proxies, metrics={"code": 2.0})
    finish(root, study.proxies[:1], metrics={"code": 2.5})
    results = results_of(root, study.proxies)
    assert run_table(study, results).metrics == ("code",)
    verdict = judge(study, candidate_runs(study, root, {"code": 1.0}), {})
    assert {each.verdict for each in verdict.overall} == {"tie", "open"}
    runs = candidate_runs(study, root, {"code": 1.0})
    finish(root, runs, metrics={"code": 2.0})
    finish(root, runs[:1], metrics={"code": 2.0, "plays": 2.0})
    verdict = judge(study, runs, results_of(root, runs))
    assert {each.entry: each.verdict for each in verdict.by_metric["code"]} == dict.fromkeys(
        ("proposal", "prior", "more_code"), "tie"
    )
    assert verdict.by_metric["plays"][0].verdict == "open"
    assert unmeasured_lines(study, results) == ["left out, because no run has a value: plays"]


def test_a_weighted_metric_without_values_is_left_out_of_the_weighted_mean(file):
    study, root = opened(file, "proposal.weights={code: 1, plays: 3}")
    finish(root, study.proxies)
    for run in study.proxies:
        finish(root, [run], metrics={"code": planted(run)["code"]})
    results = results_of(root, study.proxies)
    found = fit_step(study, root, results)
    assert found.table.metrics == ("code",)
    proposal = propose_step(study, root, found.table, found.laws)
    assert proposal.value == pytest.approx(found.laws.predict(proposal.ratios[None], np.array([1.0]))[0])
    assert set(ladder_of(study, results).losses) == {result.metrics["code"] for result in results.values()}
    runs = candidate_runs(study, root)
    finish(root, runs, metrics={"code": 2.0})
    verdict = judge(study, runs, results_of(root, runs))
    assert verdict.overall == verdict.by_metric["code"]
    only_plays, _ = opened(file, "proposal.weights={plays: 1}")
    with pytest.raises(ConfigError, match="no metric with a weight above 0 has a value; those with values: code; give"):
        judge(only_plays, runs, results_of(root, runs))


def test_too_few_finished_runs_are_an_error_that_names_the_law(file):
    study, root = opened(file)
    finish(root, study.points[:6])
    with pytest.raises(ConfigError, match="the law log_linear of 3 domains needs 10 or more"):
        fit_step(study, root, results_of(root, study.proxies))
    assert "has no fit.json yet" in write_study_page(study, root).read_text()


def test_a_design_that_compares_has_no_laws(file):
    study, root = opened(file, "confirmation=null", "design={kind: leave_one_out, seeds: 3}")
    finish(root, study.points)
    results = results_of(root, study.points)
    with pytest.raises(UserError, match="the design leave_one_out has no mixtures to fit"):
        fit_step(study, root, results)
    verdict = judge(study, study.points, results)
    assert {each.entry: each.verdict for each in verdict.overall}["without-code"] == "worse"
    page = write_study_page(study, root).read_text()
    assert "without-code is worse than prior" in page
    assert "more bits per byte over" in page
    study, root = opened(file, "confirmation=null", "design={kind: leave_one_out, seeds: 3}", "metrics.measure=loss")
    finish(root, study.points)
    page = write_study_page(study, root).read_text()
    assert "more nats per target over" in page
    assert "bits per byte" not in page


def test_entries_with_equal_settings_are_said_to_be_the_same_runs(file):
    entries = "entries: {a: {}, b: {settings: {optimizer.learning_rate: 1e-3}}, c: {}}"
    study, root = opened(file, "confirmation=null", f"design={{kind: list, baseline: a, seeds: 2, {entries}}}")
    finish(root, study.proxies)
    line = "c has the settings and the mixture of a: both have the same runs, so their difference says nothing"
    lines = plan_lines(plan_study(study, root, 2))
    assert [each for each in lines if "same runs" in each] == [line]
    assert write_study_page(study, root).read_text().count(line) == 1


def test_an_entry_without_results_has_no_numbers(file):
    entries = "entries: {a: {}, b: {settings: {optimizer.learning_rate: 1e-3}}}"
    study, root = opened(file, "confirmation=null", f"design={{kind: list, baseline: a, seeds: 2, {entries}}}")
    finish(root, study.points[:2])
    verdict = judge(study, study.points, results_of(root, study.points))
    line = " ".join(verdict_lines(verdict, 0.95)[-1].split())
    assert line == "b 0 – – – – to – open (2 of 2 pairs are incomplete)"
    page = write_study_page(study, root).read_text()
    assert page.count("– to –") == 3
    assert "nan" not in re.sub("<style>.*?</style>|<script>.*?</script>", "", page, flags=re.DOTALL)


def test_a_plan_counts_what_is_left_and_predicts_from_what_was_measured(file):
    study, root = opened(file)
    plan = plan_study(study, root, 2)
    proxies, confirmation = plan.stages
    assert (proxies.to_train, confirmation.to_train) == (27, 9)
    assert (proxies.tokens, confirmation.tokens) == (27 * 5000, 9 * 10_000)
    assert plan.seconds(proxies) is None
    assert "study plan --calibrate" in "\n".join(plan_lines(plan))
    finish(root, study.proxies[:9])
    plan = plan_study(study, root, 2)
    proxies, confirmation = plan.stages
    assert (proxies.to_train, proxies.states) == (18, {"finished": 9})
    assert (proxies.per_token, proxies.parameters) == (6e9 / 5000, 10_000)  # as measured, without building a model
    # Each measured run took 3 s: 2 s of 6e9 operations, 1 s beside.
    assert plan.rate.start_seconds == 0
    assert plan.seconds(proxies) == pytest.approx(
        (18 * (0.5 * proxies.per_token / 1.2e6 + 0.5) + 2 * proxies.flops / 6e9) / 2
    )
    finish(root, study.proxies[:2], is_first=True, seconds=7.5)  # both imported libraries for 4.5 s
    plan = plan_study(study, root, 2)
    assert plan.rate.start_seconds == pytest.approx(4.5)
    assert plan.seconds(plan.stages[0]) == pytest.approx(plan.seconds(proxies))
    assert plan.seconds(proxies) == pytest.approx(
        4.5 + (18 * (0.5 * proxies.per_token / 1.2e6 + 0.5) + 2 * proxies.flops / 6e9) / 2
    )
    assert plan.seconds(replace(proxies, to_train=0, flops=0.0)) == 0
    assert plan.total_seconds == pytest.approx(4.5 + plan.seconds(proxies) + plan.seconds(confirmation))
    assert replace(plan, stages=(replace(proxies, to_train=0, flops=0.0),)).total_seconds == 0
    finish(root, study.proxies[9:11], state="failed")
    finish(root, study.proxies[11:12], state="diverged")
    assert plan_study(study, root, 2).stages[0].to_train == 17


MASKED = ["recipe=tiny_roberta", "settings.schedule.warmup_steps=2"]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            MASKED,
            "metrics.measure: got bits_per_byte, which the objective masked of prior",
        ),
        (["settings.schedule.warmup_steps=500"], "schedule.warmup_steps: got 500, the run has 19 steps"),
        (["proxies.tokens=100"], "budget.tokens: got 100, one step has 256"),
        (
            [*MASKED, "metrics.measure=document_bits_per_byte"],
            "objective masked",
        ),
    ],
)
def test_a_job_of_which_every_run_would_fail_is_found_before_any_runs(file, overrides, message):
    study, root = opened(file, *overrides)
    with pytest.raises(ConfigError, match=message):
        plan_study(study, root, 1)


def test_a_calibration_is_short_and_has_two_runs_for_each_worker(file):
    study, _ = opened(file)
    runs = calibration_runs(study, 3)
    assert len({run.key for run in runs}) == 6
    assert {run.job.budget.tokens for run in runs} == {20 * 4 * 64}
