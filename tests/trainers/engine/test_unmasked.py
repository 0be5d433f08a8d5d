"""The attention mask is omitted only where it would change nothing, and only for some architectures and
position schemes.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.trainers.models.test_models import TINY, build
from trainers.engine.forward import Forward, tensors
from trainers.rows.batch import PADDING, Batch

ROWS, LENGTH = 2, 24


def one_document(rows=ROWS):
    ids = np.random.default_rng(0).integers(130, 200, (rows, LENGTH + 1))
    positions, zeros = np.tile(np.arange(LENGTH), (rows, 1)), np.zeros(rows, np.int64)
    sides = (np.ascontiguousarray(ids[:, :-1]), np.ascontiguousarray(ids[:, 1:]))
    return Batch(*sides, positions, np.zeros_like(positions), zeros, zeros, zeros, zeros)


def two_documents():
    columns = np.tile(np.arange(LENGTH), (ROWS, 1))
    return replace(one_document(), positions=columns % 12, segments=columns // 12)


def padded():
    segments = np.zeros((ROWS, LENGTH), np.int64)
    segments[1, 20:] = PADDING
    return replace(one_document(), segments=segments)


def read(name, batch, isolation=True, **changed):
    forward = Forward(build(name), TINY[name].architecture, isolation)
    seen = []
    hidden = forward._architecture.hidden
    spied = lambda network, inputs: (seen.append(inputs.mask is not None), hidden(network, inputs))[1]  # noqa: E731
    forward._architecture = replace(forward._architecture, hidden=spied)
    with torch.no_grad():
        nats = forward(**{**tensors(batch, "cpu"), **changed})["loss"]
    return nats, seen[0]


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "roberta"])
def test_rows_of_one_document_need_no_mask_and_have_the_same_loss(name):
    nats, masked = read(name, one_document())
    expected, with_mask = read(name, one_document(), segment_range=(PADDING, 0))
    assert (masked, with_mask) == (False, True)
    torch.testing.assert_close(nats, expected, atol=1e-5, rtol=0)


@pytest.mark.long
@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "roberta"])
def test_several_documents_and_padding_need_a_mask(name):
    assert read(name, two_documents())[1]
    assert read(name, padded())[1]
    assert read(name, padded(), isolation=False)[1]
    nats, masked = read(name, two_documents(), isolation=False)  # they see one another
    expected, _ = read(name, two_documents(), isolation=False, segment_range=(PADDING, 1))
    assert not masked
    torch.testing.assert_close(nats, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", ["bart", "gpt", "gpt2, clipped relative positions", "modernbert"])
def test_other_architectures_and_position_schemes_always_get_one(name):
    batch = one_document()
    if TINY[name].family == "encoder_decoder":
        from trainers.rows.batch import Decoder

        batch = replace(batch, decoder=Decoder(batch.inputs, batch.positions, batch.segments))
    assert read(name, batch)[1]
