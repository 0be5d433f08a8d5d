"""The LSTM layer with a projection computes the same values and gradients as torch's."""

import pytest
import torch

from trainers.models.recurrent.packed_sequences import Sequences
from trainers.models.recurrent.projected_lstm import ProjectedLstm

WIDTH, CELLS = 4, 6
LENGTHS = {"of different lengths": [4, 1, 3, 1], "of one token": [1, 1], "of equal length": [3, 3], "one": [5]}


def layer_and_input(lengths):
    torch.manual_seed(1)
    layer = ProjectedLstm(WIDTH, CELLS)
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    starts = torch.zeros(1, sum(lengths) - 1, dtype=torch.bool)
    starts[0, torch.tensor(lengths).cumsum(0)[:-1] - 1] = True
    packed = torch.randn(sum(lengths), WIDTH, requires_grad=True)
    return layer, packed, Sequences.beginning(starts)


@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
def test_states_and_gradients_are_torchs(lengths):
    layer, packed, sequences = layer_and_input(lengths)
    states = layer(packed, sequences)
    weight = torch.randn_like(states)
    given = (packed, layer.input_weight, layer.recurrent_weight, layer.bias, layer.projection)
    found = torch.autograd.grad((states * weight).sum(), given)

    own = torch.nn.LSTM(WIDTH, CELLS, proj_size=WIDTH)
    values = (layer.input_weight, layer.recurrent_weight, layer.bias, torch.zeros_like(layer.bias), layer.projection)
    with torch.no_grad():
        for theirs, value in zip(own.parameters(), values, strict=True):
            theirs.copy_(value)
    read = packed.detach().requires_grad_()
    expected = own(torch.nn.utils.rnn.PackedSequence(read, sequences.batch_sizes))[0].data
    assert torch.allclose(states, expected, atol=1e-6)
    first, second, bias, _, projection = own.parameters()
    gradients = torch.autograd.grad((expected * weight).sum(), (read, first, second, bias, projection))
    for ours, theirs in zip(found, gradients, strict=True):
        assert torch.allclose(ours, theirs, atol=1e-5)


def test_other_precisions_are_left_to_torch():
    """The states in bf16 differ from those in fp32 only by rounding."""
    layer, packed, sequences = layer_and_input([4, 1, 3])
    expected = layer(packed, sequences)
    half = layer.to(torch.bfloat16)(packed.to(torch.bfloat16), sequences)
    assert half.dtype == torch.bfloat16
    assert torch.allclose(half.float(), expected, atol=0.05)
    layer.to(torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.allclose(layer(packed, sequences).float(), expected, atol=0.05)


def test_frozen_weights_get_no_gradient():
    layer, packed, sequences = layer_and_input([2, 3])
    layer.requires_grad_(False)
    layer(packed, sequences).sum().backward()
    assert packed.grad is not None
    assert all(parameter.grad is None for parameter in layer.parameters())
