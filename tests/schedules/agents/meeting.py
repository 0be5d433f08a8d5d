"""Concurrent commands: start all of them at the same moment, and check how each command ends."""

from tests.schedules.agents.builds import DISK_ERRORS
from tests.schedules.agents.corpus_end import check_ends


def start_commands(world, names, make, faults):
    for number, name in enumerate(names):
        machine = "a" if "power" in faults else "abcde"[number]
        world.start(f"{name} {number + 1}", make[name](world), machine)


def check_commands(world, names, messages):
    """Check that every command succeeded, was killed or ended with one of its allowed `messages`. If a disk
    operation was made to fail, disk errors are allowed too.
    """
    failed = DISK_ERRORS if any(decision.action == "fail" for decision in world.record) else ()
    check_ends(world, {f"{name} {number + 1}": (*messages[name], *failed) for number, name in enumerate(names)})
