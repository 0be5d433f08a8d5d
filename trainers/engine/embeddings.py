"""Embedding layers whose gradients are summed in fp32.

For a bf16 table, torch sums in fp32 on a GPU but in bf16 on the CPU, where a frequent token loses part of its
gradient.
"""

from typing import Any

import torch


class _Lookup(torch.autograd.Function):
    """Look up rows of a table [rows, width] at indices of any shape. The gradient of a row is summed in fp32
    and rounded once.
    """

    @staticmethod
    def forward(ctx: Any, table: Any, indices: Any, padding: int | None, sparse: bool) -> Any:
        ctx.save_for_backward(indices)
        ctx.shape, ctx.padding, ctx.sparse = table.shape, padding, sparse
        return torch.nn.functional.embedding(indices, table)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (indices,) = ctx.saved_tensors
        gradient = gradients[0]
        rows, places = indices.flatten().unique(return_inverse=True)
        sums = torch.zeros((len(rows), ctx.shape[1]), dtype=torch.float32, device=gradient.device)
        sums.index_add_(0, places, gradient.reshape(-1, ctx.shape[1]).float())
        if ctx.padding is not None:
            sums[rows == ctx.padding] = 0.0
        sums = sums.to(gradient.dtype)
        if ctx.sparse:
            whole = torch.sparse_coo_tensor(rows[None], sums, ctx.shape, is_coalesced=True, check_invariants=False)
        else:
            whole = torch.zeros(ctx.shape, dtype=gradient.dtype, device=gradient.device).index_copy_(0, rows, sums)
        return whole, None, None, None


class _SummedEmbedding(torch.nn.Embedding):
    def forward(self, indices: Any) -> Any:
        return _Lookup.apply(self.weight, indices, self.padding_idx, self.sparse)


def sum_in_fp32(model: Any) -> None:
    """Make all trained embedding layers of `model` sum their gradients in fp32. `padding_idx` and `sparse`
    keep their meaning.
    """
    for module in model.modules():
        if isinstance(module, torch.nn.Embedding) and module.weight.requires_grad:
            # A subclass, such as those of BART, looks rows up by `super().forward`.
            own = type(module)
            if own is torch.nn.Embedding:
                module.__class__ = _SummedEmbedding
            elif not issubclass(own, _SummedEmbedding):
                module.__class__ = type(own.__name__, (own, _SummedEmbedding), {})
