"""Concurrent commands: start them at the same moment, and check how each of them ends."""

from tests.schedules.agents.builds import DISK_ERRORS
from tests.schedules.agents.corpus_end import check_ends


def start_commands(world, names, make, faults):
    """Start the commands `names`, numbered from 1; all on one machine if the power can fail."""
    for number, name in enumerate(names):
        machine = "a" if "power" in faults else "abcde"[number]
        world.start(f"{name} {number + 1}", make[name](world), machine)


def check_commands(world, names, messages):
    """Check that every command ended with one of its allowed `messages`, or with a disk error if the disk
    failed.
    """
    failed = DISK_ERRORS if any(decision.action == "fail" for decision in world.record) else ()
    check_ends(world, {f"{name} {number + 1}": (*messages[name], *failed) for number, name in enumerate(names)})
