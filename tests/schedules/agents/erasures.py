"""Scenarios: builds beside gc, forget, export and readers, on an output where a corpus is published.

Allowed messages are those that are true of what has happened: who works there, who took over, what changed.
"""

from functools import cache

from pipelines.contracts.search_index.index_units import INDEX_FOLDER
from tests.schedules.agents.commands import build, export, finish_forgetting, forget, gc, index, read
from tests.schedules.agents.corpus_end import (
    FORGETTING,
    check_corpus,
    check_once,
    check_without,
    files_below,
    lose_power_at_last,
    run_again,
)
from tests.schedules.agents.invariants import Published, checksum_of, corpus_steps, parsed
from tests.schedules.agents.meeting import check_commands, start_commands
from tests.schedules.agents.pure_results import remembered
from tests.schedules.agents.small_corpora import ANOTHER, EXPORT, OUTPUT, corpus, parts_of_each
from tests.schedules.choices import Default
from tests.schedules.explore import Scenario
from tests.schedules.simulation import Simulation

_LEASE = (
    r"another process is (building|forgetting documents|collecting garbage) here",
    r"another process took over while this one was suspended; run the command again",
)
_LAST_OPERATIONS = 6  # of an export: from its last look at the corpus to export.json
_AT_WORK = r"`pipelines forget` is running here or was interrupted"
_FORGETTING, _BUILD_AGAIN = r"forgetting was interrupted; finish it first", r"build( the corpus)? again$"
_NOT_THERE = r"none of these documents is in the corpus"
_USED_MEANWHILE = r"a corpus published meanwhile uses it; run the command again"
_MESSAGES = {
    "build": (
        r"documents were forgotten while this command ran",
        r"was removed by another command (while the step was built|after this build had published it)",
        r"recorded in its manifest but missing; run the command again",
        _FORGETTING,
    ),
    "gc": (*_LEASE, _USED_MEANWHILE, _FORGETTING),
    "forget": (
        *_LEASE,
        _USED_MEANWHILE,
        r"another corpus was published meanwhile; run the command again",
        _NOT_THERE,
        _BUILD_AGAIN,
    ),
    "export": (r"a build or forget changed the corpus while it was exported", _BUILD_AGAIN, _FORGETTING, _AT_WORK),
    "index": (
        r"documents were forgotten while this command ran",
        r"was removed by another command while it was written; run the command again",
        _BUILD_AGAIN,
        _AT_WORK,
    ),
    "read": (_BUILD_AGAIN, _AT_WORK),
}
_MESSAGES["forget another"] = (*_MESSAGES["forget"], _FORGETTING)
_MESSAGES["late build"] = _MESSAGES["variant"] = _MESSAGES["build"]
_MESSAGES["workers"] = (*_MESSAGES["build"], r"failed 3 times: the worker died")  # or stood still for as long
_MAKE = {
    "build": lambda world: build(_other(), world.say),
    "late build": lambda world: build(_other(), world.say, lease=False),
    "workers": lambda world: build(_other(), world.say, world=world),
    "variant": lambda world: build(_other(), world.say, variant="small"),
    "gc": lambda world: gc(corpus()),
    "forget": lambda world: forget(),
    "forget another": lambda world: forget(ANOTHER),
    "export": lambda world: export(),
    "index": lambda world: index(),
    "read": lambda world: read(),
}


def _other():
    """The configuration of the build that meets the others: that of the published corpus but for a knob."""
    return corpus(least=20)


@cache
def published_corpus():
    """A snapshot of a disk with a published corpus, and steps of another configuration that nothing reaches."""
    world = None
    with remembered():
        for config in (corpus(least=10), corpus()):
            world = Simulation(Default(), disk=world.disk if world else None)
            process = world.start("build", build(config, world.say))
            world.run()
            assert process.result == 0, process.result or process.error
        return world.disk.snapshot()


def meeting(*names, faults=("kills", "suspensions", "power")):
    """Commands that meet: some of build, gc, forget, export, read; one name may occur twice."""

    def start(world):
        world.facts["published"] = Published(world)
        _Late(world)
        start_commands(world, names, _MAKE, faults)

    def judge(world):
        two = {"forget": _MESSAGES["forget another"]} if "forget another" in names else {}
        check_commands(world, names, _MESSAGES | two)
        world.facts["published"].check_late()
        _check_export(world)
        if "power" in faults:
            lose_power_at_last(world)
        check_once(names, world, judge_disk)

    def judge_disk(world):
        if "export" in names:
            _export_again(world, others=len(names) - names.count("read") - 1)
        forgetting = [name for name in dict.fromkeys(names) if name in FORGETTING]
        if forgetting:
            _forget_again(world, forgetting)
        if {"build", "late build", "workers", "variant"} & set(names):
            check_corpus(world, _other(), None)
        if "index" in names:
            _index_again(world)
        check_without(world, forgetting)

    return Scenario(", ".join(names), start, judge, published_corpus(), faults, around=remembered)


class _Late:
    """Watches that no export is published long after documents were forgotten, of a corpus that still had them."""

    def __init__(self, world):
        self.forgotten = None  # operations of each agent when forget had finished
        world.watch(self.look)

    def look(self, world, event):
        """Called after an operation that has changed the disk."""
        if event.operation != "rename":
            return
        if event.other == f"{OUTPUT}/forgotten.json" and not parsed(world.disk.peek(event.other))["pending"]:
            self.forgotten = {agent.name: agent.ops for agent in world.agents}
        if event.other == f"{EXPORT}/export.json" and self.forgotten is not None:
            corpus = parsed(world.disk.peek(f"{OUTPUT}/manifest.json"))
            same = parsed(world.disk.peek(event.other))["fingerprint"] == corpus["fingerprint"]
            ops = next(agent.ops for agent in world.agents if agent.name == event.agent)
            late = ops - self.forgotten.get(event.agent, 0) > _LAST_OPERATIONS
            assert same or not late, f"{event.agent} is published though documents were forgotten long before"


def _forget_again(world, commands):
    """Forget once more: it finishes what was interrupted, or says that the document is not there."""
    run_again(world, "build", lambda again: build(corpus(), again.say), allowed=("forgetting was interrupted",))
    if len(commands) > 1:  # one refuses to begin before the other is finished
        run_again(world, "forget", lambda again: finish_forgetting(), allowed=(_NOT_THERE,))
    for name in commands:
        run_again(world, "forget", lambda again, name=name: forget(FORGETTING[name]), allowed=(_NOT_THERE,))


def _index_again(world):
    """Index once more: every part has an index that is whole, and nothing is left over."""
    run_again(world, "index", lambda again: index())
    found = files_below(world.disk, f"{OUTPUT}/{INDEX_FOLDER}")
    left = [path for path in found if path.endswith(".tmp")]
    assert not left, f"left over: {INDEX_FOLDER}/{left[0]}"
    finished = {path.partition("/")[0]: parsed(data) for path, data in found.items() if path.endswith("/manifest.json")}
    indexed = {unit.rpartition("-")[0] for unit in finished}
    assert indexed == {f"{source.name}-{part:05d}" for source in corpus().sources for part in range(parts_of_each())}, (
        indexed
    )
    for unit, manifest in finished.items():
        for file in manifest["files"]:
            content = found.get(f"{unit}/{file['path']}")
            assert content is not None, f"{INDEX_FOLDER}/{unit}/{file['path']} is missing"
            assert checksum_of(content) == file["xxh3_128"], f"{INDEX_FOLDER}/{unit}/{file['path']} is damaged"


def _export_again(world, others):
    """Export once more: if there is anything to do, nothing is left over.

    Without `others` that change the corpus or the export, at most one file that is there is written again: one that the killed
    export had not recorded yet.
    """
    said = ("is not empty", "holds another export", *_MESSAGES["export"])
    written, place = [], f"{EXPORT}/data"
    known = {f"{place}/{name}" for name in world.disk.names(place) or ()}

    def watched(again):
        again.watch(lambda _, event: written.append(event.other) if event.other in known else None)
        return export()

    again = run_again(world, "export", watched, allowed=said)
    assert others or len(written) <= 1, f"the export after a killed one has written {written} again"
    left = world.disk.leftovers(EXPORT) if again.processes["export"].result == 0 else []
    assert not left, f"left over: {left[0]}"
    _check_export(world)


def _check_export(world):
    """An export with export.json is whole."""
    record = parsed(world.disk.peek(f"{EXPORT}/export.json"))
    for file in record["files"] if record else ():
        content = world.disk.peek(f"{EXPORT}/{file['path']}")
        assert content is not None, f"the export lacks {file['path']}"
        assert checksum_of(content) == file["xxh3_128"], f"{file['path']} of the export is not what export.json says"
    assert record is None or corpus_steps(world.disk, OUTPUT)
