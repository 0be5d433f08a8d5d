"""Pair objectives on real models: what a target may attend to, isolation of documents, and falling losses."""

from dataclasses import replace

import numpy as np
import pytest

from tests.trainers.objectives.packed import FIRST, VOCABULARY, context, packed
from tokenizer.vocabulary.specials import SPECIAL_IDS
from trainers.config.architecture import ARCHITECTURES, Model, fill
from trainers.config.pretraining import Data
from trainers.data.packed_corpus import corpus_of, stream_length, training_data, validation_data
from trainers.data.sequence_documents import ids_of
from trainers.objectives.fill_in_the_middle import FillInTheMiddle
from trainers.objectives.mixture import ObjectiveMixture
from trainers.objectives.multitask import Multitask
from trainers.objectives.prefix_lm import PrefixLM
from trainers.objectives.sentences.gap_sentences import GapSentences
from trainers.objectives.spans.denoising import Denoising
from trainers.objectives.spans.salient_spans import SalientSpans
from trainers.objectives.spans.span_corruption import SpanCorruption
from trainers.objectives.translation_lm import TranslationLM
from trainers.recipes import RECIPES
from trainers.rows.batch import IGNORED
from trainers.runs.resolve import resolve

SIZES = {"layers": 2, "width": 32, "heads": 2, "positions": 256}
INFILLING = Denoising(permute_sentences=False)


def network(architecture):
    import torch

    from trainers.engine.forward import Forward
    from trainers.models import build_model

    torch.manual_seed(0)
    model = fill(Model(architecture, **SIZES), VOCABULARY)
    return Forward(build_model(model, dict(SPECIAL_IDS), 0).eval(), architecture)


def nats(forward, batch):
    import torch

    from trainers.engine.forward import tensors

    with torch.no_grad():
        return forward(**tensors(batch, "cpu"))["loss"].numpy()


PAIRS = [("t5", SpanCorruption()), ("bart", INFILLING), ("llama", SpanCorruption(bidirectional_prefix=True))]
PAIRS += [("llama", PrefixLM()), ("t5", PrefixLM()), ("llama", FillInTheMiddle()), ("gpt2", INFILLING)]


@pytest.mark.parametrize(("architecture", "objective"), PAIRS)
def test_a_document_has_the_losses_that_it_has_alone(architecture, objective):
    rng = np.random.default_rng(0)
    texts = [rng.integers(FIRST, VOCABULARY, size).tolist() for size in (40, 1, 23, 57)]
    frame, start = objective.frame.before is not None, ARCHITECTURES[architecture].decoder_start
    here = replace(context(ARCHITECTURES[architecture].family), decoder_start=start)
    made = objective.apply(packed([texts, texts[2:3]], frame=frame), here)
    forward = network(architecture)
    together = nats(forward, made)
    for number in range(len(texts)):
        # The same document and its same noise, with all others taken off the batch.
        mine = {"segments": np.where(made.segments == number, number, -1)}
        sides = {name: np.where(mine["segments"] == number, getattr(made, name), 0) for name in ("inputs", "positions")}
        alone = replace(made, **mine, **sides, targets=np.where(made.target_segments == number, made.targets, IGNORED))
        if made.decoder is not None:
            there = made.decoder.segments == number
            names = ("inputs", "positions")
            decoder = {name: np.where(there, getattr(made.decoder, name), 0) for name in names}
            alone = replace(alone, decoder=replace(made.decoder, **decoder, segments=np.where(there, number, -1)))
        expected = np.where(made.target_segments == number, together, 0)
        np.testing.assert_allclose(nats(forward, alone), expected, atol=1e-5)
    assert np.isfinite(together).all()
    assert (together[0] > 0).sum() == (made.targets[0] != IGNORED).sum()


@pytest.mark.parametrize("objective", [PrefixLM(), SpanCorruption(bidirectional_prefix=True)])
def test_a_target_sees_all_of_the_prefix_and_no_target_after_it(objective):
    text = np.random.default_rng(0).integers(FIRST, VOCABULARY, 40).tolist()
    made = objective.apply(packed([[text]], frame=objective.frame.before is not None), context("decoder"))
    forward, targets = network("llama"), np.flatnonzero(made.targets[0] != IGNORED)
    before, prefix = nats(forward, made)[0], int(made.prefix[0].sum())
    assert targets[0] == prefix - 1
    for column in range(1, targets[-1] + 1):
        inputs = made.inputs.copy()
        inputs[0, column] = FIRST + (inputs[0, column] + 7) % 100
        changed = ~np.isclose(nats(forward, replace(made, inputs=inputs))[0], before, rtol=0, atol=2e-6)
        first = 0 if column < prefix else column
        assert changed[targets[targets >= first]].mean() > 0.8  # a change may be below the precision
        assert not changed[:first].any()


@pytest.mark.parametrize(("recipe", "objective"), [
    ("tiny_t5", SpanCorruption()),
    ("tiny_t5", SpanCorruption(noise="tokens", style="mass")),
    ("tiny_t5", ObjectiveMixture()),
    ("tiny_bart", INFILLING),
    ("tiny_pegasus", GapSentences()),
    ("tiny_salient_spans", SalientSpans(unit="sentences")),
    ("tiny_multitask", Multitask()),
    ("tiny_prefix_lm", PrefixLM()),
    ("tiny_prefix_lm", SpanCorruption()),
    ("tiny_translation_lm", TranslationLM()),
    ("llama_tiny", FillInTheMiddle()),
])  # fmt: skip
@pytest.mark.slow
def test_losses_fall(recipe, objective, corpus_directory, salient_directory):
    import torch

    from trainers.engine.forward import Forward, tensors
    from trainers.models import build_model

    base = RECIPES[recipe]()
    directory = salient_directory if objective.span_types or objective.needs_pairs else corpus_directory
    data = Data(corpora=(str(directory),), sequence_length=64)
    config = replace(base, objective=objective, data=data, model=replace(base.model, positions=128))
    corpus = corpus_of(config)
    config = resolve(config, corpus)
    read, held_out = training_data(corpus, config), next(validation_data(corpus, config, 1024).batches(64, 0, 1))
    model = build_model(config.model, corpus.tokenizer.specials, 0)
    forward = Forward(model, config.model.architecture)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    many = (held_out.targets != IGNORED).sum()
    before = nats(forward.eval(), held_out).sum() / many
    for step in range(50):
        batch = read.rows(read.order.take(step * 8, 8))
        losses = forward.train()(**tensors(batch, "cpu"))["loss"]
        loss = losses.sum() / (batch.targets != IGNORED).sum()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    assert nats(forward.eval(), held_out).sum() / many < before - 0.7


EXCLUDED = [
    ("tiny_t5", SpanCorruption()),
    ("tiny_pegasus", GapSentences()),
    ("tiny_salient_spans", SalientSpans()),
    ("tiny_multitask", Multitask()),
    ("tiny_prefix_lm", PrefixLM()),
    ("tiny_translation_lm", TranslationLM()),
]


@pytest.mark.parametrize(("recipe", "objective"), EXCLUDED)
def test_excluded_documents_lose_only_their_targets(recipe, objective, corpus_directory, salient_directory):
    base = RECIPES[recipe]()
    directory = salient_directory if objective.span_types or objective.needs_pairs else corpus_directory
    config = replace(base, objective=objective, data=Data(corpora=(str(directory),), sequence_length=64))
    corpus = corpus_of(config)
    config = resolve(config, corpus)
    data = training_data(corpus, config)
    samples = data.order.take(0, 40)
    whole = data.rows(samples)
    row, column = np.argwhere((whole.target_segments > 0) & (whole.targets != IGNORED))[0]
    number, length = whole.target_segments[row, column], stream_length(config)
    gone = ids_of(data.sources[whole.source[row]], int(whole.sequence[row]), length)[number]
    made = replace(data, excluded=frozenset([gone])).rows(samples)
    same = made.targets == whole.targets
    mine = whole.target_segments[row] == number
    assert (made.targets[row][mine] == IGNORED).all()
    assert same[row][~mine].all()
    assert (made.inputs == whole.inputs).all()
    for other, place_of_target in zip(*np.nonzero(~same), strict=True):
        place = data.sources[whole.source[other]], int(whole.sequence[other])
        assert ids_of(*place, length)[whole.target_segments[other, place_of_target]] == gone
