"""Losses over the vectors of segments: a cross-entropy over their cosines or inner products with other
vectors of the same row.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from trainers.engine.vectors.segment_vectors import at_segments, pooled_segments
from trainers.objectives.shared.sentence_neighbours import sentence_neighbours
from trainers.objectives.shared.training_objective import Contrast, CopyContrast, NeighbourContrast
from trainers.rows.batch import Batch


def contrastive_nats(queries: Any, keys: Any, there: Any, temperature: float) -> Any:
    """Return the contrastive loss of each query among the keys of its row, fp32 [rows, n]: -log(exp(cos(q_i,
    k_i) / t) / sum_j exp(cos(q_i, k_j) / t)), with `queries` q and `keys` k, each [rows, n, width], and
    `temperature` t. `there`, bool [rows, n], marks the pairs that exist; the loss of the others is 0, and
    their keys are left out of the sums.
    """
    normalise = torch.nn.functional.normalize
    cosines = normalise(queries, dim=2) @ normalise(keys, dim=2).transpose(1, 2)
    logits = (cosines / temperature).masked_fill(~there[:, None], torch.finfo(cosines.dtype).min)
    nats = -logits.log_softmax(2).diagonal(dim1=1, dim2=2)
    return torch.where(there & (there.sum(1, keepdim=True) > 1), nats, 0.0)


def _begins(batch: Batch) -> np.ndarray:
    begins: np.ndarray = (batch.positions == 0) & (batch.segments >= 0)
    return begins


def copy_targets(batch: Batch) -> np.ndarray:
    """Return the positions where the first of a text's two copies begins, bool [rows, length]. Rows that
    contain only one text have none.
    """
    begins = _begins(batch) & (batch.segments % 2 == 0)
    several: np.ndarray = begins & (begins.sum(axis=1, keepdims=True) > 1)
    return several


def _copy_nats(contrast: CopyContrast, states: Any, arrays: Mapping[str, Any]) -> Any:
    """Return the nats of picking a text's second copy from all second copies in its row (Gao et al., 2021,
    equation 4), stored where the first copy begins.
    """
    segments, positions = arrays["segments"], arrays["positions"]
    count = max(arrays["segment_range"][1], 0) // 2 + 1  # a batch may hold padding only
    vectors, there = pooled_segments(states, segments, positions, contrast.pooling, 2 * count)
    nats = contrastive_nats(vectors[:, 0::2], vectors[:, 1::2], there[:, 0::2], contrast.temperature)
    begins = (positions == 0) & (segments >= 0) & (segments % 2 == 0)
    return torch.where(begins, nats.gather(1, segments.clamp(min=0) // 2), 0.0)


def neighbour_targets(batch: Batch) -> np.ndarray:
    """Return a mask, bool [rows, length], that is True where a sentence begins if the row also holds the next
    or the previous sentence of its document. In rows with fewer than three sentences, the mask is all False.
    """
    begins, (has_before, has_after) = _begins(batch), sentence_neighbours(batch)
    targets: np.ndarray = begins & (has_before | has_after) & (begins.sum(axis=1, keepdims=True) > 2)
    return targets


def neighbour_nats(vectors: Any, there: Any, documents: Any, temperature: float) -> Any:
    """Return, for each sentence i, the mean of -log(exp(v_i . v_k / t) / sum_j exp(v_i . v_j / t)) over its
    one or two neighbours k: fp32 [rows, n]. Neighbours are adjacent sentences of the same document; j runs
    over all other sentences of the row (Logeswaran and Lee, 2018, section 3, where t is 1).

    `vectors` [rows, n, width] holds the v, and `temperature` is t. `there`, bool [rows, n], marks the
    sentences that exist, and `documents`, int64 [rows, n], gives the document of each. The result is 0 for
    sentences without a neighbour, and in rows with fewer than three sentences.
    """
    count = vectors.shape[1]
    number = torch.arange(count, device=vectors.device)
    exists = there[:, :, None] & there[:, None, :]
    near = exists & (documents[:, :, None] == documents[:, None, :]) & ((number[:, None] - number).abs() == 1)
    scores = vectors @ vectors.transpose(1, 2) / temperature
    hidden = ~there[:, None] | (number[:, None] == number)
    shares = scores.masked_fill(hidden, torch.finfo(scores.dtype).min).log_softmax(2)
    neighbours = near.sum(2)
    nats = -shares.masked_fill(~near, 0.0).sum(2) / neighbours.clamp(min=1)
    return torch.where((neighbours > 0) & (there.sum(1, keepdim=True) > 2), nats, 0.0)


def _neighbour_nats(contrast: NeighbourContrast, states: Any, arrays: Mapping[str, Any]) -> Any:
    segments, positions = arrays["segments"], arrays["positions"]
    count = max(arrays["segment_range"][1], 0) + 1
    vectors, there = pooled_segments(states, segments, positions, contrast.pooling, count)
    begins = (positions == 0) & (segments >= 0)
    owners = at_segments(arrays["documents"], segments, begins, count)
    nats = neighbour_nats(vectors, there, owners, contrast.temperature)
    return torch.where(begins, nats.gather(1, segments.clamp(min=0)), 0.0)


@dataclass(frozen=True)
class ContrastiveLoss:
    """A contrastive loss, as three functions. `targets` returns where a batch has targets, bool [rows,
    length], and `candidates` the number of candidates in each row, int64 [rows]. `nats` takes the `Contrast`,
    the states [rows, length, width] and the arrays of the batch; it returns the nats at the targets, fp32
    [rows, length], 0 elsewhere.
    """

    targets: Callable[[Batch], np.ndarray]
    candidates: Callable[[Batch], np.ndarray]
    nats: Callable[[Any, Any, Mapping[str, Any]], Any]

    def chance(self, batch: Batch) -> np.ndarray:
        """Return the loss of guessing among the candidates, float64 [rows, length]: the log of their number
        at each target, in nats, and 0 elsewhere.
        """
        nats: np.ndarray = self.targets(batch) * np.log(np.maximum(1, self.candidates(batch)))[:, None]
        return nats


CONTRASTS: dict[type[Contrast], ContrastiveLoss] = {
    CopyContrast: ContrastiveLoss(copy_targets, lambda batch: _begins(batch).sum(1) // 2, _copy_nats),
    NeighbourContrast: ContrastiveLoss(neighbour_targets, lambda batch: _begins(batch).sum(1) - 1, _neighbour_nats),
}
