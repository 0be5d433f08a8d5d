"""Comparison with peft: saved adapters compute the same there, and 20 steps of training give the same losses."""

import warnings
from dataclasses import replace

import numpy as np
import peft
import pytest
import torch
from transformers import DynamicCache, EncoderDecoderCache

from gristmill.storage.disk import LocalPath
from tests.trainers.adapters.test_matrix import CASES, CELLS, TEXTS
from tests.trainers.adapters.tiny_models import applied, base, family, inputs, perturb, states
from trainers.adapters.adapter_files import base_fingerprint, save_adapter
from trainers.adapters.weights.rank_allocation import RankAllocation
from trainers.models import MODELS

PREFIXES, PROMPTS = ("prefix", "p_tuning_v2"), ("prompt", "p_tuning", "p_tuning, mlp", "multitask_prompt")
OURS = {"full", "head", "features", "bitfit", "houlsby", "pfeiffer", "parallel"}
# What peft 0.21 cannot run: layers around the transposed matrices of GPT and GPT-2; prefixes of models that take no past
# keys, and of encoder-decoders, where it mixes up layers; prompts by task of encoders.
NOT_THERE = {
    *((case, name) for case in ("loha", "lokr") for name in ("gpt", "gpt2")),
    *((case, name) for case in PREFIXES for name in ("albert", "bart", "gpt", "modernbert", "t5")),
    *(
        ("multitask_prompt", name)
        for name in ("albert", "bert", "deberta", "deberta_v2", "electra", "modernbert", "roberta", "xlnet")
    ),
}


def stock(name, case):
    """Return the model for peft to wrap; for prompts and prefixes on encoders, this model has no output
    layer.
    """
    network = base(name).eval()
    del network.task_head
    return network.base_model if family(name) == "encoder" and case in (*PREFIXES, *PROMPTS) else network


def decoder_text(text):
    return torch.from_numpy(text[::-1].copy())[None]


@pytest.mark.long
@pytest.mark.parametrize(("case", "name"), [cell for cell in CELLS if cell[0] not in OURS])
def test_a_saved_adapter_computes_the_same_in_peft(case, name, tmp_path):
    method, directory = CASES[case], LocalPath(tmp_path / "adapter")
    network = applied(name, method).eval()
    perturb(network)
    save_adapter(directory, network, method, name, family(name), base_fingerprint(network, name))
    assert (directory / "adapter_config.json").exists() == ((case, name) not in NOT_THERE)
    if (case, name) in NOT_THERE:
        return
    text = TEXTS[1]
    given = {"input_ids": torch.from_numpy(text)[None]}
    if family(name) == "encoder_decoder":
        given["decoder_input_ids"] = decoder_text(text)
    if case == "multitask_prompt":
        given["task_ids"] = torch.tensor([0])
        if family(name) == "encoder_decoder":  # peft makes the decoder's input from the labels
            its = given.pop("decoder_input_ids")
            given["labels"] = torch.cat([its[:, 1:], its[:, :1]], 1)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        wrapped = peft.PeftModel.from_pretrained(stock(name, case), directory).eval()
        output = wrapped(**given)
        hidden = states(name, network, method, [text])
        if "labels" in given:
            start = torch.full((1, 1), wrapped.config.decoder_start_token_id)
            its = inputs(name, method, [text])
            its = replace(its, decoder=replace(its.decoder, ids=torch.cat([start, given["labels"][:, :-1]], 1)))
            hidden = MODELS[name].hidden(network, its)
        if "logits" in output:
            expected, found = output.logits, MODELS[name].logits(network, hidden)
        else:
            expected, found = output.last_hidden_state, hidden
    assert torch.allclose(found[:, -len(text) :], expected[:, -len(text) :], atol=1e-5)


STEPS, RATE = 20, 1e-3
ORDER = np.random.default_rng(9)
BATCHES = [[ORDER.integers(128, 200, length) for length in ORDER.integers(4, 12, 3)] for _ in range(STEPS)]


def targets(name, text):
    """Return a target for each token: in decoders the next token, otherwise the token itself at every third
    position.
    """
    found = np.full_like(text, -100)
    if family(name) == "decoder":
        found[:-1] = text[1:]
    else:
        found[::3] = text[::3]
    return torch.from_numpy(found)


def our_losses(name, method, network):
    trained = [parameter for parameter in network.parameters() if parameter.requires_grad]
    optimizer, losses = torch.optim.AdamW(trained, lr=RATE, weight_decay=0.0), []
    for texts in BATCHES:
        hidden = states(name, network, method, texts)
        of_text = inputs(name, method, texts).ids[0] < 200
        logits = MODELS[name].logits(network, hidden)[0][of_text]
        loss = torch.nn.functional.cross_entropy(logits, torch.cat([targets(name, text) for text in texts]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def their_losses(name, case, model, network):
    """Return peft's losses on padded rows. If peft wraps an encoder without its output layer, `network`
    provides that layer.
    """
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer, losses = torch.optim.AdamW(trained, lr=RATE, weight_decay=0.0), []
    for texts in BATCHES:
        length = max(map(len, texts))
        ids = torch.full((len(texts), length), model.config.pad_token_id or 0)
        labels = torch.full_like(ids, -100)
        mask = torch.zeros_like(ids)
        for row, text in enumerate(texts):
            ids[row, : len(text)], mask[row, : len(text)] = torch.from_numpy(text), 1
            labels[row, : len(text)] = targets(name, text)
        output = model(input_ids=ids, attention_mask=mask)
        logits = output.logits if "logits" in output else MODELS[name].logits(network, output.last_hidden_state)
        logits = logits[:, -length:]
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def in_peft(name, case, method, network):
    whole = stock(name, case)
    config = method.peft_config(network, name, family(name))
    kind = peft.PEFT_TYPE_TO_CONFIG_MAPPING[peft.PeftType(config["peft_type"])]
    settings = {key: value for key, value in config.items() if key not in ("peft_type", "inference_mode")}
    settings["prefix_projection"] = case == "prefix"
    if case not in PREFIXES:
        del settings["prefix_projection"]
    elif case == "prefix":
        settings["encoder_hidden_size"] = 32
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = peft.get_peft_model(whole, kind(**{key: settings[key] for key in settings if hasattr(kind, key)}))
        if case == "prefix":
            encoder = model.prompt_encoder["default"]
            prefixes = [module.prefix for module in network.modules() if hasattr(module, "prefix")]
            pairs = [
                (encoder.embedding.weight, prefixes[0].encoder.rows.weight),
                (encoder.transform[0].weight, prefixes[0].encoder.inner.weight),
                (encoder.transform[0].bias, prefixes[0].encoder.inner.bias),
                (encoder.transform[2].weight, torch.cat([each.outer.weight for each in prefixes])),
                (encoder.transform[2].bias, torch.cat([each.outer.bias for each in prefixes])),
            ]
            with torch.no_grad():
                for theirs, ours in pairs:
                    theirs.copy_(ours)
        else:
            peft.set_peft_model_state_dict(model, method.peft_state(network, name))
    return model


# The embeddings that peft's MLP reads are as wide as the keys of Llama, ours as the model.
TRAINED = [
    (case, name)
    for case in ("lora", "dora", "ia3", "prefix", "p_tuning_v2", "prompt")
    for name in ("gpt2", "llama", "roberta")
    if (case, name) != ("prefix", "llama")
]


@pytest.mark.long
@pytest.mark.parametrize(("case", "name"), TRAINED)
def test_twenty_steps_have_the_losses_of_peft(case, name):
    method = CASES[case]
    network = applied(name, method)
    for parameter in network.task_head.parameters():
        parameter.requires_grad_(False)
    plain = base(name)
    theirs = in_peft(name, case, method, network)
    trained = sum(parameter.numel() for parameter in theirs.parameters() if parameter.requires_grad)
    assert trained == sum(parameter.numel() for parameter in network.parameters() if parameter.requires_grad)
    expected, found = their_losses(name, case, theirs, plain), our_losses(name, method, network)
    assert found == pytest.approx(expected, abs=1e-5)
    assert expected[0] != expected[-1]


@pytest.mark.long
@pytest.mark.parametrize("name", ["gpt2", "llama", "roberta"])
def test_twenty_steps_of_full_training_have_the_losses_of_transformers(name):
    method, theirs = CASES["full"], stock(name, "full")
    expected, found = their_losses(name, "full", theirs, None), our_losses(name, method, applied(name, method))
    assert found == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("name", ["bart", "t5"])
def test_a_prefix_of_the_decoder_computes_what_past_keys_compute(name):
    method = CASES["p_tuning_v2"]
    network, plain = applied(name, method).eval(), base(name).eval()
    own, rows = ("self_attn", 8) if name == "bart" else ("SelfAttention", 8)
    pairs = []
    for path, module in network.named_modules():
        if hasattr(module, "prefix") and ("decoder." not in path or not path.endswith(own)):
            del module.prefix
        elif hasattr(module, "prefix"):
            pairs.append(module.prefix.heads(1, rows))
    assert len(pairs) == 2
    text, later = TEXTS[1], replace(method, tokens=0)
    cache = EncoderDecoderCache(DynamicCache(pairs), DynamicCache())
    with torch.no_grad():
        its = inputs(name, later, [text])
        its = replace(its, decoder=replace(its.decoder, positions=its.decoder.positions + method.tokens))
        found = MODELS[name].logits(network, MODELS[name].hidden(network, its))
        given = {"input_ids": its.ids, "decoder_input_ids": its.decoder.ids, "past_key_values": cache}
        expected = plain(**given).logits
    assert torch.allclose(found, expected, atol=1e-5)


@pytest.mark.long
def test_adalora_removes_the_ranks_that_peft_removes():
    steps, warmup, final = STEPS, 2, 8
    method = replace(CASES["adalora"], warmup=warmup / steps, final=final / steps, interval=3)
    network, removed = applied("llama", method), 0
    del network.task_head
    settings = {**method.settings("llama"), "tinit": warmup, "tfinal": final, "deltaT": 3, "total_step": steps}
    targets_of = method.peft_config(network, "llama", "decoder")["target_modules"]
    config = peft.AdaLoraConfig(task_type="CAUSAL_LM", target_modules=targets_of, **settings)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = peft.get_peft_model(stock("llama", "adalora"), config)
        peft.set_peft_model_state_dict(theirs, method.peft_state(network, "llama"))
    ours = {name: each for name, each in network.named_parameters() if each.requires_grad}
    optimizers = [
        torch.optim.AdamW([each for each in model.parameters() if each.requires_grad], lr=1e-2, weight_decay=0.0)
        for model in (network, theirs)
    ]
    allocation = RankAllocation({name: tuple(each.shape) for name, each in ours.items()}, method, steps)
    for step, (text, *_) in enumerate(BATCHES, 1):
        ids = torch.from_numpy(text)[None]
        hidden = states("llama", network, method, [text])
        logits = MODELS["llama"].logits(network, hidden)
        loss = torch.nn.functional.cross_entropy(logits[0, :-1], ids[0, 1:])
        loss.backward()
        optimizers[0].step()
        gradients = {name: each.grad.clone() for name, each in ours.items()}
        with torch.no_grad():
            for name, values in allocation.update(step, dict(ours), gradients).items():
                ours[name].copy_(values)
        optimizers[0].zero_grad()
        output = theirs(input_ids=ids, labels=ids)
        output.loss.backward()
        optimizers[1].step()
        theirs.base_model.update_and_allocate(step)
        optimizers[1].zero_grad()
        expected = torch.nn.functional.cross_entropy(output.logits[0, :-1], ids[0, 1:]).item()
        assert loss.item() == pytest.approx(expected, abs=1e-5), step
        zeros = [
            sum(int((each == 0).sum()) for name, each in model.named_parameters() if "lora_E" in name)
            for model in (network, theirs)
        ]
        assert zeros[0] == zeros[1], step
        removed = zeros[0]
    assert removed == 4 * (method.initial_rank - method.rank)
