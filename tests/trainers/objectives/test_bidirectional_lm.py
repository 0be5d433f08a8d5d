"""Bidirectional language modelling: targets and losses against a direct implementation of the paper, excluded
documents, and configurations that are refused.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch

from gristmill.config import override, parse, plain
from gristmill.errors import ConfigError, UserError
from tests.trainers.evaluation.scored_models import encoder
from tests.trainers.objectives.packed import FIRST, VOCABULARY, context, packed
from tokenizer.vocabulary.specials import CLS, SEP, SPECIAL_IDS
from trainers.config.architecture import Model, fill
from trainers.config.pretraining import Pretraining
from trainers.engine.forward import Forward, tensors
from trainers.engine.losses import losses_of
from trainers.evaluation.scoring.scorer import Scorer
from trainers.models import build_model
from trainers.objectives.bidirectional_lm import BidirectionalLM
from trainers.recipes import RECIPES
from trainers.rows.batch import IGNORED, PADDING

OBJECTIVE = BidirectionalLM()
MODEL = fill(Model("elmo", layers=2, width=32, heads=1, positions=64, feed_forward=48), VOCABULARY)


def texts(sizes, rows, seed=0):
    """Return rows of framed documents of the given sizes as the packer writes them, without targets."""
    rng = np.random.default_rng(seed)
    first, last = SPECIAL_IDS[CLS], SPECIAL_IDS[SEP]
    documents = [
        [[first, *rng.integers(FIRST, VOCABULARY, size).tolist(), last] for size in sizes] for _ in range(rows)
    ]
    documents[0][-1].pop()  # goes on in the next row
    documents[-1][0].pop(0)  # began in the row before
    return packed(documents)


def forward_of(seed=0):
    model = build_model(MODEL, dict(SPECIAL_IDS), seed).eval()
    return Forward(model, "elmo", losses=losses_of(OBJECTIVE.losses))


def plain_nats(model, ids):
    """Return {(name of the loss, position): nats} of a document: p(t_k | t_1 .. t_k-1) and p(t_k | t_k+1 ..
    t_n) (Peters et al., 2018, section 3.1).

    The position is that of the token read last. For each prediction, the model reads only the tokens before,
    or only the tokens after.
    """
    found = {}
    for k in range(len(ids)):
        before, after = ids[:k], ids[k + 1 :]
        if before:
            shares = model(torch.tensor([before])).logits[0, -1].log_softmax(0)
            found["loss", k - 1] = -float(shares[ids[k]])
        if after:
            shares = model(torch.tensor([after])).backward_logits[0, 0].log_softmax(0)
            found["backward_loss", k + 1] = -float(shares[ids[k]])
    return found


@pytest.mark.long
def test_both_losses_of_every_token_are_those_of_a_model_that_is_given_one_side_of_it():
    made, forward, checked = OBJECTIVE.apply(texts([9, 1, 14, 4], 2), context("encoder")), forward_of(), 0
    with torch.no_grad():
        found = forward(**tensors(made, "cpu"))
        for row in range(2):
            for segment in range(4):
                here = np.flatnonzero(made.segments[row] == segment)
                for (name, place), nats in plain_nats(forward.model, made.inputs[row, here].tolist()).items():
                    assert found[name][row, here[place]].item() == pytest.approx(nats, abs=1e-5)
                    checked += 1
    targets = {loss.name: loss.targets(made) for loss in forward.losses}
    assert targets["loss"].sum() == targets["backward_loss"].sum() == checked / 2 > 50
    for name, its in targets.items():
        assert ((found[name].numpy() > 0) == its).all()


def test_training_minimises_the_mean_of_both():
    assert OBJECTIVE.losses == {"loss": 0.5, "backward_loss": 0.5}
    forward = forward_of()
    made = OBJECTIVE.apply(texts([20], 2), context("encoder"))
    sum(its.sum() for its in forward(**tensors(made, "cpu")).values()).backward()
    assert all(parameter.grad.abs().sum() > 0 for parameter in forward.model.parameters())


def test_an_excluded_document_has_targets_in_neither_direction_and_changes_no_other():
    made, forward = OBJECTIVE.apply(texts([9, 1, 14], 2), context("encoder")), forward_of()
    gone = made.segments == 2
    without = replace(made, targets=np.where(gone, IGNORED, made.targets))
    with torch.no_grad():
        whole, left = (forward(**tensors(each, "cpu")) for each in (made, without))
    for loss in forward.losses:
        assert not (loss.targets(without) & gone).any()
        assert (loss.targets(without)[~gone] == loss.targets(made)[~gone]).all()
        torch.testing.assert_close(left[loss.name], whole[loss.name] * torch.from_numpy(~gone))


def test_neither_padding_nor_an_empty_row_has_a_target():
    batch = texts([3], 2)
    empty = replace(batch, segments=np.full_like(batch.segments, PADDING))
    for each in (batch, empty):
        made = OBJECTIVE.apply(each, context("encoder"))
        for loss in forward_of().losses:
            assert not (loss.targets(made) & (made.segments == PADDING)).any()


@pytest.mark.parametrize(
    ("recipe", "changes", "message"),
    [
        (
            "tiny_elmo",
            "objective={kind: masked}",
            "objective: got masked with model.architecture elmo; bidirectional_lm is",
        ),
        (
            "tiny_roberta",
            "objective={kind: bidirectional_lm}",
            "objective: got bidirectional_lm with model.architecture roberta",
        ),
        (
            "tiny_elmo",
            "model.width=65",
            "model.width: got 65, each direction of elmo has half of it; allowed even numbers",
        ),
        ("tiny_elmo", "model.heads=2", "model.heads: got 2, elmo has no attention; leave it at 1"),
    ],
)
def test_what_does_not_fit_is_refused(recipe, changes, message):
    with pytest.raises(ConfigError, match=message):
        parse(Pretraining, override(plain(RECIPES[recipe]()), [changes]), "x.yaml")


def test_an_elmo_scores_no_texts(tmp_path):
    with pytest.raises(
        UserError, match=r"^a run: holds elmo, which predicts no masks and scores no texts; give another"
    ):
        Scorer("a run", forward_of().model, MODEL, OBJECTIVE, encoder(tmp_path))
