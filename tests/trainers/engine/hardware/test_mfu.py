"""Model FLOPs utilisation and bits per byte against values computed by hand."""

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from tokenizer.vocabulary.specials import SPECIAL_IDS
from trainers.config.architecture import Model, fill
from trainers.config.job import BatchSize, Execution, TrainingBudget
from trainers.config.pretraining import Data, Pretraining
from trainers.engine.hardware.mfu import Flops, flops_of, mean_keys, memory_bytes, peak_flops, utilisation
from trainers.engine.loss_metrics import loss_fields, no_sums
from trainers.models import build_model

GPT2 = Model("gpt2", layers=1, width=8, heads=2, positions=16, feed_forward=32, vocab_size=160, key_value_heads=2)


def config(model=GPT2, **changes):
    return Pretraining(
        name="x",
        model=model,
        batch=BatchSize(sequences=1),
        budget=TrainingBudget(steps=1),
        data=Data(sequence_length=10),
        **changes,
    )


def test_flops_of_a_decoder_by_hand():
    attention, feed_forward, norms = 8 * 24 + 24 + 8 * 8 + 8, 8 * 32 + 32 + 32 * 8 + 8, 3 * 16
    multiplied = attention + feed_forward + norms  # the positions are only looked up
    expected = Flops(6 * multiplied + 12 * 1 * 8 * 10, 0, 6 * 160 * 8)
    assert flops_of(build_model(GPT2, SPECIAL_IDS, seed=0), GPT2, 10) == expected
    untied = replace(GPT2, tied=False)
    assert flops_of(build_model(untied, SPECIAL_IDS, seed=0), untied, 10) == expected
    assert expected.of(10, 0, 10) == 10 * (6 * (multiplied + 160 * 8) + 12 * 8 * 10)


@pytest.mark.parametrize(("bptt", "keys"), [(None, 72), (72, 72), (24, (24 + 48 + 48) / 3), (36, (36 + 72) / 2)])
def test_keys_of_windows_are_those_of_two_windows_but_in_the_first(bptt, keys):
    assert mean_keys(72, bptt) == keys


def test_flops_of_an_encoder_and_of_both_stacks_of_an_encoder_decoder_by_hand():
    encoder = fill(Model("roberta", layers=3, width=8, heads=2, positions=16, vocab_size=160), 160)
    block = 4 * (8 * 8 + 8) + 8 * 32 + 32 + 32 * 8 + 8 + 2 * 16
    head = 8 * 8 + 8 + 16 + 160  # of masked language modelling: a layer, its norm, and a bias for every token
    found = flops_of(build_model(encoder, SPECIAL_IDS, seed=0), encoder, 10)
    assert found == Flops(6 * (3 * block + 16 + head) + 12 * 3 * 8 * 10, 0, 6 * 160 * 8)

    shared = fill(Model("albert", layers=3, width=8, heads=2, positions=16, vocab_size=160, embedding_size=4), 160)
    mapping, head = 4 * 8 + 8, 8 * 4 + 4 + 8 + 160
    for sharing in ({}, {"layer_groups": 3}, {"shared_parts": "attention"}):
        model = fill(replace(shared, **sharing), 160)
        found = flops_of(build_model(model, SPECIAL_IDS, seed=0), model, 10)
        assert found == Flops(6 * (3 * block + mapping + 8 + head) + 12 * 3 * 8 * 10, 0, 6 * 160 * 4), sharing

    both = fill(
        Model("t5", layers=2, decoder_layers=3, width=8, heads=2, head_width=6, positions=16, vocab_size=160), 160
    )
    attention, feed_forward, norm = 4 * 8 * 12, 2 * 8 * 32, 8
    encoded = 2 * (attention + feed_forward + 2 * norm) + norm
    decoded = 3 * (2 * attention + feed_forward + 3 * norm) + norm
    found = flops_of(build_model(both, SPECIAL_IDS, seed=0), both, 10)
    assert found == Flops(6 * encoded + 12 * 2 * 12 * 10, 6 * decoded + 2 * 12 * 3 * 12 * 10, 6 * 160 * 8)


@pytest.mark.parametrize(
    ("device", "precision", "expected"),
    [
        ("NVIDIA H100 80GB HBM3", "bf16", 989.4e12),
        ("NVIDIA H100 PCIe", "bf16", 756e12),
        ("NVIDIA A100-SXM4-80GB", "fp32", 19.5e12),
        ("NVIDIA L40S", "bf16", 362e12),
        ("NVIDIA L4", "bf16", 121e12),
        ("NVIDIA A10", "bf16", 125e12),
        ("NVIDIA H200", "bf16", 989.4e12),
        ("NVIDIA H200 NVL", "bf16", None),
        ("NVIDIA GB200", "bf16", 2500e12),
        ("NVIDIA B200", "fp32", 75e12),
        ("cpu", "fp32", None),
    ],
)
def test_peaks_by_device_name(device, precision, expected):
    assert peak_flops(device, config(precision=precision)) == expected
    assert peak_flops(device, config(precision=precision, execution=Execution(peak_tflops=0.5))) == 5e11


def test_utilisation_is_of_all_workers():
    assert utilisation(5e9, 1e10, workers=2) == 0.25
    assert utilisation(5e9, None, workers=2) is None
    assert memory_bytes() > 10_000_000


def test_bits_per_byte_is_per_source_and_silent_ones_are_left_out():
    sources = [
        SimpleNamespace(name=n, text_bytes=b, tokens=t) for n, b, t in (("a", 400, 100), ("b", 30, 10), ("c", 9, 3))
    ]
    sums = no_sums(1, 3)
    sums[0] = np.array([8.0, 6.0, 0.0]) * math.log(2), [10.0, 4.0, 0.0]
    fields = loss_fields(sums, ["loss"], sources, True)
    assert "bits_per_byte" not in loss_fields(sums, ["loss"], sources, False)
    assert fields["bits_per_byte"] == pytest.approx(14 / (40 + 12))
    a = {"loss": 0.8 * math.log(2), "bits_per_byte": 0.2, "tokens": 10}
    assert fields["sources"]["a"] == pytest.approx(a)
    assert fields["sources"]["b"]["bits_per_byte"] == pytest.approx(0.5)
    assert set(fields["sources"]) == {"a", "b"}


def test_a_validation_is_weighted_by_the_mixture_however_much_of_each_source_was_measured():
    sources = [SimpleNamespace(name=n, text_bytes=b, tokens=1) for n, b in (("a", 4), ("b", 3), ("c", 2), ("d", 1))]
    sums = no_sums(1, 4)
    sums[0] = [10.0, 40.0, 3.0, 0.0], [10, 20, 1, 0]  # 1, 2 and 3 nats a target; nothing of d
    weights = {"a": 3.0, "b": 1.0, "d": 5.0}
    fields = loss_fields(sums, ["loss"], sources, True, weights)
    assert fields["loss"] == pytest.approx((3 * 1 + 1 * 2) / 4)
    assert fields["bits_per_byte"] == pytest.approx((3 * 1 + 1 * 2) / math.log(2) / (3 * 4 + 1 * 3))
    assert fields["uniform_loss"] == pytest.approx(2.0)
    twice = sums * np.array([7.0, 1.0, 2.0, 1.0])
    assert {**loss_fields(twice, ["loss"], sources, True, weights), "sources": 0} == pytest.approx(
        {**fields, "sources": 0}
    )
    assert loss_fields(sums, ["loss"], sources, True, {"d": 1.0})["loss"] == pytest.approx(
        2.0
    )  # none has a weight and targets
