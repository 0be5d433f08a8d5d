"""Scenarios: builds concurrent with gc, forget, export and readers, on an output with a published corpus.

Each command may end only with success or with a message that fits the scenario (`_MESSAGES`).
"""

import re
from contextlib import contextmanager
from functools import cache

from gristmill.host import host
from pipelines.building import build as building
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
from tests.schedules.memory_disk import MemoryDisk
from tests.schedules.process_caches import replaced
from tests.schedules.simulation import Simulation

_LEASE = (
    r"another process is (building|forgetting documents|collecting garbage) here",
    r"another process took over while this one was suspended; run the command again",
)
_LAST_OPERATIONS = 7  # of an export: from the opening of the manifest at its last look to export.json
_AFTER_CHECK = 3  # operations of a command from its look at the lease until it sets a step aside
_OVERTAKEN = "overtaken build"
_AT_WORK = r"`pipelines forget` is running here or was interrupted"
_FORGETTING, _BUILD_AGAIN = r"forgetting was interrupted; finish it first", r"build( the corpus)? again$"
_NOT_THERE = r"none of these documents is in the corpus"
_USED_MEANWHILE = r"a corpus published meanwhile uses it; run the command again"
_MESSAGES = {
    "build": (
        r"documents were forgotten while this command ran",
        r"was removed by another command (while (the step was built|it was written)|after this build had published it)",
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
        _FORGETTING,
        _BUILD_AGAIN,
        _AT_WORK,
    ),
    "read": (_BUILD_AGAIN, _AT_WORK),
}
_MESSAGES["forget another"] = (*_MESSAGES["forget"], _FORGETTING, r"documents were forgotten while this command ran")
_MESSAGES["late build"] = _MESSAGES["variant"] = _MESSAGES[_OVERTAKEN] = _MESSAGES["build"]
_MESSAGES["finish forgetting"] = _MESSAGES["forget"]
_MESSAGES["index earlier"] = (
    *_MESSAGES["index"],
    r"no corpus here",
    r"has removed steps of this earlier build, so it can no longer be read",
)
_MESSAGES["workers"] = (*_MESSAGES["build"], r"failed 3 times: the worker died")  # or stood still for as long
_MAKE = {
    "build": lambda world: build(_other(), world.say),
    "late build": lambda world: build(_other(), world.say, lease=False),
    _OVERTAKEN: lambda world: build(corpus(), world.say, lease=False),
    "workers": lambda world: build(_other(), world.say, world=world),
    "variant": lambda world: build(_other(), world.say, variant="small"),
    "gc": lambda world: gc(corpus()),
    "forget": lambda world: forget(),
    "forget another": lambda world: forget(ANOTHER),
    "finish forgetting": lambda world: finish_forgetting(),
    "export": lambda world: export(),
    "index": lambda world: index(),
    "index earlier": lambda world: index(_earlier(world)),
    "read": lambda world: read(),
}


def _other():
    return corpus(least=20)


def _earlier(world):
    (name,) = (name for name in world.disk.names(OUTPUT) if name.startswith("earlier-"))
    return f"{OUTPUT}/{name}"


@cache
def published_corpus(kind="used"):
    """Return a snapshot of a disk with a published corpus of one of these kinds:

    - `used`: with steps of an earlier build of another configuration.
    - `reread`: as `used`, but the earlier build split the sources into other parts.
    - `new`: without an earlier build.
    - `interrupted`: as `new`, but `forget` was killed after writing its tombstone.
    - `receipts`, `steps`: documents were forgotten in a copy, which was copied back over a killed build's output.
    """
    if kind in _KILLED_AT:
        return _copied(kind)
    before = {"used": [corpus(least=10)], "reread": [corpus(part_bytes=5000)]}.get(kind, [])
    world = None
    with remembered():
        for config in (*before, corpus()):
            world = Simulation(Default(), disk=world.disk if world else None)
            process = world.start("build", build(config, world.say))
            world.run()
            assert process.result == 0, process.result or process.error
        if kind == "interrupted":
            world = Simulation(Default(), disk=world.disk)
            world.start("forget", forget())
            world.watch(_kill_with_tombstone)
            world.run()
        return world.disk.snapshot()


def _kill_with_tombstone(world, event):
    if event.operation == "rename" and event.other == f"{OUTPUT}/forgotten.json":
        world.kill(world.processes["forget"])


_KILLED_AT = {"receipts": r".*/short.web-\w+/units/web-00001.json", "steps": r".*/funnel-\w+/manifest.json"}
"""The file that a build writes last before it is killed."""


def _copied(kind):
    """Kill a build, run `forget` in a copy made before the build, and copy the corpus back, leaving behind
    what the killed build wrote.
    """
    new, copies = published_corpus("new"), []
    for name, make in (("build", lambda world: build(_other(), world.say)), ("forget", lambda world: forget())):
        world = Simulation(Default(), disk=MemoryDisk())
        world.disk.restore(new)
        process = world.start(name, make(world))
        if name == "build":
            world.watch(
                lambda world, event, process=process: (
                    re.fullmatch(_KILLED_AT[kind], event.other) and world.kill(process)
                )
            )
        with remembered():
            world.run()
        assert process.killed or process.result == 0, process.result
        copies.append(world.disk)
    left, disk = copies
    there = set(disk.names(OUTPUT))
    for directory in left.directories(OUTPUT):
        if directory.removeprefix(f"{OUTPUT}/").partition("/")[0] not in there:
            disk.mkdir(directory)
    for path, data in left.files(OUTPUT).items():
        if path.removeprefix(f"{OUTPUT}/").partition("/")[0] not in there:
            node = disk.create(path)
            disk.write(node, data)
            disk.fsync(node)
    for directory in disk.directories(OUTPUT):
        disk.fsync(disk.find(directory))
    return disk.snapshot()


def meeting(*names, faults=("kills", "suspensions", "power"), disk="used"):
    """Return a scenario in which the named commands run concurrently; a name may occur twice."""

    def start(world):
        world.facts["published"] = Published(world)
        _Late(world)
        _Leases(world)
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
        if {"build", "late build", "workers", "variant", _OVERTAKEN} & set(names):
            check_corpus(world, _other(), None)
        if {"index", "index earlier"} & set(names):
            _index_again(world)
        check_without(world, forgetting)

    around = _overtaken if _OVERTAKEN in names else remembered
    return Scenario(", ".join(names), start, judge, published_corpus(disk), faults, around=around)


@contextmanager
def _overtaken():
    """While the block runs, hide published steps from an overtaken build the first time it looks, as if it
    had looked before they were published and before anything was forgotten.
    """
    looked, find_published = set(), building._find_published

    def find(state):
        name = str(host().identity()["started"])
        if name.startswith(_OVERTAKEN) and name not in looked and not state.gone:
            looked.add(name)
        else:
            find_published(state)

    with remembered(), replaced((building, "_find_published", find)):
        yield


class _Late:
    """Checks that no export that still contains forgotten documents is published long after `forget` has
    finished.
    """

    def __init__(self, world):
        self.forgotten = None  # operations of each agent when forget had finished
        world.watch(self.look)

    def look(self, world, event):
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


class _Leases:
    """Checks that a command begins to remove at most one more step after losing its lease."""

    def __init__(self, world):
        self.held, self.lost = set(), {}  # by name: who had the lease; the operations that it had done when it lost it
        world.watch(self.look)

    def look(self, world, event):
        if f"{OUTPUT}/.lease" in (event.path, event.other):
            holder = (parsed(world.disk.peek(f"{OUTPUT}/.lease")) or {}).get("started")
            for agent in world.agents:
                if agent.name == holder:
                    self.held.add(holder)
                    self.lost.pop(holder, None)
                elif agent.name in self.held:
                    self.lost.setdefault(agent.name, agent.ops)
        name = event.other.rpartition("/")[2]
        if event.operation == "rename" and name.startswith(".") and event.agent in self.lost:
            late = next(agent.ops for agent in world.agents if agent.name == event.agent) - self.lost[event.agent]
            assert late <= _AFTER_CHECK, f"{event.agent} removes {event.path} though it has lost its lease"


def _forget_again(world, commands):
    run_again(world, "build", lambda again: build(corpus(), again.say), allowed=("forgetting was interrupted",))
    if len(commands) > 1:  # one refuses to begin before the other is finished
        run_again(world, "forget", lambda again: finish_forgetting(), allowed=(_NOT_THERE,))
    for name in commands:
        run_again(world, "forget", lambda again, name=name: forget(FORGETTING[name]), allowed=(_NOT_THERE,))


def _index_again(world):
    run_again(world, "index", lambda again: index())
    found = files_below(world.disk, f"{OUTPUT}/{INDEX_FOLDER}")
    left = [path for path in found if path.endswith(".tmp")]
    assert not left, f"left over: {INDEX_FOLDER}/{left[0]}"
    finished = {path.partition("/")[0]: parsed(data) for path, data in found.items() if path.endswith("/manifest.json")}
    finished = {unit: manifest for unit, manifest in finished.items() if not unit.startswith(".")}  # being removed
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
    """Export once more and check that nothing is left over.

    If `others`, the number of other commands that change something, is 0, at most one existing file is
    rewritten: a file that the killed export had not yet recorded.
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
    record = parsed(world.disk.peek(f"{EXPORT}/export.json"))
    for file in record["files"] if record else ():
        content = world.disk.peek(f"{EXPORT}/{file['path']}")
        assert content is not None, f"the export lacks {file['path']}"
        assert checksum_of(content) == file["xxh3_128"], f"{file['path']} of the export is not what export.json says"
    assert record is None or corpus_steps(world.disk, OUTPUT)
