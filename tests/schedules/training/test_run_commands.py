"""Training concurrent with other commands: fixed seeds of each scenario, and regression tests for bugs that
schedules have found.
"""

import pytest

from tests.schedules.choices import Default, Replay
from tests.schedules.explore import Tally, explore, run
from tests.schedules.memory_disk import MemoryDisk
from tests.schedules.scheduler import Decision
from tests.schedules.simulation import Simulation
from tests.schedules.training.meetings_of_runs import begun_run, meeting_of_runs, two_pretrains
from tests.schedules.training.run_commands import model_export
from tests.schedules.training.small_runs import RUN
from tests.schedules.training.without_numbers import without_numbers

pytestmark = pytest.mark.faults

SCENARIOS = {
    "two attempts": lambda: two_pretrains(),
    "pretrain on workers": lambda: meeting_of_runs("pretrain on workers", "pretrain"),
    "pretrain, model export, report": lambda: meeting_of_runs("pretrain", "model export", "report"),
    "pretrain, generate, evaluate": lambda: meeting_of_runs("pretrain", "generate", "evaluate"),
    "pretrain, score checkpoints": lambda: meeting_of_runs("pretrain", "score checkpoints", "score checkpoints"),
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_fixed_seeds(name):
    found = explore(SCENARIOS[name](), iter(range(30)), Tally())
    assert found is None, found.story()


def disk_of_a_run():
    disk = MemoryDisk()
    disk.restore(begun_run())
    return disk


def test_an_export_removes_the_lease_that_a_killed_one_was_about_to_write():
    disk = disk_of_a_run()
    disk.mkdir(f"{RUN}/.export")
    disk.create(f"{RUN}/.export/..lease.0123.tmp")
    world = Simulation(Default(), disk=disk)
    with without_numbers():
        process = world.start("export", model_export())
        world.run()
    assert process.result == 0
    assert f"{RUN}/.export" not in disk.directories(RUN)


def suspended_anywhere(scenario, who, operations, seconds):
    for number in range(1, operations):
        failed = run(scenario, Replay([Decision(who, number, "suspend", who, seconds)], 0))[1]
        if failed is not None:
            return f"before operation {number}: {failed}"
    return None


def test_a_reader_whose_export_is_replaced_meanwhile_reads_the_other():
    assert suspended_anywhere(meeting_of_runs("pretrain", "generate"), "generate 2", 20, 20.0) is None


def test_an_export_that_slept_while_others_ended_is_published():
    exports = meeting_of_runs("model export", "model export")
    assert suspended_anywhere(exports, "model export 1", 20, 1e6) is None


def test_an_evaluation_removes_what_a_killed_one_left():
    scenario = meeting_of_runs("pretrain", "score checkpoints")
    for number in range(50, 64):  # operations in which a result is written
        killed = Replay([Decision("score checkpoints 2", number, "kill", "score checkpoints 2")], 0)
        assert run(scenario, killed)[1] is None
