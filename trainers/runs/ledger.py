"""A run's ledger, `ledger.json`: the tokens that its steps have read from each source, and the tokens that
the mixture requested.

If a run continues its parent's data, its ledger counts the parent's sequences too. If a run has changed to
another corpus, its ledger counts only what it has read since then, from sample `first_sample` on.
"""

from typing import Any

from gristmill.errors import CorruptFileError, UserError
from gristmill.storage.disk import LocalPath
from gristmill.storage.store import read_json, write_json
from trainers.config.job import Job
from trainers.data.job_interface import JobCorpus, JobTraining
from trainers.runs.checkpoint import newest_ledger
from trainers.runs.run import read_run

FORMAT = "gristmill-ledger/1"


def make_ledger(run: LocalPath, config: Job, corpus: JobCorpus, data: JobTraining, step: int) -> dict[str, Any]:
    """Return the content of the run's `ledger.json` after `step` steps. It counts the samples from
    `data.since` on.
    """
    samples = step * (config.batch.sequences or 0)
    return {
        "format": FORMAT,
        "step": step,
        "first_sample": data.since,
        "samples": samples,
        "corpora": list(config.inputs),
        "corpus": corpus.fingerprint,
        "tokenizer": corpus.tokenizer.xxh3_128,
        "parent": read_run(run).get("parent"),
        "sources": data.consumed(samples),
    }


def copy_ledger(run: LocalPath) -> None:
    """Copy the ledger of the newest checkpoint to `RUN/ledger.json`. Raises UserError if the copy cannot be
    written.

    The copy is read again after each write, because a process that was suspended while copying may replace a
    newer copy with an older one.
    """
    path = run / "ledger.json"
    try:
        while (newest := newest_ledger(run)) is not None and newest != _copy(path):
            write_json(path, newest)
    except OSError as error:
        raise UserError(f"{path}: could not be written ({error.strerror or error})") from error


def _copy(path: LocalPath) -> dict[str, Any] | None:
    try:
        return read_json(path)
    except (FileNotFoundError, CorruptFileError):
        return None


def read_ledger(run: LocalPath) -> dict[str, Any]:
    """Read a run's ledger. Raises UserError if the run has no ledger yet or the ledger's format is not
    supported, and CorruptFileError if the ledger is damaged.
    """
    try:
        record = read_json(run / "ledger.json")
    except FileNotFoundError:
        raise UserError(f"{run}: has no ledger; it is written with a run's first checkpoint") from None
    if record.get("format") != FORMAT:
        raise UserError(f"{run / 'ledger.json'}: format is {record.get('format')!r}, this version reads {FORMAT!r}")
    return record


def line(seen: dict[str, dict[str, float]]) -> str:
    """Format the ledger entries `seen`, keyed by source, as one line."""
    return "; ".join(
        f"{name} {entry['tokens']:,} tokens of {entry['requested_tokens']:,.0f} requested, {entry['epochs']:.2f} epochs, "
        f"{entry['padding'] / max(1, entry['padding'] + entry['tokens']):.1%} padding"
        for name, entry in seen.items()
    )
