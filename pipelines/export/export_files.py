"""Write the files of an export, several at a time, and continue where an interrupted run stopped. The bytes
of a file do not depend on the process that writes it.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Generic, Protocol, TypeVar

from gristmill.console import ProgressDisplay
from gristmill.errors import ConflictError, UserError
from gristmill.storage.location import Location
from pipelines.cluster.ray import RayCluster
from pipelines.contracts.lineage import Corpus, open_corpus
from pipelines.export.export_directory import UnfinishedExport, Written

_BYTES_PER_WORKER = 1 << 30  # a worker more for each GiB: starting Ray takes as long as writing some 500 MB


class FilePlan(Protocol):
    """The plan of one file of an export: its path in the export, a digest of its inputs, and the number of
    bytes to read for it.
    """

    @property
    def path(self) -> str: ...

    @property
    def inputs(self) -> str: ...

    @property
    def bytes_read(self) -> int: ...


Plan = TypeVar("Plan", bound=FilePlan)


@dataclass(frozen=True)
class _Task(Generic[Plan]):
    """One file for a worker to write. The worker opens the corpus at `place` itself."""

    place: Location
    fingerprint: str
    output: Location
    write: Callable[[Corpus, Location, Plan], Any]
    plan: Plan


@dataclass(frozen=True)
class ExportJob:
    """An export of a corpus, which writes files to `output` and records them in `unfinished`. `place` is the
    location of the corpus. If `workers` is None, the number of workers depends on how many bytes must be
    read.
    """

    place: Location
    corpus: Corpus
    output: Location
    unfinished: UnfinishedExport
    workers: int | None
    display: ProgressDisplay

    def write_files(
        self, plans: Sequence[Plan], write: Callable[[Corpus, Location, Plan], Written], kind: type[Written]
    ) -> list[Written]:
        """Write the files that are not finished yet, and return the records of all files in the order of
        `plans`. `write` must be a module-level function. Raises ConflictError if a worker finds a different
        corpus, and UserError if this process cannot see a file that a worker wrote.
        """
        files = [self.unfinished.finished(plan.path, plan.inputs, kind) for plan in plans]
        left = [number for number, file in enumerate(files) if file is None]
        if len(left) < len(plans):
            self.display.say(f"{len(plans) - len(left)} of {len(plans)} files are finished by an earlier run")
        for position, file in self._run([plans[number] for number in left], write):
            plan = plans[left[position]]
            self.unfinished.add(plan.path, plan.inputs, file)
            files[left[position]] = file
            self.display.say(f"{plan.path}: written")
        return [file for file in files if file is not None]

    def _run(
        self, plans: Sequence[Plan], write: Callable[[Corpus, Location, Plan], Written]
    ) -> Iterator[tuple[int, Written]]:
        workers = choose_workers(self.workers, plans)
        if workers == 1:
            for number, plan in enumerate(plans):
                self.display.progress("export", number, len(plans))
                yield number, write(self.corpus, self.output, plan)
            return
        self.display.say(f"{workers} workers write {len(plans)} files")
        fingerprint = self.corpus.manifest.fingerprint
        tasks = [_Task(self.place, fingerprint, self.output, write, plan) for plan in plans]
        cluster = RayCluster(workers, progress=self.display.progress, say=self.display.say)
        try:
            for number, file in cluster.map(export_file, tasks, lambda task: task.plan.path):
                if not (self.output / plans[number].path).exists():
                    raise UserError(
                        f"{self.output}: this process does not see what a worker on another machine writes there; name a shared "
                        "directory or a URL, or use --workers 1"
                    )
                yield number, file
        finally:
            cluster.close()


def choose_workers(workers: int | None, plans: Sequence[FilePlan]) -> int:
    """Return the number of processes that write the files: `workers` or, if that is None, one per full GiB to
    read, up to the number of processors. There is always at least one, and never more than one per file.
    """
    if workers is None:
        workers = min(os.cpu_count() or 1, sum(plan.bytes_read for plan in plans) // _BYTES_PER_WORKER)
    return max(1, min(workers, len(plans)))


def export_file(task: _Task) -> Any:
    """Write one file in a worker process and return its record."""
    return task.write(_open_same(task.place, task.fingerprint), task.output, task.plan)


@lru_cache(maxsize=1)
def _open_same(place: Location, fingerprint: str) -> Corpus:
    corpus = open_corpus(place)
    if corpus.manifest.fingerprint != fingerprint:
        raise ConflictError(f"{place}: a build or forget changed the corpus while it was exported")
    return corpus
