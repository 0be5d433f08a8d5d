"""Checkpoints: full fp32 weights and optimizer moments as safetensors, published atomically and verified when read.

`checkpoints/step-00000100/` holds `model.safetensors`, `optimizer.safetensors` and, written last, `checkpoint.json`
with the checksums of both, the step, and the fingerprints of code, configuration, corpus and tokenizer. Nothing in it
depends on ZeRO stage or world size, so a run goes on under any other. The state of the data is the step: the order of
samples is a function of their number.
"""

import os
import re
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pipelines.contracts.errors import CorruptFileError, UserError
from pipelines.contracts.store import FileRecord, fsync_directory, read_json, record_file, verify, write_json

FORMAT = "gristmill-checkpoint/1"
WEIGHTS, OPTIMIZER, RECORD = "model.safetensors", "optimizer.safetensors", "checkpoint.json"
_NAME = re.compile(r"step-(\d{8,})")


@dataclass(frozen=True)
class Checkpoint:
    """A published checkpoint whose files are what its record says: steps done, how many of them were skipped because
    they were not finite, training tokens seen.
    """

    path: Path
    step: int
    skipped: int
    tokens: int
    fingerprints: dict[str, str]
    checksum: str


def save(
    run: Path,
    step: int,
    tokens: int,
    fingerprints: Mapping[str, str],
    state: Iterator[tuple[str, dict[str, Any]]],
    keep: int,
    keep_every: int = 0,
    skipped: int = 0,
) -> Path:
    """Publish a checkpoint after `step` steps, then remove all but the newest `keep` and multiples of `keep_every`.

    Later ones go as well: a run that is back before them found them corrupt, and they must not outlast good ones.

    `state` yields (parameter name, {"weight": tensor, moment: tensor, ...}). UserError where the disk is full; then the
    checkpoints before it are untouched.
    """
    from safetensors.torch import save_file

    parent = run / "checkpoints"
    parent.mkdir(parents=True, exist_ok=True)
    final = parent / f"step-{step:08d}"
    attempt = parent / f".{final.name}.{uuid.uuid4().hex}.tmp"
    weights, moments = {}, {}
    for name, tensors in state:
        weights[name] = tensors["weight"].contiguous()
        moments.update({f"{name}.{key}": value.contiguous() for key, value in tensors.items() if key != "weight"})
    try:
        attempt.mkdir()
        # The metadata is what `transformers` looks for in a weights file.
        for tensors, name in ((weights, WEIGHTS), (moments, OPTIMIZER)):
            save_file(tensors, attempt / name, metadata={"format": "pt"})
            _fsync(attempt / name)
        files = [asdict(record_file(attempt, name)) for name in (WEIGHTS, OPTIMIZER)]
        counts = {"step": step, "skipped": skipped, "tokens": tokens}
        record = {"format": FORMAT, **counts, "fingerprints": dict(fingerprints), "files": files}
        write_json(attempt / RECORD, record)
        if final.exists():
            shutil.rmtree(final)
        os.rename(attempt, final)
        fsync_directory(parent)
    except Exception as error:
        shutil.rmtree(attempt, ignore_errors=True)
        if isinstance(error, OSError) or "No space left" in str(error):
            raise UserError(
                f"{final}: the checkpoint could not be written ({error}); older checkpoints are untouched"
            ) from error
        raise
    _remove_old(parent, step, keep, keep_every)
    return final


def load(path: Path) -> Checkpoint:
    """A checkpoint after verifying every file; CorruptFileError says what is wrong."""
    try:
        record = read_json(path / RECORD)
    except FileNotFoundError:
        raise CorruptFileError(f"{path}: has no {RECORD}") from None
    if record.get("format") != FORMAT:
        raise CorruptFileError(f"{path}: format is {record.get('format')!r}, expected {FORMAT!r}")
    for entry in record["files"]:
        verify(path, FileRecord(**entry))
    counts = (record["step"], record.get("skipped", 0), record["tokens"])
    return Checkpoint(path, *counts, record["fingerprints"], record["checksum"])


def newest(run: Path, warn: Callable[[str], None], last: int | None = None) -> Checkpoint | None:
    """The newest intact checkpoint of a run (up to step `last`), None where it has none yet; each corrupt one is told to
    `warn`.

    UserError where there are checkpoints and none is intact: starting again silently would hide the loss.
    """
    found = sorted((entry for entry in _steps(run / "checkpoints") if last is None or entry[0] <= last), reverse=True)
    for step, path in found:
        try:
            return load(path)
        except CorruptFileError as error:
            warn(f"CORRUPT CHECKPOINT of step {step}: {error}. Falling back to the one before.")
    if found:
        raise UserError(f"{run}: all {len(found)} checkpoints are corrupt; restore one from a copy, or remove the run")
    return None


def read_state(checkpoint: Checkpoint) -> dict[str, dict[str, Any]]:
    """{parameter name: {"weight": tensor, moment: tensor, ...}} on the CPU."""
    from safetensors.torch import load_file

    state = {name: {"weight": tensor} for name, tensor in load_file(checkpoint.path / WEIGHTS).items()}
    for name, tensor in load_file(checkpoint.path / OPTIMIZER).items():
        parameter, _, key = name.rpartition(".")
        state[parameter][key] = tensor
    return state


def read_weights(checkpoint: Checkpoint) -> dict[str, Any]:
    """{parameter name: fp32 tensor} on the CPU."""
    from safetensors.torch import load_file

    return dict(load_file(checkpoint.path / WEIGHTS))


def _steps(parent: Path) -> list[tuple[int, Path]]:
    entries = parent.iterdir() if parent.is_dir() else iter(())
    return [(int(match[1]), path) for path in entries if (match := _NAME.fullmatch(path.name))]


def _remove_old(parent: Path, last: int, keep: int, keep_every: int) -> None:
    found = sorted(_steps(parent), reverse=True)
    later = [path for step, path in found if step > last]
    older = [(step, path) for step, path in found if step <= last][keep:]
    for path in later + [path for step, path in older if not keep_every or step % keep_every]:
        shutil.rmtree(path)
    for path in parent.glob(".step-*.tmp"):
        shutil.rmtree(path, ignore_errors=True)


def _fsync(path: Path) -> None:
    with open(path, "rb") as written:
        os.fsync(written.fileno())
