"""Gradients in bf16 against fp32: neither many micro-batches nor frequent tokens add errors of their own."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch

from tokenizer.vocabulary.specials import SPECIAL_IDS
from trainers.config.architecture import Model
from trainers.config.job import BatchSize, Optimizer, TrainingBudget
from trainers.config.pretraining import Data, Pretraining
from trainers.engine.embeddings import sum_in_fp32
from trainers.models import build_model
from trainers.rows.batch import Batch

ROWS, LENGTH, VOCABULARY = 256, 8, 160


def batches(size):
    """Yield ROWS rows in micro-batches of `size`. Token frequencies follow a Zipf distribution."""
    ids = np.random.default_rng(0).zipf(1.3, (ROWS, LENGTH + 1)) % 32 + 128
    for first in range(0, ROWS, size):
        rows = ids[first : first + size]
        positions, zeros = np.tile(np.arange(LENGTH), (size, 1)), np.zeros(size, np.int64)
        sides = (np.ascontiguousarray(rows[:, :-1]), np.ascontiguousarray(rows[:, 1:]))
        yield Batch(*sides, positions, np.zeros_like(positions), zeros, zeros, zeros, zeros)


@cache
def gradients(precision, stage, size):
    """Return a tenth of each parameter's gradient, which is AdamW's first moment after one step. Stage 0 runs
    without DeepSpeed.
    """
    from trainers.engine import engine as module
    from trainers.engine.forward import forward_of

    model = Model("llama", layers=1, width=32, heads=2, key_value_heads=2, positions=8, feed_forward=64, vocab_size=160)
    config = Pretraining(
        name="x",
        model=model,
        batch=BatchSize(sequences=ROWS), budget=TrainingBudget(steps=1), precision=precision, data=Data(sequence_length=LENGTH),
        optimizer=Optimizer(gradient_clipping=0.0),
    )  # fmt: skip
    config = replace(config, execution=replace(config.execution, zero_stage=stage, micro_batch=size))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_needs_deepspeed", lambda config: stage > 0)
        forward = forward_of(build_model(config.model, SPECIAL_IDS, 0), config)
        engine = module.Engine(forward, config, size, ROWS // size)
    try:
        engine.train_step(list(batches(size)), 0, 1e-3, 1, False)
        return {name: tensors["exp_avg"] for name, tensors in engine.state()}
    finally:
        engine.close()


@pytest.mark.deepspeed
@pytest.mark.slow
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_256_micro_batches_in_bf16_are_as_near_to_fp32_as_one(alone, stage):
    exact = gradients("fp32", 0, ROWS)
    many, one = (gradients("bf16", stage, size) for size in (1, ROWS))

    def errors(found):
        return {name: float((found[name] - exact[name]).norm() / exact[name].norm()) for name in exact}

    assert max(errors(many).values()) < 0.009
    assert max(errors(one).values()) < 0.009
    assert np.median(list(errors(many).values())) < 1.1 * np.median(list(errors(one).values()))


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("tokens", [16, 16_384])
def test_the_gradient_of_a_table_is_rounded_once(sparse, tokens):
    generator = torch.Generator().manual_seed(0)
    layer = torch.nn.Embedding(8, 4, padding_idx=2, sparse=sparse, dtype=torch.bfloat16)
    sum_in_fp32(layer)
    indices = torch.randint(0, 7, (2, tokens // 2), generator=generator)
    sent = torch.rand((2, tokens // 2, 4), generator=generator).bfloat16()
    (layer(indices) * sent).sum().backward()
    expected = torch.zeros(8, 4, dtype=torch.float64).index_add_(0, indices.flatten(), sent.reshape(-1, 4).double())
    expected[2] = 0
    found = layer.weight.grad.to_dense().double()
    assert layer.weight.grad.is_sparse == sparse
    assert ((found - expected).abs() <= 2**-8 * expected).all()


def test_embedding_layers_of_other_classes_keep_their_meaning():
    """BART adds an offset to positions, and can scale its embeddings."""
    from transformers import BartConfig, BartModel

    torch.manual_seed(0)
    sizes = {"encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2, "decoder_attention_heads": 2}
    sizes |= {
        "encoder_ffn_dim": 16,
        "decoder_ffn_dim": 16,
        "d_model": 16,
        "vocab_size": 64,
        "max_position_embeddings": 16,
    }
    model = BartModel(BartConfig(**sizes, scale_embedding=True, dropout=0.0))
    ids = torch.randint(3, 64, (2, 8))

    def gradients():
        model.zero_grad()
        model(input_ids=ids, decoder_input_ids=ids).last_hidden_state.square().sum().backward()
        return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}

    stock = gradients()
    sum_in_fp32(model)
    torch.testing.assert_close(gradients(), stock)
