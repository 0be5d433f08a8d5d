"""The scheduler with toy agents: races are found, correct code does not fail, and every run can be repeated."""

import pytest

from tests.schedules import choices as choices_module
from tests.schedules.choices import Conflicts, Default, Faults, Pct, Random, Replay, Starve, Stop
from tests.schedules.scheduler import Livelock, World
from tests.schedules.shrinking import shrink

STRATEGIES = {
    "random": Random,
    "pct": lambda seed: Pct(seed, 2, 10),
    "conflicts": Conflicts,
    "starve": lambda seed: Starve(seed, 10),
    "stop": lambda seed: Stop(seed, 40),
}


def count_without_lock(choices):
    """Let two processes each add 2 to a counter without a lock; return the world and the counter."""
    world, count = World(choices, trace=True), [0]

    def add():
        for _ in range(2):
            world.step("read", "/count")
            seen = count[0]
            world.step("rename", "/count")
            count[0] = seen + 1

    for name in "AB":
        world.start(name, add)
    world.run()
    return world, count[0]


def count_with_lock(choices):
    """Let three processes each add 2 to a counter with a lock that cannot be lost; return the counter."""
    world, count, holder = World(choices), [0], []

    def add():
        for _ in range(2):
            while True:
                world.step("lock", "/lock")
                if not holder:
                    holder.append(1)
                    break
                world.wait(seconds=1)
            world.step("read", "/count")
            seen = count[0]
            world.step("write", "/count")
            count[0] = seen + 1
            world.step("unlock", "/lock")
            holder.clear()

    for name in "ABC":
        world.start(name, add)
    world.run()
    return count[0]


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_lost_update_is_found(name):
    counts = {count_without_lock(STRATEGIES[name](seed))[1] for seed in range(200)}
    assert 4 in counts
    assert counts & {2, 3}


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_correct_lock_does_not_fail(name):
    assert {count_with_lock(STRATEGIES[name](seed)) for seed in range(200)} == {6}


def test_without_decisions_nobody_is_interrupted():
    world, count = count_without_lock(Default())
    assert count == 4
    assert world.record == []
    assert [event.agent for event in world.trace] == ["A"] * 4 + ["B"] * 4


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_seed_and_a_record_repeat_a_run_exactly(name):
    for seed in range(50):
        first, count = count_without_lock(STRATEGIES[name](seed))
        assert count_without_lock(STRATEGIES[name](seed))[0].trace == first.trace
        replayed, again = count_without_lock(Replay(first.record, seed))
        assert (replayed.trace, replayed.record, again) == (first.trace, first.record, count)


def test_runs_with_faults_are_repeated_exactly(monkeypatch):
    monkeypatch.setattr(choices_module, "_JUMPS", 0.2)  # sleeping agents are woken early, as if the others were slow

    def many(choices):
        world, seen = World(choices, trace=True), []

        def work():
            for number in range(6):
                try:
                    world.step("create", f"/{number}")
                except OSError as error:
                    seen.append(error.errno)
                world.step("rename", f"/{number}")
                world.wait(seconds=0.5)

        for name in "ABC":
            world.start(name, work)
        world.run()
        return world, seen

    acted = set()
    for seed in range(100):
        first, seen = many(Random(seed, Faults(seed, 60, kills=1, suspensions=1, errors=2, power=seed % 2)))
        acted |= {decision.action for decision in first.record}
        again, seen_again = many(Replay(first.record, seed))
        assert (again.trace, again.record, seen_again) == (first.trace, first.record, seen)
    assert acted == {"run", "kill", "suspend", "fail", "power"}


def test_what_a_killed_process_was_about_to_do_does_not_happen_nor_does_its_clean_up():
    done = []

    class KillBeforeSecond(Default):
        def disturb(self, world, current):
            if current.path == "/second" and current.process.alive:
                world.kill(current.process)

    world = World(KillBeforeSecond())

    def work():
        try:
            world.step("write", "/first")
            done.append("first")
            world.step("write", "/second")
            done.append("second")
        finally:
            world.step("unlink", "/first")
            done.append("removed")

    process = world.start("A", work)
    other = world.start("B", lambda: world.step("write", "/third"))
    world.run()
    assert done == ["first"]
    assert (process.killed, process.done, process.error) == (True, False, None)
    assert (other.killed, other.done) == (False, True)


def test_a_suspended_process_does_nothing_until_its_time_and_other_clocks_go_on():
    times = []

    class SuspendA(Default):
        def disturb(self, world, current):
            if current.name == "A" and not world.record:
                world.suspend(current.process, 100)

    world = World(SuspendA(), op_seconds=0)
    begun = world.now

    def beat():
        while True:
            world.wait(seconds=5)
            times.append(("beat", world.now - begun))

    def first():
        world.spawn("beat", beat)
        world.step("write", "/a")
        times.append(("A", world.now - begun))

    def second():
        world.wait(seconds=30)
        times.append(("B", world.now - begun))

    world.start("A", first)
    world.start("B", second)
    world.run()
    assert times == [("B", 30), ("A", 100)]


def test_a_process_ends_with_its_first_agent_and_its_errors_are_kept():
    world, beats = World(Default(), op_seconds=0), []

    def beat():
        while True:
            world.wait(seconds=1)
            beats.append(world.now)

    def work():
        world.spawn("beat", beat)
        world.wait(seconds=3.5)
        raise ValueError("broken")

    process = world.start("A", work)
    world.run()
    assert len(beats) == 3
    assert str(process.error) == "broken"


def test_agents_that_wait_for_each_other_or_go_on_for_ever_are_found():
    world = World(Default())
    world.start("A", lambda: world.wait(lambda: False))
    with pytest.raises(Livelock, match="wait for ever: A"):
        world.run()

    def spin():
        while True:
            world.step("stat", "/a")

    world = World(Default())
    world.start("A", spin)
    with pytest.raises(Livelock, match="no end after 1000 operations"):
        world.run(limit=1000)


def test_an_event_is_looked_at_once_it_has_happened_and_before_anybody_goes_on():
    world, value = World(Random(3)), [0]

    def after_event(event):
        assert value[0] < 2, f"{event[0].name} wrote {value[0]}"

    world.after_event = after_event

    def write():
        world.step("write", "/a")
        value[0] += 1
        world.step("stat", "/a")

    world.start("A", write)
    world.start("B", write)
    with pytest.raises(AssertionError, match="wrote 2"):
        world.run()


def test_a_failing_run_is_shrunk_to_the_one_switch_that_it_needs():
    def fails(choices):
        world, count = count_without_lock(choices)
        return world.record if count != 4 else None

    for seed in range(20):
        world, count = count_without_lock(Random(seed))
        if count != 4:
            record = shrink(world.record, lambda record: fails(Replay(record, 0)))
            assert len(record) == 1
            assert record[0].action == "run"


def disturbed(choices):
    """Run three processes with pauses and operations of several kinds, some of them critical, and return the
    world.
    """
    world = World(choices)

    def work():
        for number in range(40):
            kind = ("read", "part", "rename", "stat")[number % 4]
            try:
                world.step(kind, f"/{number % 3}/file" if number % 7 else "/place/.lease")
            except OSError:
                world.wait(seconds=1)
            if number % 11 == 0:
                world.wait(seconds=0.5)

    for name in "ABC":
        world.start(name, work)
    world.run()
    return world


@pytest.mark.parametrize("name", ["random", "pct", "conflicts", "starve", "default"])
def test_a_strategy_that_is_not_asked_where_it_cannot_switch_decides_the_same(name, monkeypatch):
    make = {**STRATEGIES, "default": Default, "pct": lambda seed: Pct(seed, 4, 120)}[name]

    def decided(seed):
        choices = make(seed)
        choices.faults = Faults(seed, 120, kills=seed % 2, suspensions=1, errors=2)
        world = disturbed(choices)
        return world.record, world.steps, world.now, [agent.ops for agent in world.agents]

    quick = [decided(seed) for seed in range(40)]
    monkeypatch.setattr(Default, "let_go_on", lambda *_: None)
    assert [decided(seed) for seed in range(40)] == quick
    assert {decision.action for record, *_ in quick for decision in record} >= {"kill", "suspend", "fail"}
