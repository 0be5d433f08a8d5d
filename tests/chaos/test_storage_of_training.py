"""Pretraining on full and failing disks: its log, ledger, checkpoints and export."""

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.harness.disks import disk, enlarge, used
from tests.chaos.harness.faults import OPEN_TO_WRITE, READ, SYNC, WRITE, Ended, Fault, Server, compiled, server
from tests.chaos.harness.outcome import Outcome, Trained, run_outcome, trained
from tests.chaos.harness.small_corpus import Small, one_line

Injected = Callable[[str, str, Outcome, float], None]
GROUP = "Storage"
SETTINGS = (
    "batch.sequences=2", "budget.steps=6", "schedule.warmup_steps=2", "validation={every: 6, tokens: 256}",
    "checkpoints={every: 2, keep: 1}", "log_every=1",
)  # fmt: skip
pytestmark = [pytest.mark.chaos, pytest.mark.deepspeed]


@dataclass(frozen=True)
class Trainer:
    server: Server
    corpus: Path
    reference: Trained

    def train(self, run: Path, fault: Fault | None = None, **options: Any) -> Ended:
        record = str(run.with_name(f"{run.name}.rows"))
        settings = (f"corpus={self.corpus}", f"run={run}", *SETTINGS)
        return self.server.run("trainers", "pretrain", "llama_tiny", *settings, fault=fault, record=record, **options)

    def finished(self, run: Path) -> tuple[Outcome, float]:
        """Run the same command again without a fault; return the outcome and the seconds taken."""
        done = self.train(run)
        assert done.status == 0, done.errors
        assert (run / "finished.json").exists()
        assert (run / "export" / "gristmill.json").exists()
        return run_outcome(self.reference, trained(run, run.with_name(f"{run.name}.rows"))), done.seconds


@pytest.fixture(scope="module")
def trainer(small: Small, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trainer]:
    place = tmp_path_factory.mktemp("training")
    (place / "server").mkdir()
    with server(place / "server", compiled(place / "server")) as found:
        first = Trainer(found, place / "corpus", Trained({}, {}))
        assert found.run("pipelines", "build", small.config, "--in-process", f"output={first.corpus}").status == 0
        done = first.train(place / "run")
        assert done.status == 0, done.errors
        yield Trainer(found, first.corpus, trained(place / "run", place / "run.rows"))


def test_a_disk_that_gets_full(trainer: Trainer, injected: Injected, tmp_path: Path) -> None:
    with disk(tmp_path / "whole", 1 << 28) as whole:
        assert trainer.train(whole / "run").status == 0
        needed = used(whole)
    for share in (3, 30, 60, 90):
        with disk(tmp_path / f"disk{share}", needed * share // 100 // 4096 * 4096) as full:
            run = full / "run"
            one_line(trainer.train(run), f"{full}.*No space left on device")
            enlarge(full, 1 << 28)
            injected(GROUP, "pretraining: disk of the run full (ENOSPC)", *trainer.finished(run))


PLACES = {
    "log": "/log.jsonl",
    "ledger": "/.ledger.json*",
    "checkpoint": "/checkpoints",
    "export": "/.export*",
    "identity": "/.run.json*",
    "report": "/.report.html*",
}


@pytest.mark.parametrize("name", PLACES)
def test_what_cannot_be_written(trainer: Trainer, injected: Injected, tmp_path: Path, name: str) -> None:
    """The disk has no room for one of the run's files. Once there is room, the same command continues the
    run.
    """
    run = tmp_path / "run"
    fault = Fault(f"{run}{PLACES[name]}", WRITE, error=errno.ENOSPC, first=3 if name == "log" else 1)
    ended = trainer.train(run, fault)
    assert ended.fired, name
    one_line(ended, f"{run}.*No space left on device")
    injected(GROUP, f"pretraining: no room for the {name} (ENOSPC)", *trainer.finished(run))


@pytest.mark.parametrize(("what", "kinds", "first"), [("fsync", SYNC, 1), ("open", OPEN_TO_WRITE, 2)])
def test_a_checkpoint_that_cannot_be_written(
    trainer: Trainer, injected: Injected, tmp_path: Path, what: str, kinds: int, first: int
) -> None:
    run = tmp_path / "run"
    ended = trainer.train(run, Fault(str(run / "checkpoints"), kinds, error=errno.EIO, first=first))
    one_line(ended, f"{run}.*{os.strerror(errno.EIO)}")
    assert not ended.published_unsynced
    injected(GROUP, f"pretraining: {what} of a checkpoint fails (EIO)", *trainer.finished(run))


def test_what_cannot_be_read(trainer: Trainer, injected: Injected, tmp_path: Path) -> None:
    """Reads fail while shards and checkpoints are verified. Later reads are not tested: they go through
    memory maps, and a failing disk ends the process.
    """
    run = tmp_path / "run"
    one_line(trainer.train(run, Fault(str(trainer.corpus), READ, first=12)), f"{trainer.corpus}.*Input/output error")
    ended = trainer.train(run, Fault(f"{run}/.ledger.json*", WRITE, error=errno.ENOSPC, first=2))
    assert ended.status == 2
    ended = trainer.train(run, Fault(str(run / "checkpoints"), READ))
    one_line(ended, f"{run}.*Input/output error")
    injected(GROUP, "pretraining: reading shards and a checkpoint fails (EIO)", *trainer.finished(run))
    shutil.rmtree(run)
