"""Compute cross-entropy in place, in the memory of the logits, because logits cause most of a small model's
memory traffic. Draw tokens from logits with given random numbers.
"""

import math
from collections.abc import Iterator
from typing import Any

import torch

from trainers.rows.batch import IGNORED

_PIECE = 1 << 20  # logits per piece: 4 MB in fp32


class _CrossEntropy(torch.autograd.Function):
    """Cross-entropy in nats (fp32 [n]) of logits [n, vocabulary] and targets [n]; 0 where the target is -100.

    The forward pass overwrites fp32 logits; the backward pass overwrites logits of any dtype.
    """

    @staticmethod
    def forward(ctx: Any, logits: Any, targets: Any) -> Any:
        values, known = logits.detach(), targets.clamp(min=0)[:, None]
        nats = torch.empty(len(values), dtype=torch.float32, device=values.device)
        norms = torch.empty((len(values), 1), dtype=torch.float32, device=values.device)
        for rows in _pieces(values):
            piece = values[rows].float()  # no copy if the logits are fp32
            largest, chosen = piece.amax(dim=1, keepdim=True), piece.gather(1, known[rows])
            total = piece.sub_(largest).exp_().sum(dim=1, keepdim=True)
            logarithm = total.log().add_(largest)
            nats[rows] = (logarithm - chosen)[:, 0]
            norms[rows] = total if values.dtype == torch.float32 else logarithm
        counted = targets != IGNORED
        ctx.save_for_backward(values, known, counted, norms)
        return nats * counted

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        values, known, counted, norms = ctx.saved_tensors
        scale = (gradients[0] * counted)[:, None]
        if values.dtype == torch.float32:
            return values.mul_(scale / norms).scatter_add_(1, known, -scale), None
        for rows in _pieces(values):
            piece = values[rows].float().sub_(norms[rows]).exp_().mul_(scale[rows])
            values[rows] = piece.scatter_add_(1, known[rows], -scale[rows])
        return values, None


def _pieces(values: Any) -> Iterator[slice]:
    rows = max(1, _PIECE // values.shape[1])
    return (slice(first, first + rows) for first in range(0, len(values), rows))


def cross_entropy(logits: Any, targets: Any) -> Any:
    """Return the loss of each target in nats, fp32 with the shape of `targets` [rows, length]; 0 where the
    target is -100.

    `logits` [rows, length, vocabulary] are overwritten, so the backward pass can run only once.
    """
    nats = _CrossEntropy.apply(logits.flatten(0, 1), targets.flatten())
    return nats.view(targets.shape)


def draw_tokens(logits: Any, draws: Any) -> Any:
    """Draw a token from the softmax of each row of `logits` [n, vocabulary], and return the tokens, int64
    [n]. `draws` [n, 2] holds two uniform numbers in [0, 1) for each row.

    The first number chooses a group of tokens, the second a token of the group. A rounding error in a logit
    therefore changes the token far less often than with one cumulative sum over the vocabulary.
    """
    width = math.isqrt(logits.shape[1] - 1) + 1
    groups = -(-logits.shape[1] // width)
    padding = groups * width - logits.shape[1]
    tokens = []
    for rows in _pieces(logits):
        shares = torch.nn.functional.pad(logits[rows].float().softmax(1), (0, padding)).view(-1, groups, width)
        group = _choose(shares.sum(2), draws[rows, 0])
        within = shares.gather(1, group[:, None, None].expand(-1, 1, width))[:, 0]
        tokens.append(group * width + _choose(within, draws[rows, 1]))
    return torch.cat(tokens) if tokens else draws.new_empty(0, dtype=torch.int64)


def _choose(shares: Any, draws: Any) -> Any:
    """Return the index of an entry drawn from each row of `shares` [n, k], int64 [n]. The probability of an
    entry is proportional to its share. `draws` [n] holds a uniform number in [0, 1) for each row.
    """
    limits = shares.double().cumsum(1)
    return (limits <= draws.double()[:, None] * limits[:, -1:]).sum(1)
