"""Restore the state from which a run continues: its newest checkpoint, or the weights of its parent."""

from typing import Any

from gristmill.errors import UserError
from gristmill.storage.disk import LocalPath
from trainers.config.job import Job
from trainers.data.job_interface import JobCorpus
from trainers.data.order import Order
from trainers.engine.engine import Engine
from trainers.runs import checkpoint
from trainers.runs.checkpoint import Checkpoint, ParallelLayout
from trainers.runs.parent import checkpoint_of, updates
from trainers.runs.progress import Progress
from trainers.runs.run import fingerprints, read_run
from trainers.training.averaging_trigger import AveragingTrigger
from trainers.training.begin import describe_resume, read_state
from trainers.training.judge import Judge
from trainers.training.weighting.weights_interface import OnlineWeights


def restore(
    config: Job,
    corpus: JobCorpus,
    run: LocalPath,
    engine: Engine,
    order: Order,
    judge: Judge | None,
    weights: OnlineWeights[Any] | None,
    averaging: AveragingTrigger | None,
    progress: Progress,
    layout: ParallelLayout,
) -> tuple[int, int, int]:
    """Restore the newest checkpoint that the first worker finds intact. Without any checkpoint, begin from
    the weights of the run's parent, if it has one. Returns (steps done, tokens read, steps skipped). Every
    worker must call this. Raises UserError if there are checkpoints but none is intact, or if a worker cannot
    read the one that was chosen.
    """
    found, failed = None, 0
    if engine.rank == 0:
        try:
            found = checkpoint.newest(run, lambda message: progress.write("warning", message=message))
        except UserError as error:
            progress.write("error", message=str(error))
            failed = 1
    if engine.broadcast(failed):
        raise UserError(f"{run}: no intact checkpoint to continue from; the log says why")
    step = engine.broadcast(found.step if found else 0)
    if step == 0:
        return _begin(config, corpus, run, engine, judge is not None, averaging, progress)
    found = found or checkpoint.newest(run, lambda _: None, last=step)
    if found is None or found.step != step:
        raise UserError(f"{run}: worker {engine.rank} cannot read the checkpoint of step {step}")
    order.resume(found.order)
    if judge is not None:
        judge.resume(found.best)
    if weights is not None:
        weights.resume(found.online_weights)
    engine.restore(checkpoint.read_state(found), updates(read_run(run), found))
    if averaging is not None:
        averaging.resume(found.averaging)
    ours = fingerprints(config, corpus)["code"]
    if found.fingerprints["code"] != ours:
        message = f"the checkpoint of step {step} was written by code {found.fingerprints['code']}, this is {ours}"
        progress.write("warning", message=message)
    engine.broadcast(0)  # wait for the slowest reader: the next collective has a time limit
    _log_resume(config, found, layout, progress)
    return step, found.tokens, found.skipped


def _begin(
    config: Job,
    corpus: JobCorpus,
    run: LocalPath,
    engine: Engine,
    fine_tunes: bool,
    averaging: AveragingTrigger | None,
    progress: Progress,
) -> tuple[int, int, int]:
    parent = read_run(run).get("parent")
    if parent is None:
        return 0, 0, 0
    if not fine_tunes:
        state = read_state(config, corpus, parent, engine.shapes())
        engine.restore(state, parent["updates"])
        if averaging is not None and config.init is not None and config.init.optimizer == "keep":
            averaging.resume(checkpoint_of(LocalPath(parent["path"]), parent["step"]).averaging)
        engine.broadcast(0)  # as in `restore`
    step, of = parent["first_step"], f" of step {parent['step']}" if "step" in parent else ""
    message = f"from the weights{of} of {parent['path']}"
    progress.write("init", step=step, parent=parent, message=message)
    return step, parent["tokens"], 0


def _log_resume(config: Job, found: Checkpoint, now: ParallelLayout, progress: Progress) -> None:
    before = found.split
    splits = {"workers_before": before.workers, "workers": now.workers}
    splits |= {"micro_batch_before": before.micro_batch, "micro_batch": now.micro_batch}
    message = describe_resume(found, now, config.drops)
    progress.write("resume", step=found.step, tokens=found.tokens, **splits, message=message)
