"""The causal objective: each token predicts the next one of its own document."""

from typing import Any

import torch

from trainers.data import Batch
from trainers.objectives.cross_entropy import cross_entropy


def attention_mask(segments: Any) -> Any:
    """Boolean [rows, 1, length, length] from segments [rows, length]: each position sees those before it in its document.

    `transformers` hands a 4-D mask to sdpa as it is. `position_ids` alone isolate documents only with `attention_mask=None`
    and `use_cache=False`, and silently do not otherwise.
    """
    length = segments.shape[1]
    earlier = torch.ones(length, length, dtype=torch.bool, device=segments.device).tril()
    return ((segments[:, :, None] == segments[:, None, :]) & earlier)[:, None]


def causal(model: Any, batch: Batch) -> Any:
    """Cross-entropy in nats of every target, fp32 [rows, length], 0 where there is no target."""
    device = next(model.parameters()).device
    inputs, targets = (torch.from_numpy(array).to(device) for array in (batch.inputs, batch.targets))
    positions, segments = (torch.from_numpy(array).to(device) for array in (batch.positions, batch.segments))
    mask = attention_mask(segments)
    logits = model(input_ids=inputs, position_ids=positions, attention_mask=mask, use_cache=False).logits
    return cross_entropy(logits, targets)
