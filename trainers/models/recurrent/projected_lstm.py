"""An LSTM layer with a projection, as in ELMo."""

import warnings
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from trainers.models.recurrent.packed_sequences import Sequences, in_order

_KEPT, _KEPT_BY_TORCH = 6, 10
"""How many values are kept for each position and cell until the backward pass: by the layer here (the four gates, the cell
and the output), and at most by torch's own LSTM (torch 2.13).
"""


class ProjectedLstm(torch.nn.Module):
    """An LSTM layer with a projection (Sak et al., 2014): the output of its cells is projected to a state of
    `width` values. The layer returns this state, and its gates read it at the next step. Each gate has a
    single bias. The weights and the bias contain the gates in the order input, forget, cell, output.
    """

    def __init__(self, width: int, cells: int) -> None:
        super().__init__()
        self.input_weight = torch.nn.Parameter(torch.empty(4 * cells, width))
        self.recurrent_weight = torch.nn.Parameter(torch.empty(4 * cells, width))
        self.bias = torch.nn.Parameter(torch.empty(4 * cells))
        self.projection = torch.nn.Parameter(torch.empty(width, cells))

    def forward(self, packed: Any, sequences: Sequences) -> Any:
        """Return the states [tokens, width] for the inputs `packed` [tokens, width], both in the order of
        `sequences`.
        """
        width, cells = self.projection.shape
        if packed.is_meta:
            return self._estimate(packed, cells)
        if packed.device.type == "cpu" and _computes_in_fp32(packed):
            weights = (self.input_weight, self.recurrent_weight, self.bias, self.projection)
            states: Any = _LstmOnCpu.apply(packed, sequences.batch_sizes.tolist(), *weights)
            return states
        begin = packed.new_zeros(1, sequences.count, width), packed.new_zeros(1, sequences.count, cells)
        biases = (self.bias, torch.zeros_like(self.bias))  # torch has one for the input and one for the state
        matrices = in_order([self.input_weight, self.recurrent_weight, *biases, self.projection])
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "LSTM with projections is not supported with oneDNN")
            return torch.lstm(packed, sequences.batch_sizes, begin, matrices, True, 1, 0.0, self.training, False)[0]

    def _estimate(self, packed: Any, cells: int) -> Any:
        """Return placeholder states on the `meta` device, with as many values kept for the backward pass as a
        real layer keeps.
        """
        kept = packed.new_empty(len(packed), (_KEPT if _computes_in_fp32(packed) else _KEPT_BY_TORCH) * cells)
        return packed @ self.projection @ self.projection.T + (kept * packed.mean()).mean()

    def initialise(self) -> None:
        """Draw the weights as ELMo's code does (allenai/bilm-tf, bilm/training.py): from Glorot and Bengio's
        uniform distribution, for which the input and recurrent weights of all gates count as one matrix. The
        biases of forget gates are 1, all others 0.
        """
        width, cells = self.projection.shape
        for weight in (self.input_weight, self.recurrent_weight):
            bound = (6 / (2 * width + 4 * cells)) ** 0.5
            torch.nn.init.uniform_(weight, -bound, bound)
        torch.nn.init.xavier_uniform_(self.projection)
        torch.nn.init.zeros_(self.bias)
        with torch.no_grad():
            self.bias[cells : 2 * cells] = 1.0


def _computes_in_fp32(states: Any) -> bool:
    return states.dtype == torch.float32 and not torch.is_autocast_enabled("cpu")


class _LstmOnCpu(torch.autograd.Function):
    """The computation of `torch.lstm` from a state of zeros, with a faster backward pass. For packed inputs,
    the time of torch's own backward pass grows with the square of the longest sequence's length.
    """

    @staticmethod
    def forward(
        ctx: Any,
        packed: Any,
        batch_sizes: list[int],
        input_weight: Any,
        recurrent_weight: Any,
        bias: Any,
        projection: Any,
    ) -> Any:
        """Return the layer's states [tokens, width] for its inputs `packed`, [tokens, inputs]."""
        width, cells = projection.shape
        gates = torch.addmm(bias, packed, input_weight.T)
        memory, outputs = gates.new_empty(len(gates), cells), gates.new_empty(len(gates), cells)
        states = gates.new_empty(len(gates), width)
        state, cell = gates.new_zeros(batch_sizes[0], width), gates.new_zeros(batch_sizes[0], cells)
        begin = 0
        for count in batch_sizes:
            here = slice(begin, begin + count)
            step = gates[here].addmm_(state[:count], recurrent_weight.T)
            step[:, : 2 * cells].sigmoid_()
            step[:, 2 * cells : 3 * cells].tanh_()
            step[:, 3 * cells :].sigmoid_()
            opened, forgot, new, shown = step.chunk(4, dim=1)
            cell = torch.mul(forgot, cell[:count], out=memory[here]).addcmul_(opened, new)
            torch.mul(shown, cell.tanh(), out=outputs[here])
            state = torch.mm(outputs[here], projection.T, out=states[here])
            begin += count
        ctx.batch_sizes = batch_sizes
        ctx.save_for_backward(packed, gates, memory, outputs, states, input_weight, recurrent_weight, projection)
        return states

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Any) -> Any:
        packed, gates, memory, outputs, states, input_weight, recurrent_weight, projection = ctx.saved_tensors
        cells = projection.shape[1]
        of_states, of_gates = gradient.clone(), torch.empty_like(gates)
        of_cell, begin, after = gates.new_zeros(0, cells), len(gates), 0
        for count, before in zip(ctx.batch_sizes[::-1], [*ctx.batch_sizes[-2::-1], 0], strict=True):
            begin -= count
            here = slice(begin, begin + count)
            opened, forgot, new, shown = gates[here].chunk(4, dim=1)
            of_opened, of_forgot, of_new, of_shown = of_gates[here].chunk(4, dim=1)
            bent, of_output = memory[here].tanh(), of_states[here] @ projection
            torch.mul(of_output, bent, out=of_shown)
            here_cell = of_output.mul_(shown).mul_(1 - bent * bent)
            here_cell[:after] += of_cell
            torch.mul(here_cell, new, out=of_opened)
            torch.mul(here_cell, opened, out=of_new)
            of_cell, after = here_cell * forgot, count
            if before:
                torch.mul(here_cell, memory[begin - before : begin - before + count], out=of_forgot)
            else:
                of_forgot.zero_()
            of_opened.mul_(opened).mul_(1 - opened)
            of_forgot.mul_(forgot).mul_(1 - forgot)
            of_new.mul_(1 - new * new)
            of_shown.mul_(shown).mul_(1 - shown)
            if before:
                of_states[begin - before : begin - before + count].addmm_(of_gates[here], recurrent_weight)
        first = ctx.batch_sizes[0]
        sizes = zip(ctx.batch_sizes, ctx.batch_sizes[1:], states.split(ctx.batch_sizes), strict=False)
        earlier = torch.cat([each[:count] for _, count, each in sizes]) if len(gates) > first else states[:0]
        needed = ctx.needs_input_grad
        return (
            of_gates @ input_weight if needed[0] else None,
            None,
            of_gates.T @ packed if needed[2] else None,
            of_gates[first:].T @ earlier if needed[3] else None,
            of_gates.sum(0) if needed[4] else None,
            of_states.T @ outputs if needed[5] else None,
        )
