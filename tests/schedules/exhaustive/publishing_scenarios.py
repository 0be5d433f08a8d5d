"""Processes that write the same new file, publish the same step of a corpus, or write what another process
removes.
"""

import json
from contextlib import suppress
from functools import partial
from types import SimpleNamespace
from typing import cast

import xxhash

from gristmill.errors import ConflictError
from gristmill.storage.disk import LocalPath
from gristmill.storage.store import digest
from pipelines.contracts.lineage import Corpus, PublishedStep
from pipelines.contracts.manifest import (
    FileRecord,
    Receipt,
    StepManifest,
    StepOutput,
    load_step,
    publish,
    publish_first,
    remove_step,
    sweep,
)
from pipelines.contracts.tombstone import write_tombstone
from pipelines.erasure.forget import _remove_old_files
from tests.schedules.exhaustive.systematic import all_ended, next_run
from tests.schedules.explore import Scenario
from tests.schedules.memory_disk import ROOT
from tests.schedules.scheduler import Event
from tests.schedules.simulation import Simulation

_IDENTITY = {"stage": "toy"}
_STEP = "toy-0123456789ab"
_MANIFEST = f"{ROOT}/{_STEP}/manifest.json"


def write_new() -> Scenario:
    """Two processes write the same new file while a third sweeps temporary files. Unless a process is killed,
    one of the two writers succeeds, and its bytes stay.
    """
    path = f"{ROOT}/file"

    def start(world: Simulation) -> None:
        world.watch(partial(_never_changes, path))
        for name in "AB":
            world.start(name, lambda name=name: LocalPath(path).write_new(name.encode()))
        world.start("C", LocalPath(ROOT).remove_temporaries)

    def judge(world: Simulation) -> None:
        all_ended(world)
        content, killed = world.disk.peek(path), _killed(world)
        winners = [name for name in "AB" if world.processes[name].result]
        assert len(winners) <= 1, "both say that they wrote the file"
        assert killed or winners, "nobody wrote the file"
        assert not winners or content == winners[0].encode(), f"{winners[0]} wrote the file, it holds {content!r}"
        assert killed or not world.disk.leftovers(), f"left over: {world.disk.leftovers()}"
        next_run(world, lambda: LocalPath(path).write_new(b"next") or LocalPath(ROOT).remove_temporaries())
        assert world.disk.peek(path) == content or content is None

    return Scenario("write_new", start, judge, faults=("kills", "suspensions"), op_seconds=0, limit=2000)


def publish_the_first() -> Scenario:
    """Two builds publish a step that is not reproducible. Both get the manifest of the first, which never
    changes.
    """

    def work(name: str) -> StepManifest:
        root = LocalPath(ROOT)
        try:
            record = StepOutput(root, _STEP).write(f"model-{name}", name.encode())
            return publish_first(root, _STEP, _manifest(record), _nothing_to_check)
        except (OSError, ConflictError):  # as a build: another has published the step, and removed the file
            published = load_step(root, _STEP)
            if published is None:
                raise
            StepOutput(root, _STEP).finish(published)
            return published

    def start(world: Simulation) -> None:
        world.disk.mkdir(f"{ROOT}/{_STEP}")
        world.watch(partial(_never_changes, _MANIFEST))
        world.watch(_is_whole)
        for name in "AB":
            world.start(name, partial(work, name))

    def judge(world: Simulation) -> None:
        all_ended(world)
        results = [process.result for process in world.processes.values() if process.done]
        assert all(result == results[0] for result in results), "the builds have different manifests"
        next_run(world, partial(work, "C"))
        (model,) = (record["path"] for record in json.loads(world.disk.peek(_MANIFEST))["files"])
        found = sorted(world.disk.names(f"{ROOT}/{_STEP}") or ())
        assert found == ["manifest.json", model], f"left over: {found}"

    return Scenario("publish_first", start, judge, op_seconds=0, limit=2000)


def publish_a_step(units: int = 1) -> Scenario:
    """Two builds publish a step with `units` units of work. Whenever the step is published, its files exist
    and are complete. After one more build, nothing is left over.
    """

    def build_step(root: LocalPath) -> StepManifest:
        out = StepOutput(root, _STEP)
        records = [_unit(out, f"unit-{number}").files[0] for number in range(units)]
        publish(root, _STEP, _manifest(*records), _nothing_to_check)
        return _manifest(*records)

    def work() -> StepManifest:
        root = LocalPath(ROOT)
        published = load_step(root, _STEP)
        if published is None:
            try:
                return build_step(root)
            except (OSError, ConflictError):  # as a build: another has published the step, and removed what others need
                published = load_step(root, _STEP)
                if published is None:
                    raise
        StepOutput(root, _STEP).finish(published)
        return published

    def start(world: Simulation) -> None:
        world.watch(partial(_never_changes, _MANIFEST))
        world.watch(_is_whole)
        for name in "AB":
            world.start(name, work)

    def judge(world: Simulation) -> None:
        all_ended(world)
        next_run(world, work)
        assert sorted(world.disk.names(f"{ROOT}/{_STEP}") or ()) == ["manifest.json", "parts"], (
            f"left over: {sorted(world.disk.files())}, {world.disk.directories()}"
        )

    return Scenario("publish", start, judge, op_seconds=0, limit=2000)


def publish_a_removed_step() -> Scenario:
    """A build publishes a step whose file exists while another command removes the step. The step is never
    published without the file.
    """

    def publish_it() -> bool:
        root, record = LocalPath(ROOT), FileRecord("parts/unit", 4, xxhash.xxh3_128_hexdigest(b"unit"))

        def check() -> None:
            if not (root / _STEP / record.path).exists():
                raise ConflictError("removed")

        try:
            publish(root, _STEP, _manifest(record), check)
        except ConflictError:
            return False
        return True

    def start(world: Simulation) -> None:
        world.disk.mkdir(f"{ROOT}/{_STEP}")
        world.disk.mkdir(f"{ROOT}/{_STEP}/parts")
        world.disk.write(world.disk.create(f"{ROOT}/{_STEP}/parts/unit"), b"unit")
        world.watch(_is_whole)
        world.start("publisher", publish_it)
        world.start("remover", lambda: remove_step(LocalPath(ROOT) / _STEP))

    def judge(world: Simulation) -> None:
        all_ended(world)
        next_run(world, lambda: sweep(LocalPath(ROOT)))
        assert not any("tmp" in path for path in world.disk.directories()), f"left over: {world.disk.directories()}"

    return Scenario("publish and remove", start, judge, faults=("kills", "suspensions"), op_seconds=0, limit=2000)


def write_while_forgetting() -> Scenario:
    """A task that started earlier writes a file while `forget` writes its tombstone and removes the step.
    After the removal, no file holds the forgotten text, and none with it appears later.
    """
    text, root = b"to be forgotten", LocalPath(ROOT)

    def write() -> None:
        try:
            StepOutput(root, _STEP).commit("unit", {"parts/unit": text}, {})
        except FileNotFoundError:  # removed as soon as it was there: any cluster tries the task again
            write()
        except ConflictError:
            pass

    def forget(world: Simulation) -> None:
        write_tombstone(root, {"records": {"web": ["a#1"]}})
        sweep(root)
        remove_step(root / _STEP)
        world.facts["gone"] = True

    def is_gone(world: Simulation, event: Event) -> None:
        if "gone" not in world.facts:
            return
        left = [path for path, data in world.disk.files(ROOT).items() if text[:7] in data]
        assert not left, f"{event.agent} has written {left} after all were removed"

    def start(world: Simulation) -> None:
        world.disk.mkdir(f"{ROOT}/{_STEP}")
        world.watch(is_gone)
        world.start("task", write)
        world.start("forget", partial(forget, world))

    def judge(world: Simulation) -> None:
        all_ended(world)
        if world.processes["forget"].killed:
            next_run(world, partial(forget, world))
        is_gone(world, Event(world.now, "nobody", "", "", ""))

    return Scenario("write while forgetting", start, judge, faults=("kills", "suspensions"), op_seconds=0, limit=2000)


def write_while_old_files_are_removed() -> Scenario:
    """A task that started earlier writes a file of a published step while `forget`, resumed after a kill,
    removes all files that the rewritten step's manifest does not name. The file is not there afterwards and
    does not appear later.
    """
    root, name = LocalPath(ROOT), f"{_STEP}/parts/unit"

    def write() -> None:
        with suppress(ConflictError):
            StepOutput(root, _STEP).write("parts/unit", b"to be forgotten")

    def forget(world: Simulation) -> None:
        write_tombstone(root, {"records": {"web": ["a#1"]}})
        step = PublishedStep("toy", root / _STEP, _manifest())
        _remove_old_files(root, cast("Corpus", SimpleNamespace(steps=(step,))))
        world.facts["gone"] = True

    def is_gone(world: Simulation, event: Event) -> None:
        assert "gone" not in world.facts or world.disk.peek(f"{ROOT}/{name}") is None, f"{name} is left ({event.agent})"

    def start(world: Simulation) -> None:
        world.disk.mkdir(f"{ROOT}/{_STEP}")
        world.watch(is_gone)
        world.start("task", write)
        world.start("forget", partial(forget, world))

    def judge(world: Simulation) -> None:
        error = world.processes["forget"].error
        assert error is None or world.processes["forget"].killed, repr(error)
        is_gone(world, Event(world.now, "nobody", "", "", ""))
        next_run(world, partial(forget, world))
        is_gone(world, Event(world.now, "nobody", "", "", ""))

    return Scenario(
        "write and remove old files", start, judge, faults=("kills", "suspensions"), op_seconds=0, limit=2000
    )


def write_while_removed() -> Scenario:
    """A process writes a file into a directory that another process also creates and then removes. Neither
    process fails. The file is whole or absent at any time; if the writer ends last, it is there.
    """
    place = LocalPath(ROOT) / "units"

    def remove() -> None:
        (place / "theirs").write_atomic(b"theirs")
        place.remove_tree()

    def is_written(world: Simulation, event: Event) -> None:
        content = world.disk.peek(str(place / "ours"))
        assert content in (None, b"ours"), f"the file holds {content!r}"
        world.facts["last"] = event.agent

    def start(world: Simulation) -> None:
        world.watch(is_written)
        world.start("writer", lambda: (place / "ours").write_atomic(b"ours"))
        world.start("remover", remove)

    def judge(world: Simulation) -> None:
        all_ended(world)
        if not _killed(world):
            assert not world.disk.leftovers(), f"left over: {world.disk.leftovers()}"
            assert world.facts["last"] != "writer" or world.disk.peek(str(place / "ours")), "the file was not written"
        next_run(world, lambda: (place / "ours").write_atomic(b"ours"))
        assert world.disk.peek(str(place / "ours")) == b"ours", "the next run wrote nothing"

    return Scenario("write and remove", start, judge, faults=("kills", "suspensions"), op_seconds=0, limit=2000)


def _nothing_to_check() -> None:
    """Stand in for `Lease.check` where no other command removes anything."""


def _unit(out: StepOutput, unit: str) -> Receipt:
    return out.receipt(unit) or out.commit(unit, {f"parts/{unit}": unit.encode()}, {})


def _manifest(*records: FileRecord) -> StepManifest:
    return StepManifest("toy", None, digest(_IDENTITY), _IDENTITY, {}, files=records)


def _never_changes(path: str, world: Simulation, event: Event) -> None:
    content, before = world.disk.peek(path), world.facts.get(path)
    assert before is None or content == before, f"{path} was replaced or removed by {event.agent}'s {event.operation}"
    if content is not None and before is None:
        world.facts[path] = content


def _is_whole(world: Simulation, event: Event) -> None:
    manifest = world.disk.peek(_MANIFEST)
    if manifest is None:
        return
    for record in json.loads(manifest)["files"]:
        content = world.disk.peek(f"{ROOT}/{_STEP}/{record['path']}")
        assert content is not None, (
            f"{record['path']} of a published step is missing after {event.agent}'s {event.operation}"
        )
        assert len(content) == record["bytes"], f"{record['path']} of a published step is {content!r}"


def _killed(world: Simulation) -> bool:
    return any(process.killed for process in world.processes.values())
