"""Scenario: concurrent builds of one corpus in an object store, where requests fail, arrive late or twice,
and lose their answers.
"""

from dataclasses import replace
from functools import cache

from gristmill.storage.remote import Remote
from tests.schedules.agents.builds import DISK_ERRORS
from tests.schedules.agents.commands import build
from tests.schedules.agents.corpus_end import check_corpus, check_ends, check_once, files_below
from tests.schedules.agents.invariants import Published
from tests.schedules.agents.pure_results import remembered
from tests.schedules.agents.small_corpora import corpus
from tests.schedules.choices import Default
from tests.schedules.explore import Scenario
from tests.schedules.memory_store import Objects
from tests.schedules.simulation import Simulation

_ROOT = "bucket/corpus"
_LATE = (r"no answer within \d+ s",)
"""What a build may say at any time: any request may be late."""
_FAILED = (r"RemoteError: s3:.*: OSError", r"failed 3 times: s3:.*: OSError")
"""What it may say if requests have failed: the second if all three tries of a unit did."""


@cache
def store_corpus():
    return replace(corpus(), output=f"s3://{_ROOT}", remote=Remote(allow_private=True))


@cache
def store_reference():
    world = Simulation(Default())
    with remembered():
        process = world.start("build", build(store_corpus(), world.say))
        world.run()
    assert process.result == 0, process.result or process.error
    return files_below(Objects(world.disk), _ROOT)


def _check_objects(world):
    check_corpus(world, store_corpus(), store_reference(), Objects(world.disk), _ROOT)


def two_store_builds():
    def start(world):
        world.facts["published"] = Published(world, _ROOT, Objects(world.disk))
        for number in range(2):
            world.start(f"build {number + 1}", build(store_corpus(), world.say), machine="ab"[number])

    def judge(world):
        failed = any(decision.action == "fail" for decision in world.record)
        check_ends(world, (*DISK_ERRORS, *_LATE, *_FAILED) if failed else _LATE)
        check_once("store", world, _check_objects)

    faults = ("kills", "suspensions", "errors")
    return Scenario("2 builds on a store", start, judge, faults=faults, around=remembered)
