"""Counts of trained parameters against the papers' formulas, and invalid methods that are refused."""

import re

import pytest
import torch

from gristmill.config import parse
from gristmill.errors import ConfigError, UserError
from gristmill.storage.disk import LocalPath
from tests.trainers.adapters.test_matrix import CASES, TEXTS
from tests.trainers.adapters.tiny_models import applied, base, family, outputs
from tests.trainers.models.test_models import tiny
from tokenizer.vocabulary.specials import SPECIAL_IDS
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
from trainers.adapters.weights.head_only import HeadOnly
from trainers.adapters.weights.ia3 import IA3
from trainers.adapters.weights.loha import LoHa
from trainers.adapters.weights.lora import LoRA
from trainers.config.architecture import Model, fill
from trainers.models import build_model

BASE = {
    "bert": Model("bert", layers=12, width=768, heads=12, positions=512, vocab_size=30522, sentence_head=True),
    "roberta": Model("roberta", layers=12, width=768, heads=12, positions=512, vocab_size=50265),
    "t5": Model("t5", layers=12, width=768, heads=12, positions=512, vocab_size=32128),
}
L, D, F = 12, 768, 3072  # layers, width, inner width
COUNTS = [
    ("bert", BitFit(), 102_912),  # Ben Zaken et al., 2022, with the pooler's bias
    ("roberta", LoRA(), 294_912),  # Hu et al., 2022: r = 8 on queries and values: 0.3 M
    ("roberta", LoRA(dora=True), 294_912 + L * 2 * D),
    ("roberta", LoHa(rank=8), 2 * 294_912),
    ("roberta", AdaLoRA(initial_rank=12), L * 2 * 12 * (2 * D + 1)),
    ("roberta", IA3(), L * (2 * D + F)),
    (
        "t5",
        IA3(),
        L * (2 * D + F) + L * (4 * D + F),
    ),  # Liu et al., 2022: L (d_k + d_v + d_ff) + L (2 d_k + 2 d_v + d_ff)
    # Houlsby et al., 2019, section 2.1: 2md + d + m each, two in a layer, and 2d for each norm.
    ("bert", BottleneckAdapter(reduction=12), L * (2 * (2 * 64 * D + D + 64) + 4 * D)),
    ("bert", BottleneckAdapter(placement="pfeiffer"), L * (2 * 48 * D + D + 48)),
    ("bert", BottleneckAdapter(placement="parallel"), L * (2 * 48 * D + D + 48)),
    ("bert", DeepPrompts(tokens=20), L * 2 * 20 * D),
    ("t5", DeepPrompts(tokens=20), 3 * L * 2 * 20 * D),
    ("bert", PrefixTuning(tokens=20, hidden=512), 20 * D + 512 * (D + 1) + L * 2 * D * 513),
    ("t5", PromptTuning(tokens=20), 20 * D),
    ("t5", PTuning(tokens=20, encoder="mlp"), 20 * D + 3 * D * (D + 1)),
    (
        "t5",
        MultitaskPrompt(tokens=100, tasks=3),
        100 * D + 3 * (100 + D),
    ),  # Wang et al., 2023: 77.6 K for each of 6 tasks
]


@pytest.fixture(scope="module")
def large():
    """Return a function that returns a base-size model on the meta device, which takes no memory."""
    import copy

    with torch.device("meta"):
        made = {name: build_model(fill(model, model.vocab_size), SPECIAL_IDS, 0) for name, model in BASE.items()}
    return lambda name: copy.deepcopy(made[name])


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "method", "count"), COUNTS, ids=[f"{case[1].kind}-{case[0]}-{case[2]}" for case in COUNTS]
)
def test_as_many_parameters_are_trained_as_the_formula_of_the_paper_gives(name, method, count, large):
    network = large(name)
    with torch.device("meta"):
        method.apply(network, name, BASE[name].family, 0)
    assert sum(tensor.numel() for tensor in trained_state(network).values()) == count


def test_lora_begins_as_its_base():
    for case in ("lora", "dora", "adalora", "loha", "lokr", "ia3", "parallel"):
        network, method = applied("llama", CASES[case]), CASES[case]
        with torch.no_grad():
            ours, plain = (outputs("llama", each.eval(), CASES["full"], TEXTS) for each in (network, base("llama")))
        assert torch.allclose(ours, plain, atol=1e-6), method


def test_a_prompt_begins_from_its_text():
    network = applied("gpt2", PromptTuning(tokens=5, init="text", text="Say it"))
    table = network.transformer.wte.weight
    assert torch.equal(network.transformer.wte.virtual(), table[[150, 151, 152, 150, 151]])
    with pytest.raises(ConfigError, match=r"method.text: the tokenizer turns it into no tokens"):
        PromptTuning(tokens=5, init="text", text=" ").apply(base("gpt2"), "gpt2", "decoder", 0, encode=lambda text: [])
    PromptTuning(tokens=5, init="vocabulary", text="").apply(base("gpt2"), "gpt2", "decoder", 0, encode=lambda text: [])


def test_features_are_the_same_in_training():
    network = applied("roberta", CASES["features"])
    for module in network.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.5
    network.train()
    assert network.task_head.training
    with torch.no_grad():
        one, two = (outputs("roberta", network, CASES["features"], TEXTS) for _ in range(2))
    assert torch.equal(one[..., -3:], two[..., -3:])


@pytest.mark.parametrize("name", ["llama", "modernbert", "t5"])
def test_bitfit_needs_biases(name):
    message = f"method.kind: got bitfit, which trains biases, and {name} has none; use lora or ia3"
    with pytest.raises(ConfigError, match=f"^{message}$"):
        applied(name, BitFit())


@pytest.mark.parametrize("case", ["lora", "ia3", "houlsby"])
def test_what_is_no_layer_of_its_own_is_not_adapted(case):
    part = {"lora": "query", "ia3": "key", "houlsby": "output"}[case]
    message = f"method.kind: got {CASES[case].kind}, which adapts the part {part} of every block; in xlnet only up and down are"
    with pytest.raises(ConfigError, match=message):
        applied("xlnet", CASES[case])
    network = applied("xlnet", LoRA(rank=4, targets=("up", "down")))
    assert sum("lora_A" in name for name, _ in network.named_parameters()) == 4  # of two layers


@pytest.mark.parametrize(
    ("method", "message"),
    [
        (LoRA(rank=33), r"method.rank: got 33, allowed 1 to 32, the smaller side of \S+query \(\[32, 32\]\)"),
        (AdaLoRA(initial_rank=40), r"method.rank: got 40, allowed 1 to 32, .*"),
        (BottleneckAdapter(reduction=33), r"method.reduction: got 33, allowed 1 to 32, the width of the model"),
    ],
)
def test_a_size_above_the_width_is_refused(method, message):
    with pytest.raises(ConfigError, match=f"^{message}$"):
        applied("bert", method)


def test_a_prefix_needs_positions_that_are_not_counted_along_the_row():
    sizes = {"layers": 1, "width": 32, "heads": 4, "positions": 64}
    network = build_model(tiny("bert", **sizes, position="relative"), SPECIAL_IDS, 0)
    with pytest.raises(
        ConfigError, match=r"^method.kind: got a method with prefixes, for a model with relative positions; use prompt"
    ):
        DeepPrompts().apply(network, "bert", "encoder", 0)


def test_what_is_added_to_each_of_tied_stacks_cannot_be_merged():
    network = build_model(tiny("t5", layers=1, tied_stacks=True), SPECIAL_IDS, 0)
    LoRA(rank=4).apply(network, "t5", "encoder_decoder", 0)
    with pytest.raises(
        ConfigError,
        match=r"^model.tied_stacks, model.shared_parts: lora has trained different updates for layers that share",
    ):
        LoRA(rank=4).merge(network)


@pytest.mark.parametrize("method", [HeadOnly(), METHODS["features"]()])
def test_without_a_head_there_is_nothing_to_train(method):
    network = base("t5")
    del network.task_head
    with pytest.raises(
        ConfigError, match=f"^method.kind: got {method.kind}, which trains only the head .* this task has none"
    ):
        method.apply(network, "t5", "encoder_decoder", 0)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"kind": "lora", "rank": 0}, "method: rank: got 0, allowed 1 or more"),
        ({"kind": "lora", "targets": []}, "method: targets: got none, allowed one or more of query, "),
        ({"kind": "loha", "alpha": 0.0}, "method: alpha: got 0.0, allowed above 0"),
        ({"kind": "lora", "dropout": 1.0}, "method: dropout: got 1.0, allowed 0 to below 1"),
        ({"kind": "adalora", "rank": 8, "initial_rank": 4}, r"method: initial_rank: got 4, allowed rank \(8\) or more"),
        ({"kind": "adapter", "reduction": 0}, "method: reduction: got 0, allowed 1 or more"),
        ({"kind": "prefix", "tokens": 0}, "method: tokens: got 0, allowed 1 or more"),
        ({"kind": "prompt", "init": "text"}, "method: text: got none with init text, allowed with init text"),
        ({"kind": "prompt", "text": "x"}, "method: text: got one with init vocabulary, allowed with init text"),
        ({"kind": "multitask_prompt", "tasks": 0}, "method: tasks: got 0, allowed 1 or more"),
    ],
)
def test_a_field_out_of_range_is_refused(fields, message):
    with pytest.raises(ConfigError, match=message.removeprefix("method: ")):
        parse(METHODS[fields["kind"]], fields, "x.yaml")


def test_more_tasks_than_a_multitask_prompt_has_are_refused():
    with pytest.raises(ConfigError, match=r"^method.tasks: got 2, the run has more; set it to 3 or more$"):
        MultitaskPrompt(tasks=2).first_virtual(200, 2)


@pytest.fixture
def saved(tmp_path):
    network, directory = applied("bert", CASES["lora"]), LocalPath(tmp_path / "adapter")
    save_adapter(directory, network, CASES["lora"], "bert", "encoder", base_fingerprint(base("bert"), "bert"))
    return directory


def test_an_adapter_of_another_base_is_refused(saved):
    network = base("bert")
    with torch.no_grad():
        network.bert.embeddings.word_embeddings.weight[0, 0] += 1e-6
    message = r"^\S+: the adapter was trained on another base \(bert \w{12}, this is bert \w{12}\); give model= the base it was"
    with pytest.raises(ConfigError, match=message):
        load_adapter(saved, network, "bert", "encoder")
    with pytest.raises(ConfigError, match="this is roberta"):
        load_adapter(saved, base("roberta"), "roberta", "encoder")


def test_a_head_is_not_part_of_the_base(saved):
    network = base("bert")
    torch.nn.init.zeros_(network.task_head.weight)
    load_adapter(saved, network, "bert", "encoder")
    assert torch.equal(network.task_head.weight, base("bert").task_head.weight)


def test_pickled_weights_are_refused(saved):
    (saved / "adapter_model.bin").write_bytes(b"")
    with pytest.raises(
        UserError, match=r"^\S+: adapter_model.bin holds pickled weights, which can run code; convert them"
    ):
        load_adapter(saved, base("bert"), "bert", "encoder")


def test_a_directory_that_is_no_adapter_is_refused(tmp_path):
    with pytest.raises(
        UserError, match=r"^\S+: is not an adapter of gristmill: it has no gristmill.json; export one from a run$"
    ):
        load_adapter(LocalPath(tmp_path), base("bert"), "bert", "encoder")


def test_damaged_tensors_are_found(saved):
    data = bytearray((saved / "adapter_model.safetensors").read_bytes())
    data[-1] ^= 1
    (saved / "adapter_model.safetensors").write_bytes(bytes(data))
    with pytest.raises(UserError, match=re.escape("adapter_model.safetensors")):
        load_adapter(saved, base("bert"), "bert", "encoder")


def test_peft_is_named_where_it_is_missing(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "peft", None)
    with pytest.raises(UserError, match=r"method.kind: it uses layers of peft, .*'\.\[finetune\]'"):
        applied("bert", CASES["lora"])


def test_every_method_has_a_kind_of_its_own():
    assert len({method.kind for method in METHODS.values()}) == len(METHODS) == 15
    assert family("t5") == "encoder_decoder"


@pytest.mark.parametrize("architecture", ["albert", "bert"])
def test_the_penalty_of_adalora_counts_each_matrix_once(architecture):
    """Zhang et al., 2023, section 3.1, with peft's norms. Both layers of this ALBERT are one module."""
    method = AdaLoRA(rank=2, initial_rank=4, orthogonality=3.0)
    network = applied(architecture, method)
    (0.0 * outputs(architecture, network, method, TEXTS)).sum().backward()
    named = {name: each for name, each in network.named_parameters() if ".lora_A." in name or ".lora_B." in name}
    found = [each.grad for each in named.values()]
    penalty = 0.0
    for name, each in named.items():
        square = each @ each.T if ".lora_A." in name else each.T @ each
        penalty = penalty + 3.0 * (square - torch.eye(len(square))).norm() / len(named)
    expected = torch.autograd.grad(penalty, list(named.values()))
    torch.testing.assert_close(found, list(expected))
