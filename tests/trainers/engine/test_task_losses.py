"""Heads and their losses: against the stock heads of `transformers`, packed against padded, and by their formulas."""

import numpy as np
import pytest
import torch

from tests.trainers.engine.task_batches import CANDIDATES, KINDS, batch_of, forward_of, network_of, some_inputs, tiny
from tokenizer.vocabulary.specials import SPECIAL_IDS
from trainers.engine.forward import tensors
from trainers.models import MODELS
from trainers.models.heads.stock_heads import stock_task_model, why_not_stock_head
from trainers.rows.batch import IGNORED

INPUTS = some_inputs()
PACKED, PADDED = [[0, 1, 2, 3]], [[0], [1], [2], [3]]
SIZES = {name: tiny(name, **({"gated": True, "tied": False} if name == "t5" else {})) for name in MODELS}
STOCK = [(name, kind) for name in MODELS for kind in KINDS if MODELS[name].heads[kind].stock]


def losses(forward, kind, model, rows, inputs=INPUTS):
    """(sum of the nats, number of targets, nats where targets are, ordered by number of the input)."""
    batch = batch_of(inputs, kind, model, rows)
    (loss,) = forward.losses
    found = forward(**tensors(batch, "cpu"))["loss"]
    targets = loss.targets(batch)
    assert found.shape == targets.shape == batch.targets.shape
    assert not found[torch.from_numpy(~targets)].any()
    return found.detach().numpy()[targets]


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
    assert packed.std() > 1e-3


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
    forward = forward_of(network_of(model, "classify", **head), model, "classify")
    packed, padded = (losses(forward, "classify", model, rows) for rows in (PACKED, PADDED))
    assert packed == pytest.approx(padded, abs=1e-6, rel=5e-6)


def alone(inputs, number, kind):
    """What a stock model of a kind is called with for one input."""
    if kind != "choose":
        return {"input_ids": torch.from_numpy(inputs.segments[number])[None]}
    segments = inputs.segments[CANDIDATES * number : CANDIDATES * (number + 1)]
    return {"input_ids": torch.from_numpy(np.stack(segments))[None]}


def gold(inputs, number, kind, at):
    """The labels of a stock model for one input."""
    if kind == "span":
        start, end = inputs.spans[number] or (at[number], at[number])
        return {"start_positions": torch.tensor([start]), "end_positions": torch.tensor([end])}
    given = {"regress": inputs.values, "tag": inputs.tags}.get(kind, inputs.labels)[number]
    labels = torch.from_numpy(np.asarray(given))[None]
    return {"labels": labels.float() if kind == "regress" else labels}


@pytest.mark.parametrize(("name", "kind"), STOCK)
def test_packed_predictions_and_losses_are_those_of_the_stock_head_on_every_input_alone(name, kind):
    model = SIZES[name]
    network = network_of(model, kind)
    inputs = some_inputs((8, 8, 5, 5)) if kind == "choose" else INPUTS
    batch = batch_of(inputs, kind, model, PACKED)
    forward = forward_of(network, model, kind)
    found = losses(forward, kind, model, PACKED, inputs)
    predicted = forward(predicts=True, **tensors(batch, "cpu")).detach()
    stock = stock_task_model(network, MODELS[name], SPECIAL_IDS, ["a", "b", "c", "d"][: predicted.shape[-1]])
    at = [0] * 4 if model.family == "encoder" else inputs.last
    expected = []
    for number in range(4 // (CANDIDATES if kind == "choose" else 1)):
        with torch.no_grad():
            output = stock(**alone(inputs, number, kind), **gold(inputs, number, kind, at))
        own = batch.segments[0] == number
        if kind == "span":
            logits, ours = torch.stack([output.start_logits, output.end_logits], -1)[0], predicted[0][own]
        elif kind == "tag":
            logits, ours = output.logits[0], predicted[0][own]
        elif kind == "choose":
            logits, ours = output.logits[0], predicted[CANDIDATES * number :][:CANDIDATES]
        else:
            logits, ours = output.logits[0], predicted[number][None] if kind == "regress" else predicted[number]
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


def test_cells_without_a_stock_head_say_so():
    cells = [(name, kind) for name in MODELS for kind in KINDS if (name, kind) not in STOCK]
    assert sorted(cells) == [
        *(("bart", kind) for kind in ("choose", "tag")),
        *(("gpt", kind) for kind in ("choose", "span", "tag")),
        ("gpt2", "choose"),
        ("llama", "choose"),
        ("t5", "choose"),
        ("t5", "tag"),
    ]
    head = network_of(SIZES["gpt"], "span").task_head
    assert "no such head of kind span for gpt" in why_not_stock_head(MODELS["gpt"], SIZES["gpt"], head)
    head = network_of(SIZES["bert"], "classify", pooling="mean").task_head
    assert why_not_stock_head(MODELS["bert"], SIZES["bert"], head) == "transformers has no head.pooling: mean"
