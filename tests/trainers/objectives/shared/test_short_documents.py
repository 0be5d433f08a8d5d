"""Corpora of very short documents: an objective either trains on them or refuses them before the first step."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from gristmill.errors import ConfigError, UserError
from tests.trainers.conftest import build_corpus
from trainers.__main__ import main
from trainers.data.packed_corpus import corpus_of, training_data
from trainers.engine.forward import forward_of, tensors
from trainers.models import build_model
from trainers.objectives.mixture import MixturePart, ObjectiveMixture
from trainers.objectives.prefix_lm import PrefixLM
from trainers.objectives.sentences.quick_thought import QuickThought
from trainers.objectives.sentences.simcse import SimCSE
from trainers.objectives.sentences.skip_thought import SkipThought
from trainers.objectives.spans.span_corruption import SpanCorruption
from trainers.recipes import RECIPES
from trainers.runs.resolve import resolve


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    made = {}

    def make(*lengths):
        if lengths not in made:
            made[lengths] = build_corpus(tmp_path_factory.mktemp("short"), lengths=lengths)
        return made[lengths]

    return make


def opened(recipe, directory, objective=None):
    whole = RECIPES[recipe]()
    data = replace(whole.data, corpora=(str(directory),))
    config = replace(whole, data=data, objective=objective or whole.objective)
    corpus = corpus_of(config)
    config = resolve(config, corpus)
    data = training_data(corpus, config)
    forward = forward_of(build_model(config.model, corpus.tokenizer.specials, 0), config)
    return corpus.tokenizer.specials, data.rows(data.order.take(0, 32)), forward


@pytest.mark.parametrize(("recipe", "rate"), [("tiny_roberta", 0.15), ("tiny_spanbert", 0.15), ("tiny_xlnet", 1 / 6)])
@pytest.mark.parametrize("lengths", [(1,), (0, 1, 2)])
def test_masks_spans_and_orders_are_trained_on_documents_of_a_token_or_two(corpus, recipe, rate, lengths):
    """Short documents have the same share of targets as long ones. A document of one token is predicted from
    the marks around it, which are also the boundary of its span.
    """
    specials, batch, forward = opened(recipe, corpus(*lengths))
    targets = {loss.name: loss.targets(batch) for loss in forward.losses}
    original = np.where(targets["loss"], batch.targets, batch.inputs)
    text = int((~np.isin(original, list(specials.values())) & (batch.segments >= 0)).sum())
    for places in targets.values():
        assert places.sum() == pytest.approx(rate * text, abs=5 * np.sqrt(text * rate * (1 - rate)))
    nats = forward(**tensors(batch, "cpu"))
    sum(nats[name].sum() / int(places.sum()) for name, places in targets.items()).backward()
    assert all(0 < float(nats[name].sum().detach()) < 10 * places.sum() for name, places in targets.items())
    assert all(torch.isfinite(its.grad).all() for its in forward.parameters() if its.grad is not None)


REFUSED = [
    ("tiny_t5", SpanCorruption(), 2),
    ("tiny_t5", SpanCorruption(style="deshuffle"), 2),
    ("tiny_t5", PrefixLM(), 2),
    ("tiny_prefix_lm", ObjectiveMixture(parts=(MixturePart(PrefixLM()), MixturePart(SpanCorruption()))), 2),
    ("tiny_simcse", SimCSE(unit="documents"), 4),
    ("tiny_simcse", SimCSE(), 4),
    ("tiny_quick_thought", QuickThought(min_tokens=3), 3),
    ("tiny_skip_thought", SkipThought(), 4),
]


@pytest.mark.parametrize(("recipe", "objective", "least"), REFUSED)
def test_documents_that_are_all_too_short_for_the_objective_are_refused(corpus, recipe, objective, least):
    kind = objective.kind
    with pytest.raises(
        ConfigError, match=rf"^objective: {kind} needs documents of {least} or more tokens, and in .* has none; use .*$"
    ):
        opened(recipe, corpus(0, 1, least - 1), objective)


ACCEPTED = [
    *(case for case in REFUSED if case[1].least_sentences == 1),
    ("tiny_t5", SpanCorruption(noise="tokens", rate=0.5), 1),
    ("tiny_t5", SpanCorruption(style="mass"), 1),
    ("tiny_prefix_lm", ObjectiveMixture(parts=(MixturePart(PrefixLM()), MixturePart(SpanCorruption(style="bert")))), 1),
]


@pytest.mark.parametrize(("recipe", "objective", "least"), ACCEPTED)
def test_documents_that_are_just_long_enough_are_accepted_and_have_targets(corpus, recipe, objective, least):
    _, batch, forward = opened(recipe, corpus(0, least), objective)
    assert all(loss.targets(batch).any() for loss in forward.losses)


@pytest.mark.parametrize("recipe", ["tiny_xlnet", "tiny_spanbert"])
def test_a_corpus_without_a_token_is_refused_in_one_line_before_a_run_begins(corpus, recipe, tmp_path, capsys):
    directory, run = corpus(0), tmp_path / "run"
    with pytest.raises(UserError, match=r": the corpus has no training documents; its report shows where they went$"):
        opened(recipe, directory)
    assert main(["pretrain", recipe, f"corpus={directory}", f"run={run}"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not run.exists()


def test_documents_that_are_too_short_are_refused_in_one_line_before_a_run_begins(corpus, tmp_path, capsys):
    directory, run = corpus(0, 1), tmp_path / "run"
    assert main(["pretrain", "tiny_t5", f"corpus={directory}", f"run={run}"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "objective: span_corruption needs documents of 2 or more tokens" in line
    assert not run.exists()
