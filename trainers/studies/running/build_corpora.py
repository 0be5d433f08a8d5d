"""Build the corpora of a study. Each is built by a process `python -m pipelines build`, because trainers must
not import the code that builds corpora.

STUDY/corpora/KEY.log    what the process printed
STUDY/corpora/KEY.json   why the build failed, until it succeeds

A killed build keeps its finished work; running the same command again continues it. Builds with the same
output directory wait for each other.
"""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict

from gristmill.storage.disk import LocalPath
from gristmill.storage.store import read_json, write_json
from gristmill.terminal import printable
from trainers.studies.designs.study_corpora import CorpusVariant
from trainers.studies.designs.study_entries import variants_of
from trainers.studies.designs.study_runs import OpenStudy
from trainers.studies.running.study_directory import RUNS
from trainers.studies.running.study_workers import terminable
from trainers.studies.running.train_study_run import FORMAT, RESULT, RunResult
from trainers.studies.schema.study_file import Study

CORPORA = "corpora"
_FORMAT = "gristmill-study-corpus/1"


def build_corpora(study: Study, root: LocalPath, workers: int, show: Callable[[str], None]) -> None:
    """Build the corpora that do not exist yet, one after another. A failed build does not end the study; the
    runs that need its corpus fail.
    """
    missing = [variant for variant in variants_of(study) if not variant.is_built]
    with terminable():
        for number, variant in enumerate(missing, 1):
            show(f"corpus {number}/{len(missing)}  {variant.shown}  building")
            reason = _build(variant, root / CORPORA, workers)
            show(f"corpus {number}/{len(missing)}  {variant.shown}  {f'failed: {reason}' if reason else 'built'}")


def _build(variant: CorpusVariant, directory: LocalPath, workers: int) -> str:
    """Build the corpus of a variant. Return the reason if the build failed, else an empty string."""
    directory.mkdir(parents=True, exist_ok=True)
    log, record = directory / f"{variant.key}.log", directory / f"{variant.key}.json"
    placed = ["--in-process"] if workers == 1 else ["--workers", str(workers)]
    command = [sys.executable, "-m", "pipelines", "build", variant.file, *variant.changes, "--variant", variant.key]
    with (
        log.open("wb") as sink,
        subprocess.Popen([*command, *placed], stdin=subprocess.DEVNULL, stdout=sink, stderr=sink) as process,
    ):
        try:
            status = process.wait()
        except BaseException:
            process.terminate()
            raise
    if status == 0:
        record.unlink(missing_ok=True)
        return ""
    reason = _last_error(log, status)
    write_json(record, {"format": _FORMAT, "changes": list(variant.changes), "reason": reason})
    return reason


def _last_error(log: LocalPath, status: int) -> str:
    if status < 0:
        return f"its process ended with signal {-status}; signal 9 often means too little memory"
    lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    return printable((errors or lines[-1:] or [f"its process ended with status {status}"])[-1])


def record_failed_builds(opened: OpenStudy, root: LocalPath) -> None:
    """Write a failed result, with the reason, for each run whose corpus is not built. Call this after
    `build_corpora`.
    """
    for run in opened.points:
        variant = opened.entries[run.entry].variant if run.entry in opened.entries else None
        if variant is not None and not run.is_ready:
            result = RunResult("failed", f"its corpus was not built: {why_not_built(root, variant)}")
            (root / RUNS / run.key).mkdir(parents=True, exist_ok=True)
            write_json(root / RUNS / run.key / RESULT, {"format": FORMAT, **asdict(result)})


def why_not_built(root: LocalPath, variant: CorpusVariant) -> str | None:
    """Return why the last build of a variant failed; None if it did not fail or was never tried."""
    try:
        return str(read_json(root / CORPORA / f"{variant.key}.json")["reason"])
    except FileNotFoundError:
        return None


def corpora_lines(study: Study, root: LocalPath) -> list[str]:
    """Return a line for each corpus that a study builds: its changes, its state, and the path of its
    manifest.
    """
    lines = []
    for variant in variants_of(study):
        failed = why_not_built(root, variant)
        state = "built" if variant.is_built else f"failed: {failed}" if failed else "to build"
        lines.append(f"corpus        {variant.shown}: {state}  {variant.manifest}")
    return lines
