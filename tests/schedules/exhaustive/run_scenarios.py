"""Processes that write the ledger and checkpoints of a run, or that replace or read an export."""

import json
from collections.abc import Callable
from functools import cache, partial

import torch

from gristmill.errors import UserError
from gristmill.storage.disk import LocalPath
from gristmill.storage.store import file_checksum, write_json
from tests.schedules.choices import Default
from tests.schedules.exhaustive.systematic import all_ended, next_run
from tests.schedules.explore import Scenario
from tests.schedules.memory_disk import ROOT, MemoryDisk, Node
from tests.schedules.scheduler import Event
from tests.schedules.simulation import Simulation
from trainers.inference import model_export
from trainers.inference.export_form import ORIGIN, WEIGHTS, read_origin
from trainers.runs import checkpoint
from trainers.runs.ledger import copy_ledger
from trainers.runs.run import SupersededError, begin_attempt, check_attempt

_RUN, _EXPORT, _WORK = f"{ROOT}/run", f"{ROOT}/export", f"{ROOT}/.export"
_MARKS = {"code": "c", "config": "f", "corpus": "d", "tokenizer": "t"}


def _save(step: int, attempt: str | None = None) -> None:
    run, weight = LocalPath(_RUN), torch.full((1,), float(step))
    checkpoint.save(
        run,
        step,
        step,
        _MARKS,
        [("weight", {"weight": weight, "moment": weight})],
        keep=1,
        ledger={"step": step},
        check=partial(check_attempt, run, attempt),
    )
    copy_ledger(run)


@cache
def _begun_run() -> Node:
    return _prepared(partial(_save, 1))


def _prepared(work: Callable[[], None]) -> Node:
    world = Simulation(Default(), MemoryDisk(), op_seconds=0)
    process = world.start("before", work)
    world.run()
    assert process.error is None, repr(process.error)
    return world.disk.snapshot()


def save_while_another_copies() -> Scenario:
    """A trainer saves step 2 while another command copies the ledger. In the end, the ledger is that of the
    newest checkpoint.
    """

    def start(world: Simulation) -> None:
        world.watch(_ledger_is_not_ahead)
        world.start("A", partial(_save, 2))
        world.start("B", lambda: copy_ledger(LocalPath(_RUN)))

    return Scenario(
        "ledger", start, _judge_run, _begun_run(), faults=("kills", "suspensions"), op_seconds=0, limit=2000
    )


def save_by_two_attempts() -> Scenario:
    """Process A saves step 2 while B begins another attempt and saves the step after the newest checkpoint.
    Either A saves first, or A is superseded.
    """

    def work_again() -> None:
        run = LocalPath(_RUN)
        attempt = begin_attempt(run)
        found = checkpoint.newest(run, lambda _: None)
        assert found is not None, "a checkpoint was there, and none is left"
        _save(found.step + 1, attempt)

    def first() -> None:
        try:
            _save(2, "first")
        except SupersededError:
            return

    def start(world: Simulation) -> None:
        world.watch(_ledger_is_not_ahead)
        world.watch(_one_is_whole)
        node = world.disk.create(f"{_RUN}/.attempt")
        node.data = node.kept = b"first"
        world.start("A", first)
        world.start("B", work_again)

    return Scenario("attempts", start, _judge_run, _begun_run(), op_seconds=0, limit=4000)


def _steps(world: Simulation) -> list[tuple[int, str]]:
    names = [name for name in world.disk.names(f"{_RUN}/checkpoints") or () if name.startswith("step-")]
    return sorted((int(name[5:13]), name) for name in names)


def _ledger_is_not_ahead(world: Simulation, event: Event) -> None:
    if event.other == f"{_RUN}/ledger.json":
        step = json.loads(world.disk.peek(event.other) or b"{}")["step"]
        newest = _steps(world)[-1][0]
        assert step <= newest, (
            f"{event.agent} has written the ledger of step {step}, the newest checkpoint is of {newest}"
        )


def _one_is_whole(world: Simulation, event: Event) -> None:
    if event.operation in ("unlink", "rmdir", "rename") and event.path.startswith(f"{_RUN}/checkpoints"):
        names = {checkpoint.WEIGHTS, checkpoint.OPTIMIZER, checkpoint.LEDGER, checkpoint.RECORD}
        whole = [
            name for _, name in _steps(world) if names <= set(world.disk.names(f"{_RUN}/checkpoints/{name}") or ())
        ]
        assert whole, f"{event.agent} has removed the last whole checkpoint"


def _judge_run(world: Simulation) -> None:
    all_ended(world)
    killed = any(process.killed for process in world.processes.values())
    if killed:  # the next command copies the ledger
        next_run(world, lambda: copy_ledger(LocalPath(_RUN)))
    _, newest = _steps(world)[-1]
    same = world.disk.peek(f"{_RUN}/ledger.json") == world.disk.peek(f"{_RUN}/checkpoints/{newest}/ledger.json")
    assert same, "the ledger is not that of the newest checkpoint"
    if not killed:
        assert not world.disk.leftovers(_RUN), f"left over: {world.disk.leftovers(_RUN)}"


def _write_export(place: LocalPath, step: int) -> None:
    place.mkdir(parents=True)
    files = []
    for name in (WEIGHTS, "config.json", "tokenizer.json", "tokenizer_config.json"):
        (place / name).write_atomic(f"{name} {step}".encode())
        files.append({"path": name, "bytes": (place / name).stat().st_size, "xxh3_128": file_checksum(place / name)})
    write_json(place / ORIGIN, {"run": "r", "config": {}, "step": step, "files": files})


@cache
def _exports() -> Node:
    def prepare() -> None:
        for place, step in ((_EXPORT, 1), (f"{_WORK}/A.tmp", 2), (f"{_WORK}/B.tmp", 3)):
            _write_export(LocalPath(place), step)

    return _prepared(prepare)


def _replace(name: str) -> bool:
    output = LocalPath(_EXPORT)
    return model_export._replace(output, LocalPath(f"{_WORK}/{name}.tmp"), model_export._origin_of(output))


def replace_twice() -> Scenario:
    """Two processes replace an export of step 1, one with step 2 and the other with step 3. The export is
    always complete or absent, and unless a process is killed, one of the two is there in the end.
    """

    def start(world: Simulation) -> None:
        world.watch(_export_is_whole)
        for name in "AB":
            world.start(name, partial(_replace, name))

    def judge(world: Simulation) -> None:
        all_ended(world)
        if not any(process.killed for process in world.processes.values()):
            assert _step_of(world, _EXPORT) in (2, 3), "no export is left"

    return Scenario("export", start, judge, _exports(), op_seconds=0, limit=2000)


def replace_while_another_reads() -> Scenario:
    """A process replaces an export while another reads it. The reader gets one of the two exports as a whole,
    or an error message.
    """

    def start(world: Simulation) -> None:
        world.watch(_export_is_whole)
        world.start("A", partial(_replace, "A"))
        world.start("B", lambda: read_origin(LocalPath(_EXPORT))["step"])

    def judge(world: Simulation) -> None:
        reader = world.processes["B"]
        if isinstance(reader.error, UserError):
            assert "was replaced or removed while it was read" in str(reader.error), str(reader.error)
            assert world.processes["A"].killed or world.processes["A"].resumes, (
                "the reader gave up, and nobody was late"
            )
            return
        all_ended(world)
        assert reader.killed or reader.result in (1, 2)

    return Scenario("reader of an export", start, judge, _exports(), op_seconds=0, limit=2000)


def _step_of(world: Simulation, place: str) -> int | None:
    content = world.disk.peek(f"{place}/{ORIGIN}")
    return None if content is None else int(json.loads(content)["step"])


def _export_is_whole(world: Simulation, event: Event) -> None:
    names = world.disk.names(_EXPORT)
    if names is not None:
        step = _step_of(world, _EXPORT)
        contents = [world.disk.peek(f"{_EXPORT}/{name}") for name in (WEIGHTS, "tokenizer.json")]
        whole = contents == [f"{WEIGHTS} {step}".encode(), f"tokenizer.json {step}".encode()]
        assert whole, f"{event.agent} has left a part of an export: {names}"
