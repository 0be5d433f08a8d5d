"""Estimate the cost of a study, without training anything: runs, tokens, operations, time and disk space."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import mean
from typing import Any

from gristmill.errors import ConfigError
from gristmill.page.formats import compact, duration
from gristmill.storage.disk import LocalPath
from gristmill.terminal import human_bytes
from trainers.config.architecture import fill
from trainers.config.job import TrainingBudget
from trainers.data.job_interface import verified_tokenizer
from trainers.data.packed_corpus import TrainingCorpus
from trainers.runs.resolve import resolve
from trainers.studies.designs.reused_ratios import VIRTUAL
from trainers.studies.designs.study_run import StudyRun, unique
from trainers.studies.designs.study_runs import OpenStudy
from trainers.studies.outcomes.study_steps import PROPOSAL, doremi_mixture
from trainers.studies.outcomes.study_table import repeated_lines
from trainers.studies.outcomes.study_verdict import candidate_runs
from trainers.studies.running.study_directory import CALIBRATION, RUNS, results_of
from trainers.studies.running.train_study_run import RunResult, read_result

_CALIBRATION_SHARE = 0.1  # tokens of a calibration run, as a share of those of a proxy
_CALIBRATION_STEPS = 20  # steps of a calibration run, at least
_STATE_BYTES, _EXPORT_BYTES = 12, 4  # per parameter: a checkpoint has weights and two moments, an export weights
_DRO_COST = 5 / 3  # two more forward passes, each a third of a step's operations
_LOG_BYTES = 400_000  # estimate of what a finished run keeps, until one has finished
_FEW_SEQUENCES = 8  # in a domain's pool; with fewer, epochs are matched only roughly


@dataclass(frozen=True)
class MeasuredRate:
    """The speed of one worker, measured on `runs` runs: operations per second during steps, and the seconds
    that a run spends on validation and on everything else. The first run of a process takes `start_seconds`
    more. `per_token` is the mean number of operations per token in the measured runs.
    """

    runs: int
    source: str
    flops_per_second: float
    validation_seconds: float
    other_seconds: float
    start_seconds: float
    per_token: float


@dataclass(frozen=True)
class StagePlan:
    """A stage of a study. `states` counts its results by state, such as `finished`. `tokens` and `flops` are
    totals over the `to_train` runs that remain to be trained. `per_token` (operations per token) and
    `parameters` are the highest of any run of the stage.
    """

    name: str
    runs: int
    states: dict[str, int]
    to_train: int
    tokens: int
    flops: float
    per_token: float
    parameters: int


@dataclass(frozen=True)
class StudyPlan:
    """The estimated cost of a study whose runs are trained by `workers` workers, stage by stage. `rate` is
    the speed of a worker, or None if nothing has been measured. `run_bytes` is an estimate of the bytes that
    a run keeps on disk.
    """

    opened: OpenStudy
    stages: tuple[StagePlan, ...]
    workers: int
    rate: MeasuredRate | None
    run_bytes: int

    def seconds(self, stage: StagePlan) -> float | None:
        """Return the estimated seconds that the remaining runs of a stage take, including the start of its
        worker processes. None if the speed is unknown.
        """
        if self.rate is None:
            return None
        if not stage.to_train:
            return 0.0
        each = self.rate.other_seconds + self.rate.validation_seconds * stage.per_token / self.rate.per_token
        work = stage.to_train * each + stage.flops / self.rate.flops_per_second
        return work / min(self.workers, stage.to_train) + self.rate.start_seconds

    @property
    def total_seconds(self) -> float | None:
        """The estimated seconds that the remaining stages and the start of the command take. None if the
        speed is unknown.
        """
        if self.rate is None:
            return None
        stages = [self.seconds(stage) or 0.0 for stage in self.stages]
        return sum(stages) + self.rate.start_seconds if any(stages) else 0.0

    @property
    def peak_bytes(self) -> int:
        """The estimated peak disk usage of the runs, in bytes."""
        largest = max(stage.parameters for stage in self.stages)
        kept = sum(stage.runs for stage in self.stages) * self.run_bytes
        return kept + self.workers * largest * (_STATE_BYTES + _EXPORT_BYTES)


def plan_study(opened: OpenStudy, root: LocalPath, workers: int) -> StudyPlan:
    """Return the plan of a study. Runs that have no result in `root` yet, or a failed one, remain to be
    trained.

    Raises UserError if a job is invalid or the jobs do not provide comparable metrics.
    """
    stages = {"proxies": opened.proxies}
    if opened.doremi:
        stages["doremi"] = opened.doremi
    if opened.study.confirmation is not None:
        stages["confirmation"] = _confirmation(opened, root)
    results = {name: results_of(root, runs) for name, runs in stages.items()}
    planned = []
    for name, runs in stages.items():
        _check_jobs(opened, runs)
        planned.append(_stage(name, runs, _costs(opened, runs, results[name]), results[name]))
    rate = measured_rate(opened, root, list(results["proxies"].values()))
    return StudyPlan(opened, tuple(planned), workers, rate, _run_bytes(root, results["proxies"]))


def calibration_runs(opened: OpenStudy, workers: int) -> tuple[StudyRun, ...]:
    """Return two short runs per worker, made from the design's first runs with a built corpus; there must be
    at least one such run. The second run of a worker shows its speed without the start-up of the process.
    """
    runs = []
    ready = [run for run in opened.points if run.is_ready]
    for number in range(2 * workers):
        run = ready[number % len(ready)]
        batch = run.job.batch.tokens or (run.job.batch.sequences or 1) * run.job.data.sequence_length
        tokens = max(int(run.job.budget.tokens or 0) * _CALIBRATION_SHARE, _CALIBRATION_STEPS * batch)
        schedule = replace(run.job.schedule, warmup_steps=0, warmup_fraction=None)  # it may be longer than this run
        job = replace(run.job, budget=TrainingBudget(tokens=int(tokens)), schedule=schedule, seed=number)
        runs.append(replace(run, job=job, entry=f"calibration-{number + 1}"))
    return unique(runs)


def measured_rate(opened: OpenStudy, root: LocalPath, results: Sequence[RunResult]) -> MeasuredRate | None:
    """Return the speed measured on the finished runs in `results` or, if there are none, on the finished
    calibration runs below `root`. None if no calibration run has finished either.
    """
    finished = [result for result in results if result.state == "finished"]
    source = "measured on finished runs"
    if not finished:
        runs = [read_result(path) for path in (root / CALIBRATION).glob("*")]
        finished = [result for result in runs if result is not None and result.state == "finished"]
        source = "measured by a calibration"
    if not finished:
        return None
    count = len(finished)
    steps, validations = sum(r.step_seconds for r in finished), sum(r.validation_seconds for r in finished)
    others = {is_first: [r.other_seconds for r in finished if r.is_first is is_first] for is_first in (True, False)}
    usual = mean(others[False] or others[True])
    return MeasuredRate(
        count,
        source,
        sum(r.flops for r in finished) / max(steps, 1e-9),
        validations / count,
        usual,
        max(0.0, mean(others[True] or [usual]) - usual),
        sum(r.flops for r in finished) / sum(r.tokens for r in finished),
    )


def _check_jobs(opened: OpenStudy, runs: Sequence[StudyRun]) -> None:
    measure, kinds = opened.study.metrics.measure, dict[str, str]()  # an entry for each kind of objective
    for run in {(run.kind, run.corpus): run for run in runs if run.is_ready}.values():
        resolve(replace(run.job, online_weights=None), opened.corpora.of(run.job))  # the reference may not exist yet
        objective = run.job.objective
        likely = any(member.gives_likelihood for member, _ in objective.members())
        if measure == "loss":
            kinds.setdefault(objective.kind, run.entry)
            if len(kinds) > 1:
                (first, one), (second, other) = list(kinds.items())
                raise ConfigError(
                    f"metrics.measure: got loss, but {one} learns {first} and {other} {second}, whose targets differ; compare "
                    f"runs of one objective, or set document_bits_per_byte"
                )
        elif not (likely if measure == "document_bits_per_byte" else objective.predicts_text):
            raise ConfigError(
                f"metrics.measure: got {measure}, which the objective {objective.kind} of {run.entry} does not have; "
                f"use an objective that predicts text"
            )


def _confirmation(opened: OpenStudy, root: LocalPath) -> tuple[StudyRun, ...]:
    """Return the runs of the confirmation. Until the mixtures of all candidates are known, the proposal and
    DoReMi are given the prior, because the cost of a run does not depend on its mixture.
    """
    assert opened.study.confirmation is not None
    missing = "doremi" in opened.study.confirmation.candidates and not doremi_mixture(opened, root)
    if (root / PROPOSAL).exists() and not missing:
        return candidate_runs(opened, root)
    return candidate_runs(opened, root, opened.mixture(opened.prior))


def _stage(
    name: str, runs: Sequence[StudyRun], costs: Mapping[str, tuple[float, int]], known: Mapping[str, RunResult]
) -> StagePlan:
    states: dict[str, int] = {}
    for result in known.values():
        states[result.state] = states.get(result.state, 0) + 1
    left = [run for run in runs if run.key not in known or known[run.key].state == "failed"]
    tokens = sum(run.job.budget.tokens or 0 for run in left)
    flops = sum((run.job.budget.tokens or 0) * costs[run.key][0] for run in left)
    per_token, parameters = (max(values) for values in zip(*costs.values(), strict=True))
    return StagePlan(name, len(runs), states, len(left), tokens, flops, per_token, int(parameters))


def _costs(
    opened: OpenStudy, runs: Sequence[StudyRun], results: Mapping[str, RunResult]
) -> dict[str, tuple[float, int]]:
    """Return (operations per token, parameters) of each run, by key. The numbers are taken from a finished
    run of the same kind and corpus. If there is none, they are counted on a model built without allocating
    memory. For a run with group DRO, they are always counted, and the operations are multiplied by _DRO_COST.
    """
    known: dict[tuple[str, str], tuple[float, int]] = {}
    costs = {}
    for run in runs:
        result = results.get(run.key)
        if result is not None and result.state == "finished" and result.tokens and not run.reference:
            known.setdefault((run.kind, run.corpus), (result.flops / result.tokens, result.parameters))
    for run in runs:
        its = run.kind, run.corpus
        if its not in known:
            per_token, parameters = _count(run.job, opened.corpora.of(run.job) if run.is_ready else opened.corpus)
            known[its] = per_token * (_DRO_COST if run.reference else 1), parameters
        costs[run.key] = known[its]
    return costs


def _count(job: Any, corpus: TrainingCorpus) -> tuple[float, int]:
    """Return the operations per training token and the number of parameters of the job's model."""
    import torch

    from trainers.engine.hardware.mfu import flops_of
    from trainers.models import build_model, give_characters

    job = replace(job, model=fill(job.model, corpus.tokenizer.vocab_size))
    with torch.device("meta"):
        network = build_model(job.model, corpus.tokenizer.specials, 0)
    give_characters(network, job.model, verified_tokenizer(corpus))  # their number is that of operations
    flops = flops_of(network, job.model, job.data.sequence_length)
    parameters = sum(parameter.numel() for parameter in network.parameters())
    return flops.read + flops.decoded + flops.predicted, parameters


def _run_bytes(root: LocalPath, results: Mapping[str, RunResult]) -> int:
    for key in results:
        return sum(file.stat().st_size for file in (root / RUNS / key).rglob("*") if file.is_file())
    return _LOG_BYTES


def plan_lines(plan: StudyPlan) -> list[str]:
    """Return the plan as lines for a terminal."""
    study, opened = plan.opened.study, plan.opened
    lines = [f"study {study.name}: {study.question}" if study.question else f"study {study.name}"]
    for stage in plan.stages:
        states = ", ".join(f"{count} {state}" for state, count in sorted(stage.states.items()))
        seconds = plan.seconds(stage)
        time = "time unknown" if seconds is None else duration(seconds)
        lines.append(
            f"{stage.name:13} {stage.runs} runs{f' ({states})' if states else ''}, {stage.to_train} to train: "
            f"{compact(stage.tokens)} tokens, {stage.flops:.3g} operations, {time}; {compact(stage.parameters)} parameters"
        )
    lines += [_time_line(plan), f"disk          {human_bytes(plan.peak_bytes)} at most"]
    target = study.target
    if target is not None and target.parameters:
        share = sum(stage.flops for stage in plan.stages) / (6 * target.parameters * target.tokens)
        lines.append(f"target        the study takes {share:.2%} of its 6 N D operations")
    repeated = [] if study.has_mixtures else repeated_lines(opened.points)
    return [*lines, *_domain_lines(opened), *_reused_lines(opened), *repeated]


def _reused_lines(opened: OpenStudy) -> list[str]:
    if opened.reused is None:
        return []
    ratios = ", ".join(f"{name} {ratio:.2%}" for name, ratio in opened.reused.ratios.items())
    return [f"the study varies {', '.join(opened.domains)}; {VIRTUAL} is {ratios}"]


def _time_line(plan: StudyPlan) -> str:
    rate, seconds = plan.rate, plan.total_seconds
    if rate is None or seconds is None:
        return "time          unknown: no run has been measured; `study plan --calibrate` trains a few steps and records them"
    return (
        f"time          {duration(seconds)} on {plan.workers} workers, {rate.source} ({rate.runs}): "
        f"{rate.flops_per_second / 1e9:.2f} GFLOP/s per worker; each run spends {rate.validation_seconds:.1f} s on "
        f"validation and {rate.other_seconds:.1f} s on start and end, the first of a worker {rate.start_seconds:.1f} s more"
    )


def _domain_lines(opened: OpenStudy) -> list[str]:
    study = opened.study
    share, length = opened.share_read(study.proxies.tokens), opened.base.data.sequence_length
    budget = study.target.tokens if study.target and study.proxies.matched else study.proxies.tokens
    lines = [f"{'domain':32} {'tokens':>13} {'prior':>7} {'epochs':>7} {'sequences read':>15}"]
    for name, part in opened.prior_mixture.items():
        tokens = opened.corpus.train[name].tokens
        pool = max(1, round(share * (tokens // length)))
        few = "  few sequences: epochs are matched only roughly" if share < 1 and pool < _FEW_SEQUENCES else ""
        lines.append(f"{name[-32:]:32} {tokens:13,} {part:7.2%} {part * budget / tokens:7.2f} {pool:15,}{few}")
    return lines
