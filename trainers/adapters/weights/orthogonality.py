"""AdaLoRA's penalty, which keeps the singular vectors of a layer orthogonal (Zhang et al., 2023, section 3.1)."""

from typing import Any

import torch


class _Penalised(torch.autograd.Function):
    """The identity function of `states`. Its backward pass gives `penalty` the gradient 1, as if `penalty`
    had been added to the loss.
    """

    @staticmethod
    def forward(ctx: Any, states: Any, penalty: Any) -> Any:
        return states.view_as(states)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0], gradients[0].new_ones(())


def penalise(layer: Any, weight: float, matrices: int, calls: int) -> None:
    """Add a penalty, multiplied by `weight`, that keeps the layer's singular vectors orthogonal. Only its
    gradients are added, in the backward pass; the loss does not include it. Each of the `calls` calls of the
    layer in a pass adds an equal share.

    A layer has two matrices P whose rows are singular vectors. As in peft, the penalty is the sum of their
    norms of P P^T - I, divided by `matrices`, the number of such matrices in all layers. The paper squares
    the norm. The penalty is also divided by `layer.passes`, the number of passes per step, initially 1.
    """
    layer.passes = 1

    def add(module: Any, given: Any, states: Any) -> Any:
        if not torch.is_grad_enabled():
            return states
        right, left = module.lora_A["default"], module.lora_B["default"]
        identity = torch.eye(right.shape[0], device=right.device, dtype=right.dtype)
        penalty = (right @ right.T - identity).norm() + (left.T @ left - identity).norm()
        return _Penalised.apply(states, penalty * (weight / matrices / module.passes / calls))

    layer.register_forward_hook(add)
