"""Divide rows into the sequences that a recurrent layer reads, and carry its state from window to window. A
sequence begins with a state of zeros, or continues from the final state of its row in the previous window.
`in_order` fixes the order in which the gradients of a layer's weights arrive.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch

from trainers.models.interface import LayerState


@dataclass(frozen=True)
class Sequences:
    """The sequences that rows of tokens contain, sorted longest first and laid out as in torch's
    PackedSequence.

    `order`, int64 [tokens], lists the places of tokens in the flattened rows: first the first token of every
    sequence, then all second tokens and so on. `owner`, int64 [tokens], is the sequence of each token in this
    order. `batch_sizes`, int64 [longest] on the CPU, is the number of first tokens, of second tokens and so
    on. `continued`, bool [rows], marks the rows whose first sequence continues from the previous window; it
    is None if no previous window is given.
    """

    order: Any
    owner: Any
    batch_sizes: Any
    continued: Any = None

    @classmethod
    def of(cls, positions: Any, before: Any = None) -> "Sequences":
        """Return the sequences of rows, given `positions` [rows, length]. A sequence begins at the start of
        every row, and wherever a position is not one higher than the position before it. `before`, int64
        [rows], contains the positions in the last column of the previous window; if it is given, `continued`
        is set.
        """
        found = cls.beginning(positions[:, 1:] != positions[:, :-1] + 1)
        return found if before is None else replace(found, continued=positions[:, 0] == before + 1)

    @classmethod
    def beginning(cls, starts: Any) -> "Sequences":
        """Return the sequences into which rows are divided. A sequence begins at the start of every row, and
        at every later token marked in `starts`, bool [rows, length - 1]; its column k marks token k + 1. On
        the `meta` device, every row is one sequence.
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
        """The same sequences, each read from its last token to its first."""
        if self.order.is_meta:
            return self
        lengths = torch.bincount(self.owner)
        ends = 2 * self.order[: self.count] + lengths - 1  # the sum of the places of the first and the last token
        return Sequences(ends[self.owner] - self.order, self.owner, self.batch_sizes)

    def pack(self, states: Any) -> Any:
        """Pack states [rows, length, width] into [tokens, width], in the order given by `order`."""
        return states.flatten(0, 1)[self.order]

    def unpack(self, packed: Any, rows: int) -> Any:
        """Undo `pack`: return packed states [tokens, width] as [rows, length, width]."""
        return torch.empty_like(packed).index_copy(0, self.order, packed).view(rows, -1, packed.shape[1])

    def initial(self, states: Any) -> Any:
        """Return the initial states of all sequences, [1, sequences, units]. A sequence that continues from
        the previous window begins with the state of its row in `states` [rows, units], and any other sequence
        begins with zeros. `continued` must be set.
        """
        first = self.order[: self.count]
        length = len(self.order) // len(states)
        row = first // length
        continues = (first % length == 0) & self.continued[row]
        return torch.where(continues[:, None], states[row], 0)[None]

    def keep(self, state: LayerState, rows: int, hidden: Any, cell: Any) -> None:
        """Store in `state`, without gradients, a layer's state at the end of each of the `rows` rows.
        `hidden` and `cell`, [1, sequences, units], contain the final states of all sequences.
        """
        last = torch.empty_like(self.owner).index_copy(0, self.order, self.owner).view(rows, -1)[:, -1]
        state.hidden, state.cell = hidden[0, last].detach(), cell[0, last].detach()


class _Together(torch.autograd.Function):
    """The identity function on several weights, whose backward pass waits for the gradients of all of them."""

    @staticmethod
    def forward(ctx: Any, *weights: Any) -> Any:
        return tuple(weight.view_as(weight) for weight in weights)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients


def in_order(weights: Sequence[Any]) -> list[Any]:
    """Return the weights of a layer such that, in the backward pass, their gradients arrive in the order of
    the list on every worker.

    On a CPU, the order would otherwise depend on the lengths of the sequences. ZeRO 2 sums gradients over the
    workers in the order in which they arrive, so it would add gradients of different weights to one another.
    """
    return list(weights) if weights[0].device.type != "cpu" else list(_Together.apply(*weights))
