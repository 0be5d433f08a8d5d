"""Commands of trainers as functions for agents: the product's code, without its command line and its
computation.

Each function here returns a function for a simulated process to run. Its result is 0 or the message with
which the command ends.
"""

from functools import partial

from gristmill.errors import UserError
from gristmill.host import lent
from gristmill.storage.disk import LocalPath
from tests.schedules.agents.commands import TASK, command
from tests.schedules.training.small_runs import EXPORT, REPORT, RUN, STEPS, corpus, job, state_after
from trainers.evaluation.checkpoints.evaluate_checkpoints import evaluate_checkpoints
from trainers.evaluation.suites.run_evaluation import EvaluationSettings
from trainers.inference.model_export import export_checkpoint, load_trained, notes_of
from trainers.report.run_page import write_report
from trainers.runs.checkpoint import published
from trainers.runs.ledger import copy_ledger
from trainers.runs.run import begin_attempt, locked, open_run
from trainers.training.launch import _MAX_FAILURES, _train, launch

_WORKER_SECONDS = 60.0  # for which a worker may be silent; training takes 12


def pretrain(say=print, train=launch):
    """`trainers pretrain`, from taking the lease onwards; `train` has the signature of `launch`."""

    def run():
        path = LocalPath(RUN)
        with locked(path):
            opened = open_run(path, job(), corpus())
            if opened.finished:
                copy_ledger(path)
                if not (path / "report.html").exists():
                    write_report([path], path / "report.html")
                say("nothing to do")
                return
            train(job(), corpus(), path, 1, say)

    return command(run)


def pretrain_on_workers(world):
    """`trainers pretrain` on a cluster of one worker. The worker's process outlives a killed command, and is
    assumed dead if it falls silent.
    """

    def train(config, tasks, path, workers, say):
        lost, in_row, reached = True, 0, 0
        while lost:  # as on Ray: another attempt, unless the worker itself has said what is wrong
            work = partial(_train, config, tasks, path, None, begin_attempt(path))
            driver = world.current.process.name
            number = sum(name.startswith(f"{driver}{TASK}") for name in world.processes)
            worker = world.start(f"{driver}{TASK}{number}", command(work), machine="of workers")
            world.wait(lambda worker=worker: not worker.alive, _WORKER_SECONDS)
            lost = worker.alive or worker.killed
            before, reached = reached, max((step for step, _ in published(path)), default=0)
            in_row = in_row + 1 if lost and reached == before else 0
            if in_row == _MAX_FAILURES:
                raise UserError(f"workers were lost {in_row} times in a row")
        if worker.result != 0:
            raise UserError(worker.result)

    return pretrain(world.say, train)


def model_export():
    """`trainers export`, to the same place as the export of the training run."""

    def run():
        output = export_checkpoint(LocalPath(RUN), LocalPath(EXPORT))
        notes_of(output)

    return command(run)


def generate():
    """Read what `trainers generate` reads: the exported model and its tokenizer."""
    return command(lambda: _use(EXPORT))


def evaluate():
    """Read what `trainers evaluate` reads from a run that is still training."""
    return command(lambda: _use(RUN))


def score_checkpoints(say=print):
    return command(lambda: evaluate_checkpoints([LocalPath(RUN)], None, None, (), None, EvaluationSettings(), say))


def report():
    return command(lambda: write_report([LocalPath(RUN)], LocalPath(REPORT)))


def _use(place):
    trained = load_trained(LocalPath(place))
    assert trained.model in {state_after(step) for step in range(1, STEPS + 1)}, (
        f"{trained.model} is no model of the run"
    )
    with open(lent(trained.tokenizer), "rb") as file:
        assert file.read()
