"""Loss and bits per byte, by source, from sums of nats and targets."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from trainers.data import Batch, Source
from trainers.packing import IGNORED


def sums_by_source(nats: Any, batch: Batch, sources: int) -> np.ndarray:
    """float64 [2, sources]: nats and number of targets of a batch by source. `nats` is a tensor [rows, length]."""
    sums = np.zeros((2, sources))
    np.add.at(sums[0], batch.source, nats.detach().double().sum(dim=1).cpu().numpy())
    np.add.at(sums[1], batch.source, (batch.targets != IGNORED).sum(axis=1))
    return sums


def loss_fields(nats: np.ndarray, targets: np.ndarray, sources: Sequence[Source]) -> dict[str, Any]:
    """The losses of a step or validation event: `loss` in nats per target, `bits_per_byte`, and both by source, of those
    that have targets.

    Bits per byte = nats per target x targets / (ln 2 x UTF-8 bytes of the text), with the targets and bytes of a
    source's whole split, of which the sequences measured are an even sample; `<eos>` is a target. `nats` and `targets` are
    [sources].
    """
    sizes = np.array([source.text_bytes / source.tokens for source in sources]) * targets
    per_source = {
        source.name: {
            "loss": float(nats[i] / targets[i]),
            "bits_per_byte": float(nats[i] / (math.log(2) * sizes[i])),
            "tokens": int(targets[i]),
        }
        for i, source in enumerate(sources)
        if targets[i]
    }
    whole = float(nats.sum() / (math.log(2) * sizes.sum()))
    return {"loss": float(nats.sum() / targets.sum()), "bits_per_byte": whole, "sources": per_source}
