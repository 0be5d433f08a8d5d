"""Quick thoughts: rows of sentences, a second implementation of the loss in scalars, the candidate sentences,
and configurations that are refused.
"""

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch

from gristmill.config import override, parse, plain
from gristmill.errors import ConfigError
from tests.trainers.conftest import build_corpus
from tests.trainers.objectives.sentences.sentence_streams import CONTEXT, SIZES, VOCABULARY, stream
from tokenizer.vocabulary.specials import CLS, SEP, SPECIAL_IDS
from trainers.config.architecture import Model, fill
from trainers.config.job import BatchSize
from trainers.config.pretraining import Pretraining
from trainers.data.packed_corpus import corpus_of, training_data, validation_data
from trainers.engine.forward import Forward, tensors
from trainers.engine.losses import losses_of
from trainers.engine.vectors.contrastive_losses import CONTRASTS, neighbour_nats
from trainers.evaluation.evaluate import _add_chance
from trainers.models import build_model
from trainers.objectives.sentences.quick_thought import QuickThought
from trainers.objectives.shared.training_objective import NeighbourContrast
from trainers.recipes import RECIPES
from trainers.rows.batch import IGNORED, PADDING, Batch


def forward_of(objective, architecture="bert"):
    sizes = fill(Model(architecture, layers=1, width=16, heads=2, positions=128), VOCABULARY)
    model = build_model(sizes, dict(SPECIAL_IDS), 0)
    return Forward(model, architecture, losses=losses_of(objective.losses, objective.contrast))


def plain_losses(states, made, row, pooling, temperature):
    """Return {first column of a sentence: nats} for a row, computed in pure Python.

    The loss of a sentence is the negative log-probability of a neighbour among the other sentences of the row
    (Logeswaran and Lee, 2018, section 3), averaged over the sentence's neighbours.
    """
    vectors, columns, documents = [], [], []
    for segment in sorted(set(made.segments[row].tolist()) - {PADDING}):
        (here,) = np.nonzero(made.segments[row] == segment)
        taken = [states[row][column] for column in (here[:1] if pooling == "first" else here[1:-1])]
        vectors.append([sum(numbers) / len(taken) for numbers in zip(*taken, strict=True)])
        columns.append(here[0])
        documents.append(made.documents[row][here[0]])
    found = {}
    for i, vector in enumerate(vectors):
        others = [j for j in range(len(vectors)) if j != i]
        near = [j for j in (i - 1, i + 1) if 0 <= j < len(vectors) and documents[j] == documents[i]]
        if near and len(others) > 1:
            scores = {j: sum(a * b for a, b in zip(vector, vectors[j], strict=True)) / temperature for j in others}
            whole = sum(math.exp(score) for score in scores.values())
            found[columns[i]] = sum(-math.log(math.exp(scores[k]) / whole) for k in near) / len(near)
    return found


def test_every_sentence_is_once_in_its_row_between_marks():
    batch, sentences = stream()
    made = QuickThought(min_tokens=3).apply(batch, CONTEXT)
    for row, its in enumerate(sentences):
        kept = [(document, tokens) for document, tokens in its if len(tokens) >= 3]
        assert made.segments[row].max() == len(kept) - 1
        for segment, (document, tokens) in enumerate(kept):
            here = made.segments[row] == segment
            assert made.inputs[row][here].tolist() == [SPECIAL_IDS[CLS], *tokens, SPECIAL_IDS[SEP]]
            assert made.positions[row][here].tolist() == list(range(len(tokens) + 2))
            assert set(made.documents[row][here].tolist()) == {document}
    assert (made.targets == IGNORED).all()


@pytest.mark.parametrize(("pooling", "temperature"), [("first", 1.0), ("mean", 1.0), ("mean", 5.0)])
def test_the_loss_is_that_of_the_paper_at_every_sentence_with_a_neighbour(pooling, temperature):
    objective = QuickThought(temperature, pooling)
    made, forward = objective.apply(stream()[0], CONTEXT), forward_of(objective).eval()
    with torch.no_grad():
        nats = forward(**tensors(made, "cpu"))["loss"].numpy()
        states = forward.states(**tensors(made, "cpu")).tolist()
    expected = np.zeros(made.inputs.shape)
    for row in range(len(SIZES)):
        for column, value in plain_losses(states, made, row, pooling, temperature).items():
            expected[row, column] = value
    np.testing.assert_allclose(nats, expected, atol=1e-4)
    (loss,) = forward.losses
    assert (loss.name, loss.targets(made).sum(1).tolist()) == ("loss", [5, 0, 0, 3, 0])
    assert ((expected > 0) == loss.targets(made)).all()
    chance = CONTRASTS[NeighbourContrast].chance(made)
    np.testing.assert_allclose(chance[loss.targets(made)], np.log([5] * 5 + [2] * 3))
    assert not chance[~loss.targets(made)].any()


def test_equal_vectors_give_the_logarithm_of_the_number_of_candidates_and_finite_gradients():
    vectors = torch.zeros(1, 5, 4, requires_grad=True)
    there, documents = torch.tensor([[True] * 4 + [False]]), torch.tensor([[0, 0, 1, 1, -1]])
    nats = neighbour_nats(vectors, there, documents, 1.0)
    assert nats[0].tolist() == pytest.approx([math.log(3)] * 4 + [0.0])
    nats.sum().backward()
    assert torch.isfinite(vectors.grad).all()


@pytest.mark.parametrize(
    "architecture", ["bert", "roberta", "albert", "electra", "deberta", "deberta_v2", "modernbert"]
)
def test_rows_and_their_order_change_no_loss_and_padding_has_none(architecture):
    objective = QuickThought()
    made, forward = objective.apply(stream()[0], CONTEXT), forward_of(objective, architecture).eval()
    with torch.no_grad():
        whole = forward(**tensors(made, "cpu"))["loss"]
        for rows in ([3], [4], [3, 0]):
            part = Batch(**{name: value[rows] for name, value in vars(made).items() if value is not None})
            torch.testing.assert_close(forward(**tensors(part, "cpu"))["loss"], whole[rows], atol=2e-5, rtol=0)
    assert whole[0].any()
    assert not whole[4].any()


def test_an_excluded_document_is_no_candidate():
    objective = QuickThought()
    made, forward = objective.apply(stream()[0], CONTEXT), forward_of(objective).eval()
    gone = made.documents == 1
    without = replace(made, segments=np.where(gone, PADDING, made.segments))
    said = replace(without, inputs=np.where(gone, 150, without.inputs))
    (loss,) = forward.losses
    assert loss.targets(without).sum(1).tolist() == [5, 0, 0, 3, 0]
    with torch.no_grad():
        before, one, same = (forward(**tensors(each, "cpu"))["loss"] for each in (made, without, said))
    torch.testing.assert_close(one, same, atol=0, rtol=0)
    assert (one[0] <= before[0] + 1e-5).all()
    assert one[0].sum() < before[0].sum()


def configuration(directory, packing="full_sentences", **changes):
    recipe = RECIPES["tiny_quick_thought"]()
    data = replace(recipe.data, corpora=(str(directory),), packing=packing, weights={"plays": 1.0})
    return replace(recipe, data=data, objective=QuickThought(**changes), batch=BatchSize(sequences=8))


def quick_data(directory, packing="full_sentences", **changes):
    config = configuration(directory, packing, **changes)
    return training_data(corpus_of(config), config)


def test_chance_stands_beside_the_loss_of_every_source(corpus_directory):
    """The chance loss of a source is the mean over its targets of log(sentences in the row - 1)."""
    config = configuration(corpus_directory)
    data = validation_data(corpus_of(config), config, 2000)
    expected = {source.name: [] for source in data.sources}
    for batch in data.batches(64, 0, 1):
        for row, count in enumerate(batch.segments.max(1) + 1):
            if count > 2:
                documents = [batch.documents[row][batch.segments[row] == segment][0] for segment in range(count)]
                pairs = [one == other for one, other in pairwise(documents)]
                neighbours = sum(map(any, zip([False, *pairs], [*pairs, False], strict=True)))
                expected[data.sources[batch.source[row]].name] += [math.log(count - 1)] * neighbours
    fields = {"sources": {name: {} for name, its in expected.items() if its}}
    _add_chance(fields, data, config.objective.contrast, config.data.weights)
    assert len(fields["sources"]) == 2
    for name, its in fields["sources"].items():
        assert its["chance_loss"] == pytest.approx(np.mean(expected[name]))
    assert fields["chance_loss"] == fields["sources"]["plays"]["chance_loss"]


@pytest.mark.parametrize("packing", ["full_sentences", "doc_sentences", "best_fit"])
def test_rows_of_a_corpus_are_not_too_long(corpus_directory, packing):
    data = quick_data(corpus_directory, packing)
    (stream_,) = data.packed_phases
    made = data.rows(data.order.take(0, 20))
    assert made.inputs.shape[1] <= stream_.context.sequence_length
    (loss,) = losses_of(QuickThought().losses, QuickThought().contrast)
    assert loss.targets(made).any()


def test_shards_without_sentences_and_documents_of_one_are_refused(plain_directory, tmp_path):
    with pytest.raises(ConfigError, match=r"needs sentence starts, which .* does not have; build the corpus with"):
        quick_data(plain_directory)
    with pytest.raises(ConfigError, match="objective: quick_thought needs sentence starts"):
        quick_data(plain_directory, "best_fit")
    short = build_corpus(tmp_path, lengths=(1, 5, 11))
    with pytest.raises(
        ConfigError, match=r"quick_thought needs documents of 2 or more sentences, and in .* plays has none; use"
    ):
        quick_data(short)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["data.isolation=false"], "data.isolation: got false with objective quick_thought"),
        (["data.packing=sentence_pairs"], "data.packing: got sentence_pairs with objective quick_thought"),
        (["model.architecture=deberta_v2", "model.mask_decoder=true"], "model.mask_decoder: got true"),
        (["model.architecture=xlnet"], "objective: got quick_thought with model.architecture xlnet"),
        (["objective.temperature=0"], "temperature: got 0.0, allowed above 0"),
        (["objective.min_tokens=0"], "min_tokens: got 0, allowed 1"),
    ],
)
def test_what_does_not_fit_is_refused(changes, message):
    with pytest.raises(ConfigError, match=message):
        parse(Pretraining, override(plain(RECIPES["tiny_quick_thought"]()), changes), "x.yaml")


def test_a_row_has_room_for_the_shortest_sentences_and_for_three_of_them():
    for least, length in ((1, 9), (4, 18), (4, 128), (7, 100)):
        tokens = QuickThought(min_tokens=least).stream_length(length, "encoder")
        assert 3 * least <= tokens <= length
        assert tokens + 2 * (tokens // least) <= length
    with pytest.raises(ConfigError, match=r"data\.sequence_length: got 17, too short for three .*; allowed 18 or more"):
        QuickThought().stream_length(17, "encoder")
