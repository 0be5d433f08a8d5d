"""Invariants of a run's directory, checked after every operation and at the end."""

import re
from fnmatch import fnmatchcase

from gristmill.events import events_of
from tests.schedules.agents.corpus_end import files_below, run_again
from tests.schedules.agents.invariants import checksum_of, parsed
from tests.schedules.training.run_commands import pretrain, score_checkpoints
from tests.schedules.training.small_runs import EXPORT, RUN, STEPS, state_after
from trainers.runs.history import drop_superseded

_NAME = re.compile(r"step-(\d{8})(\.\d+)?")
_CHECKPOINTS = f"{RUN}/checkpoints"
_ATTEMPT = f"{RUN}/.attempt"
_REMOVALS = ("unlink", "rename", "rmdir")
_AFTER_CHECK = 6  # operations of a worker from its look for another attempt until it publishes a checkpoint


class Whole:
    """Checks a run after each operation.

    - The newest published checkpoint exists and is complete, with the ledger of its step.
    - The run's ledger is never that of a later step.
    - An export is complete or absent, and all its files are from one step.
    - Once another attempt has begun, earlier attempts publish at most what they were already about to publish.
    """

    def __init__(self, world):
        self.world, self.disk, self.seen = world, world.disk, 0
        self.newest = 0
        self.superseded = {}  # by agent: the operations that it had done when another attempt began
        self.attempt = None  # the content of the file that names it
        self.look_at_all()
        world.watch(self.look)

    def look_at_all(self):
        steps = [
            step for step, name in self._checkpoints() if self._is_whole(f"{_CHECKPOINTS}/{name}", "checkpoint.json")
        ]
        self.newest = max(steps, default=0)

    def look(self, world, event):
        decided, self.seen = world.record[self.seen :], len(world.record)
        if any(decision.action == "power" for decision in decided):
            self.look_at_all()
            if self.disk.peek(_ATTEMPT) != self.attempt:
                self.superseded = {}  # the name of the new attempt was lost
        if event.operation in ("rename", "link"):
            self._attempted(event)
            self._published(event)
        if event.operation in _REMOVALS or event.other.startswith(f"{EXPORT}"):
            self._removed(event)

    def _attempted(self, event):
        if event.other == _ATTEMPT:
            self.attempt = self.disk.peek(_ATTEMPT)
            self.superseded = {agent.name: agent.ops for agent in self.world.agents if agent.name != event.agent}
        if event.other.startswith(f"{_CHECKPOINTS}/step-") and event.agent in self.superseded:
            ops = next(agent.ops for agent in self.world.agents if agent.name == event.agent)
            late = ops - self.superseded[event.agent]
            assert late <= _AFTER_CHECK, f"{event.agent} has published {event.other} though another attempt has begun"

    def _published(self, event):
        place, _, name = event.other.rpartition("/")
        if place == _CHECKPOINTS and (found := _NAME.fullmatch(name)):
            self.newest = max(self.newest, int(found[1]))
            assert self._is_whole(event.other, "checkpoint.json"), (
                f"{event.agent} has published {name}, which is not whole"
            )
            ledger = parsed(self.disk.peek(f"{event.other}/ledger.json"))
            assert ledger["step"] == int(found[1]), f"{name} has the ledger of step {ledger['step']}"
        elif event.other == f"{RUN}/ledger.json":
            step = parsed(self.disk.peek(event.other))["step"]
            assert step <= self.newest, f"{event.agent} has written a ledger of step {step}, ahead of all checkpoints"

    def _removed(self, event):
        if event.path.startswith(_CHECKPOINTS) and self.newest:
            assert self._has_newest(), f"{event.agent} has removed the newest checkpoint, of step {self.newest}"
        if event.path.startswith(EXPORT) or event.other.startswith(EXPORT):
            self._export(event.agent)

    def _has_newest(self):
        names = [name for step, name in self._checkpoints() if step == self.newest]
        return any(self._is_whole(f"{_CHECKPOINTS}/{name}", "checkpoint.json") for name in names)

    def _export(self, agent):
        names = self.disk.names(EXPORT)
        if names is not None:
            assert self._is_whole(EXPORT, "gristmill.json"), f"{agent} has left a part of an export: {names}"

    def _checkpoints(self):
        found = [(_NAME.fullmatch(name), name) for name in self.disk.names(_CHECKPOINTS) or ()]
        return [(int(match[1]), name) for match, name in found if match]

    def _is_whole(self, place, record):
        value = parsed(self.disk.peek(f"{place}/{record}"))
        if value is None:
            return False
        contents = [(file, self.disk.peek(f"{place}/{file['path']}")) for file in value["files"]]
        return all(data is not None and checksum_of(data) == file["xxh3_128"] for file, data in contents)


def check_scores(world):
    """Evaluate once more, and check that each checkpoint has the result of its own weights and that nothing
    is left over.
    """
    run_again(world, "score checkpoints", lambda again: score_checkpoints(again.say))
    found = files_below(world.disk, RUN)
    results = {path: parsed(data) for path, data in found.items() if fnmatchcase(path, "evaluations/*/step-*.json")}
    for path, result in results.items():
        value = state_after(result["step"])
        assert result["scores"]["words.mean"]["value"] == value, f"{path} has the score of another checkpoint"
        assert found.get(f"{path.removesuffix('.json')}.parquet") == str(value).encode(), (
            f"{path} has the rows of another"
        )
    for path in found:
        step = re.fullmatch(r"checkpoints/step-(\d+)/checkpoint.json", path)
        assert not step or any(result["step"] == int(step[1]) for result in results.values()), f"{path} has no result"
    left = [path for path in found if path.startswith("evaluations/") and path.endswith((".tmp", ".lease"))]
    assert not left, f"left over: {left[0]}"


def check_run(world, reference):
    """Train once more, and check that the run finishes within a limited number of operations as if it had
    never been disturbed.
    """
    run_again(world, "pretrain", lambda again: pretrain(again.say))
    once = run_again(world, "pretrain", lambda again: pretrain(again.say))
    assert "nothing to do" in once.processes["pretrain"].output, "a finished run trains on"
    found = files_below(world.disk, RUN)
    newest = f"checkpoints/{max(path.split('/')[1] for path in found if path.startswith('checkpoints/step-'))}"
    assert int(_NAME.fullmatch(newest.partition("/")[2])[1]) == STEPS
    for place, reference_place in ((newest, f"checkpoints/step-{STEPS:08d}"), ("export", "export")):
        path = f"{place}/model.safetensors"
        assert found.get(path) == reference[f"{reference_place}/model.safetensors"], (
            f"{path} has other bytes in the end"
        )
    assert parsed(found["export/gristmill.json"])["step"] == STEPS, "the export is of an earlier step"
    assert found["ledger.json"] == found[f"{newest}/ledger.json"], "the ledger is not that of the newest checkpoint"
    assert _trained(found["log.jsonl"]) == [(step, state_after(step) / 1000) for step in range(1, STEPS + 1)]
    left = [path for path in found if any(fnmatchcase(part, ".*.tmp") for part in path.split("/"))]
    left += [path for path in world.disk.directories(RUN) if path.rpartition("/")[2] == ".export"]
    left += [path for path in found if path.endswith(".lease") or path == "stop"]
    left = [path for path in left if not path.startswith("evaluations/")]  # what `evaluate` leaves, `evaluate` removes
    assert not left, f"left over: {left[:5]}"


def _trained(log):
    """Return the (step, loss) pairs of the log that are not superseded by a later part of the run, sorted by
    step.

    Sorting is necessary because a worker suspended just before writing its line may write it after others
    have continued from an earlier step.
    """
    events = drop_superseded(events_of(log.split(b"\n")[:-1]))
    return sorted((event["step"], event["loss"]) for event in events if event["event"] == "step")
