"""Scenarios: training concurrent with another attempt at the same run, with exports, readers and reports."""

from functools import cache

from tests.schedules.agents.corpus_end import files_below, run_again
from tests.schedules.agents.invariants import parsed
from tests.schedules.agents.meeting import check_commands, start_commands
from tests.schedules.choices import Default
from tests.schedules.explore import Scenario
from tests.schedules.simulation import Simulation
from tests.schedules.training.run_commands import (
    evaluate,
    generate,
    model_export,
    pretrain,
    pretrain_on_workers,
    report,
    score_checkpoints,
)
from tests.schedules.training.run_invariants import Whole, check_run, check_scores
from tests.schedules.training.small_runs import RUN
from tests.schedules.training.without_numbers import without_numbers

_BEGUN = 2  # steps of the run that others meet
_MESSAGES = {
    "pretrain": (
        r"another process is training here",
        r"other workers have continued this run",
        r"^1$",  # another process took over while this one was suspended
    ),
    "model export": (r"no run here", r"has no checkpoint yet"),
    "generate": (),
    "evaluate": (),
    "report": (),
    "score checkpoints": (),
}
_MAKE = {
    "pretrain": lambda world: pretrain(world.say),
    "pretrain on workers": pretrain_on_workers,
    "model export": lambda world: model_export(),
    "generate": lambda world: generate(),
    "evaluate": lambda world: evaluate(),
    "report": lambda world: report(),
    "score checkpoints": lambda world: score_checkpoints(world.say),
}
_MESSAGES["pretrain on workers"] = (*_MESSAGES["pretrain"], r"workers were lost \d times in a row")
NAMES = tuple(_MAKE)


@cache
def undisturbed_run():
    with without_numbers():
        world = Simulation(Default())
        process = world.start("pretrain", pretrain(world.say))
        world.run()
    assert process.result == 0, process.result or process.error
    return files_below(world.disk, RUN)


@cache
def begun_run():
    """Return a snapshot of a disk with a run that was killed after some steps, and an export of that run."""

    def stop(world, event):
        if event.other == f"{RUN}/ledger.json" and parsed(world.disk.peek(event.other))["step"] == _BEGUN:
            world.kill(world.processes["pretrain"])

    with without_numbers():
        world = Simulation(Default())
        world.start("pretrain", pretrain(world.say))
        world.watch(stop)
        world.run()
        world = Simulation(Default(), disk=world.disk)
        process = world.start("export", model_export())
        world.run()
    assert process.result == 0, process.result or process.error
    return world.disk.snapshot()


def meeting_of_runs(*names, faults=("kills", "suspensions", "power"), begun=True):
    """Return a scenario of commands from NAMES that access one run concurrently; a name may occur twice.
    Unless `begun` is set, the run has no directory yet.
    """
    reference = undisturbed_run()

    def start(world):
        Whole(world)
        start_commands(world, names, _MAKE, faults)

    def judge(world):
        check_commands(world, names, _MESSAGES)
        # The lease of an export that was killed stays until the next one, even if another attempt has finished the run meanwhile.
        run_again(world, "model export", lambda again: model_export(), _MESSAGES["model export"])
        check_run(world, reference)
        if "score checkpoints" in names:
            check_scores(world)

    return Scenario(", ".join(names), start, judge, begun_run() if begun else None, faults, around=without_numbers)


def two_pretrains():
    return meeting_of_runs("pretrain", "pretrain", begun=False)
