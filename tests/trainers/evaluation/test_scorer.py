"""Likelihoods equal those of stock `transformers` on single texts, even if several texts are packed together."""

import numpy as np
import pytest
import torch

from gristmill.errors import UserError
from tests.trainers.evaluation.scored_models import (
    OBJECTIVES,
    WORDS,
    encoder,
    ids_of,
    likelihoods,
    network_of,
    reference,
    scorer_of,
)
from tokenizer.vocabulary.specials import SPECIAL_IDS
from trainers.engine.forward import tensors
from trainers.evaluation.scoring import pieces
from trainers.evaluation.scoring.scorer import EncodedRequest, encode_requests
from trainers.objectives.spans.span_corruption import SpanCorruption
from trainers.rows.batch import IGNORED

NAMES = [name for name in OBJECTIVES if name != "prefix"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("tokenizer")


def pairs(count=14):
    draw = np.random.default_rng(5)
    contexts = [" ".join(draw.choice(WORDS, number)) for number in range(count)]
    return contexts, [" " * bool(c) + " ".join(draw.choice(WORDS, 1 + len(c) % 3)) for c in contexts]


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_likelihoods_are_those_of_a_plain_loop_on_stock_transformers(folder, name):
    contexts, continuations = pairs()
    found = scorer_of(name, folder, pseudo="token").score(contexts, continuations)
    for number, (context, continuation) in enumerate(zip(contexts, continuations, strict=True)):
        ids = ids_of(folder, context), ids_of(folder, continuation)
        assert found.tokens[number] == len(ids[1])
        assert found.log_likelihood[number] == pytest.approx(reference(name, folder, *ids), abs=1e-4)
    assert not found.cut.any()
    assert np.ptp(found.log_likelihood) > 1


@pytest.mark.long
@pytest.mark.parametrize("name", ["bert", "roberta", "modernbert"])
def test_within_words_the_tokens_after_one_are_masked_with_it(folder, name):
    pairs = [
        ("the cat", " unhappyzq mat, qqq"),
        ("", "unhappyzq dogfishes"),
        ("a", " beyondtwenty gates"),
        ("mat", " the"),
    ]
    found = scorer_of(name, folder).score([context for context, _ in pairs], [text for _, text in pairs])
    gaps = []
    for number, (context, text) in enumerate(pairs):
        ids = ids_of(folder, text)
        texts = [encoder(folder).decode([token]) for token in ids]
        word = np.cumsum([each.startswith((" ", ",")) for each in texts])
        ends = [int(np.flatnonzero(word == each).max()) + 1 for each in word]
        expected = reference(name, folder, ids_of(folder, context), ids, ends)
        assert found.log_likelihood[number] == pytest.approx(expected, abs=1e-4)
        gaps.append(abs(expected - reference(name, folder, ids_of(folder, context), ids)))
    assert max(gaps) > 0.01  # some word has several tokens


@pytest.mark.long
@pytest.mark.parametrize("name", OBJECTIVES)
def test_neither_batch_nor_order_nor_neighbours_change_a_likelihood(folder, name, monkeypatch):
    contexts, continuations = pairs()
    usual = scorer_of(name, folder).score(contexts, continuations)
    backwards = scorer_of(name, folder, batch_positions=30).score(contexts[::-1], continuations[::-1])
    alone = [scorer_of(name, folder).score([c], [d]) for c, d in zip(contexts, continuations, strict=True)]
    assert backwards.log_likelihood[::-1] == pytest.approx(usual.log_likelihood, abs=1e-4)
    assert [one.log_likelihood[0] for one in alone] == pytest.approx(usual.log_likelihood, abs=1e-4)
    assert [bool(one.greedy[0]) for one in alone] == usual.greedy.tolist() == backwards.greedy[::-1].tolist()
    monkeypatch.setattr(pieces, "_ENOUGH", {"cpu": 1})  # pieces of similar length alone, however few there are
    apart = scorer_of(name, folder).score(contexts, continuations)
    assert apart.log_likelihood == pytest.approx(usual.log_likelihood, abs=1e-4)
    assert apart.greedy.tolist() == usual.greedy.tolist()
    assert apart.tokens.tolist() == usual.tokens.tolist()


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "masked"),
    [
        ("gpt2", False),
        ("llama", False),
        ("bert", False),
        ("roberta", False),
        ("gpt", True),
        ("prefix", True),
        ("t5", True),
    ],
)
def test_pieces_have_rows_to_themselves_where_attention_then_needs_no_mask(folder, name, masked, monkeypatch):
    read = []
    monkeypatch.setattr(pieces, "_ENOUGH", {"cpu": 1})
    monkeypatch.setattr(pieces, "tensors", lambda batch, device: read.append(batch) or tensors(batch, device))
    contexts, continuations = pairs()
    scorer_of(name, folder).score(contexts, continuations)
    assert all((int(batch.segments.max()) > 0 or (batch.segments < 0).any()) == masked for batch in read)
    if name in ("gpt2", "llama"):
        lengths = [(batch.targets != IGNORED).shape[1] for batch in read]
        assert lengths == sorted(lengths, reverse=True)
        assert len(lengths) > 3


@pytest.mark.long
@pytest.mark.parametrize("name", ["gpt2", "gpt", "llama", "prefix", "t5", "bert"])
def test_a_context_is_read_once_for_all_of_its_continuations(folder, name, monkeypatch):
    endings = [" on a mat", " loudly beyond", " dog", " on a mat", " on a gate", " on a", " twenty gates while"]
    contexts = ["the cat sat", "the cat", *["the cat sat"] * (len(endings) - 1)]
    continuations = [endings[0], " barked", *endings[1:]]
    alone = [scorer_of(name, folder).score([c], [d]) for c, d in zip(contexts, continuations, strict=True)]
    read = []
    monkeypatch.setattr(pieces, "tensors", lambda batch, device: read.append(batch) or tensors(batch, device))
    for width in (4, 256):
        read.clear()
        monkeypatch.setattr(pieces, "_WIDTH", width)
        found = scorer_of(name, folder).score(contexts, continuations)
        assert found.log_likelihood == pytest.approx([float(one.log_likelihood[0]) for one in alone], abs=1e-4)
        assert found.greedy.tolist() == [bool(one.greedy[0]) for one in alone]
        assert found.tokens.tolist() == [int(one.tokens[0]) for one in alone]
    if name not in ("t5", "bert"):
        ids = [ids_of(folder, text) for text in ("the cat sat", "the cat", " barked")]
        rests = {tuple(ids_of(folder, text)[:-1]) for text in endings}
        expected = 1 + len(ids[0]) + sum(map(len, rests)) + len(ids[1]) + len(ids[2])
        assert sum(int((batch.segments >= 0).sum()) for batch in read) == expected


def test_the_context_of_a_prefix_lm_sees_itself_from_both_sides(folder):
    _, network = network_of("prefix")
    context, continuation = ids_of(folder, "the cat sat"), ids_of(folder, " on a mat")
    ids = [SPECIAL_IDS["<bos>"], *context, *continuation]
    length, first = len(ids), len(context) + 1
    mask = torch.ones(length, length, dtype=torch.bool).tril()
    mask[:first, :first] = True
    with torch.no_grad():
        logits = network(torch.tensor([ids]), attention_mask=mask[None, None]).logits[0].double().log_softmax(1)
    expected = sum(float(logits[first - 1 + i, token]) for i, token in enumerate(continuation))
    found = scorer_of("prefix", folder).score(["the cat sat"], [" on a mat"])
    assert found.log_likelihood[0] == pytest.approx(expected, abs=1e-4)


def test_a_context_and_a_continuation_meet_as_in_lm_evaluation_harness(folder):
    own = encoder(folder)
    spaced, merged = encode_requests(own, ["the cat ", "the ca"], ["sat", "t sat on"], jointly=True)
    assert spaced.context.tolist() == ids_of(folder, "the cat")
    assert spaced.continuation.tolist() == ids_of(folder, " sat")
    count = len(ids_of(folder, "the ca"))  # more tokens than in "the cat sat", where they merge
    assert ids_of(folder, "the cat")[:count] != ids_of(folder, "the ca")
    assert merged.context.tolist() == ids_of(folder, "the ca")
    assert merged.continuation.tolist() == ids_of(folder, "the cat sat on")[count:]
    (apart,) = encode_requests(own, ["the ca"], ["t sat"], jointly=False)
    assert apart.continuation.tolist() == ids_of(folder, "t sat")


@pytest.mark.parametrize("name", ["gpt2", "llama, pairs", "t5", "bart", "bert"])
def test_a_long_context_is_cut_on_the_left_and_counted(folder, name):
    long, short = " ".join(WORDS * 20), " mat"
    found = scorer_of(name, folder, pseudo="token").score([long, "the cat"], [short, short])
    assert found.cut.tolist() == [True, False]
    marks = {"gpt2": 0, "llama, pairs": 1, "t5": 2, "bart": 3 + len(ids_of(folder, short)) - 3, "bert": 2}[name]
    room = 160 - marks - (len(ids_of(folder, short)) if name != "t5" else 0)
    kept = ids_of(folder, long)[-room:] if name != "bart" else ids_of(folder, long)[-157:]
    assert found.log_likelihood[0] == pytest.approx(reference(name, folder, kept, ids_of(folder, short)), abs=1e-4)


@pytest.mark.long
@pytest.mark.parametrize("name", ["gpt2", "t5, prefix", "bert"])
def test_texts_are_scored_in_windows_that_overlap_by_half(folder, name):
    text = " ".join(WORDS * 2)
    ids = ids_of(folder, text)
    found, window = scorer_of(name, folder, pseudo="token").score_texts([text, "the cat"], window=32)
    half = {"gpt2": 16, "t5, prefix": 15, "bert": 15}[name]
    expected = sum(
        reference(name, folder, ids[max(0, start - half) : start], ids[start : start + half])
        for start in range(0, len(ids), half)
    )
    assert window == 32
    assert found.tokens.tolist() == [len(ids), len(ids_of(folder, "the cat"))]
    assert found.log_likelihood[0] == pytest.approx(expected, abs=1e-3)


def test_greedy_continuations_are_those_that_the_model_would_write(folder):
    _, network = network_of("gpt2")
    context = ids_of(folder, "the cat")
    with torch.no_grad():
        written = [SPECIAL_IDS["<bos>"], *context]
        for _ in range(3):
            written.append(int(network(torch.tensor([written])).logits[0, -1].argmax()))
    right = np.array(written[-3:])
    wrong = np.array([*written[-3:-1], written[-1] ^ 1])
    requests = [EncodedRequest(np.array(context), each) for each in (right, wrong)]
    assert scorer_of("gpt2", folder).score_ids(requests).greedy.tolist() == [True, False]


def test_of_equally_probable_tokens_the_first_is_the_greedy_one(folder):
    """Otherwise, a model that gives all tokens the same probability would count as getting every continuation
    right.
    """
    _, network = network_of("llama")
    kept = network.lm_head.weight.clone()
    try:
        with torch.no_grad():
            network.lm_head.weight.zero_()
        requests = [EncodedRequest(np.array([300, 301]), np.array(each)) for each in ([302, 303], [0, 0], [0, 302])]
        found = scorer_of("llama", folder).score_ids(requests)
    finally:
        with torch.no_grad():
            network.lm_head.weight.copy_(kept)
    assert found.greedy.tolist() == [False, True, False]
    assert found.log_likelihood == pytest.approx(np.full(3, -2 * np.log(448)), abs=1e-4)


def test_logits_that_do_not_fit_in_memory_at_once_give_the_same(folder, monkeypatch):
    contexts, continuations = pairs()
    usual = scorer_of("gpt2", folder).score(contexts, continuations)
    monkeypatch.setattr(pieces, "_LOGITS", {"cpu": 3 * 448})
    parts = scorer_of("gpt2", folder).score(contexts, continuations)
    assert parts.log_likelihood == pytest.approx(usual.log_likelihood, abs=1e-5)
    assert parts.greedy.tolist() == usual.greedy.tolist()
    assert parts.tokens.tolist() == usual.tokens.tolist()


def test_what_cannot_be_scored_is_refused_in_one_line(folder, monkeypatch):
    scorer = scorer_of("gpt2", folder)
    with pytest.raises(UserError, match="continuation 2 of 2: has no token of its own"):
        scorer.score(["the", "the"], [" cat", ""])
    with pytest.raises(
        UserError, match=r"gpt2: a continuation has .* tokens, but the model has 160 positions; shorten"
    ):
        scorer.score(["the"], [" ".join(WORDS * 20)])
    with pytest.raises(UserError, match="window: got 1, allowed 2 or more for gpt2"):
        scorer.score_texts(["the"], window=1)
    with pytest.raises(
        UserError, match="t5: a encoder_decoder trained on span_corruption in this form does not continue"
    ):
        scorer_of("t5", folder, objective=SpanCorruption(style="deshuffle"))


def test_a_model_that_gives_no_numbers_is_refused(folder):
    scorer = scorer_of("llama", folder)
    _, network = network_of("llama")
    kept = network.lm_head.weight[300].clone()
    try:
        with torch.no_grad():
            network.lm_head.weight[300] = torch.nan
        with pytest.raises(UserError, match="llama: 2 of 2 likelihoods are not numbers; the model has diverged"):
            scorer.score(["the", "a"], [" cat", " dog"])
    finally:
        with torch.no_grad():
            network.lm_head.weight[300] = kept
    assert IGNORED not in likelihoods(network, [1], input_ids=[1])
