"""Summarise what each attention head of a model attends to: how widely it spreads its attention, how far away
it attends, and how much of its attention goes to special tokens (Clark et al., 2019).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tokenizer.vocabulary.specials import add_fallback_marks
from trainers.engine.forward import tensors
from trainers.evaluation.probing.head_watch import HeadSite, watch_heads
from trainers.evaluation.probing.hidden_states import StateReader
from trainers.rows.batch import Batch, Decoder


@dataclass(frozen=True)
class HeadSummary:
    """Statistics of the attention of each head of a layer, as means over the queries that are text tokens,
    not special tokens. Each array is float64 [heads].

    `entropy` is in nats. `distance` is the attention-weighted distance from query to key in positions, or
    None in cross-attention. `first` is the share of attention that goes to the first position, and `special`
    the share that goes to all special tokens together.
    """

    entropy: np.ndarray
    distance: np.ndarray | None
    first: np.ndarray
    special: np.ndarray


def summarise_heads(
    reader: StateReader, architecture: str, documents: Sequence[np.ndarray]
) -> dict[HeadSite, HeadSummary]:
    """Return, for each attention layer, a summary of how its heads attend in `documents`, which are given as
    token ids. Attention from special tokens is not counted.
    """
    import torch

    forward = reader.forward
    device = next(forward.parameters()).device
    marks = np.array(sorted(set(add_fallback_marks(reader.encoder.specials).values())), np.int64)
    sums: dict[HeadSite, np.ndarray] = {}
    with watch_heads(forward.model, architecture) as watch, torch.no_grad():
        for batch in reader.batches(documents):
            rows = {"decoder": _Rows.of(batch.decoder or batch, marks), "encoder": _Rows.of(batch, marks)}

            def observe(site: HeadSite, weights: Any, rows: "dict[str, _Rows]" = rows) -> None:
                keys = rows["encoder" if site.attends == "cross" else site.stack]
                found = _sums(weights.float().cpu().numpy(), rows[site.stack], keys)
                sums[site] = sums.get(site, np.zeros(1)) + found

            watch.observe = observe
            forward.states(**tensors(batch, device))
    return {site: _summary(site, each) for site, each in sums.items()}


@dataclass(frozen=True)
class _Rows:
    """The rows of one stack: the `positions`, and where `text` tokens and `special` tokens are. Each array is
    [rows, length].
    """

    positions: np.ndarray
    text: np.ndarray
    special: np.ndarray

    @classmethod
    def of(cls, batch: Batch | Decoder, marks: np.ndarray) -> "_Rows":
        special, real = np.isin(batch.inputs, marks), batch.segments >= 0
        return cls(batch.positions, real & ~special, real & special)


def _sums(weights: np.ndarray, queries: _Rows, keys: _Rows) -> np.ndarray:
    """Return sums over text tokens, float64 [5, heads]: the four quantities of `HeadSummary`, and the number
    of tokens.
    """
    shares = weights.astype(np.float64).transpose(0, 2, 1, 3)  # [rows, heads, queries, keys]
    logs = np.log(np.where(shares > 0, shares, 1.0))
    far = np.abs(queries.positions[:, None, :, None] - keys.positions[:, None, None, :])
    values = [
        -(shares * logs).sum(3),
        (shares * far).sum(3),
        shares[..., 0],
        (shares * keys.special[:, None, None, :]).sum(3),
        np.ones(shares.shape[:3]),
    ]
    return np.stack([(each * queries.text[:, None, :]).sum((0, 2)) for each in values])


def _summary(site: HeadSite, sums: np.ndarray) -> HeadSummary:
    entropy, distance, first, special = sums[:4] / np.maximum(sums[4], 1)
    return HeadSummary(entropy, None if site.attends == "cross" else distance, first, special)
