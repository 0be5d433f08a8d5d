"""Sums of nats and targets by loss and source, and the losses and bits per byte that follow from them."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from trainers.data.job_interface import JobSource
from trainers.engine.losses import Loss
from trainers.rows.batch import Batch


def no_sums(losses: int, sources: int) -> np.ndarray:
    """Return zeros, float64 [losses, 2, sources]: nats and number of targets of each loss, by source."""
    return np.zeros((losses, 2, sources))


def sums_by_source(nats: Mapping[str, Any], batch: Batch, losses: Sequence[Loss], sources: int) -> np.ndarray:
    """Sum nats and number of targets of each loss in a batch by source, float64 [losses, 2, sources]. `nats`
    are those of `Forward`.
    """
    sums = no_sums(len(losses), sources)
    for loss, (its_nats, its_targets) in zip(losses, sums, strict=True):
        rows = nats[loss.name].detach().double().reshape(len(batch.source), -1)
        np.add.at(its_nats, batch.source, rows.sum(dim=1).cpu().numpy())
        np.add.at(its_targets, batch.source, loss.targets(batch).reshape(len(batch.source), -1).sum(axis=1))
    return sums


def loss_fields(
    sums: np.ndarray,
    names: Sequence[str],
    sources: Sequence[JobSource],
    predicts_text: bool,
    weights: Mapping[str, float] | None = None,
) -> dict[str, Any]:
    """Compute the fields of a step or validation event from the sums of its batches: each loss by its name in
    nats per target, of those that have targets; `bits_per_byte` if the objective `predicts_text`; and all of
    these by source. The first of `names` must have targets. Only sources in which it has some are listed, and
    `tokens` is their number.

    With `weights`, shares by source, the losses are those of a text mixed in these shares, regardless of how
    much of each source was measured. `uniform_loss` weights all sources equally. Sources without a weight
    count in that alone; if none has a weight, all count.

    Bits per byte = nats per target x targets / (ln 2 x UTF-8 bytes of the text), with the targets and bytes
    of a source's whole split; the measured sequences are an even sample of it; `<eos>` is a target.
    """
    bytes_per_target = np.array([source.text_bytes / max(1, source.tokens) for source in sources])

    def fields(some: np.ndarray) -> dict[str, Any]:
        nats, targets = some.sum(axis=2).T
        found = {name: float(nats[i] / targets[i]) for i, name in enumerate(names) if targets[i]}
        if predicts_text:
            # The bytes of sources that are not among `some` count for nothing: they have no targets there.
            found["bits_per_byte"] = float(nats[0] / (math.log(2) * (some[0, 1] * bytes_per_target).sum()))
        return found

    alone = np.eye(len(sources))
    per_source = {
        source.name: {**fields(np.where(alone[i], sums, 0.0)), "tokens": int(sums[0, 1, i])}
        for i, source in enumerate(sources)
        if sums[0, 1, i]
    }
    if weights is None:
        return {**fields(sums), "sources": per_source}
    shares = np.array([weights.get(source.name, 0.0) for source in sources])
    shares = shares if shares[sums[0, 1] > 0].any() else np.ones(len(sources))
    uniform = {"uniform_loss": fields(_mixed(sums, np.ones(len(sources))))[names[0]]}
    return {**fields(_mixed(sums, shares)), **uniform, "sources": per_source}


def _mixed(sums: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """Return `sums` of as many targets of each source as its share says, where it has any."""
    counts = sums[:, 1:]
    mixed: np.ndarray = np.divide(sums * shares, counts, out=np.zeros_like(sums), where=counts > 0)
    return mixed
