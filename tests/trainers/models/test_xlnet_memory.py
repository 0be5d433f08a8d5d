"""XLNet trained on rows in windows: against transformers' XLNet with its own memory, across document borders,
without gradients into the previous window, and for any division of a step.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.trainers.models.test_models import tiny
from tests.trainers.objectives.test_masked import CONTEXT, SPECIALS, VOCABULARY
from tests.trainers.objectives.test_replaced_tokens import texts
from trainers.config.job import BatchSize, Optimizer, TrainingBudget
from trainers.config.pretraining import Data, Pretraining
from trainers.engine import engine as module
from trainers.engine.engine import Engine
from trainers.engine.forward import Forward, forward_of, tensors
from trainers.models import build_model
from trainers.models.interface import Carried
from trainers.objectives.permutation import Permutation
from trainers.rows.batch import IGNORED, PADDING
from trainers.rows.row_windows import window

LENGTH, WINDOW, RATE = 72, 24, 1e-2
OBJECTIVE = Permutation(partial_prediction=3)
MODEL = tiny("xlnet", layers=3, positions=LENGTH, vocab_size=VOCABULARY, initializer_range=0.2)
ARRAYS = ("inputs", "targets", "positions", "segments")


def network():
    return build_model(MODEL, SPECIALS, 0).eval()


def packed(sizes, count):
    """Return `count` rows of 72 tokens, with documents of the given sizes. The sizes include the marks."""
    batch = texts([size - 2 for size in sizes], count)
    return replace(batch, **{name: getattr(batch, name)[:, :LENGTH] for name in ARRAYS})


def rows(sizes, count=2):
    return OBJECTIVE.apply(packed(sizes, count), CONTEXT)


def windowed(model, batch, isolation=True):
    """Return the nats of the targets, float32 [rows, length], for rows read in windows without updates in
    between.
    """
    forward, carried = Forward(model, "xlnet", isolation), Carried()
    parts = [window(batch, first, WINDOW) for first in range(0, LENGTH, WINDOW)]
    with torch.no_grad():
        made = [forward(carried=carried, **tensors(part, "cpu"))["loss"] for part in parts]
    return torch.cat([each.reshape(len(batch.inputs), -1) for each in made], dim=1)


def test_losses_are_those_of_transformers_with_its_memory():
    """The test builds the masks itself, and every target attends to the whole memory."""
    batch, model = rows([LENGTH]), network()
    found, checked = windowed(model, batch), 0
    model.transformer.mem_len, memory = WINDOW, None
    for row in range(2):
        memory = None
        for first in range(0, LENGTH, WINDOW):
            order = [column - first for column in batch.factorization[row] if first <= column < first + WINDOW]
            unseen, mapping = torch.zeros(1, WINDOW, WINDOW), torch.zeros(1, len(order), WINDOW)
            for number, column in enumerate(order):
                mapping[0, number, column] = 1
                for query in range(WINDOW):
                    unseen[0, query, column] = float(query not in order[number + 1 :])
            ids = torch.from_numpy(batch.inputs[row, first : first + WINDOW])[None]
            given = {"token_type_ids": torch.zeros_like(ids), "mems": memory, "use_mems": True}
            with torch.no_grad():
                made = model(ids, perm_mask=unseen, target_mapping=mapping, **given)
            memory = made.mems
            nats = -made.logits[0].log_softmax(1)
            for number, column in enumerate(order):
                assert found[row, first + column].item() == pytest.approx(float(nats[number, ids[0, column]]), abs=1e-4)
                checked += 1
    assert checked == (batch.targets != IGNORED).sum() > 40


@pytest.mark.parametrize(
    ("sizes", "isolation", "excluded", "differs"),
    [
        ([20, 52], True, False, False),  # the next document begins within the window
        ([WINDOW, 48], True, False, False),  # with a window
        ([20, 52], False, False, True),
        ([20, 52], False, True, False),  # as padding
        ([LENGTH], True, False, True),
    ],
)
def test_a_window_sees_its_own_document_in_the_memory(sizes, isolation, excluded, differs):
    batch, model = rows(sizes), network()
    here = np.arange(LENGTH) < 20
    if excluded:
        gone = np.s_[:, :20]
        segments, targets = batch.segments.copy(), batch.targets.copy()
        segments[gone], targets[gone] = PADDING, IGNORED
        batch = replace(batch, segments=segments, targets=targets)
    changed = replace(batch, inputs=np.where(here, 900 + np.arange(LENGTH), batch.inputs))
    before, after = (windowed(model, each, isolation)[:, WINDOW : 2 * WINDOW] for each in (batch, changed))
    there = torch.from_numpy(batch.targets[:, WINDOW : 2 * WINDOW] != IGNORED)
    assert there.sum() > 10
    if differs:
        assert ((before - after)[there].abs() > 1e-5).all()
    else:
        assert torch.equal(before, after)


def test_no_gradient_flows_into_the_window_before():
    batch, model, carried, embedded = rows([LENGTH]), network(), Carried(), []
    forward = Forward(model, "xlnet")
    model.transformer.word_embedding.register_forward_hook(
        lambda _, __, made: made.retain_grad() or embedded.append(made)
    )
    losses = [forward(carried=carried, **tensors(window(batch, first, WINDOW), "cpu"))["loss"] for first in (0, WINDOW)]
    losses[1].sum().backward()
    assert embedded[0].grad is None
    assert embedded[1].grad.abs().sum() > 0
    assert [memory.shape for memory in carried.memories] == [(WINDOW, 2, MODEL.width)] * MODEL.layers
    assert carried.columns == 2 * WINDOW


def test_a_window_keeps_the_order_of_its_targets():
    batch = rows([30, 42], 4)
    for first in range(0, LENGTH, WINDOW):
        part = window(batch, first, WINDOW)
        for row, order in enumerate(batch.factorization):
            mine, filled = part.factorization[row], part.factorization[row] < 0
            assert (mine[~filled] + first).tolist() == [each for each in order if first <= each < first + WINDOW]
            assert not (np.diff(filled.astype(int)) < 0).any()
            assert set(mine[~filled]) == set(np.flatnonzero(part.targets[row] != IGNORED))
    assert (window(batch, LENGTH, WINDOW).factorization == -1).all()


def train(bptt=WINDOW, parts=1, steps=2, length=LENGTH, model=MODEL, **execution):
    """Train for a few steps, and return (loss, gradient norm, updates) for each step, and the final weights.

    The second row ends after 26 tokens; as a micro-batch of its own, it is cut to 32 columns.
    """
    config = Pretraining(
        name="x", model=model, objective=OBJECTIVE, batch=BatchSize(sequences=2), budget=TrainingBudget(steps=steps),
        data=Data(sequence_length=length, bptt=bptt), optimizer=Optimizer(learning_rate=RATE, epsilon=1e-3), precision="fp32",
    )  # fmt: skip
    config = replace(config, execution=replace(config.execution, **execution))
    config.check()
    engine = Engine(forward_of(build_model(config.model, SPECIALS, 0), config), config, 2 // parts, parts)
    found = []
    for step in range(steps):
        batch = packed([26, 46], 2)
        batch.segments[1, 26:] = PADDING
        batch = OBJECTIVE.apply(batch, replace(CONTEXT, seed=step))
        batches = [batch]
        if parts == 2:
            names = (*ARRAYS, "source", "sequence", "sample", "epoch", "factorization")
            batches = [replace(batch, **{name: getattr(batch, name)[k : k + 1] for name in names}) for k in (0, 1)]
            batches[1] = replace(batches[1], **{name: getattr(batches[1], name)[:, :32] for name in ARRAYS})
        totals, norm = engine.train_step(batches, step, RATE, 3, False)
        found.append((totals.loss, norm, totals.updates))
    weights = {name: each["weight"].clone() for name, each in engine.state()}
    engine.close()
    return np.array(found), weights


def test_micro_batches_change_rounding_only():
    (whole, weights), (split, others) = train(), train(parts=2)
    assert (whole[:, 2] == LENGTH // WINDOW).all()
    np.testing.assert_allclose(split, whole, rtol=1e-4)
    for name, its in weights.items():
        torch.testing.assert_close(others[name], its, atol=1e-4, rtol=0, msg=name)


def test_a_window_of_the_whole_row_is_training_without_windows():
    dropping = replace(MODEL, dropout=0.1)
    (whole, weights), (windowed, others) = train(None, model=dropping), train(LENGTH, model=dropping)
    np.testing.assert_array_equal(windowed, whole)
    assert all(torch.equal(others[name], its) for name, its in weights.items())


@pytest.mark.deepspeed
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("stage", [2, 3])
def test_zero_trains_as_torch_alone(alone, monkeypatch, stage):
    single, _ = train()
    monkeypatch.setattr(module, "_needs_deepspeed", lambda config: True)
    zero, _ = train(zero_stage=stage)
    np.testing.assert_allclose(zero, single, rtol=1e-4)


def test_layers_that_are_computed_again_read_the_same_memory():
    dropping = replace(MODEL, dropout=0.1)
    once, twice = train(model=dropping)[0], train(model=dropping, activation_checkpointing=True)[0]
    np.testing.assert_allclose(twice, once, rtol=1e-6)


def test_only_rows_of_whole_texts_have_windows():
    data, sizes = (
        Data(sequence_length=LENGTH, bptt=WINDOW),
        {"batch": BatchSize(sequences=2), "budget": TrainingBudget(steps=1)},
    )
    config = Pretraining(name="x", model=MODEL, objective=OBJECTIVE, data=data, **sizes)
    config.check()
    with pytest.raises(
        ValueError, match=r"^data.bptt: got 24 with data.packing best_fit; allowed with concatenate, otherwise"
    ):
        replace(config, data=replace(config.data, packing="best_fit")).check()
