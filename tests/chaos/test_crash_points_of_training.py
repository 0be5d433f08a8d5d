"""A pretraining run or an export crashes at an operation that changes the disk, and the same command is run
again. A resumed run reads the same rows, and weights, optimizer moments, ledger and model are byte-identical
to those of an undisturbed run.
"""

import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from gristmill.storage.store import read_json, write_json
from tests.chaos.harness.crash_server import server
from tests.chaos.harness.crash_sweep import Case, Injected, Pool, same_as
from tests.chaos.harness.outcome import Outcome, files_of, run_outcome, trained
from tests.trainers.conftest import build_corpus

pytestmark = [pytest.mark.chaos, pytest.mark.deepspeed, pytest.mark.timeout(3600)]

OF_A_RUN = (
    (r"\.lease|\.lock", "lease or lock"),
    (r"checkpoints/[^/]+/.+", "file of a checkpoint"),
    (r"checkpoints/.+", "checkpoint"),
    (r"\.?export.*/.+", "file of the model"),
    (r"\.?export.*", "model"),
    (r"log\.jsonl", "log"),
    (r"ledger\.json", "ledger"),
    (r"finished\.json|report\.html", "end of the run"),
    (r".*", "configuration, tokenizer or identity"),
)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("training")


def pretraining(corpus: Path, run: Path) -> list[Any]:
    settings = [
        "batch.sequences=2", "budget.steps=4", "schedule.warmup_steps=2", "validation={every: 4, tokens: 256}",
        "checkpoints={every: 2, keep: 1}", "log_every=1",
    ]  # fmt: skip
    return ["trainers", "pretrain", "llama_tiny", f"corpus={corpus}", f"run={run}", *settings]


@pytest.fixture(scope="module")
def training(place: Path) -> Iterator[Pool]:
    """Yield warm servers. `place/run` then holds an undisturbed run, with a record of the rows it read."""
    corpus = build_corpus(place / "tiny")
    with ExitStack() as stack:
        servers = [stack.enter_context(server(place)) for _ in range(2)]
        for number, each in enumerate(servers):
            run = place / f"run{number or ''}"
            done = each.run(pretraining(corpus, run), place / "nothing", record=f"{run}.rows")
            assert done.status == 0, done.said
            each.warm(pretraining(corpus, run))  # finished: it does all but train
            each.warm(["trainers", "report", run])
        yield Pool(servers)


def without_log(run: Path) -> dict[str, bytes]:
    """Return the files of a run that hold no times."""
    return {name: data for name, data in files_of(run).items() if name not in ("log.jsonl", ".attempt")}


def test_pretraining(place: Path, training: Pool, injected: Injected, tmp_path: Path) -> None:
    wanted, files = trained(place / "run", place / "run.rows"), without_log(place / "run")

    def outcome(run: Path) -> Outcome:
        counted = run_outcome(wanted, trained(run, run.with_name(f"{run.name}.rows")))
        whole = without_log(run) == files and (run / "report.html").exists()
        return counted._replace(identical=counted.identical and whole)

    def begin(run: Path) -> None:
        run.mkdir()

    case = Case(
        "pretrain",
        OF_A_RUN,
        lambda run: pretraining(place / "tiny", run),
        begin,
        outcome,
        record="rows",
        detail="files",
        most=6,
    )
    training.sweep(case, tmp_path / "run", injected)


def test_exporting_a_model(place: Path, training: Pool, injected: Injected, tmp_path: Path) -> None:
    def command(out: Path) -> list[Any]:
        return ["trainers", "export", place / "run", "--output", out / "export"]

    def begin(out: Path) -> None:
        """Copy the export and mark it as one of an older step, so that it is replaced."""
        shutil.copytree(place / "run" / "export", out / "export")
        old = read_json(out / "export" / "gristmill.json")
        write_json(out / "export" / "gristmill.json", old | {"step": 2})

    begin(tmp_path / "whole")
    assert training.all[0].run(command(tmp_path / "whole"), tmp_path).status == 0
    case = Case("export of a model", OF_A_RUN, command, begin, same_as(tmp_path / "whole"))
    training.sweep(case, tmp_path / "out", injected)
