"""Answers equal those that `transformers` generates for each source on its own."""

import numpy as np
import pytest
import torch

from tests.trainers.data.examples.test_task_rows import SPECIALS, inputs_of, text
from tests.trainers.models.test_models import tiny
from trainers.adapters.inserted.bottleneck_adapter import BottleneckAdapter
from trainers.adapters.virtual.prefix_tuning import PrefixTuning
from trainers.adapters.virtual.prompt_tuning import PromptTuning
from trainers.adapters.weights.lora import LoRA
from trainers.data.examples.text_format import text_format
from trainers.engine.forward import Forward
from trainers.inference.write_answers import target_nats, writable_ids, write_answers
from trainers.models import build_model
from trainers.rows.batch import IGNORED

TOKENS = 8


def written_by(architecture, seed=0, **limits):
    model = tiny(architecture, **({} if architecture in ("t5", "llama") else {"initializer_range": 0.3}))
    network = build_model(model, SPECIALS, seed).eval()
    inputs = inputs_of(text_format(model, SPECIALS, text_to_text=True), "text_to_text", texts=2, count=7, longest=12)
    allowed = writable_ids(SPECIALS, 198, 200, 2)
    found = write_answers(
        Forward(network, architecture), inputs, allowed, **{"tokens": TOKENS, "length": 100, **limits}, size=3
    )
    answers, cut = found
    assert cut == sum(len(answer) == limits.get("tokens", TOKENS) for answer in answers) or "length" in limits
    return network, inputs, allowed, answers


@pytest.mark.long
@pytest.mark.parametrize("architecture", ["gpt", "gpt2", "llama", "bart", "t5"])
def test_answers_are_those_that_transformers_generates(architecture):
    network, inputs, allowed, found = written_by(architecture)
    options = {"max_new_tokens": TOKENS, "do_sample": False, "suppress_tokens": np.flatnonzero(~allowed).tolist()}
    if architecture == "bart":  # the target begins with <bos>, which is given
        options["decoder_input_ids"] = torch.tensor([[2, 1]])
    for number, answer in enumerate(found):
        ids = inputs.render(np.array([number])).ids
        assert ids[ids >= 10].tolist() == text(inputs, 0, number)
        given = torch.tensor([ids.tolist()])
        output = network.generate(given, attention_mask=torch.ones_like(given), **options)[0].tolist()
        expected = output[{"bart": 2, "t5": 1}.get(architecture, len(ids)) :]
        expected = expected[: expected.index(2)] if 2 in expected else expected
        assert answer.tolist() == expected
    assert any(len(answer) == TOKENS for answer in found)
    assert len({tuple(answer) for answer in found}) > 1


@pytest.mark.long
@pytest.mark.parametrize("architecture", ["gpt2", "llama", "bart", "t5"])
@pytest.mark.parametrize(
    "method", [PrefixTuning(tokens=3), PromptTuning(tokens=3), BottleneckAdapter(), LoRA()], ids=str
)
def test_answers_of_every_method_are_those_of_whole_rows(architecture, method, monkeypatch):
    model = tiny(architecture, **({} if architecture == "t5" else {"initializer_range": 0.3}))
    network = build_model(model, SPECIALS, 0).eval()
    method.apply(network, architecture, model.family, 0)
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in network.parameters():
            if parameter.requires_grad:
                parameter += 0.3 * torch.randn(parameter.shape)
    form = text_format(model, SPECIALS, True, method.virtual_tokens, method.prefix_length)
    inputs = inputs_of(form, "text_to_text", texts=2, count=7, longest=12)
    forward, allowed = Forward(network, architecture), writable_ids(SPECIALS, 198, 200, 2)
    answers, cut = write_answers(forward, inputs, allowed, TOKENS - 3, 100, 4)
    monkeypatch.setattr(Forward, "new_past", lambda self: None)
    expected, expected_cut = write_answers(forward, inputs, allowed, TOKENS - 3, 100, 4)
    assert [answer.tolist() for answer in answers] == [answer.tolist() for answer in expected]
    assert cut == expected_cut
    assert len({tuple(answer) for answer in answers}) > 1


def test_answers_end_with_their_row():
    _, inputs, _, found = written_by("gpt2", length=14)
    sizes = inputs.segments.sizes[0]
    assert all(len(answer) <= max(0, min(TOKENS, 14 - size)) for answer, size in zip(found, sizes, strict=True))
    assert max(len(answer) + size for answer, size in zip(found, sizes, strict=True)) == 14


def test_answers_hold_text_and_its_end():
    allowed = writable_ids({"<pad>": 0, "<eos>": 2, "<new>": 9}, 8, 10, 2)
    assert np.flatnonzero(allowed).tolist() == [1, 2, 3, 4, 5, 6, 7]


@pytest.mark.long
@pytest.mark.parametrize("architecture", ["gpt2", "t5"])
def test_the_cost_of_a_target_is_that_of_its_input_alone(architecture):
    network, inputs, _, _ = written_by(architecture, tokens=1)
    nats, tokens = target_nats(Forward(network, architecture), inputs, 3)
    for number in range(len(inputs)):
        source, target = (render(np.array([number])).ids for render in (inputs.render, inputs.render_targets))
        if architecture == "t5":
            made = network(input_ids=torch.tensor(source[None]), labels=torch.tensor(target[None]))
        else:
            ids = np.concatenate([source, target])[None]
            labels = np.where(np.arange(ids.shape[1]) < len(source), IGNORED, ids)
            made = network(input_ids=torch.tensor(ids), labels=torch.tensor(labels))
        assert tokens[number] == len(target)
        assert nats[number] == pytest.approx(made.loss.item() * len(target), rel=1e-4)
