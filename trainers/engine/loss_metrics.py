"""Sum nats and targets by loss and source, and compute losses and bits per byte from the sums."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from trainers.data.domain_weights import names_above
from trainers.data.job_interface import JobSource
from trainers.engine.losses import Loss, Measure
from trainers.rows.batch import Batch


def no_sums(terms: int, sources: int) -> np.ndarray:
    """Return sums that are all 0, float64 [terms, 2, sources]. The terms are the losses and measures."""
    return np.zeros((terms, 2, sources))


def sums_by_source(
    found: Mapping[str, Any], batch: Batch, losses: Sequence[Loss], sources: int, measures: Sequence[Measure] = ()
) -> np.ndarray:
    """Return the sums of a batch by source, float64 [terms, 2, sources]: the nats and the number of targets
    of each loss, then the numerator and denominator of each measure. `found` is the result of `Forward`.
    """
    sums = no_sums(len(losses) + len(measures), sources)
    for loss, (its_nats, its_targets) in zip(losses, sums, strict=False):
        rows = found[loss.name].detach().double().reshape(len(batch.source), -1)
        np.add.at(its_nats, batch.source, rows.sum(dim=1).cpu().numpy())
        np.add.at(its_targets, batch.source, loss.targets(batch).reshape(len(batch.source), -1).sum(axis=1))
    for measure, its in zip(measures, sums[len(losses) :], strict=True):
        np.add.at(its.T, batch.source, found[measure.name].double().cpu().numpy())
    return sums


def loss_fields(
    sums: np.ndarray,
    names: Sequence[str],
    sources: Sequence[JobSource],
    predicts_text: bool,
    weights: Mapping[str, float] | None = None,
) -> dict[str, Any]:
    """Return the fields of a step or validation event from the sums of its batches (`sums_by_source`):

    - by name, each loss that has targets, in nats per target, and each measure whose denominator is not 0;
    - `bits_per_byte`, if the objective `predicts_text`;
    - `sources`: the same fields for each source with targets of the first loss, and `tokens`, the number
      of these targets.

    The first loss of `names` must have targets.

    With `weights`, shares by source, the losses are those of a text mixed in these shares, regardless of how
    much of each source was measured. If no source with targets has a share, all sources count equally. Two
    fields are added:

    - `uniform_loss`: the first loss with all sources weighted equally;
    - `parents`, if sources are domains such as `web:en`: the same fields for each level above the
      sources, computed from the sources below it.

    Bits per byte = nats per target x targets / (ln 2 x UTF-8 bytes of the text). The ratio of targets to
    bytes is taken from a source's whole split, because the measured sequences are an even sample of it.
    `<eos>` is a target.
    """
    bytes_per_target = np.array([source.text_bytes / max(1, source.tokens) for source in sources])

    def fields(some: np.ndarray) -> dict[str, Any]:
        nats, targets = some.sum(axis=2).T
        values = {name: float(nats[i] / targets[i]) for i, name in enumerate(names) if targets[i]}
        if predicts_text:
            # Sources outside `some` have no targets there, so their bytes add nothing.
            values["bits_per_byte"] = float(nats[0] / (math.log(2) * (some[0, 1] * bytes_per_target).sum()))
        return values

    alone = np.eye(len(sources))
    per_source = {
        source.name: {**fields(np.where(alone[i], sums, 0.0)), "tokens": int(sums[0, 1, i])}
        for i, source in enumerate(sources)
        if sums[0, 1, i]
    }
    if weights is None:
        return {**fields(sums), "sources": per_source}
    shares = np.array([weights.get(source.name, 0.0) for source in sources])
    uniform = {"uniform_loss": fields(_mixed(sums, np.ones(len(sources))))[names[0]]}
    parents = {}
    for parent, inside in _parents(sources).items():
        if (own := np.where(inside, sums, 0.0))[0, 1].any():
            parents[parent] = {**fields(_mixed(own, _counting(shares, own))), "tokens": int(own[0, 1].sum())}
    above = {"parents": parents} if parents else {}
    return {**fields(_mixed(sums, _counting(shares, sums))), **uniform, "sources": per_source, **above}


def _parents(sources: Sequence[JobSource]) -> dict[str, np.ndarray]:
    """Return which sources lie below each parent domain, bool [sources], by the parent's name."""
    levels = [names_above(source.name)[1:] for source in sources]
    return {
        parent: np.array([parent in above for above in levels])
        for parent in sorted({p for above in levels for p in above})
    }


def _counting(shares: np.ndarray, sums: np.ndarray) -> np.ndarray:
    return shares if shares[sums[0, 1] > 0].any() else np.ones(len(shares))


def _mixed(sums: np.ndarray, shares: np.ndarray) -> np.ndarray:
    counts = sums[:, 1:]
    mixed: np.ndarray = np.divide(sums * shares, counts, out=np.zeros_like(sums), where=counts > 0)
    return mixed
