"""SimCSE's contrastive loss against a direct scalar implementation of the paper: targets, which sentences
serve as negatives for which, and configurations that are refused.
"""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from gristmill.errors import UserError
from tests.trainers.evaluation.scored_models import encoder
from tokenizer.vocabulary.specials import CLS, SEP, SPECIAL_IDS
from trainers.config.architecture import Model, fill
from trainers.engine.forward import Forward, tensors
from trainers.engine.losses import losses_of
from trainers.engine.vectors.contrastive_losses import CONTRASTS, contrastive_nats
from trainers.evaluation.scoring.scorer import Scorer
from trainers.models import build_model
from trainers.objectives.sentences.simcse import SimCSE
from trainers.objectives.shared.context import Context
from trainers.objectives.shared.training_objective import CopyContrast
from trainers.rows.batch import IGNORED, PADDING, Batch

VOCABULARY = 200
CONTEXT = Context(3, dict(SPECIAL_IDS), VOCABULARY, "encoder", 128)
SIZES = ((5, 9, 4, 7), (6, 4), (8,), ())


def stream(rows=SIZES, seed=0):
    """Return a packed batch of framed documents of the given sizes, one sentence per document."""
    rng = np.random.default_rng(seed)
    shape = (len(rows), max(sum(size + 2 for size in its) for its in rows) + 1)
    inputs, segments = np.zeros(shape, np.int64), np.full(shape, PADDING)
    for row, its in enumerate(rows):
        texts = [[SPECIAL_IDS[CLS], *rng.integers(128, VOCABULARY, size), SPECIAL_IDS[SEP]] for size in its]
        flat = [(token, number) for number, text in enumerate(texts) for token in text]
        for column, (token, number) in enumerate(flat):
            inputs[row, column], segments[row, column] = token, number
    none = np.zeros(len(rows), np.int64)
    return Batch(inputs, np.full(shape, IGNORED), np.zeros(shape, np.int64), segments, none, none, none, none)


def forward_of(objective, dropout=0.1, architecture="bert"):
    sizes = fill(Model(architecture, layers=1, width=16, heads=2, positions=128, dropout=dropout), VOCABULARY)
    model = build_model(sizes, dict(SPECIAL_IDS), 0)
    return Forward(model, architecture, losses=losses_of(objective.losses, objective.contrast))


def plain_losses(states, made, row, pooling, temperature):
    """Return {first column of the first copy of a sentence: nats} for a row, computed in pure Python from
    equation 4 of Gao et al. (2021). A row of one sentence has no loss.
    """
    vectors, columns = [], []
    for segment in range(made.segments[row].max() + 1):
        (here,) = np.nonzero(made.segments[row] == segment)
        its = [states[row][column] for column in here]
        taken = its[:1] if pooling == "first" else its[1:-1]
        vectors.append([sum(numbers) / len(taken) for numbers in zip(*taken, strict=True)])
        columns.append(here[0])

    def cosine(one, other):
        dot = sum(a * b for a, b in zip(one, other, strict=True))
        return dot / math.sqrt(sum(a * a for a in one)) / math.sqrt(sum(b * b for b in other))

    found = {}
    if len(vectors) > 2:
        for i in range(0, len(vectors), 2):
            shares = [math.exp(cosine(vectors[i], vectors[j]) / temperature) for j in range(1, len(vectors), 2)]
            found[columns[i]] = -math.log(shares[i // 2] / sum(shares))
    return found


@pytest.mark.parametrize(("pooling", "temperature"), [("first", 0.05), ("mean", 0.05), ("first", 0.7)])
def test_the_loss_is_that_of_the_paper_and_its_negatives_are_those_of_the_row(pooling, temperature):
    objective = SimCSE(unit="documents", pooling=pooling, temperature=temperature)
    made, forward = objective.apply(stream(), CONTEXT), forward_of(objective).train()
    seen = []
    whole = forward._architecture.hidden

    def hidden(network, inputs):
        seen.append(whole(network, inputs))
        return seen[-1]

    forward._architecture = replace(forward._architecture, hidden=hidden)
    torch.manual_seed(0)
    nats = forward(**tensors(made, "cpu"))["loss"].detach().numpy()
    (states,) = (each.tolist() for each in seen)
    expected = np.zeros(made.inputs.shape)
    for row in range(len(SIZES)):
        for column, value in plain_losses(states, made, row, pooling, temperature).items():
            expected[row, column] = value
    np.testing.assert_allclose(nats, expected, atol=1e-4)
    (loss,) = forward.losses
    assert (loss.name, loss.targets(made).sum(1).tolist()) == ("loss", [4, 2, 0, 0])
    assert ((expected > 0) == loss.targets(made)).all()
    chance = CONTRASTS[CopyContrast].chance(made)
    np.testing.assert_allclose(chance[loss.targets(made)], np.log([4] * 4 + [2] * 2))
    assert not chance[~loss.targets(made)].any()


@pytest.mark.parametrize(
    "architecture", ["bert", "roberta", "albert", "electra", "deberta", "deberta_v2", "modernbert"]
)
def test_rows_and_their_order_change_no_loss_and_padding_has_none(architecture):
    objective = SimCSE(unit="documents", pooling="mean")
    made, forward = objective.apply(stream(), CONTEXT), forward_of(objective, 0.0, architecture).eval()
    with torch.no_grad():
        whole = forward(**tensors(made, "cpu"))["loss"]
        for rows in ([1], [3], [3, 0]):
            part = Batch(**{name: value[rows] for name, value in vars(made).items() if value is not None})
            torch.testing.assert_close(forward(**tensors(part, "cpu"))["loss"], whole[rows], atol=2e-5, rtol=0)
    assert whole[0].any()
    assert not whole[2:].any()


def test_the_copies_of_a_sentence_differ_by_dropout_alone():
    objective = SimCSE(unit="documents")
    made, forward = objective.apply(stream(), CONTEXT), forward_of(objective)
    states = forward.eval().states(**tensors(made, "cpu"))
    assert torch.allclose(states[0, 0], states[0, 7], atol=1e-5)
    torch.manual_seed(0)
    states = forward.train().states(**tensors(made, "cpu"))
    assert not torch.allclose(states[0, 0], states[0, 7], atol=1e-2)


def test_an_excluded_sentence_is_no_negative():
    objective = SimCSE(unit="documents")
    made, forward = objective.apply(stream(), CONTEXT), forward_of(objective).eval()
    gone = made.documents == 1
    without = replace(made, segments=np.where(gone, PADDING, made.segments))
    other = objective.apply(stream(((5, 4, 7),)), CONTEXT)
    (loss,) = forward.losses
    assert loss.targets(without).sum(1).tolist() == [3, 0, 0, 0]
    said = replace(without, inputs=np.where(gone, 150, without.inputs))
    with torch.no_grad():
        one, same = (forward(**tensors(each, "cpu"))["loss"] for each in (without, said))
    torch.testing.assert_close(one, same, atol=0, rtol=0)
    assert other.segments.max() == 5


def test_a_model_of_sentences_scores_no_texts(tmp_path):
    objective = SimCSE()
    model = forward_of(objective).model
    sizes = fill(Model("bert", layers=1, width=16, heads=2, positions=128, dropout=0.1), VOCABULARY)
    with pytest.raises(
        UserError, match=r"^a run: was trained with simcse, which predicts no masks and scores no texts"
    ):
        Scorer("a run", model, sizes, objective, encoder(tmp_path))


def test_vectors_of_zeros_have_finite_gradients():
    queries = torch.zeros(1, 3, 4, requires_grad=True)
    there = torch.tensor([[True, True, False]])
    nats = contrastive_nats(queries, torch.zeros(1, 3, 4), there, 0.05)
    assert nats[0].tolist() == pytest.approx([math.log(2), math.log(2), 0.0])
    nats.sum().backward()
    assert torch.isfinite(queries.grad).all()
