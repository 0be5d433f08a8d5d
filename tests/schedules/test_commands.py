"""Concurrent commands: fixed seeds of each scenario, and regression tests for bugs that schedules have found."""

import pytest

from tests.schedules.agents.builds import two_builds
from tests.schedules.agents.commands import build, forget, read
from tests.schedules.agents.corpus_end import check_once, files_below
from tests.schedules.agents.erasures import meeting, published_corpus
from tests.schedules.agents.invariants import Published, parsed
from tests.schedules.agents.pure_results import remembered
from tests.schedules.agents.small_corpora import ANOTHER, OUTPUT, SECRET, corpus
from tests.schedules.choices import Default, Replay
from tests.schedules.explore import Tally, explore, run
from tests.schedules.memory_disk import ROOT, MemoryDisk
from tests.schedules.scheduler import Decision
from tests.schedules.simulation import Simulation

pytestmark = pytest.mark.faults

SCENARIOS = {
    "builds": lambda: two_builds(),
    "builds without leases": lambda: two_builds(lease=False),
    "build, gc": lambda: meeting("build", "gc"),
    "build, forget": lambda: meeting("build", "forget"),
    "build, export, read": lambda: meeting("build", "export", "read"),
    "forget, export, read": lambda: meeting("forget", "export", "read"),
    "index, forget, build": lambda: meeting("index", "forget", "build"),
    "variant, gc, forget": lambda: meeting("variant", "gc", "forget"),
    "overtaken build, forget": lambda: meeting("overtaken build", "forget"),
    "index earlier, gc": lambda: meeting("index earlier", "gc", disk="reread"),
    "build at a copy": lambda: meeting("build", disk="steps"),
    "workers, forget": lambda: meeting("workers", "forget"),
    "all": lambda: meeting("build", "gc", "forget", "export", "read"),
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_fixed_seeds(name):
    found = explore(SCENARIOS[name](), iter(range(20)), Tally())
    assert found is None, found.story()


def run_alone(disk, make):
    world = Simulation(Default(), disk=disk)
    with remembered():
        process = world.start("command", make(world))
        world.run()
    assert process.result == 0, process.result or process.error
    return world


def test_a_loss_of_power_brings_no_forgotten_document_back():
    disk = MemoryDisk()
    disk.restore(published_corpus())
    run_alone(disk, lambda world: forget())
    for seed in range(20):
        world = Simulation(Default(seed), disk=disk)
        world.lose_power("a")
        assert not [path for path, data in files_below(world.disk).items() if SECRET.encode() in data]


def test_a_loss_of_power_after_a_build_takes_nothing_of_the_corpus():
    disk = MemoryDisk()
    run_alone(disk, lambda world: build(corpus(), world.say))
    before = {path for path in disk.files(OUTPUT) if not path.endswith(("run.json", ".lease"))}
    for seed in range(20):
        world = Simulation(Default(seed), disk=disk)
        world.lose_power("a")
        assert before <= set(disk.files(OUTPUT))


def test_a_build_removes_what_killed_ones_left_in_the_output():
    disk = MemoryDisk()
    disk.restore(published_corpus())
    disk.create(f"{OUTPUT}/..lease.0123.tmp")
    run_alone(disk, lambda world: build(corpus(), world.say))
    assert disk.leftovers(OUTPUT) == []


def test_a_reader_of_a_corpus_that_is_half_forgotten_says_so():
    disk = MemoryDisk()
    disk.restore(published_corpus())
    world = Simulation(Default(), disk=disk)
    forgetting = world.start("forget", forget())

    def stop_once_rewritten(world, event):
        if event.operation == "rename" and "/read.web-" in event.other and event.other.endswith("/manifest.json"):
            world.kill(forgetting)

    world.watch(stop_once_rewritten)
    world.run()
    again = Simulation(Default(), disk=disk)
    reading = again.start("read", read())
    again.run()
    assert "`pipelines forget` is running here or was interrupted" in reading.result


def forgotten_by_another(operation, place):
    """Suspend a `forget` after an operation until another `forget` has removed a different document. Return
    the first command's result and the records in the final tombstone.
    """
    disk = MemoryDisk()
    disk.restore(published_corpus())
    world = Simulation(Default(), disk=disk)
    late = world.start("late", forget(), machine="a")
    world.start("another", forget(ANOTHER), machine="b")

    def suspend(world, event):
        if event.agent == "late" and event.operation == operation and place in event.path and not late.resumes:
            world.suspend(late, 4000)

    world.watch(suspend)
    with remembered():
        world.run()
    return late.result, parsed(disk.peek(f"{OUTPUT}/forgotten.json"))["records"]


def test_a_forget_that_was_overtaken_leaves_what_another_has_forgotten():
    result, records = forgotten_by_another("rest", "/.forgotten.json.")
    assert "another process took over" in result
    assert records == {"web": ["0.jsonl#0"]}


def test_a_forget_searches_files_while_another_removes_them():
    assert forgotten_by_another("unlink", f"{OUTPUT}/.lease") == (0, {"web": ["0.jsonl#0", "1.jsonl#1"]})


def test_forget_replaces_no_file_that_a_manifest_names():
    disk = MemoryDisk()
    disk.restore(published_corpus())

    def watched(world):
        Published(world)
        return forget()

    run_alone(disk, watched)


def test_a_build_that_learnt_in_vain_removes_what_it_has_learnt():
    found = explore(two_builds(lease=False, faults=()), iter(range(2, 4)), Tally())
    assert found is None, found.story()


def test_a_build_that_forget_overtook_removes_no_file_of_a_published_step():
    scenario = meeting("late build", "forget")
    for number in range(20, 32):  # operations of the build between its looks at what is forgotten
        overtaken = Replay([Decision("late build 1", number, "run", "forget 2")], 0)
        assert run(scenario, overtaken)[1] is None


def test_a_build_that_forget_overtook_leaves_what_forget_has_rewritten():
    scenario = meeting("overtaken build", "forget")
    own = [event for event in run(scenario, Replay((), 0), trace=True)[0].trace if event.agent == "overtaken build 1"]
    looks = [
        number
        for number, event in enumerate(own, 1)
        if event.operation == "entries" and ("/parts" in event.path or "/funnel-" in event.path)
    ]
    assert len(looks) > 2
    for number in looks:  # right before it removes what is not its own
        overtaken = Replay([Decision("overtaken build 1", number, "run", "forget 2")], 0)
        assert run(scenario, overtaken)[1] is None


def test_a_step_that_gc_removed_is_published_by_no_late_build():
    scenario = meeting("late build", "gc")
    for number in range(280, 312):  # operations of the build around its look for the files of a step
        overtaken = Replay([Decision("late build 1", number, "run", "gc 2")], 0)
        assert run(scenario, overtaken)[1] is None


def test_the_last_runs_are_skipped_only_on_a_disk_that_has_passed():
    calls = []

    def check(_):
        calls.append(1)
        assert len(calls) > 1, "once"

    def look(content):
        world = Simulation(Default())
        world.disk.write(world.disk.create(f"{ROOT}/file"), content)
        check_once("a name of this test", world, check)

    with pytest.raises(AssertionError, match="once"):
        look(b"one")
    look(b"one")
    assert len(calls) == 2
    for _ in range(10):
        look(b"one")
    assert len(calls) <= 3  # one in 20 is checked all the same
    before = len(calls)
    look(b"two")
    assert len(calls) == before + 1
