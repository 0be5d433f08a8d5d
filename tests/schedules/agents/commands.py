"""Commands of pipelines as functions for agents: the product's code without the command line.

Each function here returns a function for a simulated process to run. Its result is 0 or the message with
which the command ends: UserErrors, StorageErrors and OSErrors are caught.
"""

from contextlib import nullcontext
from functools import partial

from gristmill.errors import StorageError, UserError
from gristmill.host import host
from gristmill.storage.disk import LocalPath
from gristmill.storage.lease import lock
from pipelines.building.build import ensure_owner, plan_and_build, refuse_unwritable
from pipelines.cluster.tasks import ATTEMPTS, PAUSE_SECONDS, Usage, task_failure
from pipelines.contracts.lineage import open_corpus
from pipelines.contracts.parts import DOCUMENT_COLUMNS
from pipelines.erasure.erase import collect_garbage, erase
from pipelines.explore.searching.index_corpus import index_corpus
from pipelines.export.text_export import export_corpus
from tests.schedules.agents.small_corpora import EXPORT, FORGOTTEN, OUTPUT, inventories, sources_directory

_WORKER_SECONDS = 20.0
TASK = " task "
"""Occurs in the names of processes that run a task of another process."""


class TaskCluster:
    """Runs tasks one after another in this process, with the usual retries."""

    workers, peak_bytes = 1, 0

    def __init__(self):
        self.usage = Usage()

    def map(self, function, items, label):
        for position, item in enumerate(items):
            yield position, self._attempt(function, item, position, label)

    def _attempt(self, function, item, position, label):
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return function(item)
            except UserError:
                raise
            except Exception as error:
                if attempt == ATTEMPTS:
                    raise task_failure(label(item), error, position, None) from error
                host().sleep(PAUSE_SECONDS * attempt)
        raise AssertionError("unreachable")


class WorkerCluster:
    """Runs tasks in separate processes, two at a time. As on Ray, the tasks outlive a driver that is killed."""

    workers, peak_bytes = 2, 0

    def __init__(self, world):
        self._world, self._driver = world, world.current.process.name
        self.usage = Usage()

    def map(self, function, items, label):
        running = []
        for position, item in enumerate(items):
            running.append((position, item, self._begin(function, item)))
            if len(running) == self.workers:
                yield self._result(function, label, *running.pop(0))
        for each in running:
            yield self._result(function, label, *each)

    def _begin(self, function, item):
        number = sum(name.startswith(f"{self._driver}{TASK}") for name in self._world.processes)
        outcome = []  # (result, error) once the task has ended
        name, machine = f"{self._driver}{TASK}{number}", f"worker {number % 2}"
        process = self._world.start(name, partial(_run_task, function, item, outcome), machine)
        return process, outcome

    def _result(self, function, label, position, item, begun):
        for attempt in range(1, ATTEMPTS + 1):
            process, outcome = begun
            # A worker that does not answer for so long is believed to be dead, and may not be.
            self._world.wait(lambda process=process: not process.alive, _WORKER_SECONDS)
            result, error = outcome[0] if outcome else (None, StorageError("the worker died"))
            if error is None:
                return position, result
            if isinstance(error, UserError):
                raise error
            if attempt == ATTEMPTS:
                raise task_failure(label(item), error, position, None) from error
            begun = self._begin(function, item)
        raise AssertionError("unreachable")


def _run_task(function, item, outcome):
    try:
        outcome.append((function(item), None))
    except Exception as error:
        outcome.append((None, error))
    return 0


def command(function):
    def run():
        try:
            function()
        except (UserError, StorageError, OSError) as error:
            return f"{type(error).__name__}: {error}"
        return 0

    return run


def build(config, say=print, *, lease=True, world=None, variant=None):
    """`pipelines build`, with its tasks on workers if `world` is given; a `variant` is published next to the
    corpus.

    The lease only saves work and is not needed for safety. Without it, builds overlap more often.
    """

    def run():
        output = config.place
        refuse_unwritable(output)
        ensure_owner(output, config.name, write=False)
        with lock(output, "building", say) if lease else nullcontext():
            cluster = TaskCluster() if world is None else WorkerCluster(world)
            plan_and_build(config, inventories(config.sources), cluster, say, variant=variant)

    return command(run)


def gc(config):
    """`pipelines gc --delete --keep 0`, which keeps no steps of earlier builds."""
    return command(lambda: collect_garbage([config], delete=True, keep=0))


def finish_forgetting():
    """`pipelines forget` without documents, which finishes an interrupted run."""
    return command(lambda: erase(LocalPath(OUTPUT), None, None, None))


def forget(document=FORGOTTEN):
    """`pipelines forget`, including the final search of the output for what was removed."""
    ids = sources_directory() / f"{document.replace('/', ' ')}.txt"
    ids.write_text(f"{document}\n")
    return command(lambda: erase(LocalPath(OUTPUT), ids, None, None))


def export(output=EXPORT):
    return command(lambda: export_corpus(LocalPath(OUTPUT), LocalPath(output), "jsonl", None))


def index(corpus=OUTPUT):
    return command(lambda: index_corpus(LocalPath(corpus)))


def read():
    def run():
        corpus = open_corpus(LocalPath(OUTPUT))
        for part in corpus.parts():
            part.table((*part.types.names, *DOCUMENT_COLUMNS))
        for step in corpus.steps:
            for record in step.manifest.files:
                step.directory.verify(record)

    return command(run)
