"""Loss and bits per byte, by source, from sums of nats and targets."""

import math
from typing import Any

import numpy as np

from trainers.data import Batch, ValidationData
from trainers.packing import IGNORED


def sums_by_source(nats: Any, batch: Batch, sources: int) -> np.ndarray:
    """float64 [2, sources]: nats and number of targets of a batch by source. `nats` is a tensor [rows, length]."""
    sums = np.zeros((2, sources))
    np.add.at(sums[0], batch.source, nats.detach().double().sum(dim=1).cpu().numpy())
    np.add.at(sums[1], batch.source, (batch.targets != IGNORED).sum(axis=1))
    return sums


def validation_fields(nats: np.ndarray, targets: np.ndarray, data: ValidationData) -> dict[str, Any]:
    """The fields of a validation event: `loss` in nats per target, `bits_per_byte`, and both by source.

    Bits per byte = nats per target x targets / (ln 2 x UTF-8 bytes of the text), with the targets and bytes of a
    source's whole validation split, of which the sequences measured are an even sample; `<eos>` is a target. `nats` and
    `targets` are [sources].
    """
    sizes = np.array([source.text_bytes / source.tokens for source in data.sources]) * targets
    per_source = {
        source.name: {
            "loss": float(nats[i] / targets[i]),
            "bits_per_byte": float(nats[i] / (math.log(2) * sizes[i])),
            "tokens": int(targets[i]),
        }
        for i, source in enumerate(data.sources)
    }
    whole = float(nats.sum() / (math.log(2) * sizes.sum()))
    return {"loss": float(nats.sum() / targets.sum()), "bits_per_byte": whole, "sources": per_source}
