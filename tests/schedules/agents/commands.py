"""Commands of pipelines as functions for agents: the code of the product from the lease on, without its command line.

Each returns a function that a simulated process runs. Its result is 0 or the message with which the command ends: as the
command line does, it catches UserErrors and StorageErrors, and nothing else.
"""

from contextlib import nullcontext

from gristmill.errors import StorageError, UserError
from gristmill.host import host
from gristmill.storage.disk import LocalPath
from gristmill.storage.lease import lock
from pipelines.building.build import ensure_owner, plan_and_build, refuse_unwritable
from pipelines.cluster.tasks import ATTEMPTS, PAUSE_SECONDS, task_failure
from pipelines.contracts.lineage import open_corpus
from pipelines.contracts.parts import DOCUMENT_COLUMNS
from pipelines.erasure.erase import collect_garbage, erase
from pipelines.export.text_export import export_corpus
from tests.schedules.agents.small_corpora import EXPORT, FORGOTTEN, OUTPUT, inventories, sources_directory


class TaskCluster:
    """Tasks one after another in this process, tried again as on any cluster."""

    workers, peak_bytes = 1, 0

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


def command(function):
    """A function that ends as a command line does: with 0, or with the message of an error for users."""

    def run():
        try:
            function()
        except (UserError, StorageError, OSError) as error:
            return f"{type(error).__name__}: {error}"
        return 0

    return run


def build(config, say=print, *, lease=True):
    """`pipelines build`. Without a lease, which saves work and guards nothing, builds meet more often."""

    def run():
        output = config.place
        refuse_unwritable(output)
        ensure_owner(output, config.name, write=False)
        with lock(output, "building", say) if lease else nullcontext():
            plan_and_build(config, inventories(config.sources), TaskCluster(), say)

    return command(run)


def gc(config):
    """`pipelines gc --delete`."""
    return command(lambda: collect_garbage([config], delete=True))


def forget(document=FORGOTTEN):
    """`pipelines forget`, which also searches the output for what it has removed."""
    ids = sources_directory() / f"{document.replace('/', ' ')}.txt"
    ids.write_text(f"{document}\n")
    return command(lambda: erase(LocalPath(OUTPUT), ids, None, None))


def export(output=EXPORT):
    """`pipelines export`."""
    return command(lambda: export_corpus(LocalPath(OUTPUT), LocalPath(output), "jsonl", None))


def read():
    """A reader of the corpus: everything that its manifest reaches."""

    def run():
        corpus = open_corpus(LocalPath(OUTPUT))
        for part in corpus.parts():
            part.table((*part.types.names, *DOCUMENT_COLUMNS))
        for step in corpus.steps:
            for record in step.manifest.files:
                step.directory.verify(record)

    return command(run)
