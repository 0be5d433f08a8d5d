"""Skip-thoughts: the targets of each decoder, a second implementation of the equations in pure Python, and
configurations that are refused.
"""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from gristmill.config import override, parse, plain
from gristmill.errors import ConfigError, UserError
from tests.trainers.evaluation.scored_models import encoder
from tests.trainers.objectives.sentences.sentence_streams import CONTEXT, SIZES, VOCABULARY, stream
from tokenizer.vocabulary.specials import CLS, SEP, SPECIAL_IDS
from trainers.config.architecture import Model, fill
from trainers.config.pretraining import Pretraining
from trainers.engine.forward import Forward, tensors
from trainers.engine.losses import losses_of
from trainers.evaluation.scoring.scorer import Scorer
from trainers.models import build_model
from trainers.objectives.sentences.skip_thought import SkipThought
from trainers.recipes import RECIPES
from trainers.rows.batch import IGNORED, PADDING, Batch

OBJECTIVE = SkipThought()
SIZES_OF_MODEL = fill(Model("gru", layers=1, width=6, heads=1, positions=128, embedding_size=4), VOCABULARY)


def forward_of():
    model = build_model(SIZES_OF_MODEL, dict(SPECIAL_IDS), 0)
    noise = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():  # so that no bias is zero
            parameter += 0.3 * torch.randn(parameter.shape, generator=noise)
    return Forward(model, "gru", losses=losses_of(OBJECTIVE.losses)).eval()


def gru(layer, inputs):
    """Return the states of a GRU layer after each of `inputs`, computed in pure Python by equations 1 to 4 of
    Kiros et al. (2015), with both gates applied as in torch.
    """
    weights = [parameter.tolist() for parameter in (layer.input_weight, layer.recurrent_weight)]
    biases = [parameter.tolist() for parameter in (layer.input_bias, layer.recurrent_bias)]
    width = len(biases[0]) // 3
    state, found = [0.0] * width, []
    for given in inputs:
        read, kept = (
            [sum(w * x for w, x in zip(row, its, strict=True)) + b for row, b in zip(matrix, bias, strict=True)]
            for matrix, bias, its in zip(weights, biases, (given, state), strict=True)
        )
        gates = [1 / (1 + math.exp(-one - other)) for one, other in zip(read, kept, strict=True)]
        reset, update = gates[:width], gates[width : 2 * width]
        new = [math.tanh(read[2 * width + k] + reset[k] * kept[2 * width + k]) for k in range(width)]
        state = [(1 - update[k]) * new[k] + update[k] * state[k] for k in range(width)]
        found.append(state)
    return found


def plain_losses(network, sentences):
    """Return {(sentence index, name of the loss): nats of its tokens and of `<sep>`} for the sentences of a
    row, which are given as (document, tokens).
    """
    embeddings, output = network.encoder.embed.weight.tolist(), network.lm_head
    matrix, bias = output.weight.tolist(), output.bias.tolist()
    vectors = []
    for _, tokens in sentences:
        vectors.append(gru(network.encoder.layers[0], [embeddings[t] for t in (SPECIAL_IDS[CLS], *tokens)])[-1])
    found = {}
    for number, (document, tokens) in enumerate(sentences):
        for decoder, other in ((network.next_decoder, number - 1), (network.previous_decoder, number + 1)):
            if not 0 <= other < len(sentences) or sentences[other][0] != document:
                continue
            states = gru(decoder, [embeddings[t] + vectors[other] for t in (SPECIAL_IDS[CLS], *tokens)])
            nats = []
            for state, target in zip(states, (*tokens, SPECIAL_IDS[SEP]), strict=True):
                logits = [
                    sum(w * x for w, x in zip(row, state, strict=True)) + b for row, b in zip(matrix, bias, strict=True)
                ]
                nats.append(math.log(sum(map(math.exp, logits))) - logits[target])
            found[number, "loss" if decoder is network.next_decoder else "previous_loss"] = nats
    return found


def test_the_losses_are_those_of_the_paper_for_every_sentence_that_has_the_neighbour():
    batch, sentences = stream()
    made, forward = OBJECTIVE.apply(batch, CONTEXT), forward_of()
    with torch.no_grad():
        nats = {name: its.numpy() for name, its in forward(**tensors(made, "cpu")).items()}
    expected = {name: np.zeros(made.inputs.shape) for name in nats}
    for row, its in enumerate(sentences):
        kept = [(document, tokens) for document, tokens in its if len(tokens) >= OBJECTIVE.min_tokens]
        for (number, name), values in plain_losses(forward.model, kept).items():
            expected[name][row, np.flatnonzero(made.segments[row] == number)[:-1]] = values
    for loss in forward.losses:
        np.testing.assert_allclose(nats[loss.name], expected[loss.name], atol=1e-5)
        np.testing.assert_array_equal(expected[loss.name] > 0, loss.targets(made))
    chosen = made.targets != IGNORED
    np.testing.assert_array_equal(made.targets[:, :-1][chosen[:, :-1]], made.inputs[:, 1:][chosen[:, :-1]])
    assert not chosen[:, -1].any()


def test_every_target_counts_once_and_both_decoders_have_as_many_neighbours():
    made = OBJECTIVE.apply(stream()[0], CONTEXT)
    kept = [[[size for size in sizes if size >= 4] for sizes in its] for its in SIZES]
    tokens = {
        "loss": [sum(size + 1 for sizes in its for size in sizes[1:]) for its in kept],
        "previous_loss": [sum(size + 1 for sizes in its for size in sizes[:-1]) for its in kept],
    }
    for loss in losses_of(OBJECTIVE.losses):
        assert loss.targets(made).sum(1).tolist() == tokens[loss.name]


def test_rows_and_their_order_change_no_loss_and_excluded_documents_have_none():
    made, forward = OBJECTIVE.apply(stream()[0], CONTEXT), forward_of()
    gone = made.documents == 1
    segments, targets = np.where(gone, PADDING, made.segments), np.where(gone, IGNORED, made.targets)
    without = replace(made, segments=segments, targets=targets, inputs=np.where(gone, 150, made.inputs))
    with torch.no_grad():
        whole, left = (forward(**tensors(each, "cpu")) for each in (made, without))
        for rows in ([3], [4], [3, 0]):
            part = Batch(**{name: value[rows] for name, value in vars(made).items() if value is not None})
            for name, nats in forward(**tensors(part, "cpu")).items():
                torch.testing.assert_close(nats, whole[name][rows], atol=2e-6, rtol=0)
    for name, nats in whole.items():
        torch.testing.assert_close(left[name], nats * torch.from_numpy(~gone), atol=2e-6, rtol=0)


def test_gradients_reach_the_encoder_from_both_losses():
    made, forward = OBJECTIVE.apply(stream()[0], CONTEXT), forward_of().train()
    for name in ("loss", "previous_loss"):
        forward.zero_grad()
        forward(**tensors(made, "cpu"))[name].sum().backward()
        assert forward.model.encoder.layers[0].recurrent_weight.grad.abs().sum() > 0


@pytest.mark.parametrize(
    ("recipe", "change", "message"),
    [
        ("tiny_roberta", "objective=skip_thought", "objective: got skip_thought with model.architecture roberta"),
        ("tiny_skip_thought", "objective=masked", "objective: got masked with model.architecture gru; skip_thought is"),
        ("tiny_skip_thought", "objective=quick_thought", "objective: got quick_thought with model.architecture gru"),
        ("tiny_skip_thought", "data.isolation=false", "data.isolation: got false with objective skip_thought"),
        ("tiny_skip_thought", "model.heads=2", "model.heads: got 2, gru has no attention; leave it at 1"),
        ("tiny_skip_thought", "objective.min_tokens=0", "min_tokens: got 0, allowed 1"),
    ],
)
def test_what_does_not_fit_is_refused(recipe, change, message):
    with pytest.raises(ConfigError, match=message):
        parse(Pretraining, override(plain(RECIPES[recipe]()), [change]), "x.yaml")


def test_a_row_has_room_for_two_of_the_shortest_sentences():
    assert SkipThought().stream_length(12, "encoder") == 8
    with pytest.raises(ConfigError, match=r"data\.sequence_length: got 11, too short for two .*; allowed 12 or more"):
        SkipThought().stream_length(11, "encoder")


def test_a_gru_scores_no_texts(tmp_path):
    model = build_model(SIZES_OF_MODEL, dict(SPECIAL_IDS), 0)
    with pytest.raises(
        UserError, match=r"^a run: holds gru, which predicts no masks and scores no texts; give another"
    ):
        Scorer("a run", model, SIZES_OF_MODEL, OBJECTIVE, encoder(tmp_path))
