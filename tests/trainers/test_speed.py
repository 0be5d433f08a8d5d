"""Model FLOPs utilisation by hand, and bits per byte."""

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from tokenizer.specials import SPECIAL_IDS
from trainers.config import Batch, Budget, Data, Execution, Model, Pretraining
from trainers.measure import loss_fields, no_sums
from trainers.models import build_model
from trainers.speed import flops_per_token, memory_bytes, peak_flops, utilisation

GPT2 = Model("gpt2", layers=1, width=8, heads=2, positions=16, feed_forward=32, vocab_size=160, key_value_heads=2)


def config(model=GPT2, **changes):
    return Pretraining("x", model, Batch(sequences=1), Budget(steps=1), data=Data(sequence_length=10), **changes)


def test_flops_per_token_by_hand():
    attention, feed_forward, norms = 8 * 24 + 24 + 8 * 8 + 8, 8 * 32 + 32 + 32 * 8 + 8, 3 * 16
    multiplied = attention + feed_forward + norms + 160 * 8  # the tied head; the positions are only looked up
    model = build_model(GPT2, SPECIAL_IDS, seed=0)
    assert flops_per_token(model, config()) == 6 * multiplied + 12 * 1 * 8 * 10
    untied = replace(GPT2, tied=False)
    assert flops_per_token(build_model(untied, SPECIAL_IDS, seed=0), config(untied)) == 6 * multiplied + 12 * 1 * 8 * 10


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
    assert utilisation(1000.0, 5e6, 1e10, workers=2) == 0.25
    assert utilisation(1000.0, 5e6, None, workers=2) is None
    assert memory_bytes() > 10_000_000


def test_bits_per_byte_is_per_source_and_silent_ones_are_left_out():
    sources = [
        SimpleNamespace(name=n, text_bytes=b, tokens=t) for n, b, t in (("a", 400, 100), ("b", 30, 10), ("c", 9, 3))
    ]
    sums = no_sums(3)
    sums[0], sums[1] = np.array([8.0, 6.0, 0.0]) * math.log(2), [10.0, 4.0, 0.0]
    fields = loss_fields(sums, sources, True)
    assert "bits_per_byte" not in loss_fields(sums, sources, False)
    assert fields["bits_per_byte"] == pytest.approx(14 / (40 + 12))
    a = {"loss": 0.8 * math.log(2), "bits_per_byte": 0.2, "tokens": 10}
    assert fields["sources"]["a"] == pytest.approx(a)
    assert fields["sources"]["b"]["bits_per_byte"] == pytest.approx(0.5)
    assert set(fields["sources"]) == {"a", "b"}
