"""The choice of optimizer for each parameter, activation recomputation, and dropout seeds."""

import pytest
import torch

from gristmill.errors import ConfigError
from tests.trainers.models.test_models import TINY, build, packed
from trainers.config.architecture import ARCHITECTURES
from trainers.config.job import Execution, Optimizer
from trainers.engine.engine import dropout_seed, prepare_blocks
from trainers.engine.forward import Forward, tensors
from trainers.engine.optimizers import SkippingAdamW, parameter_groups


def named(groups, model):
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return [sorted(names[id(parameter)] for parameter in group["params"]) for group in groups]


@pytest.mark.parametrize("kind", ["adamw", "muon"])
@pytest.mark.parametrize("name", TINY)
def test_every_parameter_is_in_one_group_and_vectors_never_decay(name, kind):
    model = build(name)
    groups = parameter_groups(model, Optimizer(kind=kind, weight_decay=0.1))
    listed = [entry for names in named(groups, model) for entry in names]
    assert sorted(listed) == sorted(entry for entry, _ in model.named_parameters())
    tables = {id(m.weight) for m in model.modules() if isinstance(m, torch.nn.Embedding)}
    for group in groups:
        for parameter in group["params"]:
            plain = parameter.ndim < 2 or id(parameter) in tables
            assert group["weight_decay"] == (0.0 if plain else 0.1)
            assert parameter.use_muon == group["use_muon"]


def test_muon_takes_the_hidden_matrices_and_nothing_else():
    model = build("llama")
    muon, kept = parameter_groups(model, Optimizer(kind="muon", muon_learning_rate=0.03))
    assert (muon["use_muon"], muon["peak"], kept["use_muon"], kept["peak"]) == (True, 0.03, False, 6e-4)
    inner = ["mlp.down_proj", "mlp.gate_proj", "mlp.up_proj"] + [f"self_attn.{n}_proj" for n in "koqv"]
    assert named([muon], model)[0] == [f"model.layers.{i}.{n}.weight" for i in range(4) for n in inner]
    untied = build("t5 1.1")
    assert "lm_head.weight" in named(parameter_groups(untied, Optimizer(kind="muon")), untied)[1]
    decaying = parameter_groups(model, Optimizer(kind="muon", decay_embeddings=True))
    assert named(decaying, model)[1] == ["model.embed_tokens.weight"]
    marked = model.model.layers[0].mlp.up_proj.weight
    marked.undecayed = True  # as the vectors that IA3 stores as matrices
    *_, kept = parameter_groups(model, Optimizer(kind="muon", weight_decay=0.1))
    assert (marked.use_muon, kept["weight_decay"]) == (False, 0.0)
    assert any(parameter is marked for parameter in kept["params"])


def test_a_step_that_is_passed_over_leaves_weights_moments_and_count():
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = SkippingAdamW([weight], lr=0.1, fused=True)
    weight.grad = torch.tensor([1.0, 2.0, 3.0])
    optimizer.step()
    before = weight.detach().clone(), {key: value.clone() for key, value in optimizer.state[weight].items()}
    optimizer.skip = True
    optimizer.step()
    assert torch.equal(weight.detach(), before[0])
    assert all(torch.equal(optimizer.state[weight][key], value) for key, value in before[1].items())
    optimizer.skip = False
    optimizer.step()
    assert optimizer.state[weight]["step"] == 2
    assert not torch.equal(weight.detach(), before[0])


def gradients(name, recompute):
    """Return the gradients for a packed batch, and the bytes of activations that the forward pass keeps for
    the backward pass.
    """
    model = build(name).train()
    prepare_blocks(model, Execution(activation_checkpointing=recompute))
    weights, kept = {p.data_ptr() for p in model.parameters()}, {}

    def keep(tensor):
        if tensor.untyped_storage().data_ptr() not in weights:
            kept[tensor.untyped_storage().data_ptr()] = tensor  # held, so that no address is used twice
        return tensor

    torch.manual_seed(0)
    architecture = TINY[name].architecture
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        nats = Forward(model, architecture)(**tensors(packed(ARCHITECTURES[architecture].family), "cpu"))["loss"]
    size = sum(tensor.untyped_storage().nbytes() for tensor in kept.values())
    nats.sum().backward()
    return {n: p.grad for n, p in model.named_parameters() if p.grad is not None}, size


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in TINY if name not in ("gpt", "awd_lstm", "elmo", "gru")])
def test_blocks_that_are_computed_again_give_the_same_gradients_in_less_memory(name):
    expected, all_kept = gradients(name, recompute=False)
    found, kept = gradients(name, recompute=True)
    assert set(found) == set(expected)
    for parameter in expected:
        torch.testing.assert_close(found[parameter], expected[parameter], atol=1e-5, rtol=1e-5)
    assert kept < 0.5 * all_kept


@pytest.mark.parametrize("epsilon", [0.0, -1.0])
def test_an_epsilon_of_zero_or_below_is_refused(epsilon):
    with pytest.raises(ValueError, match=f"epsilon: got {epsilon}, allowed above 0"):
        Optimizer(epsilon=epsilon).check()


@pytest.mark.parametrize("field", ["activation_checkpointing", "compile"])
@pytest.mark.parametrize(
    ("name", "model"),
    [("gpt", "OpenAIGPTLMHeadModel"), ("awd_lstm", "AwdLstm"), ("elmo", "Elmo"), ("gru", "SentenceGru")],
)
def test_a_model_without_such_blocks_is_refused(field, name, model):
    with pytest.raises(ConfigError, match=rf"execution\.{field}: got true, {model} does not allow it"):
        prepare_blocks(build(name), Execution(**{field: True}))


def test_seeds_of_dropout_are_those_of_this_release_and_differ_by_step_worker_and_micro_batch():
    assert dropout_seed(0, 0, 0, 0) == 7593047414613232564
    seeds = {dropout_seed(s, t, r, m) for s in (0, 1) for t in range(20) for r in range(4) for m in range(4)}
    assert len(seeds) == 2 * 20 * 4 * 4
    assert all(0 <= seed < 1 << 63 for seed in seeds)
