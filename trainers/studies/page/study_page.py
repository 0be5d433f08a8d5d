"""The report page of a study: its findings first, then the evidence."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gristmill.config import dump_yaml, plain
from gristmill.errors import ConfigError, UserError
from gristmill.page.formats import compact
from gristmill.page.render import render_template
from gristmill.page.scatter import scatter
from gristmill.storage.disk import LocalPath
from trainers.engine.hardware.footprint import add_footprints, parse_footprint
from trainers.studies.designs.study_run import StudyRun, unique
from trainers.studies.designs.study_runs import OpenStudy
from trainers.studies.outcomes.paired_comparison import PairedComparison
from trainers.studies.outcomes.study_steps import FIT, PROPOSAL, basis_of, proposal_basis, read_fit, read_full_proposal
from trainers.studies.outcomes.study_table import (
    MetricNoise,
    measured_metrics,
    missing_lines,
    repeated_lines,
    run_table,
    unmeasured_lines,
)
from trainers.studies.outcomes.study_verdict import StudyVerdict, candidate_runs, judge, weighted_value
from trainers.studies.page.domain_charts import domain_charts
from trainers.studies.page.study_charts import DomainShare, difference_bars, share_bars
from trainers.studies.page.study_words import answer_word, effect_words, mixture_words, proposal_words, verdict_words
from trainers.studies.page.swarm_chart import SwarmRun, swarm_lines
from trainers.studies.proposals.propose import Proposal
from trainers.studies.running.study_directory import results_of
from trainers.studies.running.train_study_run import RunResult

PAGE = "report.html"
_FULL = 0.75  # opacity of the cell with the largest effect; its text stays readable
_LISTED, _POINTS = 300, 1000  # the most runs in the table of runs; the most points in a chart


@dataclass(frozen=True)
class Findings:
    """The results of a study so far. `judged` are the runs that `verdict` compares. `fit` is the record that
    `fit_step` wrote. The lines in `missing` say what is missing, left out or out of date, and
    which entries have the same runs.
    """

    opened: OpenStudy
    runs: tuple[StudyRun, ...]
    judged: tuple[StudyRun, ...]
    results: dict[str, RunResult]
    fit: dict[str, Any] | None
    proposal: Proposal | None
    verdict: StudyVerdict | None
    missing: list[str]


def write_study_page(opened: OpenStudy, root: LocalPath) -> LocalPath:
    """Write `report.html` from the files of a study and return its path. Raises UserError if the study has a
    mixture design and none of its runs has finished.
    """
    page = root / PAGE
    page.write_atomic(render_study(collect(opened, root)).encode())
    return page


def collect(opened: OpenStudy, root: LocalPath) -> Findings:
    """Read a study's results so far from its directory. Raises UserError if the study has a mixture design
    and none of its runs has finished.
    """
    runs = (*opened.proxies, *opened.doremi)
    results = results_of(root, runs)
    missing = missing_lines(runs, results, opened.study.has_mixtures) + unmeasured_lines(opened, results)
    fit = proposal = verdict = None
    if opened.study.has_mixtures:
        table = run_table(opened, results)
        try:
            fit = read_fit(root)
            missing += _stale(FIT, fit["basis"], basis_of(opened, table), "study fit")
            proposal, made_of = read_full_proposal(root)
            missing += _stale(PROPOSAL, made_of, proposal_basis(opened, root, table), "study propose")
        except UserError as error:
            missing.append(str(error))
    judged: tuple[StudyRun, ...] = () if opened.study.has_mixtures else opened.points
    if opened.study.confirmation is not None and (root / PROPOSAL).exists():
        try:
            judged = candidate_runs(opened, root)
        except UserError as error:
            missing.append(str(error))
        its = results_of(root, judged)
        missing += missing_lines(judged, its, censors=False)
        results |= its
    if any(run.key in results for run in judged):
        verdict = judge(opened, judged, results)
        missing += repeated_lines(judged)
    return Findings(opened, unique((*runs, *judged)), judged, results, fit, proposal, verdict, missing)


def _stale(file: str, made_of: str, basis: str, command: str) -> list[str]:
    return (
        [] if made_of == basis else [f"{file} is older than the runs or settings of the study: `{command}` renews it"]
    )


def render_study(found: Findings) -> str:
    """Return the report page of a study as self-contained HTML."""
    study, opened = found.opened.study, found.opened
    mixtures = {run.entry: opened.shares_of(run.weights) for run in found.judged if study.has_mixtures}
    finished = [found.results[run.key] for run in found.runs if run.key in found.results]
    return render_template(
        Path(__file__).with_name("study.html"),
        title=study.name,
        kind="study",
        study=study,
        found=found,
        **_answer(found, mixtures),
        proposed=proposal_words(found.proposal, study.metrics.unit) if found.proposal else [],
        effects=effect_words(found.fit["mean_effects"], study.metrics.unit) if found.fit else [],
        domains=_domains(found),
        shares=share_bars(_shares(found.proposal, opened)) if found.proposal else None,
        differences=difference_bars([row for row in found.verdict.overall if row.entry != found.verdict.baseline])
        if found.verdict
        else None,
        ranked=sorted(found.verdict.overall, key=_rank) if found.verdict else [],
        scatters=_scatters(found.fit) if found.fit else [],
        swarm=swarm_lines(opened.domains, _swarm(found)) if opened.study.has_mixtures else None,
        interactions=_interactions(found.fit) if found.fit else [],
        curves=domain_charts(found.fit["curves"], _marked(found)) if found.fit else [],
        noise=_noise(found.fit) if found.fit else [],
        tokens=_tokens(found),
        ledger=_ledger(finished),
        rows=[(run, _mixture_of(run, opened), found.results.get(run.key)) for run in found.runs[:_LISTED]],
        reused=opened.reused,
        unlisted=max(0, len(found.runs) - _LISTED),
        share_read=opened.share_read(study.proxies.tokens),
        config=dump_yaml(plain(study), width=100),
    )


def _mixture_of(run: StudyRun, opened: OpenStudy) -> dict[str, float]:
    total = sum(run.weights.values()) or 1.0  # a run whose corpus is not built has no weights yet
    return opened.shares_of({name: weight / total for name, weight in run.weights.items()})


def _answer(found: Findings, mixtures: Mapping[str, Mapping[str, float]]) -> dict[str, Any]:
    study, verdict = found.opened.study, found.verdict
    if verdict is None:
        return {"answer_word": "", "answer": [], "described": {}, "scale": ""}
    done = [run for run in found.judged if run.key in found.results and found.results[run.key].state == "finished"]
    sizes = [
        sorted({found.results[run.key].parameters for run in done}),
        sorted({run.job.budget.tokens or 0 for run in done}),
    ]
    ranges = [" to ".join(dict.fromkeys(compact(size) for size in its[:: max(1, len(its) - 1)])) for its in sizes]
    return {
        "answer_word": answer_word(verdict, study.answered_by),
        "answer": verdict_words(verdict, study.rule, study.metrics.unit, mixtures, study.answered_by),
        "described": {name: mixture_words(its) for name, its in mixtures.items()},
        "scale": f"compared in models of {ranges[0]} parameters after {ranges[1]} tokens" if done else "",
    }


def _rank(row: PairedComparison) -> float:
    return row.mean if row.mean == row.mean else float("inf")


def _shares(proposal: Proposal, opened: OpenStudy) -> list[DomainShare]:
    prior, caps = opened.prior, opened.constraints.upper
    rows = zip(proposal.domains, prior, proposal.ratios, caps, proposal.ranges, strict=True)
    return [DomainShare(name, float(p), float(r), float(c), float(lo), float(hi)) for name, p, r, c, (lo, hi) in rows]


def _domains(found: Findings) -> list[dict[str, Any]]:
    opened, proposal = found.opened, found.proposal
    target = opened.settings.target_tokens or opened.study.proxies.tokens
    rows = []
    for i, name in enumerate(opened.domains):
        tokens = opened.tokens_of(name)
        row: dict[str, Any] = {"name": name, "tokens": tokens, "prior": float(opened.prior[i])}
        row["prior_epochs"] = row["prior"] * target / tokens
        if proposal is not None:
            row["proposed"] = float(proposal.ratios[i])
            row["epochs"] = row["proposed"] * target / tokens
            row["low"], row["high"] = proposal.ranges[i].tolist()
            row["cap"] = float(opened.constraints.upper[i])
        rows.append(row)
    return rows


def _scatters(fit: dict[str, Any]) -> list[tuple[str, float, Any]]:
    charts = []
    for name, each in fit["metrics"].items():
        rows = zip(fit["runs"], each["predicted"], each["measured"], strict=True)
        points = [(run, x, y) for run, x, y in rows if x is not None and y is not None]
        if points:
            chart = scatter(
                f"{name}: predicted and measured",
                points[:: -(-len(points) // _POINTS)],
                ("predicted", "measured"),
                lambda value: f"{value:.2f}",
            )
            charts.append((name, each["cross_validation"]["spearman"], chart))
    return charts


def _swarm(found: Findings) -> list[SwarmRun]:
    opened, runs = found.opened, []
    results = {run.key: found.results[run.key] for run in opened.points if run.key in found.results}
    metrics = measured_metrics(opened, results)
    try:
        weights = opened.settings.measured(metrics).metric_weights(metrics)
    except ConfigError:  # no metric with a weight has a value yet
        return []
    for run in opened.points:
        value = weighted_value(results.get(run.key), metrics, weights)
        if value is not None:
            runs.append(SwarmRun(run.entry, opened.shares_of(run.weights), value))
    return runs


def _marked(found: Findings) -> list[tuple[str, dict[str, float]]]:
    opened, proposal = found.opened, found.proposal
    mixtures = [("prior", opened.prior)] + ([("proposed", proposal.ratios)] if proposal is not None else [])
    return [(label, dict(zip(opened.domains, shares.tolist(), strict=True))) for label, shares in mixtures]


def _interactions(fit: dict[str, Any]) -> list[tuple[str, list[tuple[float, str]]]]:
    effects = {name: list(each["effect_of_one_point"].values()) for name, each in fit["metrics"].items()}
    largest = max((abs(effect) for its in effects.values() for effect in its), default=0.0) or 1.0

    def colour(effect: float) -> str:
        share = round(100 * _FULL * abs(effect) / largest)
        return f"background: color-mix(in srgb, var({'--kept' if effect < 0 else '--lost'}) {share}%, transparent)"

    return [(name, [(effect, colour(effect)) for effect in its]) for name, its in effects.items()]


def _noise(fit: dict[str, Any]) -> list[MetricNoise]:
    rows = fit["noise"].items()
    nothing = float("nan")
    return [
        MetricNoise(name, each["anchors"], nothing if each["noise"] is None else each["noise"], each["signal"])
        for name, each in rows
    ]


def _tokens(found: Findings) -> list[dict[str, Any]]:
    rows = []
    for name in found.opened.leaves:
        entries = [r.sources[name] for r in found.results.values() if r.state == "finished" and name in r.sources]
        if entries:
            gaps = [abs(entry["tokens"] - entry["requested_tokens"]) for entry in entries]
            epochs = [entry["epochs"] for entry in entries]
            rows.append(
                {
                    "name": name,
                    "requested": sum(entry["requested_tokens"] for entry in entries),
                    "read": sum(entry["tokens"] for entry in entries),
                    "gap": max(gaps),
                    "low": min(epochs),
                    "high": max(epochs),
                }
            )
    return rows


def _ledger(results: Sequence[RunResult]) -> dict[str, Any]:
    done = [result for result in results if result.state == "finished"]
    seconds, steps = sum(r.seconds for r in done), sum(r.step_seconds for r in done)
    validation = sum(r.validation_seconds for r in done)
    costs = [parse_footprint(r.cost) for r in done if r.cost is not None]
    return {
        "cost": add_footprints(costs) if costs and len(costs) == len(done) else None,
        "runs": len(done),
        "tokens": sum(r.tokens for r in done),
        "flops": sum(r.flops for r in done),
        "seconds": seconds,
        "steps": steps,
        "validation": validation,
        "overhead": (seconds - steps - validation) / steps if steps else None,
        "parameters": sorted({r.parameters for r in done}),
    }
