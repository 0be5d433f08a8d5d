"""Rows of documents as the sequences that a recurrent layer reads, each from a state of zeros, or from the state in which the
window before left its row.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch

from trainers.models.interface import LayerState


@dataclass(frozen=True)
class Sequences:
    """The sequences in rows of tokens, sorted by length, the longest first, in the form of torch's PackedSequence.

    `order`, int64 [tokens], are the places in the flattened rows, first the first token of every sequence, then their second
    tokens and so on. `owner`, int64 [tokens], is the sequence of each. `batch_sizes`, int64 [longest], on the CPU, is how
    many sequences have a token of each rank. `continued`, bool [rows], are the rows whose first sequence goes on from the window
    before; None if none does.
    """

    order: Any
    owner: Any
    batch_sizes: Any
    continued: Any = None

    @classmethod
    def of(cls, positions: Any, before: Any = None) -> "Sequences":
        """Find the sequences of rows. One begins with every row, and where a position [rows, length] does not follow the one
        before it. `before`, int64 [rows], are the positions of the column before the first, if there is one.
        """
        found = cls.beginning(positions[:, 1:] != positions[:, :-1] + 1)
        return found if before is None else replace(found, continued=positions[:, 0] == before + 1)

    @classmethod
    def beginning(cls, starts: Any) -> "Sequences":
        """Find the sequences of rows. One begins with every row, and at every later token that `starts`, bool [rows, length - 1],
        marks. On the `meta` device, where tensors have no values, every row is one sequence.
        """
        rows, length = starts.shape[0], starts.shape[1] + 1
        if starts.is_meta:
            places = torch.arange(rows * length, device="meta")
            return cls(places, places % rows, torch.full((length,), rows))
        starts = torch.nn.functional.pad(starts, (1, 0), value=True).flatten()
        number = starts.cumsum(0) - 1
        first = starts.nonzero()[:, 0]
        lengths = torch.diff(first, append=first.new_tensor([len(starts)]))
        rank = torch.argsort(torch.argsort(lengths, descending=True, stable=True))
        within = torch.arange(len(starts), device=starts.device) - first[number]
        order = torch.argsort(within * len(first) + rank[number])
        return cls(order, rank[number][order], torch.bincount(within).cpu())

    @cached_property
    def count(self) -> int:
        """The number of sequences."""
        return int(self.batch_sizes[0])

    @cached_property
    def backwards(self) -> "Sequences":
        """The same sequences, read from their last tokens to their first."""
        if self.order.is_meta:
            return self
        lengths = torch.bincount(self.owner)
        ends = 2 * self.order[: self.count] + lengths - 1  # the sum of the places of the first and the last token
        return Sequences(ends[self.owner] - self.order, self.owner, self.batch_sizes)

    def pack(self, states: Any) -> Any:
        """Return states [rows, length, width] in the order of the sequences, [tokens, width]."""
        return states.flatten(0, 1)[self.order]

    def unpack(self, packed: Any, rows: int) -> Any:
        """Return packed states [tokens, width] as rows [rows, length, width]."""
        return torch.empty_like(packed).index_copy(0, self.order, packed).view(rows, -1, packed.shape[1])

    def initial(self, states: Any) -> Any:
        """Return the state [1, sequences, units] in which every sequence begins: of those that go on from the window before, the
        state of their row [rows, units]; zeros for the others.
        """
        first = self.order[: self.count]
        length = len(self.order) // len(states)
        row = first // length
        continues = (first % length == 0) & self.continued[row]
        return torch.where(continues[:, None], states[row], 0)[None]

    def keep(self, state: LayerState, rows: int, hidden: Any, cell: Any) -> None:
        """Store in `state` how a layer left every row, given its last states [1, sequences, units]."""
        last = torch.empty_like(self.owner).index_copy(0, self.order, self.owner).view(rows, -1)[:, -1]
        state.hidden, state.cell = hidden[0, last].detach(), cell[0, last].detach()


class _Together(torch.autograd.Function):
    """Weights as they are. Their gradients leave all at once."""

    @staticmethod
    def forward(ctx: Any, *weights: Any) -> Any:
        """Return the weights."""
        return tuple(weight.view_as(weight) for weight in weights)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """Return the gradients."""
        return gradients


def in_order(weights: Sequence[Any]) -> list[Any]:
    """Return the weights of a layer whose gradients are to arrive in this order on every worker.

    On a CPU, torch computes packed sequences step by step, so the order would depend on their lengths. ZeRO 2 sums gradients over
    the workers in the order in which they arrive: those of one weight would be added to another's.
    """
    return list(weights) if weights[0].device.type != "cpu" else list(_Together.apply(*weights))
