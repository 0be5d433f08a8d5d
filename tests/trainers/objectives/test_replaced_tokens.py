"""Replaced token detection against a direct implementation of the paper, one token at a time, and against the
loss of `transformers`. Draws do not depend on the batch, and unsuitable configurations are refused.
"""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from gristmill.config import override, parse, plain
from gristmill.errors import ConfigError
from tests.trainers.models.test_models import tiny
from tests.trainers.objectives.test_masked import CONTEXT, SPECIALS, VOCABULARY, batch_of, eligible
from trainers.config.pretraining import Pretraining
from trainers.data.packed_corpus import corpus_of, training_data
from trainers.engine.cross_entropy import draw_tokens
from trainers.engine.forward import Forward, tensors
from trainers.engine.hardware.mfu import Flops, flops_of
from trainers.engine.loss_metrics import loss_fields, sums_by_source
from trainers.engine.losses import MEASURES, losses_of
from trainers.models import build_model, language_model, stock_parts
from trainers.objectives.masked import Masked
from trainers.objectives.replaced_tokens import ReplacedTokens
from trainers.recipes import RECIPES
from trainers.rows.batch import IGNORED, PADDING
from trainers.runs.resolve import resolve

OBJECTIVE = ReplacedTokens()
MODEL = tiny(
    "electra",
    layers=2,
    positions=256,
    vocab_size=VOCABULARY,
    embedding_size=24,
    generator_size=0.5,
    initializer_range=0.2,
)
NAMES = ["loss", "discriminator_loss", *OBJECTIVE.measures]


def texts(sizes, rows):
    batch = batch_of(sizes, rows)
    begins = np.diff(batch.segments, prepend=PADDING) != 0
    columns = np.arange(batch.inputs.shape[1])
    return replace(batch, positions=columns - np.maximum.accumulate(np.where(begins, columns, 0), axis=1))


def network(seed=0):
    return build_model(MODEL, SPECIALS, seed).eval()


def forward_of(model):
    measures = [MEASURES[name] for name in OBJECTIVE.measures]
    return Forward(model, "electra", True, losses_of(OBJECTIVE.losses), measures)


def softmax(logits):
    largest = max(logits)
    shares = [math.exp(logit - largest) for logit in logits]
    return [share / sum(shares) for share in shares]


def draw(shares, first, second):
    """Draw a token with two uniform numbers: the first chooses a group of neighbouring tokens in proportion
    to its share, and the second chooses a token of that group.
    """
    width = math.ceil(math.sqrt(len(shares)))
    groups = [shares[start : start + width] for start in range(0, len(shares), width)]

    def entry(values, number):
        total = 0.0
        for place, value in enumerate(values):
            total += value
            if number * sum(values) < total:
                return place
        raise AssertionError

    group = entry([sum(each) for each in groups], first)
    return width * group + entry(groups[group], second)


def by_hand(model, original, made, row, segment):
    """Return (nats of the generator, labels, logits of the discriminator, stock loss) of a single document,
    computed by stock models.
    """
    parts = stock_parts(model, MODEL)
    here = made.segments[row] == segment
    masked, targets, draws = made.inputs[row][here], made.targets[row][here], made.draws[row][here]
    with torch.no_grad():
        logits = parts["generator"](torch.from_numpy(masked)[None]).logits[0].tolist()
    read, nats = original[row][here].tolist(), []
    for place, token in enumerate(targets):
        if token != IGNORED:
            shares = softmax(logits[place])
            nats.append(-math.log(shares[token]))
            read[place] = draw(shares, *draws[place])
    labels = [int(token != other) for token, other in zip(read, original[row][here], strict=True)]
    with torch.no_grad():
        output = parts[""](torch.tensor([read]), labels=torch.tensor([labels]))
    return nats, labels, output.logits[0].tolist(), output.loss.item()


def test_losses_and_measures_are_those_of_the_paper_token_by_token():
    batch = texts([60, 1, 25, 9], 2)
    made, model = OBJECTIVE.apply(batch, CONTEXT), network()
    found = forward_of(model)(**tensors(made, "cpu"))
    assert list(found) == NAMES
    generator, discriminator, told = [], [], []
    for row in range(2):
        for segment in range(4):
            nats, labels, logits, loss = by_hand(model, batch.inputs, made, row, segment)
            here = torch.from_numpy(made.segments[row] == segment)
            assert found["discriminator_loss"][row][here].mean().item() == pytest.approx(loss, abs=1e-5)
            generator += nats
            discriminator += [
                math.log1p(math.exp(-logit if label else logit)) for label, logit in zip(labels, logits, strict=True)
            ]
            told += [(label, int(logit > 0)) for label, logit in zip(labels, logits, strict=True)]
    assert found["loss"].sum().item() == pytest.approx(sum(generator), rel=1e-5)
    assert found["discriminator_loss"].sum().item() == pytest.approx(sum(discriminator), rel=1e-5)
    targets = {loss.name: loss.targets(made).sum() for loss in losses_of(OBJECTIVE.losses)}
    assert targets == {"loss": len(generator), "discriminator_loss": (batch.segments != PADDING).sum()}
    replaced = [right == label for label, right in told if label]
    original = [right == label for label, right in told if not label]
    assert 10 < len(replaced) < len(generator) + 1
    counts = {name: found[name].sum(0).tolist() for name in OBJECTIVE.measures}
    assert counts == {
        "replaced_share": [len(replaced), len(told)],
        "original_accuracy": [sum(original), len(original)],
        "replaced_accuracy": [sum(replaced), len(replaced)],
    }
    sums = sums_by_source(found, made, losses_of(OBJECTIVE.losses), 3, [MEASURES[name] for name in OBJECTIVE.measures])
    sources = [type("Source", (), {"name": name, "text_bytes": 1, "tokens": 1}) for name in "abc"]
    fields = loss_fields(sums, NAMES, sources, False)
    assert fields["loss"] == pytest.approx(np.mean(generator), rel=1e-5)
    assert fields["discriminator_loss"] == pytest.approx(np.mean(discriminator), rel=1e-5)
    assert fields["replaced_share"] == pytest.approx(len(replaced) / len(told))
    assert fields["replaced_accuracy"] == pytest.approx(np.mean(replaced))
    assert set(NAMES) < set(fields["sources"]["a"])


def test_15_percent_are_chosen_of_which_85_are_masked_and_none_is_random():
    batch = texts([200, 40], 300)
    made = OBJECTIVE.apply(batch, CONTEXT)
    chosen, masked = made.targets != IGNORED, made.inputs == SPECIALS["<mask>"]
    assert chosen.sum() == pytest.approx(0.15 * eligible(batch).sum(), rel=0.01)
    assert masked.sum() / chosen.sum() == pytest.approx(0.85, abs=0.015)
    np.testing.assert_array_equal(made.inputs[~masked], batch.inputs[~masked])
    np.testing.assert_array_equal(made.targets[chosen], batch.inputs[chosen])


def test_tokens_are_drawn_as_the_softmax_says():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(1, 60, generator=generator) * 2
    logits[0, [0, 17, 59]] = -torch.inf
    count = 100_000
    draws = torch.rand(count, 2, generator=generator, dtype=torch.float64)
    drawn = draw_tokens(logits.expand(count, -1), draws).bincount(minlength=60)
    expected = logits[0].softmax(0) * count
    assert drawn[[0, 17, 59]].tolist() == [0, 0, 0]
    possible = expected > 0
    statistic = ((drawn - expected)[possible] ** 2 / expected[possible]).sum()
    assert statistic < 56 + 4 * math.sqrt(2 * 56)  # chi squared of 57 tokens


@pytest.mark.parametrize("vocabulary", [1, 2, 3, 16, 17, 400])
def test_the_least_and_the_greatest_number_draw_a_possible_token(vocabulary):
    logits = torch.full((2, vocabulary), -torch.inf)
    logits[0, vocabulary // 3], logits[1, -1] = 3.0, -7.0
    for number in (0.0, 1 - 2**-53):
        draws = torch.full((2, 2), number, dtype=torch.float64)
        assert draw_tokens(logits, draws).tolist() == [vocabulary // 3, vocabulary - 1]


def test_a_draw_is_a_function_of_seed_and_sample_and_not_of_the_batch():
    batch = texts([200, 40], 40)
    whole = OBJECTIVE.apply(batch, CONTEXT)
    rows = [3, 17, 30]
    part = OBJECTIVE.apply(type(batch)(**{n: v[rows] for n, v in vars(batch).items() if v is not None}), CONTEXT)
    np.testing.assert_array_equal(part.draws, whole.draws[rows])
    assert len(np.unique(whole.draws)) == whole.draws.size
    assert not np.isin(OBJECTIVE.apply(batch, replace(CONTEXT, seed=8)).draws, whole.draws).any()
    wider = replace(
        batch,
        **{n: np.pad(getattr(batch, n), ((0, 0), (0, 8))) for n in ("inputs", "positions", "targets", "segments")},
    )
    np.testing.assert_array_equal(OBJECTIVE.apply(wider, CONTEXT).draws[:, :-8], whole.draws)
    again = replace(batch, sample=batch.sample + 1000, epoch=batch.epoch + 1)
    static = [ReplacedTokens(copies=1).apply(each, CONTEXT).draws for each in (batch, again)]
    np.testing.assert_array_equal(*static)
    assert not np.isin(OBJECTIVE.apply(again, CONTEXT).draws, whole.draws).any()


def test_micro_batches_and_excluded_documents_change_no_token_of_another():
    made, forward = OBJECTIVE.apply(texts([60, 25, 30], 4), CONTEXT), forward_of(network())
    with torch.no_grad():
        whole = forward(**tensors(made, "cpu"))
        rows = [{n: v[[row]] for n, v in vars(made).items() if v is not None} for row in range(4)]
        each = [forward(**tensors(type(made)(**arrays), "cpu")) for arrays in rows]
        for name, its in whole.items():
            torch.testing.assert_close(torch.cat([found[name] for found in each]), its, atol=1e-5, rtol=1e-5)
        gone = made.segments == 1  # as `mask_documents` does it
        targets, segments = np.where(gone, IGNORED, made.targets), np.where(gone, PADDING, made.segments)
        without = forward(**tensors(replace(made, targets=targets, segments=segments), "cpu"))
    for name in ("loss", "discriminator_loss"):
        torch.testing.assert_close(without[name], whole[name] * torch.from_numpy(~gone), atol=1e-5, rtol=1e-5)
    assert without["replaced_share"][:, 1].tolist() == (segments != PADDING).sum(1).tolist()


def test_no_gradient_of_the_discriminator_reaches_the_generator_but_through_the_embeddings_they_share():
    made, model = OBJECTIVE.apply(texts([60, 25], 2), CONTEXT), network()
    found = forward_of(model)(**tensors(made, "cpu"))
    found["discriminator_loss"].sum().backward(retain_graph=True)
    reached = {name for name, parameter in model.named_parameters() if parameter.grad is not None}
    assert reached == {name for name, _ in model.named_parameters() if not name.startswith("generator.")}
    before = {name: model.get_parameter(name).grad.clone() for name in reached}
    found["loss"].sum().backward()
    changed = {name for name in reached if not torch.equal(before[name], model.get_parameter(name).grad)}
    assert changed == {name for name in reached if name.startswith("electra.embeddings.")}
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_a_token_drawn_as_it_was_counts_as_original():
    batch, model = texts([60, 25], 2), network()
    batch.inputs[eligible(batch)] = 700
    with torch.no_grad():
        model.generator.generator_lm_head.bias[700] = 1e4
    made = OBJECTIVE.apply(batch, CONTEXT)
    found = forward_of(model)(**tensors(made, "cpu"))
    assert found["replaced_share"].sum(0).tolist() == [0, (batch.segments != PADDING).sum()]
    losses, measures = losses_of(OBJECTIVE.losses), [MEASURES[name] for name in OBJECTIVE.measures]
    source = type("Source", (), {"name": "a", "text_bytes": 1, "tokens": 1})
    fields = loss_fields(sums_by_source(found, made, losses, 3, measures), NAMES, [source] * 3, False)
    assert fields["replaced_share"] == 0
    assert "replaced_accuracy" not in fields  # nothing to tell


def test_the_generators_operations_count_too():
    found = flops_of(network(), MODEL, 10)
    embeddings, width, smaller, inner, layers = 24, 32, 16, 64, 2

    def stack(width, inner):
        block = 4 * (width * width + width) + 2 * width * inner + inner + width + 4 * width
        return layers * block + embeddings * width + width

    heads = width * width + width + width + 1 + smaller * embeddings + 3 * embeddings + VOCABULARY
    multiplied = stack(width, inner) + stack(smaller, inner // 2) + 2 * embeddings + heads
    assert found == Flops(6 * multiplied + 12 * layers * 10 * (width + smaller), 0, 6 * VOCABULARY * embeddings)


def test_tokens_are_predicted_by_the_generator_of_a_network_that_has_one():
    model = network()
    found, sizes = language_model(model, MODEL)
    assert found is model.generator
    assert (sizes.width, sizes.heads, sizes.feed_forward, sizes.layers) == (16, 2, 32, 2)
    alone = replace(MODEL, generator_size=None)
    assert language_model(model, alone) == (model, alone)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ((), None),
        (
            ("model.generator_size=2",),
            "model.generator_size: got 2.0, allowed above 0 and at most 1: a generator is not wider",
        ),
        (
            ("model.generator_size=0.3",),
            "generator_size: got 0.3, which gives the generator 1.2 of 4 heads; allowed multiples",
        ),
        (("model.generator_size=0.1",), "generator_size: got 0.1, which gives the generator 0.4 of 4 heads"),
        (
            ("model.feed_forward=98", "model.generator_size=0.5"),
            "generator_size: got 0.5, which gives the generator a feed_forward of 49; allowed",
        ),
        (
            ("model.generator_size=null",),
            "model.generator_size: got null with objective replaced_tokens; set the generator's",
        ),
        (
            ("objective={kind: masked}",),
            "model.generator_size: got 0.25 with objective masked; .* null with other objectives",
        ),
        (("model.architecture=bert",), "embedding_size: got 32, bert has none"),
        (("model.embedding_size=0",), "embedding_size: got 0, allowed 1 or more"),
        (("objective.discriminator_weight=0",), "discriminator_weight: got 0.0, allowed above 0"),
    ],
)
def test_what_a_generator_cannot_be_is_refused(changes, message):
    data = override(plain(RECIPES["tiny_electra"]()), list(changes))
    if message is None or "feed_forward=98" in changes[0]:
        parse(Pretraining, data, "x.yaml")
        return
    with pytest.raises(ConfigError, match=message):
        parse(Pretraining, data, "x.yaml")


def test_a_task_trains_no_generator():
    from trainers.adapters.weights.full import Full
    from trainers.recipes.finetuning_recipe import finetune

    job = finetune("x", (), RECIPES["tiny_electra"]().model, None, Full())
    assert job.model == replace(RECIPES["tiny_electra"]().model, generator_size=None)


@pytest.mark.slow
def test_both_networks_learn_more_than_shares(corpus_directory):
    """The generator's loss falls below that of a unigram model, and the discriminator's loss falls below the
    entropy of its two classes.
    """
    recipe = RECIPES["tiny_electra"]()
    config = replace(recipe, data=replace(recipe.data, corpora=(str(corpus_directory),)))
    corpus = corpus_of(config)
    config = resolve(config, corpus)
    data, model = training_data(corpus, config), build_model(config.model, corpus.tokenizer.specials, 0)
    forward = Forward(
        model, "electra", True, losses_of(OBJECTIVE.losses), [MEASURES[name] for name in OBJECTIVE.measures]
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    recent = []
    for step in range(300):
        batch = data.rows(data.order.take(step * 16, 16))
        found = forward(**tensors(batch, "cpu"))
        counts = {loss.name: loss.targets(batch).sum() for loss in forward.losses}
        means = {loss.name: found[loss.name].sum() / counts[loss.name] for loss in forward.losses}
        sum(loss.weight * means[loss.name] for loss in forward.losses).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        recent.append(
            [means["loss"].item(), means["discriminator_loss"].item(), *found["replaced_share"].sum(0).tolist()]
        )
    loss, told, replaced, read = np.mean(recent[-30:], axis=0)
    share = replaced / read
    assert loss < math.log(272) - 0.5  # tokens are uniform over 272, and only their neighbours tell which
    assert told < -share * math.log(share) - (1 - share) * math.log(1 - share) - 0.002


def test_masks_and_objective_share_fields():
    assert ReplacedTokens(rate=0.25, unit="words").needs_words
    assert Masked().measures == ()
