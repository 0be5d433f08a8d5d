"""Train one run of a study in this process and write `result.json`."""

import itertools
import shutil
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from statistics import mean
from typing import Any, Literal

from gristmill.config import load_yaml
from gristmill.errors import ConflictError, CorruptFileError, UserError
from gristmill.events import read_events
from gristmill.machine import usable_cores
from gristmill.storage.disk import LocalPath
from gristmill.storage.store import read_json, write_json
from trainers.config.job import Checkpoints
from trainers.config.loss_weighting import WEIGHTS_FILE, GroupDRO
from trainers.config.pretraining import Pretraining, Validation
from trainers.data.packed_corpus import TrainingCorpus
from trainers.report.run_cost import run_cost
from trainers.runs.history import drop_superseded
from trainers.runs.ledger import read_ledger
from trainers.runs.parent import parent_digest
from trainers.runs.resolve import resolve
from trainers.runs.run import locked, open_run
from trainers.studies.designs.study_corpora import OpenCorpora
from trainers.studies.designs.study_run import StudyRun
from trainers.studies.schema.study_file import Metrics

RESULT = "result.json"
FORMAT = "gristmill-study-result/1"
_MEASUREMENTS = 20  # validation intervals in a run; only the last few are measured, and averaged
_BEFORE_START = ("resume", "warning")
_CHECKPOINTS = 4  # per run, so that a killed run loses at most a quarter
_KEPT_MODEL = ("checkpoints", "export")  # removed when a run ends; its log and its ledger stay
_CORPORA = OpenCorpora()  # per process, so that its runs open each corpus once
_NUMBERS = itertools.count()  # of the runs that this process trains

State = Literal["finished", "diverged", "failed"]
Outcome = Literal["finished", "diverged", "failed", "busy", "stopped", "storage"]


@dataclass(frozen=True)
class RunResult:
    """The result of a run. `metrics` maps each domain to its held-out loss, measured as the study's
    `metrics.measure` says. For a `diverged` or `failed` run, `metrics` is empty and the numbers are 0. The
    next `study run` trains a failed run again.

    `sources` holds the ledger's entry for each domain. `flops` counts the operations of training steps.
    `domain_weights` are the mean weights of a run with online weights. `cost` is the `Footprint` of the run,
    including steps repeated after a kill. `is_first` says whether a finished run was the first of its
    process; `seconds` then includes the import of libraries.
    """

    state: State
    reason: str = ""
    metrics: dict[str, float] = field(default_factory=dict)
    sources: dict[str, dict[str, float]] = field(default_factory=dict)
    tokens: int = 0
    steps: int = 0
    flops: float = 0.0
    parameters: int = 0
    seconds: float = 0.0
    step_seconds: float = 0.0
    validation_seconds: float = 0.0
    domain_weights: dict[str, float] = field(default_factory=dict)
    cost: dict[str, Any] | None = None
    is_first: bool = False

    @property
    def other_seconds(self) -> float:
        """The seconds that the run spent neither on steps nor on validation."""
        return max(0.0, self.seconds - self.step_seconds - self.validation_seconds)


def read_result(run: LocalPath) -> RunResult | None:
    """Return the result of the run in the directory `run`; None if it is missing, damaged or of another
    format.
    """
    try:
        record = read_json(run / RESULT)
    except (FileNotFoundError, NotADirectoryError, CorruptFileError):
        return None
    if record.pop("format") != FORMAT:
        return None
    record.pop("checksum")
    return RunResult(**record)


def train_study_run(run: StudyRun, directory: LocalPath, threads: int) -> tuple[Outcome, str]:
    """Train `run` in `directory` from its newest checkpoint, unless it has finished or diverged. Returns the
    outcome and the reason for it.

    The outcome is the state of the result, or one of `busy`, `stopped` and `storage`. `busy`: another process
    is training the run. `stopped`: SIGTERM ended the run after a checkpoint. `storage`: the disk failed, so
    no result is written.
    """
    began = time.perf_counter()
    with ExitStack() as held:
        try:
            held.enter_context(locked(directory))
        except ConflictError as error:
            return "busy", str(error)
        known = read_result(directory)
        if known is not None and known.state != "failed":
            return known.state, known.reason
        try:
            # A run that failed before its directory was complete could not begin beside its result.
            (directory / RESULT).unlink(missing_ok=True)
            is_first = next(_NUMBERS) == 0
            if not _train(run, directory, threads):
                return "stopped", ""
            result = replace(_measure(run, directory, time.perf_counter() - began, threads), is_first=is_first)
        except Exception as error:  # a failed run is recorded and does not end the study
            if _is_storage(error):
                return "storage", str(error)
            result = RunResult(_state_of(error), _in_one_line(error))
        try:
            for name in _KEPT_MODEL[:1] if run.keeps_export else _KEPT_MODEL:
                shutil.rmtree(directory / name, ignore_errors=True)
            write_json(directory / RESULT, {"format": FORMAT, **asdict(result)})
        except OSError as error:
            return "storage", f"{directory}: {error.strerror or error}"
    return result.state, result.reason


def measured_job(run: StudyRun, corpus: TrainingCorpus, threads: int) -> Pretraining:
    """Return the resolved job of a run, with `threads` CPU threads and with the validation, logging and
    checkpoint settings that all runs of studies use.
    """
    config = resolve(run.job, corpus)
    steps = config.budget.steps or 0
    every = max(1, steps // _MEASUREMENTS)
    return replace(
        config,
        validation=_validation(run.metrics, steps, every),
        log_every=every,
        checkpoints=Checkpoints(every=max(1, -(-steps // _CHECKPOINTS)), keep=1),
        execution=replace(config.execution, threads=threads),
    )


def _validation(metrics: Metrics, steps: int, every: int) -> Validation:
    """Return the validation settings: up to `metrics.last` validations, one after the last step and the
    others at the last multiples of `every` before it.
    """
    before = (steps - 1) // every - (metrics.last - 2)
    first = steps if metrics.last == 1 else max(1, before) * every
    return Validation(
        every=every, tokens=metrics.tokens, from_step=first, documents=metrics.measure == "document_bits_per_byte"
    )


def _train(run: StudyRun, directory: LocalPath, threads: int) -> bool:
    from trainers.training.launch import launch

    corpus = _CORPORA.of(run.job)
    if corpus.fingerprint != run.corpus:
        raise UserError(f"{run.job.data.corpora[0]}: the corpus has changed since the study was opened; run it again")
    if run.job.init is not None and parent_digest(run.job.init) != run.parent:
        raise UserError(
            f"init.path: {run.job.init.path} has changed or has a newer checkpoint since the study was opened; run the study "
            f"again, with init.step if the parent is still training"
        )
    if isinstance(run.job.online_weights, GroupDRO):
        export = str(directory.parent / run.reference / "export")
        run = replace(run, job=replace(run.job, online_weights=replace(run.job.online_weights, reference=export)))
    config = measured_job(run, corpus, threads)
    if not open_run(directory, config, corpus).finished:
        launch(config, corpus, directory, 1, lambda line: None)
    return (directory / "finished.json").exists()


def _measure(run: StudyRun, directory: LocalPath, seconds: float, threads: int) -> RunResult:
    everything = read_events(directory / "log.jsonl")
    events = drop_superseded(everything)
    start = next(event for event in events if event["event"] == "start")
    validations = [event for event in events if event["event"] == "validation"][-run.metrics.last :]
    sources = validations[-1]["sources"] if validations else {}
    names = [name for name in run.metrics.domains or sources if name in sources]  # all that have targets
    try:
        metrics = {n: mean(float(v["sources"][n][run.metrics.measure]) for v in validations) for n in names}
    except KeyError:
        raise UserError(
            f"metrics.measure: got {run.metrics.measure}, which the objective {run.job.objective.kind} cannot measure, "
            f"because it does not predict text"
        ) from None
    infinite = [name for name, value in metrics.items() if not abs(value) < float("inf")]
    if infinite or not metrics:
        return RunResult("diverged", f"the held-out loss of {', '.join(infinite) or 'all domains'} is not finite")
    ledger = read_ledger(directory)
    tokens = int(sum(entry["tokens"] for entry in ledger["sources"].values()))
    per_token = start["flops_per_token"]
    return RunResult(
        "finished",
        metrics=metrics,
        sources=ledger["sources"],
        tokens=tokens,
        steps=int(ledger["step"]),
        flops=tokens * (per_token["read"] + per_token["decoded"] + per_token["predicted"]),
        parameters=start["parameters"],
        seconds=max(seconds, _logged_seconds(events)),
        step_seconds=_step_seconds(events),
        validation_seconds=_validation_seconds(events),
        domain_weights=_domain_weights(directory),
        cost=_cost(everything, threads),
    )


def _cost(events: Sequence[dict[str, Any]], threads: int) -> dict[str, Any] | None:
    cost, cores = run_cost(events), usable_cores()
    if cost is not None and cost.joules is not None and "RAPL" in cost.energy_from and threads < cores:
        how = f"{cost.energy_from}, {threads} of {cores} cores"
        cost = replace(cost, joules=cost.joules * threads / cores, energy_from=how)
    return cost.plain() if cost is not None else None


def _domain_weights(directory: LocalPath) -> dict[str, float]:
    file = directory / WEIGHTS_FILE
    return dict(load_yaml(file)["weights"]) if file.exists() else {}


def _logged_seconds(events: Sequence[dict[str, Any]]) -> float:
    """Return how many seconds a run took according to its log: the time from each start or resume to the last
    event before the next one, summed.
    """
    parts: list[tuple[float, float]] = []
    for event in events:
        if event["event"] == "start":
            parts.append((event["time"], event["time"]))
        elif parts and event["event"] not in _BEFORE_START:
            parts[-1] = (parts[-1][0], event["time"])
    return sum(end - begin for begin, end in parts)


def _step_seconds(events: Sequence[dict[str, Any]]) -> float:
    total, before = 0.0, 0
    for event in events:
        if event["event"] == "step":
            total += (event["tokens"] - before) / event["tokens_per_second"]
            before = event["tokens"]
    return total


def _validation_seconds(events: Sequence[dict[str, Any]]) -> float:
    pairs = itertools.pairwise(events)
    return sum(event["time"] - before["time"] for before, event in pairs if event["event"] == "validation")


def _state_of(error: BaseException) -> State:
    from trainers.training.divergence import DivergedError

    return "diverged" if isinstance(error, DivergedError) else "failed"


def _is_storage(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, OSError):
            return True
        error = error.__cause__
    return False


def _in_one_line(error: BaseException) -> str:
    lines = str(error).split("\n")
    return lines[0] if isinstance(error, UserError) else f"{type(error).__name__}: {lines[0]}"
