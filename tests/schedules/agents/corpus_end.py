"""Checks of an output at the end of a run: running the same command once more completes the output as if
nothing had gone wrong.
"""

import itertools
import re
from random import Random

import xxhash

from pipelines.contracts.search_index.index_units import INDEX_FOLDER
from tests.schedules.agents.commands import TASK, build
from tests.schedules.agents.invariants import checksum_of, corpus_steps, files_of
from tests.schedules.agents.small_corpora import ANOTHER, FORGOTTEN, OUTPUT, TEXTS
from tests.schedules.choices import Default
from tests.schedules.simulation import Simulation

_OPERATIONS = 12_000  # more than four undisturbed builds
_CHECKED = 20  # one in so many disks that are known is checked all the same
_POWER = 4  # one in so many machines loses power at last
FORGETTING = {"forget": FORGOTTEN, "forget another": ANOTHER, "finish forgetting": FORGOTTEN}
"""The document that each command forgets."""
_passed: set[tuple] = set()
_known = itertools.count(1)
_NOT_READ = ("/run.json", "/.lease", ".tmp")
_NOT_COMPARED = ("run.json", "forgotten.json", ".checksums.json")


def undisturbed(config):
    world = Simulation(Default())
    process = world.start("build", build(config, world.say))
    world.run()
    assert process.result == 0, process.result or process.error
    return files_below(world.disk)


def files_below(disk, root=OUTPUT):
    return {path.removeprefix(f"{root}/"): data for path, data in disk.files(root).items()}


def check_ends(world, allowed=()):
    """Check that every process that was not killed ended with 0 or with an allowed message. Tasks of workers
    are not checked.

    `allowed` holds message patterns, either for all processes or as a mapping by process. If a process was
    suspended, a message that a process has stopped while taking over the lease is allowed too.
    """
    suspended = any(decision.action == "suspend" for decision in world.record)
    stopped = (r"taking over the lease has stopped and keeps others from it",) if suspended else ()
    for name, process in world.processes.items():
        if process.killed or TASK in name:
            continue
        assert process.error is None, f"{name} ended with {process.error!r}"
        patterns = allowed[name] if isinstance(allowed, dict) else allowed
        assert process.result == 0 or _says(process, (*patterns, *stopped)), f"{name} ended with: {process.result}"


def _says(process, patterns):
    return any(re.search(pattern, str(process.result)) for pattern in patterns)


def run_again(world, name, make, allowed=()):
    """Run one more command, alone, undisturbed and with a limit on the number of operations, and check that
    it ends with 0 or an allowed message. Return its simulation.
    """
    again = Simulation(Default(), disk=world.disk)
    process = again.start(name, make(again), machine="later")
    again.run(_OPERATIONS)
    assert process.error is None, f"run again, {name} ended with {process.error!r}"
    assert process.result == 0 or _says(process, allowed), f"run again, {name} ended with: {process.result}"
    return again


def check_corpus(world, config, reference, objects=None, root=OUTPUT):
    """Build once more and check that the corpus equals the reference (if given), except in files that may
    vary, and that nothing is left over.
    """
    said = _build_again(world, config)
    if not _has_nothing_to_do(said):
        check_once(("built", config), world, lambda world: _check_finished(world, config))
    disk = objects or world.disk
    found = files_below(disk, root)
    steps = corpus_steps(disk, root)
    for path, data in (reference or {}).items():
        if not _varies(path):
            assert path in found, f"{path} is missing in the end"
            assert found[path] == data, f"{path} has other bytes in the end"
    named = {f"{step}/{name}" for step in steps for name in files_of(disk.peek(f"{root}/{step}/manifest.json"))}
    kept = named | {f"{step}/{name}" for step in steps for name in ("manifest.json", "run.json")}
    kept |= {"manifest.json", "corpus.txt", "forgotten.json", ".checksums.json"}
    found = [path for path in found if not path.startswith(f"{INDEX_FOLDER}/")]  # what `index` leaves, `index` removes
    left = [path for path in found if (path not in kept and path.partition("/")[0] in steps) or ".tmp" in path]
    assert not left, f"left over: {left[:5]}"


def _check_finished(world, config):
    said = _build_again(world, config)
    assert _has_nothing_to_do(said), f"the build after the last one does more: {said}"


def lose_power_at_last(world):
    """In a fraction of the schedules, make a machine lose power after all commands have ended. In every
    schedule, check the output, since the last operation may itself have been a loss of power.

    A command that has forgotten a document must not leave any file containing it, even if temporary files
    reappear.
    """
    chance = Random(f"at last/{world.seed}")
    if chance.randrange(_POWER) == 0:
        world.power_lost("a", chance)
    world.facts["published"].look_at_all()
    done = [name.rpartition(" ")[0] for name, process in world.processes.items() if process.result == 0]
    check_without(world, [command for command in done if command in FORGETTING])


def check_without(world, commands):
    texts = [TEXTS[FORGETTING[command]].encode() for command in commands]
    held = [path for path, data in files_below(world.disk).items() if any(text in data for text in texts)]
    assert not held, f"a forgotten document is in {held[0]}"


def check_once(name, world, check):
    """Call `check(world)`, unless it has already passed on a disk with the same contents.

    Commands that run alone, undisturbed and with fixed randomness always do the same to the same contents.
    Disks count as the same even if they differ in three things: the times in `run.json`, which these commands
    do not read; the contents of a dead process's lease, of which only changes matter; and the contents of
    temporary files, which are removed. A fraction of the known disks is checked again anyway.
    """
    failed = any(process.result != 0 for process in world.processes.values())
    key = (name, failed, _digest(world.disk))
    if key in _passed and next(_known) % _CHECKED:
        return
    check(world)
    _passed.add(key)


def _digest(disk):
    """Return a digest of all names and contents of a disk and its object store, except for the differences
    that `check_once` ignores.
    """
    known = xxhash.xxh3_128()
    for path, data in (
        *sorted(disk.files().items()),
        *sorted((path, data) for path, (data, _) in disk.objects.items()),
    ):
        known.update(f"{path} {'' if path.endswith(_NOT_READ) else checksum_of(data)} ".encode())
    known.update(" ".join(disk.directories()).encode())
    return known.digest()


def _build_again(world, config):
    return run_again(world, "build", lambda again: build(config, again.say)).processes["build"].output


def _has_nothing_to_do(said):
    return any("nothing is recomputed" in line for line in said)


def _varies(path):
    """Return whether a file may differ between runs because it holds times or the output of a step that is
    not reproducible.
    """
    step = path.partition("/")[0].partition("-")[0]
    return path.rpartition("/")[2] in _NOT_COMPARED or step in ("learn", "pack", "funnel") or path == "manifest.json"
