"""Permutation language modelling against a direct implementation of the paper, and against the losses of
transformers' XLNet with explicit masks.
"""

import random
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch

from gristmill.config import override, parse, plain
from gristmill.errors import ConfigError, UserError
from tests.trainers.evaluation.scored_models import encoder
from tests.trainers.models.test_models import tiny
from tests.trainers.objectives.test_masked import CONTEXT, SPECIALS, VOCABULARY, batch_of, eligible, rows_of
from tests.trainers.objectives.test_replaced_tokens import texts
from trainers.config.pretraining import Pretraining
from trainers.engine.forward import Forward, tensors
from trainers.engine.hardware.mfu import flops_of
from trainers.evaluation.scoring.scorer import Scorer
from trainers.models import build_model
from trainers.objectives.permutation import Permutation
from trainers.recipes import RECIPES
from trainers.rows.batch import IGNORED, PADDING

OBJECTIVE = Permutation()
MODEL = tiny("xlnet", layers=3, positions=256, vocab_size=VOCABULARY, initializer_range=0.2)


def network():
    return build_model(MODEL, SPECIALS, 0).eval()


def reading(rng, count):
    """Return the positions of targets among `count` tokens.

    "We first sample a length L in [1, 5], and then randomly select a consecutive span of L tokens as
    prediction targets within a context of (K L) tokens" (section 3.1). Here K = 6, and the probabilities of L
    are those of the authors' code.
    """
    targets, first = [], 0
    while first < count:
        (length,) = rng.choices(range(1, 6), [1 / n for n in range(1, 6)])
        context = min(6 * length, count - first)
        if context < 6 * length:  # the end of the text
            length = context // 6 + (rng.random() < context % 6 / 6)
        begin = first + rng.randrange(context - length + 1)
        targets += range(begin, begin + length)
        first += context
    return targets


def plain_texts(count, rows):
    return rows_of([[np.full(count, 950)] for _ in range(rows)])


def runs_of(chosen):
    edges = np.diff(np.pad(chosen.astype(int), ((0, 0), (1, 1))), axis=1)
    return Counter((np.nonzero(edges == -1)[1] - np.nonzero(edges == 1)[1]).tolist())


def assert_alike(found, expected):
    for number in found.keys() | expected.keys():
        assert found[number] == pytest.approx(expected[number], abs=5 * np.sqrt(2 * expected[number]) + 5)


def chosen_of(made, segment=0):
    """Return which tokens of a document of each row are targets, bool [rows, length of the document]."""
    here = made.segments[0] == segment
    return (made.targets != IGNORED)[:, here]


@pytest.mark.long
@pytest.mark.parametrize("count", [1, 5, 13, 40])
def test_targets_are_those_of_the_paper(count):
    """The positions of targets, their number and the lengths of their runs are distributed as in a direct
    implementation.
    """
    rows = 5_000
    made = OBJECTIVE.apply(plain_texts(count, rows), CONTEXT)
    found = chosen_of(made)[:, 1:-1]  # between the marks
    assert found.shape == (rows, count)
    rng, read = random.Random(0), np.zeros((rows, count), dtype=bool)
    for row in read:
        row[reading(rng, count)] = True
    np.testing.assert_allclose(found.mean(0), read.mean(0), atol=5 * np.sqrt(2 * 0.17 * 0.83 / rows))
    assert found.mean() == pytest.approx(1 / 6, abs=5 * np.sqrt(5 / 36 / rows))
    assert_alike(Counter(found.sum(1).tolist()), Counter(read.sum(1).tolist()))
    assert_alike(runs_of(found), runs_of(read))


def test_of_six_tokens_one_is_a_target_if_spans_have_one_token():
    made = Permutation(span_tokens=1).apply(plain_texts(60, 2000), CONTEXT)
    assert (chosen_of(made)[:, 1:-1].reshape(2000, 10, 6).sum(2) == 1).all()


@pytest.mark.long
def test_the_order_of_targets_is_uniform_and_special_tokens_have_none():
    batch = batch_of([6, 30], 6000)
    made = Permutation(partial_prediction=2, span_tokens=3).apply(batch, CONTEXT)
    chosen = made.targets != IGNORED
    assert not (chosen & ~eligible(batch)).any()
    np.testing.assert_array_equal(made.inputs, batch.inputs)
    np.testing.assert_array_equal(made.targets[chosen], batch.inputs[chosen])
    orders = Counter()
    for row, columns in enumerate(made.factorization):
        there = columns[columns >= 0]
        assert sorted(there) == np.flatnonzero(chosen[row]).tolist()
        first = [column for column in there if made.segments[row, column] == 0]
        if len(first) == 3:
            orders[tuple(np.argsort(first))] += 1
    assert len(orders) == 6
    total = sum(orders.values())
    assert total > 1000
    assert sum((times - total / 6) ** 2 / (total / 6) for times in orders.values()) < 5 + 4 * np.sqrt(10)


def test_orders_and_spans_are_functions_of_seed_and_sample_and_not_of_the_batch():
    batch = batch_of([60, 130], 12)
    whole = OBJECTIVE.apply(batch, CONTEXT)
    names = ("inputs", "targets", "positions", "segments", "source", "sequence", "sample", "epoch")
    part = OBJECTIVE.apply(replace(batch, **{name: getattr(batch, name)[[7, 3]] for name in names}), CONTEXT)
    np.testing.assert_array_equal(part.targets, whole.targets[[7, 3]])
    width = part.factorization.shape[1]
    np.testing.assert_array_equal(part.factorization, whole.factorization[[7, 3], :width])
    assert (whole.factorization[[7, 3], width:] == -1).all()
    assert not np.array_equal(OBJECTIVE.apply(batch, replace(CONTEXT, seed=8)).targets, whole.targets)


def stock_nats(model, made, row, segment):
    """Return {column: nats} of a single document, computed by `XLNetLMHeadModel` with explicit masks."""
    here = np.flatnonzero(made.segments[row] == segment)
    order = [column - here[0] for column in made.factorization[row] if column in here]
    length = len(here)
    unseen = torch.zeros(1, length, length)
    for i in range(length):
        for j in order:
            known = i in order and order.index(j) < order.index(i)
            unseen[0, i, j] = 0.0 if known else 1.0
    mapping = torch.zeros(1, len(order), length)
    for number, column in enumerate(order):
        mapping[0, number, column] = 1.0
    ids = torch.from_numpy(made.inputs[row, here])[None]
    with torch.no_grad():
        logits = model(ids, perm_mask=unseen, target_mapping=mapping).logits[0]
    shares = logits.log_softmax(1)
    return {column + here[0]: -float(shares[number, ids[0, column]]) for number, column in enumerate(order)}


@pytest.mark.long
def test_losses_are_those_of_transformers_for_each_document_alone():
    made, model, checked = OBJECTIVE.apply(texts([60, 3, 25, 12], 3), CONTEXT), network(), 0
    found = Forward(model, "xlnet")(**tensors(made, "cpu"))["loss"]
    for row in range(3):
        for segment in range(4):
            for column, nats in stock_nats(model, made, row, segment).items():
                assert found[row, column].item() == pytest.approx(nats, abs=1e-4)
                checked += 1
    assert checked == (made.targets != IGNORED).sum() > 30
    found.sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_a_target_sees_those_before_it_in_the_order_and_neither_itself_nor_those_after():
    made, model = OBJECTIVE.apply(texts([80], 1), CONTEXT), network()
    order = [column for column in made.factorization[0] if column >= 0]
    middle = order[len(order) // 2]
    changed = made.inputs.copy()
    changed[0, middle] = 950 + (changed[0, middle] == 950)
    with torch.no_grad():
        before, after = (
            Forward(model, "xlnet")(**tensors(replace(made, inputs=ids), "cpu"))["loss"][0]
            for ids in (made.inputs, changed)
        )
    place = order.index(middle)
    assert torch.equal(before[order[: place + 1]], after[order[: place + 1]])
    assert ((before - after)[order[place + 1 :]].abs() > 0).all()


def test_documents_without_a_target_and_excluded_ones_change_no_other():
    made, model = OBJECTIVE.apply(texts([60, 1, 25], 2), CONTEXT), network()
    forward = Forward(model, "xlnet")
    gone = made.segments == 0
    targets, segments = np.where(gone, IGNORED, made.targets), np.where(gone, PADDING, made.segments)
    none = replace(made, targets=np.full_like(made.targets, IGNORED), factorization=np.full((2, 8), -1))
    with torch.no_grad():
        whole = forward(**tensors(made, "cpu"))["loss"]
        without = forward(**tensors(replace(made, targets=targets, segments=segments), "cpu"))["loss"]
        nothing = forward(**tensors(none, "cpu"))["loss"]
    torch.testing.assert_close(without, whole * torch.from_numpy(~gone), atol=1e-5, rtol=1e-5)
    assert not nothing.any()


def test_the_second_stream_costs_operations_at_targets():
    width, inner, length = 32, 64, 50
    found = flops_of(network(), MODEL, length)
    queries = 2 * width * width + 3 * width + 2 * width * inner + inner + width + 4 * width
    table = VOCABULARY * width
    assert found.predicted == 6 * table + 3 * (6 * queries + 12 * width * length)


def test_an_xlnet_scores_no_texts(tmp_path):
    with pytest.raises(
        UserError, match=r"^a run: holds xlnet, which predicts no masks and scores no texts; give another"
    ):
        Scorer("a run", network(), MODEL, OBJECTIVE, encoder(tmp_path))


@pytest.mark.parametrize(
    ("recipe", "changes", "message"),
    [
        (
            "tiny_xlnet",
            ("objective={kind: masked}",),
            "objective: got masked with model.architecture xlnet; permutation is",
        ),
        (
            "tiny_roberta",
            ("objective={kind: permutation}",),
            "got permutation with model.architecture roberta; permutation is",
        ),
        ("tiny_xlnet", ("objective.partial_prediction=1",), "partial_prediction: got 1, allowed 2 or more"),
        ("tiny_xlnet", ("objective.span_tokens=0",), "span_tokens: got 0, allowed 1 or more"),
    ],
)
def test_what_cannot_be_permuted_is_refused(recipe, changes, message):
    with pytest.raises(ConfigError, match=message):
        parse(Pretraining, override(plain(RECIPES[recipe]()), list(changes)), "x.yaml")
