"""The training loop: the same on one worker and on many, under any launcher."""

import math
import time
from collections.abc import Callable, Generator
from contextlib import closing, suppress
from dataclasses import asdict, replace
from threading import Event

import numpy as np

from gristmill.errors import UserError
from gristmill.storage.disk import LocalPath
from gristmill.storage.store import write_json
from trainers.config.finetuning import Finetuning
from trainers.config.job import Job
from trainers.data.examples.task_corpus import TaskCorpus
from trainers.data.job_interface import JobCorpus, verified_tokenizer
from trainers.data.prefetch import prefetch
from trainers.engine.assembly import build_forward
from trainers.engine.engine import Engine, Totals, start_group
from trainers.engine.hardware.compiler import check_compiler, needs_compiler
from trainers.engine.hardware.mfu import Flops, device_name, flops_of, mean_keys, memory_bytes, peak_flops, utilisation
from trainers.engine.hardware.micro_batch import choose_micro_batch, is_out_of_memory, set_threads
from trainers.engine.loss_metrics import loss_fields, no_sums
from trainers.engine.schedule import rate_fraction
from trainers.inference.model_export import export_checkpoint
from trainers.inference.predict import score_line, score_run
from trainers.models import give_characters
from trainers.rows.batch import Batch
from trainers.runs import checkpoint
from trainers.runs.checkpoint import ParallelLayout
from trainers.runs.exclusion import read_excluded
from trainers.runs.job_data import reader_of
from trainers.runs.ledger import copy_ledger, line, make_ledger
from trainers.runs.progress import Progress
from trainers.runs.run import STOP, SupersededError, attempt_number, check_attempt, fingerprints, read_run
from trainers.runs.sinks import open_sinks
from trainers.training.averaging_trigger import AveragingTrigger
from trainers.training.begin import describe_new, initial_base
from trainers.training.cost_meter import CostMeter
from trainers.training.divergence import DivergedError, remedy
from trainers.training.interval import Interval
from trainers.training.judge import Judge
from trainers.training.periodic_evaluation import PeriodicEvaluator
from trainers.training.restore import restore
from trainers.training.stop_signal import stop_signal
from trainers.training.validation import Validator
from trainers.training.weighting.online_weights import online_weights_of
from trainers.training.weighting.weights_interface import write_online_weights


def train(
    config: Job,
    corpus: JobCorpus,
    run: LocalPath,
    show: Callable[[str], None] | None,
    attempt: str | None = None,
) -> None:
    """Train from the newest checkpoint of `run`, or from the start, until the run ends. Then export the model
    and write the report.

    Every worker must call this, with the resolved configuration. If any worker receives SIGTERM, training
    ends early, after a checkpoint, and nothing is exported. The first worker raises SupersededError once an
    attempt other than `attempt` has begun (`trainers.runs.run.begin_attempt`).
    """
    began = time.perf_counter()
    check_compiler(config)
    rank, world = start_group()
    threads = set_threads(config.execution.threads)
    sinks = open_sinks(config.sinks, run, config, show) if rank == 0 else ()
    progress = Progress(run / "log.jsonl" if rank == 0 else None, show, sinks)
    try:
        with stop_signal() as stop:
            Training(config, corpus, run, progress, world, attempt, threads, stop).run(began)
    finally:
        progress.close()
    if rank == 0:
        from trainers.report.run_page import write_report  # with the page kit, which no step needs

        write_report([run], run / "report.html")


class Training:
    """One worker's part in a run: its data, its model, its checkpoints and its log."""

    def __init__(
        self,
        config: Job,
        corpus: JobCorpus,
        run: LocalPath,
        progress: Progress,
        world: int,
        attempt: str | None,
        threads: int,
        stop: Event,
    ) -> None:
        """Open the data, build the model, and restore the newest checkpoint, if there is one. Once `stop` is
        set, the run ends after its current step.
        """
        self.config, self.corpus, self.path, self.progress = config, corpus, run, progress
        self.attempt = attempt
        self.steps, self.sequences = config.budget.steps or 0, config.batch.sequences or 0
        excluded = read_excluded(run)
        reader = reader_of(config)
        self.data = reader.training(corpus, config, excluded)
        base = initial_base(config, corpus, run)
        forward = build_forward(config, corpus.tokenizer.specials, base, getattr(corpus, "encode", None))
        give_characters(forward.model, config.model, verified_tokenizer(corpus))
        new = describe_new(forward, config, base)
        parameters = sum(parameter.numel() for parameter in forward.parameters())
        trained = sum(parameter.numel() for parameter in forward.parameters() if parameter.requires_grad)
        keys = [mean_keys(length, config.bptt) for length in self.data.row_lengths]
        self.flops = [flops_of(forward.model, config.model, its) for its in keys]
        self.peak_flops = peak_flops(device_name(), config)
        (row,) = self.data.split(self.data.order.clone().take(0, 1), 1, 0, 1)
        self.micro_batch = choose_micro_batch(forward, config, row, max(self.data.row_lengths), world)
        self.split = ParallelLayout(world, self.micro_batch)
        accumulation = -(-self.sequences // (self.micro_batch * world))
        self.engine = Engine(forward, config, self.micro_batch, accumulation)
        self.names = self.engine.names
        self.judge = Judge(config, self.engine) if isinstance(config, Finetuning) else None
        self.validation = Validator(config, corpus, self.engine, self.micro_batch, self.judge)
        self.weights = online_weights_of(config, self.data.sources, self.data.row_lengths, self.engine)
        optimizer = config.optimizer
        self.averaging = (
            AveragingTrigger(optimizer.non_monotone_interval, self.engine) if optimizer.kind == "asgd" else None
        )
        states = (self.data.order, self.judge, self.weights, self.averaging)
        resumed = restore(config, corpus, run, self.engine, *states, progress, self.split)
        self.start, self.tokens, self.skipped = resumed
        self.data = self.data.read_since(min(read_run(run).get("since", 0), self.start) * self.sequences)
        self.skipped_in_row, self.stop = 0, stop
        self.cost = CostMeter(run, progress, self.engine.rank, world)
        self._check()  # what this part logs from here on stands for the steps that follow
        self.evaluator = PeriodicEvaluator(config, run, progress, self.engine.rank == 0)
        if excluded:
            message = f"{len(excluded):,} documents have loss weight 0 from step {self.start + 1} on"
            progress.write("excluded", step=self.start, documents=len(excluded), message=message)
        if new and self.start == 0:
            progress.write("new", step=0, message=new)
        progress.write(
            "start",
            step=self.start,
            parameters=parameters,
            trained_parameters=trained,
            workers=world,
            zero_stage=self.engine.zero_stage,
            micro_batch=self.micro_batch,
            accumulation=accumulation,
            threads=threads,
            device=device_name(),
            flops_per_token=asdict(self._flops(self.start)),
            **({"energy_from": self.cost.sources} if self.cost.sources else {}),
            **({"attempt": attempt_number(self.attempt)} if self.attempt else {}),
        )
        for event, fields in self.data.notices():
            progress.write(event, step=self.start, **fields)

    def run(self, began: float) -> None:
        """Train until the end of the budget, until too many validations in a row bring no improvement, or
        until the run is asked to stop. In the first two cases, export the model. `began` is the value of
        `time.perf_counter()` when `train` was called.
        """
        interval = self._interval()
        with closing(self.evaluator), closing(self._trained(began)) as trained:
            self.evaluator.advance()
            for done, totals, norm, rate, tokens, waited in trained:
                self.tokens += tokens
                interval.waited += waited
                if math.isfinite(totals.loss) and math.isfinite(norm):
                    self.skipped_in_row = 0
                    flops = self._flops(done - 1).terms(totals.read, totals.decoded, totals.targets)
                    interval.add(totals, norm, rate, tokens, flops)
                else:
                    self._skip(done, totals, norm)
                interval = self._keep(done, totals, interval)
                if totals.stops and done < self.steps:
                    self._stop(done, f"at step {done}, checkpoint saved; the same command continues")
                    return
            self._finish()

    def _trained(self, began: float) -> Generator[tuple[int, Totals, float, float, int, float]]:
        """Train the remaining steps. After each, yield (steps done, totals of the step, gradient norm,
        learning rate, tokens read by all workers, seconds spent waiting for data).
        """
        step, batches = self.start, self._batches(self.start)
        try:
            while step < self.steps:
                if self.judge and self.judge.ended:
                    self._end_early(step)
                    return
                requested = time.perf_counter()
                micro_batches, tokens = next(batches)
                received = time.perf_counter()
                try:
                    result = self._step(step, micro_batches)
                except RuntimeError as error:
                    self._halve(step, error)
                    batches.close()
                    batches = self._batches(step)
                    continue
                if step == self.start:
                    self._log_first(step + 1, received - began, time.perf_counter() - received)
                step += 1
                yield step, *result, tokens, received - requested
        finally:
            batches.close()

    def _halve(self, step: int, error: RuntimeError) -> None:
        automatic = self.config.execution.micro_batch == "auto" and self.engine.world == 1
        if not (automatic and self.micro_batch > 1 and is_out_of_memory(error) and self.engine.discard()):
            raise error
        before, self.micro_batch = self.micro_batch, -(-self.micro_batch // 2)
        self.split = replace(self.split, micro_batch=self.micro_batch)
        message = f"step {step + 1} ran out of memory with micro-batches of {before}; they are now {self.micro_batch}"
        self.progress.write("warning", step=step, micro_batch=self.micro_batch, message=message)

    def _keep(self, done: int, totals: Totals, interval: Interval) -> Interval:
        """Log, validate and save, each only if due after `done` steps. Returns the interval that the next
        step adds to.
        """
        self._check()
        last = done == self.steps
        if done % self.config.log_every == 0 or last or totals.stops:
            self._report(done, interval)
            interval = self._interval()
        due = done % self.config.checkpoints.every == 0 or last or bool(totals.stops)
        if self.config.validates_at(done) or last:
            due |= self._validate(done)
            interval.restart_clock()
        due |= self.evaluator.due_at(done)
        if due:
            self._save(done)
            interval.restart_clock()
        self.evaluator.advance(done if due else None)
        return interval

    def _stop(self, step: int, message: str) -> None:
        self.cost.finish(step)
        self.progress.write("stopped", step=step, message=message)
        (self.path / STOP).unlink(missing_ok=True)

    def _end_early(self, step: int) -> None:
        assert self.judge is not None
        assert self.judge.best is not None
        message = (
            f"after step {step}: {self.judge.best.validations_since} validations without a better {self.judge.metric} "
            f"than that of step {self.judge.best.step}"
        )
        self.progress.write("ended_early", step=step, best_step=self.judge.best.step, message=message)
        self.steps = step

    def _interval(self) -> Interval:
        return Interval(no_sums(len(self.names), len(self.data.sources)))

    def _flops(self, step: int) -> Flops:
        """Return the operations per token in the phase that contains the step with index `step`."""
        return self.flops[self.data.order.phase_of(step * self.sequences)]

    def _check(self) -> None:
        if self.engine.rank == 0:  # only the first worker writes
            check_attempt(self.path, self.attempt)

    def _batches(self, first: int) -> Generator[tuple[list[Batch], int]]:
        """Yield, for every step from index `first` on, this worker's micro-batches and the number of tokens
        that all workers read.
        """
        order = self.data.order.clone()  # it runs ahead of what is logged
        drawn = (order.take(step * self.sequences, self.sequences) for step in range(first, self.steps))
        share = (self.micro_batch, self.engine.rank, self.engine.world)
        return prefetch(
            drawn,
            lambda samples: (list(self.data.split(samples, *share)), int(samples.tokens.sum())),
            self.config.execution.loader_threads,
        )

    def _step(self, step: int, batches: list[Batch]) -> tuple[Totals, float, float]:
        rate = self.config.optimizer.learning_rate * rate_fraction(self.config.schedule, step, self.steps)
        scale = self.weights.begin(batches) if self.weights else None
        totals, norm = self.engine.train_step(batches, step, rate, len(self.data.sources), self._asked_to_stop(), scale)
        if self.weights:
            self.weights.end(totals, norm)
        return totals, norm, rate

    def _log_first(self, step: int, batch: float, seconds: float) -> None:
        compiled = ", compilation included" if needs_compiler(self.config) else ""
        message = f"first batch after {batch:.1f} s, first step took {seconds:.1f} s{compiled}"
        self.progress.write("first_step", step=step, first_batch_seconds=batch, step_seconds=seconds, message=message)

    def _skip(self, step: int, totals: Totals, norm: float) -> None:
        self.skipped, self.skipped_in_row = self.skipped + 1, self.skipped_in_row + 1
        wrong = ~np.isfinite(totals.sums).all(axis=(0, 1))
        sources = [source.name for source, its in zip(self.data.sources, wrong, strict=True) if its]
        values = f"loss {totals.loss}, gradient norm {norm}" + (f", in {', '.join(sources)}" if sources else "")
        what = f"ends after {totals.updates} of its updates" if totals.updates else "changes nothing"
        message = f"step {step} is not finite and {what}: {values}"
        self.progress.write("skipped", step=step, sources=sources, in_row=self.skipped_in_row, message=message)
        allowed = self.config.optimizer.max_skipped_in_row
        if self.skipped_in_row > allowed:
            raise DivergedError(
                f"{self.path}: {self.skipped_in_row} steps in a row up to step {step} are not finite ({values}), "
                f"optimizer.max_skipped_in_row allows {allowed}; the last checkpoint is intact. "
                f"{remedy(self.path, step, self.judge is not None)}"
            )

    def _asked_to_stop(self) -> bool:
        return self.stop.is_set() or (self.engine.rank == 0 and (self.path / STOP).exists())

    def _report(self, step: int, interval: Interval) -> None:
        if not interval.sums[0, 1].any():
            if interval.tokens:  # otherwise every step was skipped and has its own event
                message = (
                    f"NOTHING WAS PREDICTED up to step {step}: all documents read are excluded or too short for the "
                    f"objective {self.config.objective.kind}"
                )
                self.progress.write("warning", step=step, message=message)
            return
        self.progress.write(
            "step",
            step=step,
            steps=self.steps,
            tokens=self.tokens,
            **loss_fields(interval.sums, self.names, self.data.sources, self.config.objective.predicts_text),
            learning_rate=interval.rate,
            gradient_norm=interval.norm,
            tokens_per_second=interval.tokens / interval.seconds,
            data_seconds=interval.waited,
            mfu=utilisation(interval.flops.sum() / interval.seconds, self.peak_flops, self.engine.world),
            memory_bytes=memory_bytes(),
            **self.cost.fields(interval.flops),
            **(self.weights.fields() if self.weights else {}),
            data=self.data.consumed(step * self.sequences),
        )

    def _validate(self, step: int) -> bool:
        fields = self.validation.measure()
        if fields is None:
            return False
        self.progress.write("validation", step=step, tokens=self.tokens, **fields)
        if self.averaging is not None and self.averaging.observe(fields["loss"]):
            message = f"weights are averaged from step {step + 1} on: the validation loss has stopped falling"
            self.progress.write("averaging", step=step, message=message)
        if self.judge is None:
            return False
        self.judge.compare(step, {**fields, **fields.get("scores", {})})
        return self.judge.improved or self.judge.ended

    def _save(self, step: int) -> None:
        # All collectives come first, so that no worker waits in one while the first writes.
        state = [entry for entry in self.engine.state() if self.engine.rank == 0]
        failed: UserError | None = None
        if self.engine.rank == 0:
            marks = fingerprints(self.config, self.corpus)
            try:
                self.progress.sync()
                path = checkpoint.save(
                    self.path,
                    step,
                    self.tokens,
                    marks,
                    state,
                    keep=self.config.checkpoints.keep,
                    keep_every=self.config.checkpoints.keep_every,
                    skipped=self.skipped,
                    split=self.split,
                    order=self.data.order.state(step * self.sequences),
                    ledger=make_ledger(self.path, self.config, self.corpus, self.data, step),
                    check=self._check,
                    best=self.judge.best if self.judge else None,
                    online_weights=self.weights.state() if self.weights else None,
                    averaging=self.averaging.state if self.averaging else None,
                    updates=self.engine.updates,
                )
                copy_ledger(self.path)
                self.progress.write("checkpoint", step=step, message=str(path))
            except SupersededError:
                raise
            except UserError as error:
                failed = error
                with suppress(OSError):  # the log may be on the same full disk
                    self.progress.write("error", step=step, message=str(error))
        if self.engine.broadcast(int(failed is not None)):
            why = failed or f"{self.path}: the checkpoint of step {step} could not be written, see the first worker"
            raise UserError(f"{why}; fix that and run the same command, which continues from the last checkpoint")

    def _finish(self) -> None:
        if self.engine.rank == 0:
            settings = self.config.checkpoints
            checkpoint.remove_replaced(self.path, settings.keep, settings.keep_every, self._check)
            copy_ledger(self.path)
            self._score()
            if self.weights:
                write_online_weights(self.path, self.weights)
            self.progress.write("export", message=str(export_checkpoint(self.path, self.path / "export")))
        self.engine.broadcast(0)
        if self.engine.rank == 0:
            if not self.evaluator.finish(self._asked_to_stop):
                self._stop(self.steps, "training is done, but not the last evaluation; the same command continues")
                return
            self._check()
            write_json(self.path / "finished.json", {"step": self.steps, "tokens": self.tokens})
            if self.judge is None:
                seen = self.data.consumed(self.steps * self.sequences)
                self.progress.write("data", step=self.steps, sources=seen, message=line(seen))
            self.cost.finish(self.steps)
            self.progress.write("finished", step=self.steps, tokens=self.tokens)

    def _score(self) -> None:
        if not isinstance(self.config, Finetuning) or not isinstance(self.corpus, TaskCorpus):
            return
        tell = lambda line: self.progress.write("answers", step=self.steps, message=line)  # noqa: E731
        record = score_run(self.path, self.config, self.corpus, tell)
        for split, scores in record["splits"].items():
            message = f"{record['task']} {split}  {score_line(scores, record['floors'][split])}"
            self.progress.write("score", step=self.steps, split=split, scores=scores, message=message)
