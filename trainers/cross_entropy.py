"""Cross-entropy that works in the memory of the logits.

With a vocabulary of 16,384 the logits are most of a small model's memory traffic: `torch.nn.functional.cross_entropy`
passes over five arrays of their size, this over one, in pieces that stay in the cache. Forward and backward of a tied
head of width 128 over 2,048 tokens take 0.55 s of one core instead of 0.94 s.
"""

from typing import Any

import torch

from trainers.batch import IGNORED

_PIECE = 1 << 20  # logits that are worked on at a time: 4 MB


class _CrossEntropy(torch.autograd.Function):
    """Logits [n, vocabulary] fp32 and targets [n] to nats [n]; the logits' memory becomes that of their gradient."""

    @staticmethod
    def forward(ctx: Any, logits: Any, targets: Any) -> Any:
        values, known = logits.detach(), targets.clamp(min=0)[:, None]
        nats = torch.empty(len(values), dtype=values.dtype, device=values.device)
        rows = max(1, _PIECE // values.shape[1])
        for first in range(0, len(values), rows):
            piece = values[first : first + rows]
            largest, chosen = piece.amax(dim=1, keepdim=True), piece.gather(1, known[first : first + rows])
            total = piece.sub_(largest).exp_().sum(dim=1, keepdim=True)
            piece.div_(total)
            nats[first : first + rows] = (total.log() + largest - chosen)[:, 0]
        counted = targets != IGNORED
        ctx.save_for_backward(values, known, counted)
        return nats * counted

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        probabilities, known, counted = ctx.saved_tensors
        scale = (gradients[0] * counted)[:, None]
        return probabilities.mul_(scale).scatter_add_(1, known, -scale), None


def cross_entropy(logits: Any, targets: Any) -> Any:
    """Nats of each target, fp32 of the shape of `targets` [rows, length]; 0 where the target is -100.

    `logits` [rows, length, vocabulary] are overwritten where they are fp32. That is sound because the linear layer they
    come from keeps its input for the backward pass and not its output. Backward can run once.
    """
    nats = _CrossEntropy.apply(logits.float().flatten(0, 1), targets.flatten())
    return nats.view(targets.shape)
