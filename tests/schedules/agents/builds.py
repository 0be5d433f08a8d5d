"""Scenarios: concurrent builds of one corpus."""

import errno
from functools import cache

from tests.schedules.agents.commands import build
from tests.schedules.agents.corpus_end import check_corpus, check_ends, check_once, lose_power_at_last, undisturbed
from tests.schedules.agents.invariants import Published
from tests.schedules.agents.pure_results import remembered
from tests.schedules.agents.small_corpora import corpus
from tests.schedules.explore import Scenario

_ATTEMPTS = 3
DISK_ERRORS = ("Input/output error", "No space left on device", "Stale file handle")
"""What a command may say if an operation on the disk has failed."""


def _is_repeated(kind, path, number):
    """Return whether a command retries the failed operation, as it does when writing a temporary file fails
    with a transient error.
    """
    return kind in ("create", "part", "rest", "fsync") and path.endswith(".tmp") and number in (errno.EIO, errno.ESTALE)


@cache
def reference_of(config):
    with remembered():
        return undisturbed(config)


def two_builds(config=None, *, lease=True, faults=("kills", "suspensions", "errors", "power"), builds=2):
    """Return a scenario of concurrent builds of the same corpus. Without leases, all builds work at the same
    time.

    If machines may lose power, all builds run on one machine with its own disk. Otherwise each build has its
    own machine, and the disk belongs to a server.
    """
    config = config or corpus()
    reference = reference_of(config)

    def start(world):
        world.facts["published"] = Published(world)
        for number in range(builds):
            world.start(
                f"build {number + 1}",
                build(config, world.say, lease=lease),
                machine="a" if "power" in faults else "abc"[number],
            )

    def judge(world):
        repeated = len(world.failed) < _ATTEMPTS and all(_is_repeated(*failed) for failed in world.failed)
        check_ends(world, () if repeated else DISK_ERRORS)
        world.facts["published"].check_late()
        if "power" in faults:
            lose_power_at_last(world)
        check_once((name, config), world, lambda world: check_corpus(world, config, reference))

    name = f"{builds} builds" if lease else f"{builds} builds without leases"
    return Scenario(name, start, judge, faults=faults, around=remembered)


def builds_without_leases():
    return two_builds(lease=False)
