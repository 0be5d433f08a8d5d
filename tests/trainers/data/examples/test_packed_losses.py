"""The losses and predictions of a head do not depend on how inputs are packed into rows and batches."""

import numpy as np
import pytest
import torch

from tests.trainers.data.examples.test_task_rows import SPECIALS, inputs_of
from tests.trainers.models.test_models import tiny
from trainers.config.finetuning import Mixing
from trainers.data.examples.task_data import TaskData, order_of_tasks
from trainers.data.examples.text_format import text_format
from trainers.engine.assembly import attach_head
from trainers.engine.forward import Forward, tensors
from trainers.engine.losses import LOSSES
from trainers.engine.task_losses import task_losses
from trainers.models import build_model
from trainers.rows.task_outputs import join_outputs, outputs_of

COUNT = 14
OUTPUTS = {"classify": 3, "regress": 1, "tag": 4, "span": 2, "choose": 1}


def gold_of(kind, form, sizes):
    rng = np.random.default_rng(3)
    if kind in ("classify", "choose"):
        return {"labels": rng.integers(0, 2, COUNT)}
    if kind == "regress":
        return {"values": rng.normal(size=COUNT)}
    if kind == "span":
        before = len(form.before) + sizes[0] + len(form.between)
        first = rng.integers(0, sizes[1])
        answers = np.stack([before + first, before + np.minimum(first + 2, sizes[1] - 1)])
        return {"answers": np.where(rng.random(COUNT) < 0.3, -1, answers).T}
    counts = np.minimum(sizes[0], 3)
    tokens = np.concatenate([np.arange(count) for count in counts]) + len(form.before)
    gold = {"tags": rng.integers(0, 4, len(tokens)), "words": np.arange(len(tokens)), "word_tokens": tokens}
    return {**gold, "word_offsets": np.concatenate([[0], np.cumsum(counts)])}


def data_of(model, kind, packed):
    form = text_format(model, SPECIALS, kind == "text_to_text")
    sizes = inputs_of(form, kind, texts=1 if kind == "tag" else 2, count=COUNT).segments.sizes
    gold = {} if kind == "text_to_text" else gold_of(kind, form, sizes)
    task = inputs_of(form, kind, texts=1 if kind == "tag" else 2, count=COUNT, **gold)
    if kind == "choose":
        offsets = np.array([0, 3, 5, 9, 11, COUNT])
        task = task.__class__(
            **{**vars(task), "offsets": offsets, "example": np.arange(5), "labels": gold["labels"][:5]}
        )
    return TaskData((task,), order_of_tasks([task], Mixing(), 0, "f"), 100, packed)


@pytest.mark.long
@pytest.mark.parametrize("kind", [*OUTPUTS, "text_to_text"])
@pytest.mark.parametrize("architecture", ["bert", "modernbert", "gpt", "bart", "t5"])
def test_losses_and_predictions_do_not_depend_on_rows(architecture, kind):
    model = tiny(architecture, **({} if architecture in ("t5", "llama") else {"initializer_range": 0.1}))
    if kind == "text_to_text" and model.family == "encoder":
        pytest.skip("encoders write no text")
    network = build_model(model, SPECIALS, 0)
    losses = (LOSSES["loss"],)
    if kind != "text_to_text":
        attach_head(network, model, kind, OUTPUTS[kind], 0)
        losses = task_losses(kind)
    forward = Forward(network.eval(), architecture, losses=losses)
    found = []
    for packed, size, world in ((True, COUNT, 1), (False, COUNT, 1), (True, 4, 2)):
        data = data_of(model, kind, packed)
        samples = data.order.take(0, len(data.tasks[0]))
        batches = [batch for rank in range(world) for batch in data.split(samples, size, rank, world)]
        nats = targets = 0
        outputs = []
        for batch in batches:
            with torch.no_grad():
                made = forward(predicts=kind != "text_to_text", **tensors(batch, "cpu"))
            nats += float(made["loss"].double().sum())
            targets += int(losses[0].targets(batch).sum())
            if kind != "text_to_text":
                outputs.append(outputs_of(kind, made["predictions"].numpy(), batch))
        found.append((nats, targets, outputs and join_outputs(outputs)))
    first = found[0]
    assert first[1] > 0
    for nats, targets, outputs in found[1:]:
        assert targets == first[1]
        assert nats == pytest.approx(first[0], rel=1e-5)
        if outputs:
            np.testing.assert_array_equal(outputs.numbers, np.arange(len(outputs.numbers)))
            np.testing.assert_allclose(outputs.scores, first[2].scores, atol=2e-5, rtol=2e-4)
