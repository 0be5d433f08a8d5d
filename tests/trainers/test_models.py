"""Parameter counts, initialisation from a seed, and isolation of packed documents."""

import numpy as np
import pytest
import torch

from tokenizer.specials import SPECIAL_IDS
from trainers.batch import Batch
from trainers.config import Model
from trainers.forward import Forward, attention_mask, tensors
from trainers.models import MODELS, build_model
from trainers.packing import pack, pad
from trainers.recipes import gpt2_small

TINY = {
    "gpt2": Model(
        "gpt2", layers=2, width=32, heads=4, positions=64, feed_forward=64, vocab_size=200, key_value_heads=4
    ),
    "llama": Model(
        "llama", layers=2, width=32, heads=4, positions=64, feed_forward=64, vocab_size=200, key_value_heads=2
    ),
}


def test_gpt2_small_has_the_published_parameters():
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(MODELS["gpt2"](gpt2_small().model, SPECIAL_IDS))
    assert sum(parameter.numel() for parameter in model.parameters()) == 124_439_808


@pytest.mark.parametrize("name", TINY)
def test_the_seed_decides_the_weights_and_the_callers_random_state_is_kept(name):
    state = torch.random.get_rng_state()
    one, same, other = (build_model(TINY[name], SPECIAL_IDS, seed).state_dict() for seed in (1, 1, 2))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(torch.equal(one[key], same[key]) for key in one)
    assert any(not torch.equal(one[key], other[key]) for key in one)


@pytest.fixture(scope="module")
def packed():
    """Four documents packed into one row of 60 with padding: what a batch holds."""
    sizes = [9, 1, 20, 17]
    tokens = np.random.default_rng(0).integers(128, 200, sum(sizes)).astype(np.uint16)
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    arrays = [np.empty((1, 60), dtype=np.int64) for _ in range(4)]
    filled = np.zeros(1, dtype=np.int64)
    start, row = np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.int64)
    pack(tokens, offsets, start, np.full(1, 60), row, filled, 1, -1, 2, *arrays)
    pad(filled, 0, *arrays)
    return arrays


@pytest.mark.parametrize("name", TINY)
def test_a_packed_documents_logits_are_those_of_the_document_alone(name, packed):
    inputs, _, positions, segments = map(torch.from_numpy, packed)
    model = build_model(TINY[name], SPECIAL_IDS, 0).eval()
    mask = attention_mask(segments, segments, causal=True)
    with torch.no_grad():
        together = model(input_ids=inputs, position_ids=positions, attention_mask=mask, use_cache=False).logits[0]
        for segment in range(int(segments.max()) + 1):
            place = segments[0] == segment
            alone = model(input_ids=inputs[:, place], use_cache=False).logits[0]
            torch.testing.assert_close(together[place], alone, atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", TINY)
def test_the_causal_loss_is_that_of_each_document_alone(name, packed):
    batch = Batch(*packed, *np.zeros((4, 1), dtype=np.int64))
    model = build_model(TINY[name], SPECIAL_IDS, 0).eval()
    with torch.no_grad():
        total = Forward(model, "decoder")(**tensors(batch, "cpu"))[0].sum()
        expected = 0.0
        for segment in range(4):
            place = batch.segments[0] == segment
            ids = torch.tensor([[*batch.inputs[0][place], 2]])
            expected += float(model(input_ids=ids, labels=ids, use_cache=False).loss) * place.sum()
    assert float(total) == pytest.approx(expected, rel=1e-5)
