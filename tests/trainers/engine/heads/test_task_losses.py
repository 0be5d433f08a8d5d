"""Heads and their losses against the stock heads of `transformers` and against their formulas, and packed
rows against padded rows.
"""

import numpy as np
import pytest
import torch

from gristmill.errors import ConfigError
from tests.trainers.engine.heads.task_batches import (
    CANDIDATES,
    KINDS,
    batch_of,
    forward_of,
    hidden,
    network_of,
    some_inputs,
    tiny,
)
from tokenizer.vocabulary.specials import SPECIAL_IDS
from trainers.config.architecture import ARCHITECTURES
from trainers.engine.forward import tensors
from trainers.models import MODELS
from trainers.models.heads.stock_heads import stock_task_model, why_not_stock_head
from trainers.rows.batch import IGNORED
from trainers.rows.task_outputs import join_outputs, outputs_of

INPUTS = some_inputs()
PACKED, PADDED = [[0, 1, 2, 3]], [[0], [1], [2], [3]]
SIZES = {name: tiny(name, **({"gated": True, "tied": False} if name == "t5" else {})) for name in MODELS}
STOCK = [(name, kind) for name in MODELS for kind in KINDS if MODELS[name].heads[kind].stock]


def predicted(forward, batch):
    return forward(predicts=True, **tensors(batch, "cpu"))["predictions"].detach()


def losses(forward, kind, model, rows, inputs=INPUTS):
    """Return the nats at the targets of a batch, after checking that they are zero everywhere else."""
    batch = batch_of(inputs, kind, model, rows)
    (loss,) = forward.losses
    found = forward(**tensors(batch, "cpu"))["loss"]
    targets = loss.targets(batch)
    assert found.shape == targets.shape == batch.targets.shape
    assert not found[torch.from_numpy(~targets)].any()
    return found.detach().numpy()[targets]


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", MODELS)
def test_losses_and_predictions_are_the_same_packed_or_padded(name, kind):
    model = SIZES[name]
    forward = forward_of(network_of(model, kind), model, kind)
    packed, padded, two = (losses(forward, kind, model, rows) for rows in (PACKED, PADDED, [[0, 1], [2, 3]]))
    assert len(packed) == (
        sum((t != IGNORED).sum() for t in INPUTS.tags)
        if kind == "tag"
        else len(INPUTS.labels) // (1 + (kind == "choose"))
    )
    assert packed == pytest.approx(padded, abs=1e-6, rel=5e-6)
    assert packed == pytest.approx(two, abs=1e-6, rel=5e-6)
    assert packed.std() > 5e-4


@pytest.mark.long
@pytest.mark.parametrize(
    "head",
    [
        {"pooling": "mean"},
        {"pooling": "max"},
        {"pooling": "last_max_mean"},
        {"layers": "last_four"},
        {"layers": "scalar_mix", "pooling": "mean"},
    ],
)
@pytest.mark.parametrize("name", MODELS)
def test_pooled_states_and_layers_are_the_same_packed_or_padded(name, head):
    model = SIZES[name]
    if name in ("awd_lstm", "gru") and "layers" in head:
        with pytest.raises(
            ConfigError, match=f"method.layers: got {head['layers']}, the layers of {name} have different widths"
        ):
            network_of(model, "classify", **head)
        return
    forward = forward_of(network_of(model, "classify", **head), model, "classify")
    packed, padded = (losses(forward, "classify", model, rows) for rows in (PACKED, PADDED))
    assert packed == pytest.approx(padded, abs=1e-6, rel=5e-6)


def alone(inputs, number, kind):
    if kind != "choose":
        return {"input_ids": torch.from_numpy(inputs.segments[number])[None]}
    segments = inputs.segments[CANDIDATES * number : CANDIDATES * (number + 1)]
    return {"input_ids": torch.from_numpy(np.stack(segments))[None]}


def padded_for_canine(given, positions):
    """Pad the arguments of a stock CANINE to a multiple of 128 characters that leaves at least 8 after the
    text. Positions beyond the position table use its last entry.
    """
    ids = given["input_ids"]
    beyond = (0, -(-(ids.shape[-1] + 8) // 128) * 128 - ids.shape[-1])
    padded = {"input_ids": torch.nn.functional.pad(ids, beyond)}
    padded["attention_mask"] = torch.nn.functional.pad(torch.ones_like(ids), beyond)
    if "labels" in given and given["labels"].shape == ids.shape:  # of tags
        padded["labels"] = torch.nn.functional.pad(given["labels"], beyond, value=IGNORED)
    places = torch.arange(padded["input_ids"].shape[-1]).clamp(max=positions - 1)
    return {**given, **padded, "position_ids": places[None]}


def gold(inputs, number, kind, at):
    if kind == "span":
        start, end = inputs.spans[number] or (at[number], at[number])
        return {"start_positions": torch.tensor([start]), "end_positions": torch.tensor([end])}
    given = {"regress": inputs.values, "tag": inputs.tags}.get(kind, inputs.labels)[number]
    labels = torch.from_numpy(np.asarray(given))[None]
    return {"labels": labels.float() if kind == "regress" else labels}


@pytest.mark.long
@pytest.mark.parametrize(("name", "kind"), STOCK)
def test_packed_predictions_and_losses_are_those_of_the_stock_head_on_every_input_alone(name, kind):
    model = SIZES[name]
    network = network_of(model, kind)
    inputs = some_inputs((8, 8, 5, 5)) if kind == "choose" else INPUTS
    batch = batch_of(inputs, kind, model, PACKED)
    forward = forward_of(network, model, kind)
    found = losses(forward, kind, model, PACKED, inputs)
    outputs = predicted(forward, batch)
    stock = stock_task_model(network, MODELS[name], SPECIAL_IDS, ["a", "b", "c", "d"][: outputs.shape[-1]])
    at = [0] * 4 if model.family == "encoder" else inputs.last
    expected = []
    for number in range(4 // (CANDIDATES if kind == "choose" else 1)):
        with torch.no_grad():
            given = {**alone(inputs, number, kind), **gold(inputs, number, kind, at)}
            length = given["input_ids"].shape[-1]
            output = stock(**(padded_for_canine(given, model.positions) if name == "canine" else given))
        own = batch.segments[0] == number
        if kind == "span":
            logits, ours = torch.stack([output.start_logits, output.end_logits], -1)[0, :length], outputs[0][own]
            places = (given["start_positions"], given["end_positions"])
            output.loss = sum(map(torch.nn.functional.cross_entropy, logits.T[:, None], places)) / 2
        elif kind == "tag":
            logits, ours = output.logits[0, :length], outputs[0][own]
        elif kind == "choose":
            logits, ours = output.logits[0], outputs[CANDIDATES * number :][:CANDIDATES]
        else:
            logits, ours = output.logits[0], outputs[number][None] if kind == "regress" else outputs[number]
        assert ours == pytest.approx(logits, abs=1e-5)
        count = (inputs.tags[number] != IGNORED).sum() if kind == "tag" else 1
        expected += [output.loss.item()] * count
        if kind == "tag":  # the stock loss is the mean over the input
            found = np.concatenate(
                [
                    found[: len(expected) - count],
                    [found[len(expected) - count :][:count].mean()] * count,
                    found[len(expected) :],
                ]
            )
    assert found == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("head", [{}, {"pooling": "last_max_mean"}, {"layers": "scalar_mix"}])
def test_a_batch_without_inputs_costs_nothing_and_reaches_every_parameter_of_the_head(kind, head):
    if kind in ("tag", "span") and "pooling" in head:
        head = {}
    model = SIZES["roberta"]
    network = network_of(model, kind, **head)
    loss = forward_of(network, model, kind)(**tensors(batch_of(INPUTS, kind, model, [[]]), "cpu"))["loss"].sum()
    loss.backward()
    assert loss.item() == 0.0
    assert all(parameter.grad.abs().sum() == 0 for parameter in network.parameters() if parameter.requires_grad)


def test_hidden_gold_is_no_target_and_changes_no_other_loss():
    for kind in KINDS:
        model = SIZES["bert"]
        forward = forward_of(network_of(model, kind), model, kind)
        batch = batch_of(INPUTS, kind, model, PACKED)
        whole, half = (forward(**tensors(each, "cpu"))["loss"] for each in (batch, hidden(batch, first=1)))
        targets = forward.losses[0].targets(hidden(batch, first=1))
        assert 0 < targets.sum() < forward.losses[0].targets(batch).sum()
        assert torch.equal(half, whole * torch.from_numpy(targets))
        assert not forward.losses[0].targets(hidden(batch)).any()
        assert not forward(**tensors(hidden(batch), "cpu"))["loss"].any()


def test_smoothing_and_class_weights_follow_their_formulas():
    model = SIZES["gpt2"]
    network = network_of(model, "classify")
    batch = batch_of(INPUTS, "classify", model, PACKED)
    weights, smoothing = [0.5, 2.0, 1.5], 0.1
    nats = forward_of(network, model, "classify", smoothing=smoothing, class_weights=weights)(**tensors(batch, "cpu"))
    logs = predicted(forward_of(network, model, "classify"), batch).log_softmax(1)
    expected = []
    for label, log in zip(INPUTS.labels, logs.detach().numpy(), strict=True):
        expected.append(-weights[label] * ((1 - smoothing) * log[label] + smoothing / 3 * log.sum()))
    assert nats["loss"].sum().item() == pytest.approx(sum(expected), rel=1e-6)


def test_a_dense_layer_pooling_and_layers_have_these_shapes():
    shapes = {
        ("bert", "first", "last"): (32, 32),
        ("bert", "last_max_mean", "last"): (32, 96),
        ("roberta", "mean", "last_four"): (32, 128),
        ("bart", "max", "scalar_mix"): (32, 32),
    }
    for (name, pooling, layers), shape in shapes.items():
        model = SIZES[name]
        head = network_of(model, "classify", pooling=pooling, layers=layers).task_head
        assert tuple(head.dense.weight.shape) == shape
        assert (head.mix is None) == (layers != "scalar_mix")


def test_pooling_takes_the_states_of_the_text_alone():
    states = torch.tensor([[[9.0], [1.0], [4.0], [9.0], [9.0], [-2.0], [9.0], [9.0]]])
    owner = torch.tensor([[-1, 0, 0, -1, -1, 1, -1, -1]])
    at = torch.tensor([0, 4, 6])  # the third segment has no text
    head = network_of(SIZES["gpt2"], "regress", pooling="last_max_mean").task_head
    head.output = torch.nn.Identity()
    head.kind = "classify"
    assert head(states, at, owner).tolist() == [[9.0, 4.0, 2.5], [9.0, -2.0, -2.0], [9.0, 0.0, 0.0]]


@pytest.mark.long
def test_a_mix_of_layers_begins_as_their_mean_and_the_last_is_normalised():
    for name in (
        "albert",
        "bert",
        "deberta",
        "deberta_v2",
        "gpt",
        "gpt2",
        "llama",
        "modernbert",
        "t5",
        "bart",
        "xlnet",
        "elmo",
        "canine",
    ):
        model = SIZES[name]
        network = network_of(model, "classify", layers="scalar_mix")
        forward = forward_of(network, model, "classify")
        seen = {}
        network.task_head.register_forward_pre_hook(
            lambda head, given, seen=seen: seen.update(states=given[0], layers=given[3])
        )
        batch = batch_of(INPUTS, "classify", model, PACKED)
        first = predicted(forward, batch)
        assert len(seen["layers"]) == 5
        assert torch.equal(seen["layers"][-1], seen["states"])
        assert torch.allclose(
            network.task_head.mix(seen["layers"]), torch.stack(list(seen["layers"])).mean(0), atol=1e-5
        )
        with torch.no_grad():
            network.task_head.mix.scalars[0] = 100.0
        assert not torch.allclose(predicted(forward, batch), first)


def test_the_heads_of_pretraining_are_frozen():
    for name in MODELS:
        network = network_of(tiny(name, **({"sentence_head": True} if name == "bert" else {})), "classify")
        frozen = {n.split(".")[0] for n, p in network.named_parameters() if not p.requires_grad and ".pooler." not in n}
        expected = {"bert": {"cls"}, "modernbert": {"head", "decoder"}, "roberta": {"lm_head"}, "llama": set()}
        expected["albert"], expected["canine"] = {"predictions"}, {"cls"}
        expected["deberta"] = expected["deberta_v2"] = {"cls"}
        expected["awd_lstm"] = expected["elmo"] = {"lm_head"}
        expected["gru"] = {"lm_head", "next_decoder", "previous_decoder"}
        expected["electra"] = {"generator_predictions", "generator_lm_head"}
        expected["xlnet"] = {"lm_loss", "transformer"}  # of this, what begins the second stream
        assert frozen == expected.get(name, set()), name
        assert network.get_input_embeddings().weight.requires_grad
    assert not network_of(SIZES["t5"], "tag").lm_head.weight.requires_grad


@pytest.mark.parametrize(
    ("name", "kind", "head", "message"),
    [
        (
            "bert",
            "classify",
            {"pooling": "last"},
            "head.pooling: got last, bert reads the first token; allowed first, mean",
        ),
        ("gpt2", "classify", {"pooling": "first"}, "head.pooling: got first, gpt2 reads the last token"),
        ("elmo", "classify", {"pooling": "first"}, "got first, elmo pools .* tokens; allowed mean, max, last_max_mean"),
        ("bert", "tag", {"pooling": "mean"}, "head.pooling: got mean, a head of kind tag predicts at every position"),
    ],
)
def test_what_does_not_apply_is_refused(name, kind, head, message):
    with pytest.raises(ConfigError, match=message):
        network_of(SIZES[name], kind, **head)
    with pytest.raises(ConfigError, match="got last_four, the model has 2 layers"):
        network_of(tiny(name, layers=2), kind, layers="last_four")


@pytest.mark.long
@pytest.mark.parametrize("name", MODELS)
def test_the_seed_decides_a_head_and_the_callers_random_state_is_kept(name):
    state = torch.random.get_rng_state()
    one, same, other = (network_of(SIZES[name], "classify", seed).task_head.output.weight for seed in (1, 1, 2))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    deviation = 0.1 if "initializer_range" in ARCHITECTURES[name].has else 32**-0.5
    assert one.std().item() == pytest.approx(deviation, rel=0.3)


def test_outputs_come_in_order_of_the_inputs_however_they_lie_in_rows():
    for kind in KINDS:
        model = SIZES["bert"]
        forward = forward_of(network_of(model, kind), model, kind)
        found = []
        for rows in (PACKED, [[2, 3], [0, 1]], [[2, 3]], [[0, 1]]):
            batch = hidden(batch_of(INPUTS, kind, model, rows))
            found.append(outputs_of(kind, predicted(forward, batch).detach().numpy(), batch))
        packed, swapped, joined = found[0], join_outputs(found[1:2]), join_outputs(found[2:])
        for other in (swapped, joined):
            assert other.numbers.tolist() == packed.numbers.tolist() == list(range(len(packed.numbers)))
            assert other.scores == pytest.approx(packed.scores, abs=1e-5)
        if kind in ("tag", "span", "choose"):
            sizes = [2, 2] if kind == "choose" else [len(segment) for segment in INPUTS.segments]
            assert np.diff(joined.offsets).tolist() == np.diff(packed.offsets).tolist() == sizes
        else:
            assert packed.offsets is None


def test_cells_without_a_stock_head_say_so():
    cells = [(name, kind) for name in MODELS for kind in KINDS if (name, kind) not in STOCK]
    assert sorted(cells) == [
        *(("awd_lstm", kind) for kind in sorted(KINDS)),
        *(("bart", kind) for kind in ("choose", "tag")),
        ("deberta", "choose"),
        *(("elmo", kind) for kind in sorted(KINDS)),
        *(("gpt", kind) for kind in ("choose", "span", "tag")),
        ("gpt2", "choose"),
        *(("gru", kind) for kind in sorted(KINDS)),
        ("llama", "choose"),
        ("t5", "choose"),
        ("t5", "tag"),
    ]
    reason = why_not_stock_head(MODELS["gpt"], SIZES["gpt"], "span")
    assert reason == "transformers has no such head of kind span for gpt"
    reason = why_not_stock_head(MODELS["bert"], SIZES["bert"], "classify", "mean")
    assert reason == "transformers has no head.pooling: mean"
