"""Automatic choice of micro-batch size and loader threads: memory estimates against real passes, and the
limits set by memory and cores.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch

from gristmill.errors import ConfigError
from gristmill.machine import free_memory, machine_memory, usable_cores
from tests.trainers.models.test_models import TINY, build
from trainers.config.job import BatchSize, Execution, TrainingBudget
from trainers.config.pretraining import Pretraining
from trainers.data.packed_corpus import corpus_of, training_data
from trainers.engine import forward as engine_forward
from trainers.engine.forward import Forward, tensors
from trainers.engine.hardware import micro_batch
from trainers.engine.hardware.micro_batch import bytes_kept, choose_micro_batch, is_out_of_memory, set_threads
from trainers.models import build_model
from trainers.recipes import RECIPES
from trainers.rows.batch import Batch, Decoder
from trainers.runs.resolve import resolve


def batch(name, rows=1, length=64):
    """Return a batch with two documents per row, so that attention is masked."""
    ids = np.random.default_rng(0).integers(130, 200, (rows, length))
    columns = np.tile(np.arange(length), (rows, 1))
    positions, segments, numbers = columns % (length // 2), columns // (length // 2), np.zeros(rows, np.int64)
    decoder = Decoder(ids, positions, segments) if TINY[name].family == "encoder_decoder" else None
    return Batch(ids, ids, positions, segments, numbers, numbers, numbers, numbers, decoder=decoder)


def forward_of(name):
    return Forward(build(name), TINY[name].architecture).train()


@pytest.mark.long
@pytest.mark.parametrize(
    "name",
    [
        "awd_lstm",
        "bart",
        "bert",
        "deberta",
        "deberta_v2, convolution",
        "electra",
        "elmo",
        "gpt",
        "gpt2",
        "gru",
        "llama",
        "modernbert",
        "roberta",
        "t5",
    ],
)
def test_the_estimate_is_what_a_real_pass_keeps_or_a_little_more(name):
    """The estimate may be higher, because on the `meta` device attention is decomposed into operations that
    keep its weight matrix.
    """
    forward, two = forward_of(name), batch(name, 2)
    own = {tensor.untyped_storage()._cdata for tensor in [*forward.parameters(), *forward.buffers()]}
    kept = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        kept[storage._cdata] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        forward(**tensors(two, "cpu"))
    real = sum(storage.nbytes() for key, storage in kept.items() if key not in own)
    assert 0.98 * real <= bytes_kept(forward, two, "fp32") <= 1.5 * real


@pytest.mark.long
@pytest.mark.parametrize("recipe", [name for name in RECIPES if "tiny" in name])
def test_the_estimate_of_every_recipe_leaves_the_model_as_it_was(recipe, salient_directory):
    """This includes models in which a submodule has two names, such as the embeddings shared by a generator
    and its discriminator.
    """
    whole = RECIPES[recipe]()
    config = replace(whole, data=replace(whole.data, corpora=(str(salient_directory),)))
    corpus = corpus_of(config)
    config = resolve(config, corpus)
    (row,) = training_data(corpus, config).micro_batches(0, 1, 1, 0, 1)
    forward = engine_forward.forward_of(build_model(config.model, corpus.tokenizer.specials, 0), config)

    def tensors_of():
        state = [*forward.named_parameters(remove_duplicate=False), *forward.named_buffers(remove_duplicate=False)]
        return {name: id(tensor) for name, tensor in state}

    before = tensors_of()
    assert bytes_kept(forward, row, "fp32") > row.inputs.size * config.model.width * 4
    assert tensors_of() == before
    assert not any(tensor.is_meta for tensor in [*forward.parameters(), *forward.buffers()])


def job(sequences, **execution):
    settings = {"batch": BatchSize(sequences=sequences), "budget": TrainingBudget(steps=1)}
    return Pretraining(name="x", model=TINY["gpt2"], execution=Execution(**execution), **settings)


@pytest.mark.long
@pytest.mark.parametrize(
    ("fitting", "sequences", "expected"), [(100, 12, 12), (12, 12, 12), (11, 12, 6), (5, 12, 4), (0, 12, 1), (3, 7, 3)]
)
def test_a_batch_is_split_only_as_memory_demands_and_evenly(monkeypatch, fitting, sequences, expected):
    forward, row = forward_of("gpt2"), batch("gpt2")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    each = 1.5 * bytes_kept(forward, row, "fp32")
    state = 12 * sum(parameter.numel() for parameter in forward.parameters())
    monkeypatch.setattr(micro_batch, "free_memory", lambda: state + (fitting + 0.5) * each / 0.5)
    assert choose_micro_batch(forward, job(sequences), row, 64, 1) == expected
    twice_as_long = choose_micro_batch(forward, job(sequences), row, 128, 1)
    assert twice_as_long <= expected


def test_a_given_micro_batch_is_taken_as_it_is(monkeypatch):
    monkeypatch.setattr(micro_batch, "free_memory", lambda: 0)
    assert choose_micro_batch(forward_of("gpt2"), job(12, micro_batch=5), batch("gpt2"), 64, 1) == 5
    assert choose_micro_batch(forward_of("gpt2"), job(12, micro_batch=9), batch("gpt2"), 64, 2) == 6


@pytest.fixture
def threads(monkeypatch):
    before = torch.get_num_threads()
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    yield
    torch.set_num_threads(before)


def test_threads_divide_the_cores_among_the_workers_of_a_machine(monkeypatch, threads):
    monkeypatch.setattr(micro_batch, "usable_cores", lambda: 8)
    assert set_threads(5) == 5
    monkeypatch.setattr(torch, "get_num_threads", lambda: 16)
    chosen = []
    monkeypatch.setattr(torch, "set_num_threads", chosen.append)
    for workers in (1, 3, 20):
        monkeypatch.setenv("LOCAL_WORLD_SIZE", str(workers))
        set_threads("auto")
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    set_threads("auto")
    assert chosen == [8, 2, 1]
    with pytest.raises(
        ConfigError, match=r"execution.threads: got 9, this process may use 8 cores; allowed 1 to 8, or auto"
    ):
        set_threads(9)


def test_the_machine_has_memory_and_cores():
    assert 0 < free_memory() <= machine_memory()
    assert usable_cores() >= 1


@pytest.mark.parametrize("field", ["micro_batch", "threads"])
def test_settings_below_one_are_refused(field):
    with pytest.raises(ValueError, match=f"{field}: got 0, allowed 1 or more, or auto"):
        replace(Execution(), **{field: 0}).check()


def test_errors_of_memory_are_told_from_others():
    assert is_out_of_memory(torch.OutOfMemoryError("x"))
    assert is_out_of_memory(RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"))
    assert not is_out_of_memory(RuntimeError("shape mismatch"))
