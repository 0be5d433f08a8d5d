"""Loss and bits per byte, by source, from sums of nats and targets."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from trainers.data.stream import SourceStream
from trainers.rows.batch import IGNORED, Batch


def no_sums(sources: int) -> np.ndarray:
    """float64 [4, sources] of zeros: nats and number of targets, nats and number of sentence pairs, by source."""
    return np.zeros((4, sources))


def sums_by_source(nats: tuple[Any, Any], batch: Batch, sources: int) -> np.ndarray:
    """`no_sums` of a batch; `nats` is what Forward returns: tensors [rows, length] and [rows] or None."""
    sums = no_sums(sources)
    np.add.at(sums[0], batch.source, nats[0].detach().double().sum(dim=1).cpu().numpy())
    np.add.at(sums[1], batch.source, (batch.targets != IGNORED).sum(axis=1))
    if batch.labels is not None:
        np.add.at(sums[2], batch.source, nats[1].detach().double().cpu().numpy())
        np.add.at(sums[3], batch.source, batch.labels != IGNORED)
    return sums


def loss_fields(
    sums: np.ndarray, sources: Sequence[SourceStream], predicts_text: bool, weights: Mapping[str, float] | None = None
) -> dict[str, Any]:
    """The losses of a step or validation event from the sums of its batches: `loss` in nats per target, `sentence_loss` in
    nats per sentence pair where there are any, `bits_per_byte` where the objective `predicts_text`, and all by source, of
    those that have targets.

    With `weights`, shares by source, they are those of a text that is mixed so, however much of each source was measured;
    `uniform_loss` weighs all sources alike. Sources without a weight count in that alone; where none has one, all do.

    Bits per byte = nats per target x targets / (ln 2 x UTF-8 bytes of the text), with the targets and bytes of a
    source's whole split, of which the sequences measured are an even sample; `<eos>` is a target.
    """
    bytes_per_target = np.array([source.text_bytes / source.tokens for source in sources])

    def fields(some: np.ndarray) -> dict[str, Any]:
        nats, targets, pair_nats, pairs = some.sum(axis=1)
        found = {"loss": float(nats / targets)}
        if pairs:
            found["sentence_loss"] = float(pair_nats / pairs)
        if predicts_text:
            # The bytes of sources that are not among `some` count for nothing: they have no targets there.
            found["bits_per_byte"] = float(nats / (math.log(2) * (some[1] * bytes_per_target).sum()))
        return found

    alone = np.eye(len(sources))
    per_source = {
        source.name: {**fields(np.where(alone[i], sums, 0.0)), "tokens": int(sums[1, i])}
        for i, source in enumerate(sources)
        if sums[1, i]
    }
    if weights is None:
        return {**fields(sums), "sources": per_source}
    shares = np.array([weights.get(source.name, 0.0) for source in sources])
    shares = shares if shares[sums[1] > 0].any() else np.ones(len(sources))
    uniform = {"uniform_loss": fields(_mixed(sums, np.ones(len(sources))))["loss"]}
    return {**fields(_mixed(sums, shares)), **uniform, "sources": per_source}


def _mixed(sums: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """`sums` of so many targets and pairs of each source as its share says, where there are any."""
    counts = sums[[1, 1, 3, 3]]
    mixed: np.ndarray = np.divide(sums * shares, counts, out=np.zeros_like(sums), where=counts > 0)
    return mixed
