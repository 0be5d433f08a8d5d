"""Our cross-entropy equals torch's, forward and backward."""

import torch

from trainers.engine.cross_entropy import cross_entropy
from trainers.rows.packing import IGNORED


def test_it_equals_torch():
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(3, 50, 16, generator=generator, requires_grad=True)
    head = torch.nn.Linear(16, 40_000, bias=False)
    targets = torch.randint(0, 40_000, (3, 50), generator=generator)
    targets[0, :10] = IGNORED
    weights = torch.rand(3, 50, generator=generator)

    ours = cross_entropy(head(hidden), targets)
    ours_gradients = torch.autograd.grad((ours * weights).sum(), [hidden, head.weight])
    theirs = torch.nn.functional.cross_entropy(
        head(hidden).flatten(0, 1), targets.flatten(), reduction="none", ignore_index=IGNORED
    ).view(3, 50)
    theirs_gradients = torch.autograd.grad((theirs * weights).sum(), [hidden, head.weight])

    torch.testing.assert_close(ours, theirs)
    for one, other in zip(ours_gradients, theirs_gradients, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)
    assert (ours[0, :10] == 0).all()


def test_extreme_logits_stay_finite():
    logits = torch.tensor([[[1e4, -1e4, 0.0]]], requires_grad=True)
    loss = cross_entropy(logits * 1.0, torch.tensor([[1]]))
    loss.sum().backward()
    assert loss.item() == 2e4
    assert torch.isfinite(logits.grad).all()


def test_logits_of_half_precision_are_worked_on_in_fp32_and_their_gradient_is_rounded_once():
    generator = torch.Generator().manual_seed(0)
    logits = (3 * torch.randn(2, 40, 30_000, generator=generator)).bfloat16()
    targets = torch.randint(0, 30_000, (2, 40), generator=generator)
    targets[1, 5:9] = IGNORED
    weights = torch.rand(2, 40, generator=generator)
    found, expected = (logits.to(dtype).detach().requires_grad_() for dtype in (torch.bfloat16, torch.float32))
    ours, theirs = cross_entropy(found * 1, targets), cross_entropy(expected * 1, targets)
    assert ours.dtype == torch.float32
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-6)
    for nats in (ours, theirs):
        (nats * weights).sum().backward()
    rounded = expected.grad.bfloat16()
    assert found.grad.dtype == torch.bfloat16
    assert (found.grad == rounded).float().mean() > 0.999  # others lie on the border of two numbers
    torch.testing.assert_close(found.grad, rounded, atol=0, rtol=2**-7)
