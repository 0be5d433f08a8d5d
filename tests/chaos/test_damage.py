"""Damage to files on disk: it is detected when the file is read, the error or warning names the file, and the
same command or what the message says repairs the damage.
"""

import json
import re
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from gristmill.errors import UserError
from gristmill.events import read_events
from pipelines.building.build import build
from pipelines.cluster.local import LocalCluster
from tests.chaos.harness.faults import Ended, Server, server
from tests.chaos.harness.outcome import Outcome, Reference, build_outcome, reference_of, run_outcome, trained
from tests.damage import damage, files_of, flips
from tests.damaged_corpus import everything, plan_of, write_corpus
from tests.pipelines.building.test_corruption import CACHES, PAGES
from tests.trainers.conftest import build_corpus

Injected = Callable[[str, str, Outcome, float], None]
GROUP = "Damaged files"
pytestmark = pytest.mark.chaos
KINDS = {
    r"read\.[^/]+/parts/": "documents",
    r"read\.[^/]+/files/": "index of files",
    r"read\.[^/]+/quarantine/": "quarantine",
    r"shards-[^/]+/.+\.arrow": "shard",
    r"learn_tokenizer-[^/]+/tokenizer": "tokenizer",
    r"funnel-[^/]+/sample": "sample of signals",
    r"dedup_[^/]+/parts/": "decisions on duplicates",
    r"[^/]+/parts/": "annotation",
    r"[^/]+/manifest.json": "manifest of a step",
    r"manifest.json": "manifest of a corpus",
}
FILES = 2  # of each kind
WORDS = {"flip": "a bit flipped", "cut": "the end lost"}


def kind_of(root: Path, path: Path) -> str | None:
    name = str(path.relative_to(root))
    return next((kind for pattern, kind in KINDS.items() if re.match(pattern, name)), None)


def remove_what_it_says(message: str, path: Path) -> None:
    said = re.search(r"remove (\S+) and ", message)
    assert said, message
    place = path if said[1] == "it" else Path(said[1])
    if place.is_dir():
        shutil.rmtree(place)
    else:
        place.unlink()


@dataclass(frozen=True)
class Built:
    config: Path
    root: Path
    says: str
    reference: Reference


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    place = tmp_path_factory.mktemp("damaged")
    config, root = write_corpus(place), place / "out"
    build(plan_of(config), LocalCluster(), lambda line: None)
    for path in files_of(root):
        assert kind_of(root, path) or path.name in (*PAGES, *CACHES, "corpus.txt"), path
    return Built(config, root, everything(config, root), reference_of(root))


@pytest.mark.parametrize("kind", KINDS.values())
def test_a_damaged_file_of_a_corpus_is_named_and_made_again(kind, built: Built, injected: Injected) -> None:
    paths = [path for path in files_of(built.root) if kind_of(built.root, path) == kind][:FILES]
    assert paths
    for seed, path in enumerate(paths):
        size, line_end = path.stat().st_size, path.suffix == ".json"  # the last byte, which says nothing
        for each in (*flips(size - line_end, seed, 4), ("cut", size // 2), ("cut", size - 1 - line_end)):
            damage(path, *each)
            with pytest.raises(UserError, match=re.escape(str(path))) as told:
                everything(built.config, built.root)
            started = time.perf_counter()
            remove_what_it_says(str(told.value), path)
            build(plan_of(built.config), LocalCluster(), lambda line: None)
            seconds = time.perf_counter() - started
            assert everything(built.config, built.root) == built.says
            injected(GROUP, f"{kind}: {WORDS[each[0]]}", build_outcome(built.reference, built.root), seconds)


STEPS, LAST = 6, 4  # of a run; of the checkpoint with which it is damaged
TENSORS = [f"checkpoints/step-{STEPS:08d}/{name}.safetensors" for name in ("model", "optimizer")]


@dataclass(frozen=True)
class Trainer:
    """A server that trains, its corpus, an undisturbed run, and a copy of the run as a kill before the last
    checkpoint leaves it.
    """

    server: Server
    corpus: Path
    whole: Path
    killed: Path

    def run(self, command: str, run: Path, *more: str) -> Ended:
        """Run a command of `trainers` on a run, and record the rows it reads in a file beside the run."""
        return self.server.run("trainers", command, *more, record=str(run.with_name(f"{run.name}.rows")))

    def pretrain(self, run: Path) -> Ended:
        settings = (
            "batch.sequences=2",
            "schedule.warmup_steps=2",
            f"budget.steps={STEPS}",
            "validation={every: 6, tokens: 256}",
            "log_every=1",
        )
        more = ("llama_tiny", f"corpus={self.corpus}", f"run={run}", "checkpoints={every: 2, keep: 3}", *settings)
        return self.run("pretrain", run, *more)

    def copy(self, run: Path) -> Path:
        shutil.rmtree(run, ignore_errors=True)
        shutil.copytree(self.killed, run)
        shutil.copy(self.killed.with_name("killed.rows.rank0"), run.with_name(f"{run.name}.rows.rank0"))
        return run

    def outcome(self, run: Path) -> Outcome:
        found, wanted = (trained(each, each.with_name(f"{each.name}.rows")) for each in (run, self.whole))
        outcome = run_outcome(wanted, found)
        same = all((run / name).read_bytes() == (self.whole / name).read_bytes() for name in (*TENSORS, "ledger.json"))
        return outcome._replace(identical=outcome.identical and same)


@pytest.fixture(scope="module")
def trainer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trainer]:
    place = tmp_path_factory.mktemp("damaged")
    (place / "server").mkdir()
    corpus, whole, killed = build_corpus(place / "corpus"), place / "whole", place / "killed"
    with server(place / "server", None) as found:
        trainer = Trainer(found, corpus, whole, killed)
        done = trainer.pretrain(whole)
        assert done.status == 0, done.errors
        gone = ("finished.json", "export", "report.html", f"step-{STEPS:08d}")
        shutil.copytree(whole, killed, ignore=shutil.ignore_patterns(*gone))
        for name, steps in ((killed / "log.jsonl", LAST), (place / "killed.rows.rank0", LAST)):
            lines = (
                (whole / "log.jsonl" if name.parent == killed else place / "whole.rows.rank0").read_text().splitlines()
            )
            kept = [line for line in lines if _step(json.loads(line)) <= steps]
            name.write_text("".join(f"{line}\n" for line in kept))
        yield trainer


def _step(entry: object) -> int:
    step = entry[0] if isinstance(entry, list) else entry.get("step", 0) if isinstance(entry, dict) else 0
    return int(step)


CHECKPOINT = f"checkpoints/step-{LAST:08d}"


@pytest.mark.deepspeed
@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "checkpoint.json"])
def test_a_damaged_checkpoint_is_named_and_the_one_before_it_taken(trainer, injected: Injected, tmp_path, name) -> None:
    size = (trainer.killed / CHECKPOINT / name).stat().st_size
    for each in (*flips(size, 1, 3), ("cut", size // 2)):
        run = trainer.copy(tmp_path / "run")
        damage(run / CHECKPOINT / name, *each)
        done = trainer.pretrain(run)
        assert done.status == 0, done.errors
        told = [event["message"] for event in read_events(run / "log.jsonl", "warning")]
        assert any(
            f"CORRUPT CHECKPOINT of step {LAST}" in line and str(run / CHECKPOINT / name) in line for line in told
        )
        injected(GROUP, f"checkpoint: {WORDS[each[0]]}", trainer.outcome(run), done.seconds)


@pytest.mark.deepspeed
@pytest.mark.parametrize("name", ["run.json", "resolved.yaml", "tokenizer.json"])
def test_a_damaged_file_of_a_run_is_named_and_put_back(trainer, injected: Injected, tmp_path, name) -> None:
    size = (trainer.killed / name).stat().st_size
    for each in (*flips(size, 2, 1), ("cut", size // 2)):
        run = trainer.copy(tmp_path / "run")
        damage(run / name, *each)
        done = trainer.pretrain(run)
        assert done.status == 2, done.out
        assert str(run / name) in done.errors
        shutil.copy(trainer.killed / name, run / name)
        again = trainer.pretrain(run)
        assert again.status == 0, again.errors
        injected(GROUP, f"{name} of a run, put back: {WORDS[each[0]]}", trainer.outcome(run), again.seconds)


@pytest.mark.deepspeed
def test_a_damaged_log_is_told_and_its_steps_are_trained_again(trainer, injected: Injected, tmp_path) -> None:
    log = (trainer.killed / "log.jsonl").read_bytes()
    for position in (log.rindex(b'"loss"') + 8, log.rindex(b'"tokens"') + 10, log.rindex(b'"time"') + 9):
        run = trainer.copy(tmp_path / "run")
        damage(run / "log.jsonl", "flip", 8 * position)
        shutil.rmtree(run / CHECKPOINT)
        done = trainer.pretrain(run)
        assert done.status == 0, done.errors
        (told,) = read_events(run / "log.jsonl", "damaged")
        assert f"line {log[:position].count(10) + 1} of the log" in told["message"]
        injected(GROUP, "log of a run: a bit flipped", trainer.outcome(run), done.seconds)


@pytest.mark.deepspeed
def test_a_damaged_export_is_named_and_written_again(trainer, injected: Injected, tmp_path) -> None:
    run = tmp_path / "run"
    shutil.copytree(trainer.whole, run)
    for name in ("model.safetensors", "config.json", "tokenizer.json"):
        path = run / "export" / name
        whole, size = path.read_bytes(), path.stat().st_size
        for each in (*flips(size, 3, 2), ("cut", size // 2)):
            damage(path, *each)
            done = trainer.run("generate", run, str(run / "export"), "--tokens", "1")
            assert done.status == 2, done.out
            assert str(path) in done.errors
            again = trainer.run("export", run, str(run))
            assert again.status == 0, again.errors
            injected(GROUP, f"export: {WORDS[each[0]]}", Outcome(0, 0, path.read_bytes() == whole), again.seconds)
