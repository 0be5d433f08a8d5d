"""A run's directory: its identity, configuration and state.

The directory contains `run.json` (identity), `resolved.yaml`, `tokenizer.json`, `log.jsonl`, `ledger.json`,
`checkpoints/` and `report.html`. When training is done, `export/` and `finished.json` are added, and in
fine-tuning also `scores.json` and `predictions/`.

`evaluations/` contains the stored evaluations of checkpoints, `excluded.json` the ids of documents with loss
weight 0, and `sinks.json` the ids of the run in W&B and MLflow. A file named `stop` makes the run save a
checkpoint and end.
"""

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import xxhash

from gristmill.config import dump_yaml, load_yaml, plain
from gristmill.errors import ConflictError, CorruptFileError, UserError
from gristmill.host import host
from gristmill.storage.disk import LocalPath
from gristmill.storage.lease import LEASE, lock
from gristmill.storage.parsing import parse_local
from gristmill.storage.retries import retry
from gristmill.storage.store import digest, file_checksum, read_json, write_json
from trainers.config.job import Init, Job
from trainers.config.job_kinds import parse_job
from trainers.config.pretraining import Pretraining
from trainers.data.job_interface import JobCorpus, verified_tokenizer
from trainers.data.packed_corpus import sources_read
from trainers.runs import checkpoint
from trainers.runs.parent import describe
from trainers.runs.resolve import differences, identity, is_free

FORMAT = "gristmill-run/1"
STOP = "stop"
SCORES = "scores.json"
_ATTEMPT = ".attempt"
_SHOWN = 5
_OF_CORPUS = (
    "data.weights",
    "data.stages",
    "data.max_epochs",
    "data.shard_set",
    "batch.tokens",
    "budget.tokens",
)  # the corpus determines these values where the configuration has null


@dataclass(frozen=True)
class Opened:
    """A run directory that `open_run` has created (`is_new`) or checked. `finished` is the content of its
    `finished.json`, or None if the run is not finished. `changed` has a line for each field whose value
    differs from the recorded configuration.
    """

    path: LocalPath
    is_new: bool
    finished: dict[str, Any] | None
    changed: tuple[str, ...]


def open_run(path: LocalPath, config: Job, corpus: JobCorpus, another_corpus: bool = False) -> Opened:
    """Create the directory of a run, or check that the run in it began with this corpus, its tokenizer and
    this configuration. Some fields of the configuration may differ (`resolve.is_free`); if any do and the run
    is not finished, `resolved.yaml` is rewritten. `config` must be resolved.

    With `another_corpus`, a pretraining run may continue from its newest checkpoint on another corpus with
    the same tokenizer. Fields that depend on the corpus, such as `data.weights`, may then differ too, and
    `run.json` records the step of the change.

    Raises ConflictError, naming the difference, if the run began with anything else, or if the newest
    checkpoint has online weights for other domains than the new corpus. Also raises ConflictError if `path`
    contains files but no run.
    """
    if not (path / "run.json").exists():
        # A run that was killed at its start may have left these files. They are written again.
        begun = {LEASE, "resolved.yaml", "tokenizer.json"}
        if path.exists() and any(e.name not in begun and not e.name.endswith(".tmp") for e in path.iterdir()):
            raise ConflictError(f"{path}: holds files but no run; give another run=DIRECTORY")
        record: dict[str, Any] = {"format": FORMAT, "name": config.name, "specials": corpus.tokenizer.specials}
        if config.init is not None:  # this may raise, so it comes before anything is written
            parent = describe(config, corpus)
            record |= {**parent.pop("inherited", {}), "parent": parent}
        write_config(path, config)
        tokenizer = verified_tokenizer(corpus)
        (path / "tokenizer.json").write_atomic(tokenizer.read_bytes())
        write_json(path / "run.json", {**record, "fingerprints": fingerprints(config, corpus)})
        return Opened(path, True, None, ())
    began = read_run(path)["fingerprints"]
    changes = began["corpus"] != corpus.fingerprint
    if began["tokenizer"] != corpus.tokenizer.xxh3_128:
        raise ConflictError(
            f"{path}: this run began with the tokenizer {began['tokenizer']}, the one given is {corpus.tokenizer.xxh3_128}; "
            f"give {'the base' if config.kind == 'finetuning' else 'a corpus made with the one'} it began with, or another "
            f"run=DIRECTORY"
        )
    if changes and config.kind == "finetuning":
        raise ConflictError(
            f"{path}: this run began with other tasks or files of tasks ({began['corpus'][:12]}, these are "
            f"{corpus.fingerprint[:12]}); give those it began with, or another run=DIRECTORY"
        )
    if changes and not another_corpus:
        raise ConflictError(
            f"{path}: this run began with the corpus {began['corpus']}, the one given is {corpus.fingerprint} (a build or "
            f"`pipelines forget` changes it); give the corpus it began with, another run=DIRECTORY, or "
            f"--another-corpus to read the new corpus from the newest checkpoint on"
        )
    changed = differences(read_config(path), config)
    free = (lambda name: is_free(name) or name.startswith(_OF_CORPUS)) if changes else is_free
    # The shard set is null if several corpora have shard sets with different names. Earlier versions recorded the first name.
    kept = [each for each in changed if not free(each[0]) and (each[0], each[2]) != ("data.shard_set", None)]
    fixed = [f"{name}: {old!r} -> {new!r}" for name, old, new in kept]
    if fixed:
        more = f" and {len(fixed) - _SHOWN} more" if len(fixed) > _SHOWN else ""
        raise ConflictError(
            f"{path}: this run began with another configuration ({'; '.join(fixed[:_SHOWN])}{more}); "
            f"give the one it began with, or another run=DIRECTORY"
        )
    finished = read_json(path / "finished.json") if (path / "finished.json").exists() else None
    newest = checkpoint.newest(path, print) if changes and finished is None else None
    _check_domains(path, config, newest)
    if changed and finished is None:
        write_config(path, config)
    if changes and finished is None:  # last, so that after a kill the same command repeats both writes
        _change_corpus(path, config, corpus, newest.step if newest else 0)
    return Opened(path, False, finished, tuple(f"{name}: {old!r} -> {new!r}" for name, old, new in changed))


def known_init(path: LocalPath, init: Init | None) -> Init | None:
    """Return the `init` to use for the run at `path`. If `init` matches the one that the run recorded when it
    began, or differs from it only in giving no step, return the recorded one. The run then keeps its starting
    checkpoint even if the parent has trained further. Otherwise, return `init` unchanged.
    """
    if init is None or not (path / "run.json").exists():
        return init
    began, given = read_config(path).init, replace(init, path=str(parse_local(init.path, "init.path").resolve()))
    return began if began is not None and given in (began, replace(began, step=None)) else init


def _check_domains(path: LocalPath, config: Job, newest: checkpoint.Checkpoint | None) -> None:
    """Raise ConflictError if the checkpoint `newest` has online weights, and their domains are not exactly
    those that a run with this `config` reads.
    """
    if newest is None or newest.online_weights is None or not isinstance(config, Pretraining):
        return
    there, here = newest.online_weights["domains"], list(sources_read(config.data))
    if there != here:
        raise ConflictError(
            f"{path}: online_weights: the newest checkpoint has weights of the domains {', '.join(there)}, with this corpus "
            f"the run would read {', '.join(here)}; give weights above 0 to the same domains, or another run=DIRECTORY"
        )


def _change_corpus(path: LocalPath, config: Job, corpus: JobCorpus, step: int) -> None:
    record = read_run(path)
    earlier = [*record.get("earlier", []), {"until_step": step, "corpus": record["fingerprints"]["corpus"]}]
    marks = record["fingerprints"] | {"corpus": corpus.fingerprint, "config": fingerprints(config, corpus)["config"]}
    del record["checksum"]
    write_json(path / "run.json", {**record, "fingerprints": marks, "since": step, "earlier": earlier})


def read_run(path: LocalPath) -> dict[str, Any]:
    """Read a run's `run.json`. Raises UserError if there is none, or if this version cannot read its format."""
    try:
        record = read_json(path / "run.json", "restore it from a copy, or begin another run")
    except (FileNotFoundError, NotADirectoryError):
        raise UserError(
            f"{path}: no run here; start one with: python -m trainers pretrain RECIPE corpus=DIR run={path}, or "
            f"python -m trainers finetune TASK model=DIR run={path}"
        ) from None
    if record.get("format") != FORMAT:
        raise UserError(f"{path}: format is {record.get('format')!r}, this version reads {FORMAT!r}")
    return record


def read_config(path: LocalPath) -> Job:
    """Read the resolved configuration of a run. Raises CorruptFileError if `resolved.yaml` does not match its
    checksum.
    """
    return parse_job(read_resolved(path), str(path / "resolved.yaml"))


def read_resolved(path: LocalPath) -> dict[str, Any]:
    """Read a run's `resolved.yaml` as plain data. Raises CorruptFileError unless it matches the checksum in
    its first line.
    """
    file = path / "resolved.yaml"
    content = file.read_bytes()
    if content != sealed(content.partition(b"\n")[2]):
        raise CorruptFileError(
            f"{file}: does not match the checksum in its first line; restore the original; to train with an edited "
            f"copy, give it to `trainers pretrain` as a recipe with another run=DIRECTORY"
        )
    return load_yaml(file)


def verified_copy(path: LocalPath) -> LocalPath:
    """Return the path of a run's `tokenizer.json`. Raises CorruptFileError unless it is the tokenizer that
    the run began with.
    """
    file, began = path / "tokenizer.json", read_run(path)["fingerprints"]["tokenizer"]
    if not file.exists() or (actual := file_checksum(file)) != began:
        state = f"is {actual}" if file.exists() else "is missing"
        raise CorruptFileError(f"{file}: {state}, run.json recorded {began}; copy it from the corpus of the run")
    return file


def differing(recipe: Mapping[str, Any], config: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Return a line `FIELD: OLD -> NEW` for each field of a configuration that differs from the recipe. Both
    are plain data.
    """
    lines = []
    for name, value in config.items():
        before = recipe.get(name)
        if isinstance(value, Mapping) and isinstance(before, Mapping) and before.get("kind") == value.get("kind"):
            lines += differing(before, value, f"{prefix}{name}.")
        elif value != before:
            lines.append(f"{prefix}{name}: {json.dumps(before)} -> {json.dumps(value)}")
    return lines


def as_yaml(config: Job) -> str:
    """Format a configuration as YAML: the content of `resolved.yaml` without the line of its checksum."""
    return dump_yaml(plain(config))


def write_config(path: LocalPath, config: Job) -> None:
    """Write a run's `resolved.yaml`, with its checksum in the first line."""
    (path / "resolved.yaml").write_atomic(sealed(as_yaml(config).encode()))


def sealed(text: bytes) -> bytes:
    """Return YAML text, preceded by a comment line with the text's checksum."""
    return b"# xxh3_128 of the lines below: " + xxhash.xxh3_128_hexdigest(text).encode() + b"\n" + text


@contextmanager
def locked(path: LocalPath) -> Iterator[None]:
    """Lock a run's directory for the duration of the block, and remove temporary files left over in it.
    Raises ConflictError if another process trains in the directory, on this machine or another.

    If this process is suspended for so long that another process takes over the directory, it exits soon
    after it resumes.
    """

    def end() -> None:
        print(
            f"error: {path}: another process took over this run, because this one had stopped responding",
            file=sys.stderr,
            flush=True,
        )
        host().exit(1)

    with lock(path, "training", lambda line: print(line, flush=True), wait=False, lost=end):
        for left in path.glob(".*.tmp"):  # a process that is still writing one of them writes it again
            with suppress(IsADirectoryError):  # the temporary directory of an export, which removes it itself
                left.unlink(missing_ok=True)
        yield


class SupersededError(UserError):
    """Raised in workers that were believed to be dead, after other workers have taken over their run."""


def begin_attempt(path: LocalPath) -> str:
    """Record that a new attempt begins, and return its name. If workers of an earlier attempt are still
    running, their next call of `check_attempt` raises SupersededError.
    """
    recorded = path / _ATTEMPT
    try:
        earlier = attempt_number(retry(recorded, recorded.read_text))
    except FileNotFoundError:
        earlier = 0
    name = f"{earlier + 1}.{host().unique()}"
    recorded.write_atomic(name.encode())
    return name


def attempt_number(name: str) -> int:
    """Return the number in an attempt's name, counted from 1, or 0 if there is none, as in earlier versions."""
    number, _, rest = name.partition(".")
    return int(number) if rest else 0


def check_attempt(path: LocalPath, name: str | None) -> None:
    """Raise SupersededError if the newest attempt of the run is not `name`. Does nothing if `name` is None."""
    attempt = path / _ATTEMPT
    if name is not None and retry(attempt, attempt.read_text) != name:
        raise SupersededError(f"{path}: other workers have continued this run since these were cut off from it")


def fingerprints(config: Job, corpus: JobCorpus) -> dict[str, str]:
    """Return the fingerprints of code, configuration, corpus and tokenizer that runs and checkpoints record."""
    return {
        "code": code_version(),
        "config": digest(identity(config)),
        "corpus": corpus.fingerprint,
        "tokenizer": corpus.tokenizer.xxh3_128,
    }


@lru_cache(maxsize=1)
def code_version() -> str:
    """Return gristmill's release (`checkout` if it is not installed) and a digest of the source files of
    `trainers`, joined by a plus sign.
    """
    here = Path(__file__).parents[1]
    files = {str(path.relative_to(here)): file_checksum(path) for path in sorted(here.rglob("*.py"))}
    try:
        release = version("gristmill")
    except PackageNotFoundError:
        release = "checkout"
    return f"{release}+{digest(files)[:12]}"
