"""The span boundary objective against a direct implementation of the paper (Joshi et al., 2020, section 3):
the spans against another sampler, the loss token by token, and configurations that are refused.
"""

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch

from gristmill.config import override, parse, plain
from gristmill.errors import ConfigError
from tests.trainers.models.test_models import tiny
from tests.trainers.objectives.test_masked import CONTEXT, SPECIALS, VOCABULARY, batch_of, rows_of, words_of
from trainers.config.pretraining import Pretraining
from trainers.engine.forward import Forward, tensors
from trainers.engine.hardware.mfu import Flops, flops_of
from trainers.engine.losses import losses_of
from trainers.models import build_model
from trainers.objectives.masked import Masked
from trainers.objectives.span_boundary import PLACES, SpanBoundary
from trainers.recipes import RECIPES
from trainers.rows.batch import IGNORED, PADDING

OBJECTIVE = SpanBoundary()
MODEL = tiny("bert", layers=2, positions=256, vocab_size=VOCABULARY, initializer_range=0.2, boundary_head=True)
ROWS, SIZE = 1500, 100


def sample_spans(words, rng):
    """Sample spans of whole words, as lists of columns, until 15 % of the tokens are masked.

    Lengths in words are geometric with p = 0.2, redrawn above 10, and each span begins at a random word. A
    word longer than the remaining budget is masked with a probability of budget over length.
    """
    left, taken, spans = int(0.15 * sum(map(len, words)) + rng.random()), set(), []
    while left > 0 and len(taken) < len(words):
        first, length = int(rng.integers(len(words))), 11
        while length > 10:
            length = 1
            while rng.random() >= 0.2:
                length += 1
        span = []
        for word in range(first, min(first + length, len(words))):
            if word in taken or left <= 0:
                break
            if len(words[word]) > left and rng.random() * len(words[word]) >= left:
                left = 0
                break
            taken.add(word)
            span += words[word]
            left -= len(words[word])
        spans += [span] if span else []
    return spans


def our_spans(group):
    spans = {}
    for column, first in enumerate(group):
        if first >= 0:
            spans.setdefault(int(first), []).append(column)
    return list(spans.values())


def texts(rows=ROWS, size=SIZE, seed=3):
    rng = np.random.default_rng(seed)
    return rows_of([[rng.integers(7, 999, size)] for _ in range(rows)])


@pytest.mark.long
def test_spans_have_the_statistics_of_another_sampler_of_the_paper():
    batch, rng = texts(), np.random.default_rng(0)
    group = OBJECTIVE.choose(batch, CONTEXT)
    counts = {"ours": Counter(), "theirs": Counter()}
    for row in range(ROWS):
        words = words_of(batch, row)
        begins = {word[0] for word in words}
        for name, spans in (("ours", our_spans(group[row])), ("theirs", sample_spans(words, rng))):
            for span in spans:
                assert span == list(range(span[0], span[-1] + 1))
                counts[name]["words", sum(column in begins for column in span)] += 1
                counts[name]["spans"] += 1
                for column in span:
                    counts[name]["tenth", (column - 1) * 10 // SIZE] += 1
                    counts[name]["tokens"] += 1
    assert counts["ours"]["tokens"] == pytest.approx(0.15 * ROWS * SIZE, rel=0.01)
    assert {name for name in counts["ours"] if name[0] == "words"} == {("words", n) for n in range(1, 11)}
    for name in counts["ours"].keys() | counts["theirs"].keys():
        both = [each[name] for each in counts.values()]
        # Tokens come in spans, of about 5 tokens with a standard deviation of as many.
        size = 10 if name[0] == "tenth" or name == "tokens" else 1
        assert abs(both[0] - both[1]) < 4.5 * math.sqrt(size * sum(both)) + 1, (name, both)


def test_80_percent_of_the_spans_are_masked_10_random_and_10_kept_each_as_a_whole():
    batch = texts()
    made, kinds = OBJECTIVE.apply(batch, CONTEXT), Counter()
    for row, group in enumerate(OBJECTIVE.choose(batch, CONTEXT)):
        for span in our_spans(group):
            masked = made.inputs[row, span] == SPECIALS["<mask>"]
            kept = made.inputs[row, span] == batch.inputs[row, span]
            assert masked.all() or not masked.any()
            if len(span) > 3:  # shorter ones may be drawn as they were
                assert kept.all() or kept.sum() < 3
                kinds["masked" if masked.all() else "kept" if kept.all() else "random"] += 1
    total = sum(kinds.values())
    for kind, share in (("masked", 0.8), ("random", 0.1), ("kept", 0.1)):
        assert kinds[kind] == pytest.approx(share * total, abs=5 * math.sqrt(share * (1 - share) * total))


def test_the_masks_are_those_of_masked_spans():
    batch = batch_of([60, 1, 25, 9], 20)
    made, masked = OBJECTIVE.apply(batch, CONTEXT), Masked(unit="spans").apply(batch, CONTEXT)
    np.testing.assert_array_equal(made.inputs, masked.inputs)
    np.testing.assert_array_equal(made.targets, masked.targets)
    assert SpanBoundary(rate=0.3, span_p=0.5, copies=4).exported == Masked(rate=0.3, unit="spans", span_p=0.5, copies=4)


@pytest.mark.long
def test_outside_of_a_span_are_the_columns_before_and_after_it_in_its_document():
    batch = batch_of([60, 1, 25, 9, 180], 300)  # the last one is cut off by the row
    inner = replace(batch, inputs=batch.inputs[:, 3:], segments=batch.segments[:, 3:])  # and so is the first
    objective, absent = replace(OBJECTIVE, rate=0.4), Counter()
    group, made = objective.choose(inner, CONTEXT), objective.apply(inner, CONTEXT)
    for row in range(300):
        expected = np.full((inner.inputs.shape[1], 2), -1)
        for span in our_spans(group[row]):
            first, last, segment = span[0], span[-1], inner.segments[row, span[0]]
            before = first > 0 and inner.segments[row, first - 1] == segment
            after = last + 1 < len(expected) and inner.segments[row, last + 1] == segment
            for place, column in enumerate(span):
                absent["before"] += not before
                absent["after"] += not after
                absent["place"] += place >= 20
                if before and after and place < 20:
                    expected[column] = first - 1, last + 1
        np.testing.assert_array_equal(made.outside[row], expected)
    assert min(absent[name] for name in ("before", "after", "place")) > 0
    (loss,) = losses_of({"boundary_loss": 1.0})
    np.testing.assert_array_equal(loss.targets(made), made.outside[..., 0] >= 0)
    assert (made.targets[loss.targets(made)] != IGNORED).all()


def norm(values, weight, bias):
    mean = sum(values) / len(values)
    variance = sum((value - mean) ** 2 for value in values) / len(values)
    return [
        w * (value - mean) / math.sqrt(variance + 1e-12) + b for value, w, b in zip(values, weight, bias, strict=True)
    ]


def linear(values, weight, bias):
    return [
        sum(w * value for w, value in zip(row, values, strict=True)) + b for row, b in zip(weight, bias, strict=True)
    ]


def gelu(values):
    return [value * (1 + math.erf(value / math.sqrt(2))) / 2 for value in values]


def test_the_loss_is_that_of_the_paper_token_by_token():
    batch = batch_of([60, 1, 25], 2)
    begins = np.diff(batch.segments, prepend=PADDING) != 0
    columns = np.arange(batch.inputs.shape[1])
    batch = replace(batch, positions=columns - np.maximum.accumulate(np.where(begins, columns, 0), axis=1))
    made, model = OBJECTIVE.apply(batch, CONTEXT), build_model(MODEL, SPECIALS, 0).eval()
    with torch.no_grad():
        for parameter in [*model.boundary_head.parameters(), model.cls.predictions.bias]:
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    forward = Forward(model, "bert", True, losses_of(OBJECTIVE.losses))
    with torch.no_grad():
        found = forward(**tensors(made, "cpu"))
        assert list(found) == ["loss", "boundary_loss"]
        head = {name: parameter.tolist() for name, parameter in model.boundary_head.named_parameters()}
        table, bias = model.get_input_embeddings().weight.tolist(), model.cls.predictions.bias.tolist()
        checked = 0
        for row in range(2):
            for segment in range(3):
                (here,) = np.nonzero(made.segments[row] == segment)
                states = model.bert(torch.from_numpy(made.inputs[row, here])[None]).last_hidden_state[0].tolist()
                for column in here:
                    left, right = made.outside[row, column]
                    if left < 0:
                        assert found["boundary_loss"][row, column] == 0
                        continue
                    h = [*states[left - here[0]], *states[right - here[0]], *head["places.weight"][column - left - 1]]
                    for name in ("inner", "outer"):
                        h = gelu(linear(h, head[f"{name}.weight"], head[f"{name}.bias"]))
                        h = norm(h, head[f"{name}_norm.weight"], head[f"{name}_norm.bias"])
                    logits = linear(h, table, bias)
                    nats = math.log(sum(map(math.exp, logits))) - logits[made.targets[row, column]]
                    assert found["boundary_loss"][row, column].item() == pytest.approx(nats, abs=2e-4)
                    checked += 1
    assert checked > 15
    plain_loss = Forward(model, "bert", True)(**tensors(made, "cpu"))["loss"]
    torch.testing.assert_close(found["loss"], plain_loss.detach())


def test_without_a_target_outside_there_is_no_loss_and_training_goes_on():
    batch = rows_of([[np.full(3, 950)]])  # so short that hardly a token is chosen
    made = replace(OBJECTIVE.apply(batch, CONTEXT), targets=np.full(batch.inputs.shape, IGNORED))
    made = replace(made, outside=np.full((*batch.inputs.shape, 2), -1))
    model = build_model(MODEL, SPECIALS, 0)
    nats = Forward(model, "bert", True, losses_of(OBJECTIVE.losses))(**tensors(made, "cpu"))
    sum(each.sum() for each in nats.values()).backward()
    assert not any(each.any() for each in nats.values())


def test_the_split_into_batches_does_not_enter():
    batch = batch_of([60, 130], 12)
    whole = OBJECTIVE.apply(batch, CONTEXT)
    names = ("inputs", "targets", "positions", "segments", "source", "sequence", "sample", "epoch")
    part = OBJECTIVE.apply(replace(batch, **{name: getattr(batch, name)[[7, 3]] for name in names}), CONTEXT)
    np.testing.assert_array_equal(part.outside, whole.outside[[7, 3]])


def test_the_head_costs_operations_at_targets_only():
    plain_bert = replace(MODEL, boundary_head=False)
    without, with_head = (flops_of(build_model(each, SPECIALS, 0), each, 64) for each in (plain_bert, MODEL))
    head = (2 * 32 + 200) * 32 + 32 + 32 * 32 + 32 + 4 * 32
    assert with_head == Flops(without.read, 0.0, 2 * without.predicted + 6 * head)
    assert PLACES == 20


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (("model.boundary_head=false",), "model.boundary_head: got false with objective span_boundary; set true with"),
        (("objective={kind: masked}",), "model.boundary_head: got true with objective masked; .* false with other"),
        (("model.architecture=roberta",), "boundary_head: got True, roberta has none; .* or use one of bert"),
        (("objective.unit=words",), "objective.unit: got 'words', expected"),
        (("data.packing=segment_pairs",), "data.packing: got segment_pairs with objective span_boundary"),
    ],
)
def test_a_model_without_the_head_and_a_head_without_the_objective_are_refused(changes, message):
    data = override(plain(RECIPES["tiny_spanbert"]()), list(changes))
    with pytest.raises(ConfigError, match=message):
        parse(Pretraining, data, "x.yaml")


def test_a_task_trains_the_model_without_the_head():
    from trainers.adapters.weights.full import Full
    from trainers.recipes.finetuning_recipe import finetune

    model = RECIPES["tiny_spanbert"]().model
    assert finetune("x", (), model, None, Full()).model == replace(model, boundary_head=False)
