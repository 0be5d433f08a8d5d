"""Checkpoints: fp32 weights and optimizer moments as safetensors, published atomically, verified on read.

`checkpoints/step-00000100/` contains `model.safetensors`, `optimizer.safetensors`, `ledger.json` (the run's
ledger after the step, see `trainers.runs.ledger`) and `checkpoint.json`. The record `checkpoint.json` is
written last; it has the checksums of the other files, the step, and the fingerprints of code, configuration,
corpus and tokenizer.

Tensors are stored in the same form for every ZeRO stage and world size, so a run can resume with different
ones. The state of the data is the step, because every sample is a function of its index; the record's `order`
only avoids replaying the order from the start. Random generators need no state: the dropout masks are a
function of the seed, the step, the worker, the micro-batch and the window of its rows. The state that
recurrent models carry from window to window ends with the step, so it is not stored either.

One rename publishes a checkpoint. The checkpoint that it replaces is removed only afterwards, so that one of
the two is there at every moment. A second checkpoint of the same step is `step-00000100.2/`.
"""

import errno
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

from gristmill.errors import CorruptFileError, UserError
from gristmill.host import host, lent
from gristmill.storage.disk import LocalPath, discard
from gristmill.storage.location import FileRecord
from gristmill.storage.store import read_json, write_json

FORMAT = "gristmill-checkpoint/1"
WEIGHTS, OPTIMIZER, LEDGER, RECORD = "model.safetensors", "optimizer.safetensors", "ledger.json", "checkpoint.json"
_NAME = re.compile(r"step-(\d{8,})(?:\.(\d+))?")


@dataclass(frozen=True)
class ParallelLayout:
    """How a step is divided: the number of workers and the number of sequences per micro-batch. Dropout masks
    depend on both.
    """

    workers: int
    micro_batch: int


ALONE = ParallelLayout(workers=1, micro_batch=1)


@dataclass(frozen=True)
class Best:
    """The best validation of a fine-tuning run: its `step`, the `value` of the task's first metric (or the
    negated loss, if the model answers in text), and the number of validations since then.
    """

    step: int
    value: float
    validations_since: int = 0


@dataclass(frozen=True)
class Averaging:
    """The state of averaged SGD (`asgd`): the validation losses up to the one that began averaging, and the
    number of updates averaged since then (None before).
    """

    losses: tuple[float, ...] = ()
    averaged: int | None = None


@dataclass(frozen=True)
class Checkpoint:
    """A published checkpoint whose files match the checksums of its record. Once averaged SGD has begun
    averaging, the checkpoint's weights are the averages.

    - `step`: the number of steps done.
    - `skipped`: how many of these steps had a loss or gradient norm that was not finite.
    - `tokens`: the number of training tokens read.
    - `fingerprints`: those of the code, configuration, corpus and tokenizer.
    - `split`: the layout of the workers in the last step.
    - `order`: the state of `trainers.data.order`.
    - `checksum`: the checksum of the record.
    - `best`: the best validation of a fine-tuning run so far; None before its first validation.
    - `online_weights`: the state of the online weights of domains (`training.weighting`), if used.
    - `averaging`: the state of averaged SGD, if used.
    - `updates`: the number of optimizer updates, including those of a parent run whose optimizer state was
      kept; None in checkpoints written before 2026-11-28.
    """

    path: LocalPath
    step: int
    skipped: int
    tokens: int
    fingerprints: dict[str, str]
    split: ParallelLayout
    order: dict[str, Any]
    checksum: str
    best: Best | None = None
    online_weights: dict[str, Any] | None = None
    averaging: Averaging | None = None
    updates: int | None = None


def save(
    run: LocalPath,
    step: int,
    tokens: int,
    fingerprints: Mapping[str, str],
    state: Iterable[tuple[str, dict[str, Any]]],
    keep: int,
    keep_every: int = 0,
    skipped: int = 0,
    split: ParallelLayout = ALONE,
    order: Mapping[str, Any] = MappingProxyType({}),
    ledger: Mapping[str, Any] | None = None,
    check: Callable[[], None] = lambda: None,
    best: Best | None = None,
    online_weights: Mapping[str, Any] | None = None,
    averaging: Averaging | None = None,
    updates: int | None = None,
) -> LocalPath:
    """Publish the checkpoint after `step` steps, and return its path. Then remove the other checkpoints of
    the run, except these:

    - the checkpoint of step `best.step`;
    - the `keep` newest of the others, including the one just published;
    - those whose step is a multiple of `keep_every` (0 for none);
    - if `best` is given, those that the checkpoints kept by the previous two rules record as the best so far.

    Checkpoints of later steps are always removed: they were corrupt when the run resumed from an earlier one,
    and must not be taken for the newest. Older checkpoints of the same step are removed too. The files of a
    killed `save` are removed first, to free their space.

    `state` yields (parameter name, {"weight": tensor, moment: tensor, ...}). `ledger` is published with the
    checkpoint. `check` must raise an error if other workers have taken over the run. Only files that existed
    before `check` passed are removed, so the files of those workers are safe. The other arguments are fields
    of `Checkpoint`.

    Raises UserError if the checkpoint cannot be written, for example because the disk is full; earlier
    checkpoints are then untouched.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    parent = run / "checkpoints"
    parent.mkdir(parents=True, exist_ok=True)
    _remove_attempts(parent, check)
    final = _name(parent, step)
    attempt = parent / f".{final.name}.{host().unique()}.tmp"
    weights, moments = {}, {}
    for name, tensors in state:
        weights[name] = tensors["weight"].contiguous()
        moments.update({f"{name}.{key}": value.contiguous() for key, value in tensors.items() if key != "weight"})
    try:
        attempt.mkdir()
        # The metadata is what `transformers` looks for in a weights file.
        for tensors, name in ((weights, WEIGHTS), (moments, OPTIMIZER)):
            host().deliver(str(attempt / name), partial(save_file, tensors, metadata={"format": "pt"}))
            _fsync(attempt / name)
        names = [WEIGHTS, OPTIMIZER]
        if ledger is not None:
            write_json(attempt / LEDGER, dict(ledger))
            names.append(LEDGER)
        files = [asdict(attempt.record(name)) for name in names]
        counts = {"step": step, "skipped": skipped, "tokens": tokens, "split": asdict(split), "order": dict(order)}
        record = {"format": FORMAT, **counts, "fingerprints": dict(fingerprints), "files": files}
        if best is not None:
            record["best"] = asdict(best)
        if online_weights is not None:
            record["online_weights"] = dict(online_weights)
        if averaging is not None:
            record["averaging"] = asdict(averaging)
        if updates is not None:
            record["updates"] = updates
        write_json(attempt / RECORD, record)
        check()
        final = _publish(attempt, step)
        parent.fsync()
    except (OSError, SafetensorError) as error:
        check()  # workers that take over a run remove the unfinished files of those before them
        raise UserError(
            f"{final}: the checkpoint could not be written ({error}); older checkpoints are untouched"
        ) from error
    finally:
        discard(attempt)
    found = sorted(_steps(parent), reverse=True)
    check()
    _remove_old(found, final, step, keep, keep_every, best)
    return final


def remove_replaced(run: LocalPath, keep: int, keep_every: int, check: Callable[[], None] = lambda: None) -> None:
    """Remove what a killed `save` left: its unfinished checkpoint, and the published checkpoints that it
    would have removed.
    """
    _remove_attempts(run / "checkpoints", check)
    last = newest(run, lambda _: None)
    if last is not None:
        found = sorted(_steps(run / "checkpoints"), reverse=True)
        _remove_old(found, last.path, last.step, keep, keep_every, last.best)


def _remove_attempts(parent: LocalPath, check: Callable[[], None]) -> None:
    leftovers = list(parent.glob(".step-*.tmp"))
    check()
    for left in leftovers:
        discard(left)


def _publish(attempt: LocalPath, step: int) -> LocalPath:
    while True:
        final = _name(attempt.parent, step)
        try:
            attempt.rename(final)
            return final
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise


def _name(parent: LocalPath, step: int) -> LocalPath:
    before = [attempt for its, attempt, _ in _steps(parent) if its == step]
    return parent / (f"step-{step:08d}" + (f".{max(before) + 1}" if before else ""))


def load(path: LocalPath) -> Checkpoint:
    """Return the checkpoint at `path` after verifying every file. Raises CorruptFileError if a file is
    missing or damaged, or if the checkpoint has another format.
    """
    try:
        record = read_json(path / RECORD, f"remove {path}")
    except FileNotFoundError:
        raise CorruptFileError(f"{path}: has no {RECORD}") from None
    if record.get("format") != FORMAT:
        raise CorruptFileError(f"{path}: format is {record.get('format')!r}, expected {FORMAT!r}")
    for entry in record["files"]:
        path.verify(FileRecord(**entry))
    counts = (record["step"], record.get("skipped", 0), record["tokens"])
    split = ParallelLayout(**record.get("split", asdict(ALONE)))
    best = Best(**record["best"]) if "best" in record else None
    averages = record.get("averaging")
    averaging = Averaging(tuple(averages["losses"]), averages["averaged"]) if averages else None
    states = (best, record.get("online_weights"), averaging)
    order, updates = record.get("order", {}), record.get("updates")
    return Checkpoint(path, *counts, record["fingerprints"], split, order, record["checksum"], *states, updates=updates)


def newest(run: LocalPath, warn: Callable[[str], None], last: int | None = None) -> Checkpoint | None:
    """Return the newest intact checkpoint of a run, up to step `last` if given; None if there is no
    checkpoint. `warn` is called with a message for each corrupt checkpoint that is newer than the one
    returned. Raises UserError if all checkpoints are corrupt.
    """

    def candidates() -> list[tuple[int, int, LocalPath]]:
        published = [entry for entry in _steps(run / "checkpoints") if last is None or entry[0] <= last]
        return sorted(published, reverse=True)

    return _first_intact(run, candidates, warn)


def pick(run: LocalPath, warn: Callable[[str], None]) -> Checkpoint | None:
    """Return the checkpoint that export and prediction use: the best of a fine-tuning run, otherwise the
    newest. Return None if there is no checkpoint. Raises UserError if the best is missing or damaged, or if
    all checkpoints are corrupt.
    """
    latest = newest(run, warn)
    if latest is None or latest.best is None or latest.best.step == latest.step:
        return latest
    step = latest.best.step

    def candidates() -> list[tuple[int, int, LocalPath]]:
        return sorted((entry for entry in _steps(run / "checkpoints") if entry[0] == step), reverse=True)

    try:
        best = _first_intact(run, candidates, warn)
    except UserError:
        best = None
    if best is None:
        raise CorruptFileError(
            f"{run}: the checkpoint of step {step}, its best, is missing or damaged; restore it from a copy"
        )
    return best


def read_newest(run: LocalPath, warn: Callable[[str], None]) -> tuple[Checkpoint, dict[str, Any]] | None:
    """Return the newest intact checkpoint of a run and its weights, even while the run trains; None if there
    is no checkpoint. Raises UserError if all checkpoints are corrupt.
    """
    while (intact := newest(run, warn)) is not None:
        try:
            return intact, read_weights(intact)
        except FileNotFoundError:  # the trainer has just published a newer one and removed this one
            continue
    return None


def nearest(run: LocalPath, warn: Callable[[str], None], step: int) -> Checkpoint | None:
    """Return the newest intact checkpoint of a run up to `step` or, if there is none, the first intact one
    after `step`. None if there is no checkpoint. Raises UserError if all checkpoints are corrupt.
    """

    def candidates() -> list[tuple[int, int, LocalPath]]:
        return sorted(_steps(run / "checkpoints"), key=lambda entry: (entry[0] > step, abs(entry[0] - step), -entry[1]))

    return _first_intact(run, candidates, warn)


def _first_intact(
    run: LocalPath, candidates: Callable[[], Sequence[tuple[int, int, LocalPath]]], warn: Callable[[str], None]
) -> Checkpoint | None:
    """Return the first intact checkpoint that `candidates` lists; None if it lists none. Raises UserError if
    all are corrupt.

    If a checkpoint cannot be read and the list has changed meanwhile, a trainer may have removed it, so the
    search starts again.
    """
    listed = candidates()
    number = 0
    while number < len(listed):
        step, _, path = listed[number]
        number += 1
        try:
            return load(path)
        except CorruptFileError as error:
            now = candidates()
            if now != listed:
                listed, number = now, 0
                continue
            others = (
                f"Falling back to that of step {listed[number][0]}." if number < len(listed) else "There is no other."
            )
            warn(f"CORRUPT CHECKPOINT of step {step}: {error}. {others}")
    if listed:
        raise UserError(f"{run}: all {len(listed)} checkpoints are corrupt; restore one from a copy, or remove the run")
    return None


def newest_ledger(run: LocalPath) -> dict[str, Any] | None:
    """Return the ledger of the newest checkpoint whose ledger is readable, or None if there is none."""
    for _, _, path in sorted(_steps(run / "checkpoints"), reverse=True):
        with suppress(FileNotFoundError, CorruptFileError):
            return read_json(path / LEDGER)
    return None


def published(run: LocalPath) -> list[tuple[int, LocalPath]]:
    """Return (step, path) for every step that has a checkpoint, in ascending order; if a step has several,
    the path is that of the newest. Nothing is verified.
    """
    return sorted({step: path for step, _, path in sorted(_steps(run / "checkpoints"))}.items())


class _State(Mapping[str, dict[str, Any]]):
    def __init__(self, checkpoint: Checkpoint) -> None:
        from safetensors import safe_open

        self._weights = safe_open(lent(checkpoint.path / WEIGHTS), "pt")
        self._optimizer = safe_open(lent(checkpoint.path / OPTIMIZER), "pt")
        self._keys: dict[str, list[str]] = {name: [] for name in self._weights.keys()}  # noqa: SIM118
        for name in self._optimizer.keys():  # noqa: SIM118
            parameter, _, key = name.rpartition(".")
            self._keys[parameter].append(key)

    def __getitem__(self, name: str) -> dict[str, Any]:
        moments = {key: self._optimizer.get_tensor(f"{name}.{key}") for key in self._keys[name]}
        return {"weight": self._weights.get_tensor(name), **moments}

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)


def read_state(checkpoint: Checkpoint) -> Mapping[str, dict[str, Any]]:
    """Return the weights and optimizer state in a checkpoint, as a mapping {parameter name: {"weight":
    tensor, name of optimizer state: tensor, ...}}. The tensors of a parameter are read into CPU memory each
    time it is accessed.
    """
    return _State(checkpoint)


def read_weights(checkpoint: Checkpoint) -> dict[str, Any]:
    """Read a checkpoint's weights into CPU memory, as {parameter name: fp32 tensor}."""
    from safetensors.torch import load_file

    return dict(load_file(lent(checkpoint.path / WEIGHTS)))


def _steps(parent: LocalPath) -> list[tuple[int, int, LocalPath]]:
    """Return (step, attempt, path) of all published checkpoints, unsorted. `attempt` counts the checkpoints
    of a step from 1.
    """
    entries = parent.iterdir() if parent.is_dir() else iter(())
    return [(int(m[1]), int(m[2] or 1), path) for path in entries if (m := _NAME.fullmatch(path.name))]


def _remove_old(
    published: Sequence[tuple[int, int, LocalPath]],
    last: LocalPath,
    step: int,
    keep: int,
    keep_every: int,
    best: Best | None,
) -> None:
    """Remove the checkpoints that `save` does not keep. `published` lists all checkpoints, newest first;
    `last` is the newest intact one, of step `step`.
    """
    replaced = [path for its, _, path in published if its > step or (its == step and path != last)]
    pinned = best.step if best else None
    others = [(its, path) for its, _, path in published if path not in replaced and its != pinned]
    # A run that falls back on a kept checkpoint also needs the best checkpoint up to that step.
    stay = others[:keep] + [each for each in others[keep:] if keep_every and each[0] % keep_every == 0]
    bests = {_best_step(path) for _, path in stay} if best else set()
    gone = replaced + [path for its, path in others if (its, path) not in stay and its not in bests]
    for path in gone:
        path.set_aside().remove_tree()
    if gone:
        last.parent.fsync()


def _best_step(path: LocalPath) -> int | None:
    with suppress(FileNotFoundError, CorruptFileError):
        return read_json(path / RECORD).get("best", {}).get("step")
    return None


def _fsync(path: LocalPath) -> None:
    with host().open(str(path)) as written:
        host().fsync(written)
