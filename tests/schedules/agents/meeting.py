"""Commands that meet: start them at the same moment, and check how each of them ends."""

from tests.schedules.agents.builds import DISK_ERRORS
from tests.schedules.agents.corpus_end import check_ends


def start_commands(world, names, make, faults):
    """Start the commands `names`, numbered from 1. If the power can fail, all of them run on one machine."""
    for number, name in enumerate(names):
        machine = "a" if "power" in faults else "abcde"[number]
        world.start(f"{name} {number + 1}", make[name](world), machine)


def check_commands(world, names, messages):
    """Check that every command has ended as one of its `messages` allows, or with an error of the disk if the disk failed."""
    failed = DISK_ERRORS if any(decision.action == "fail" for decision in world.record) else ()
    check_ends(world, {f"{name} {number + 1}": (*messages[name], *failed) for number, name in enumerate(names)})
