"""Every method on every transformer that it supports: which parameters are trained, packed rows, saving and
loading, and merging.
"""

from dataclasses import fields

import numpy as np
import pytest
import torch

from gristmill.errors import ConfigError
from gristmill.storage.disk import LocalPath
from tests.trainers.adapters.tiny_models import SIZES, applied, base, family, inputs, outputs, perturb
from trainers.adapters import METHODS
from trainers.adapters.adapter_files import base_fingerprint, load_adapter, save_adapter
from trainers.adapters.inserted.bottleneck_adapter import BottleneckAdapter
from trainers.adapters.shared.training_method import trained_state
from trainers.adapters.virtual.deep_prompts import DeepPrompts
from trainers.adapters.virtual.multitask_prompt import MultitaskPrompt
from trainers.adapters.virtual.p_tuning import PTuning
from trainers.adapters.virtual.prefix_tuning import PrefixTuning
from trainers.adapters.virtual.prompt_tuning import PromptTuning
from trainers.adapters.weights.adalora import AdaLoRA
from trainers.adapters.weights.bitfit import BitFit
from trainers.adapters.weights.feature_extraction import FeatureExtraction
from trainers.adapters.weights.full import Full
from trainers.adapters.weights.head_only import HeadOnly
from trainers.adapters.weights.ia3 import IA3
from trainers.adapters.weights.loha import LoHa
from trainers.adapters.weights.lokr import LoKr
from trainers.adapters.weights.lora import LoRA
from trainers.models import MODELS
from trainers.models.interface import Inputs

ALL = ("query", "key", "value", "output", "up", "down")
CASES = {
    "full": Full(),
    "head": HeadOnly(),
    "features": FeatureExtraction(),
    "bitfit": BitFit(),
    "lora": LoRA(rank=4),
    "lora, everywhere": LoRA(rank=2, rank_stabilized=True, targets=ALL),
    "dora": LoRA(rank=4, dora=True),
    "adalora": AdaLoRA(rank=2, initial_rank=4),
    "loha": LoHa(rank=4),
    "lokr": LoKr(rank=2),
    "ia3": IA3(),
    "houlsby": BottleneckAdapter(reduction=4),
    "pfeiffer": BottleneckAdapter(placement="pfeiffer", reduction=4),
    "parallel": BottleneckAdapter(placement="parallel", reduction=4),
    "prefix": PrefixTuning(tokens=3),
    "p_tuning_v2": DeepPrompts(tokens=3),
    "prompt": PromptTuning(tokens=3),
    "p_tuning": PTuning(tokens=3),
    "p_tuning, mlp": PTuning(tokens=3, encoder="mlp", hidden=8),
    "multitask_prompt": MultitaskPrompt(tokens=3, tasks=2, rank=2),
}
REFUSED = {("bitfit", name) for name in ("llama", "modernbert", "t5")}
REFUSED |= {(case, name) for case in ("prefix", "p_tuning_v2") for name in ("canine", "deberta", "deberta_v2", "xlnet")}
REFUSED |= {(case, "canine") for case in ("prompt", "p_tuning", "p_tuning, mlp", "multitask_prompt")}
REFUSED |= {
    (case, "xlnet") for case in ("lora", "lora, everywhere", "dora", "adalora", "loha", "lokr", "ia3", "houlsby")
}
CELLS = [(case, name) for case in CASES for name in SIZES if (case, name) not in REFUSED]
cells = pytest.mark.parametrize(("case", "name"), CELLS)


def thinned(chosen):
    """Return parameters that mark two thirds of the combinations as slow, so that each case runs by default
    with every third architecture and vice versa.
    """
    places = {cell: list(CASES).index(cell[0]) + list(SIZES).index(cell[1]) for cell in chosen}
    return [pytest.param(*cell, marks=[pytest.mark.slow] * (place % 3 > 0)) for cell, place in places.items()]


TEXTS = [np.random.default_rng(number).integers(128, 200, length) for number, length in enumerate((5, 9, 4))]


def test_every_method_is_tested():
    assert {type(method) for method in CASES.values()} == set(METHODS.values())


# The defaults of every method are cells of `test_finetuning_cells`.
VARIANTS = ("lora, everywhere", "dora", "pfeiffer", "parallel", "p_tuning, mlp")


@pytest.mark.long
@pytest.mark.parametrize(("case", "name"), [cell for cell in CELLS if cell[0] in VARIANTS])
def test_gradients_reach_what_is_trained_and_nothing_else(case, name):
    method, untouched = CASES[case], base(name).state_dict()
    network = applied(name, method)
    outputs(name, network, method, TEXTS).square().mean().backward()
    trained = trained_state(network)
    for parameter, its in network.named_parameters():
        if its.requires_grad:
            assert its.grad is not None, parameter
            assert torch.isfinite(its.grad).all(), parameter
        else:
            assert its.grad is None, parameter
            if parameter in untouched:
                assert torch.equal(its, untouched[parameter])
    assert {"task_head.weight", "task_head.bias"} < set(trained)


@pytest.mark.long
@cells
def test_what_is_trained_changes_a_packed_segment_as_it_changes_the_segment_alone(case, name):
    method = CASES[case]
    network = applied(name, method).eval()
    with torch.no_grad():
        untrained = outputs(name, network, method, TEXTS)[0]
        perturb(network)
        packed = outputs(name, network, method, TEXTS)[0]
        alone = outputs(name, network, method, TEXTS[1:2])[0]
    before = len(TEXTS[0]) + (0 if family(name) == "encoder_decoder" else method.virtual_tokens)
    assert torch.allclose(packed[before : before + len(alone)], alone, atol=1e-4, rtol=1e-4)
    part = slice(-3, None) if case in ("head", "features") else slice(-3)
    assert (packed - untrained).abs()[:, part].max() > 1e-3


@pytest.mark.long
@pytest.mark.parametrize("name", SIZES)
def test_rows_of_a_batch_do_not_change_one_another(name):
    method = next(CASES[case] for case in ("p_tuning_v2", "prompt", "lora") if (case, name) not in REFUSED)
    network = applied(name, method).eval()
    perturb(network)
    one, two = inputs(name, method, TEXTS), inputs(name, method, TEXTS[::-1])
    with torch.no_grad():
        expected = torch.cat([MODELS[name].hidden(network, each) for each in (one, two)])
        assert torch.allclose(MODELS[name].hidden(network, beside(one, two)), expected, atol=1e-5)


def beside(one, two):
    def both(first, second):
        if first is None:
            return None
        return beside(first, second) if isinstance(first, Inputs) else torch.cat([first, second])

    return Inputs(*(both(getattr(one, field.name), getattr(two, field.name)) for field in fields(Inputs)))


@pytest.mark.long
@pytest.mark.parametrize(("case", "name"), thinned([cell for cell in CELLS if cell[0] != "full"]))
def test_a_saved_adapter_computes_the_same_on_its_base(case, name, tmp_path):
    method, directory = CASES[case], LocalPath(tmp_path / "adapter")
    network, other = applied(name, method).eval(), base(name).eval()
    perturb(network)
    save_adapter(directory, network, method, name, family(name), base_fingerprint(other, name))
    loaded = load_adapter(directory, other, name, family(name))
    assert (loaded.virtual_tokens, loaded.prefix_length) == (method.virtual_tokens, method.prefix_length)
    with torch.no_grad():
        expected, found = (outputs(name, each.eval(), method, TEXTS) for each in (network, other))
    assert torch.allclose(found, expected, atol=1e-5)
    assert (directory / "adapter_model.safetensors").stat().st_size < 200_000


@pytest.mark.long
@pytest.mark.parametrize(("case", "name"), thinned([cell for cell in CELLS if CASES[cell[0]].mergeable]))
def test_a_merged_model_has_the_parameters_of_its_base_and_computes_the_same(case, name):
    method, plain = CASES[case], base(name)
    network = applied(name, method).eval()
    perturb(network)
    with torch.no_grad():
        expected = outputs(name, network, method, TEXTS)
        method.merge(network)
        found = outputs(name, network, method, TEXTS)
    assert torch.allclose(found, expected, atol=1e-4, rtol=1e-4)
    assert {key: tensor.shape for key, tensor in network.state_dict().items()} == {
        key: tensor.shape for key, tensor in plain.state_dict().items()
    }


@pytest.mark.parametrize(("case", "name"), [cell for cell in CELLS if cell[0] in ("houlsby", "prefix", "prompt")])
def test_what_adds_layers_or_tokens_cannot_be_merged(case, name):
    with pytest.raises(ConfigError, match=r"method.kind: got (adapter|prefix|prompt), .*export without --merge"):
        CASES[case].merge(applied(name, CASES[case]))


@pytest.mark.long
@pytest.mark.parametrize("name", SIZES)
def test_the_seed_decides_what_is_added(name):
    for case in ("lora", "houlsby", "prefix", "prompt"):
        if (case, name) in REFUSED:
            continue
        one, same, other = (trained_state(applied(name, CASES[case], seed)) for seed in (0, 0, 1))
        assert all(torch.equal(one[key], same[key]) for key in one)
        assert any(not torch.equal(one[key], other[key]) for key in one)


@pytest.mark.parametrize("name", [name for name in SIZES if ("multitask_prompt", name) not in REFUSED])
def test_the_tasks_of_a_multitask_prompt_have_tokens_of_their_own(name):
    method = CASES["multitask_prompt"]
    network = applied(name, method).eval()
    perturb(network)
    with torch.no_grad():
        first, second = (outputs(name, network, method, TEXTS, method.first_virtual(200, task)) for task in (0, 1))
    assert not torch.allclose(first, second, atol=1e-3)
