"""Masked characters, predicted autoregressively, against a direct implementation of the paper (Clark et al.,
2022, section 3.2).
"""

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch

from gristmill.config import override, parse, plain
from gristmill.errors import ConfigError
from tests.trainers.objectives.packed import chosen, packed
from tokenizer.vocabulary.specials import SPECIAL_IDS
from trainers.config.architecture import Model, fill
from trainers.config.pretraining import Pretraining
from trainers.engine.forward import Forward, tensors
from trainers.engine.hardware.mfu import flops_of
from trainers.engine.hardware.micro_batch import bytes_kept
from trainers.models import MODELS, build_model
from trainers.objectives.characters.masked_characters import MaskedCharacters
from trainers.objectives.characters.masked_subwords import MaskedSubwords
from trainers.objectives.shared.context import Context
from trainers.objectives.shared.spellings import SpelledTokens, character_counts
from trainers.recipes import RECIPES
from trainers.rows.batch import IGNORED, PADDING

CLS, SEP, PAD, MASK = (SPECIAL_IDS[name] for name in ("<cls>", "<sep>", "<pad>", "<mask>"))
FIRST, BUCKETS = len(SPECIAL_IDS), 300
# Words with their space, parts of words, punctuation, white space, and characters that are divided among tokens.
CUT = ["東".encode()[:1], "東".encode()[1:], "🙂".encode()[:2], "🙂".encode()[2:3], "🙂".encode()[3:] + b"x", b"\xc3"]
TEXTS = [b" the", b" fox", b"es", b"a", b" b", b".", b"\n", b"  ", " é".encode(), "ö".encode(), b" at\t", *CUT]
SPELLED = [b""] * FIRST + TEXTS
VOCABULARY = len(SPELLED)
CONTEXT = Context(
    *(3, dict(SPECIAL_IDS), VOCABULARY, "encoder", 200),
    character_counts=character_counts(SPELLED),
    spelled=SpelledTokens.of(SPELLED),
    character_buckets=BUCKETS,
)
MODEL = fill(
    Model(
        *("canine", 1, 16, 2),
        positions=300,
        feed_forward=24,
        vocab_size=VOCABULARY,
        initializer_range=0.3,
        character_buckets=BUCKETS,
    ),
    VOCABULARY,
)
OBJECTIVE = MaskedCharacters()


def document(rng, size):
    return [CLS, *rng.integers(FIRST, VOCABULARY, size).tolist(), SEP]


def batch_of(count, seed=1, sizes=(60, 1, 0, 90), length=None):
    rng = np.random.default_rng(seed)
    return packed([[document(rng, size) for size in sizes] for _ in range(count)], length=length)


BATCH = batch_of(400)
MADE = OBJECTIVE.apply(BATCH, CONTEXT)


def plain_documents(batch, longest):
    """Return {(row, segment): [[(column, index of the character in its token, code point), ...] for each
    word]}, computed with Python strings. Words longer than `longest` characters are split.
    """
    found = {}
    for row, (ids, segments) in enumerate(zip(batch.inputs.tolist(), batch.segments.tolist(), strict=True)):
        for segment in sorted(set(segments) - {PADDING}):
            columns = [column for column, its in enumerate(segments) if its == segment]
            pieces = [(column, SPELLED[ids[column]] if ids[column] >= FIRST else b"\0") for column in columns]
            # A character begins at the byte that leads it; what Python cannot decode there is replaced.
            text = b"".join(piece for _, piece in pieces)
            owner = [(column, k) for column, piece in pieces for k in range(len(piece))]
            begun = [at for at, byte in enumerate(text) if byte & 0xC0 != 0x80]
            characters, places = {}, Counter()
            for at, end in zip(begun, [*begun[1:], len(text)], strict=True):
                code = ord(text[at:end].decode(errors="replace")[0])
                column = owner[at][0]
                characters.setdefault(column, []).append((column, places[column], code))
                places[column] += 1
            words, word, ended = [], [], True
            for column, piece in pieces:
                if piece == b"\0" or piece.decode("latin-1").strip(" \t\n") == "":
                    ended = True
                    continue
                its = characters.get(column, [])
                if ended or piece[:1].isspace() or len(word) + len(its) > longest:
                    word = []
                    words.append(word)
                word += its
                ended = piece[-1:].isspace()
            found[row, segment] = [word for word in words if word]
    return found


def ours(made):
    """Return {(row, segment): [(column, place, class), ...]} in the order of prediction."""
    found = {}
    for row in range(len(made.inputs)):
        for k in np.flatnonzero(made.factorization[row] >= 0):
            key = row, int(made.decoder.segments[row, k])
            found.setdefault(key, []).append(
                tuple(int(array[row, k]) for array in (made.factorization, made.read, made.targets))
            )
    return found


@pytest.mark.parametrize("longest", [32, 3])
def test_the_targets_are_the_characters_of_whole_words_and_each_is_a_mask(longest):
    made = replace(OBJECTIVE, span_characters=longest).apply(BATCH, CONTEXT)
    expected, found, seen = plain_documents(BATCH, longest), ours(made), Counter()
    for key, words in expected.items():
        targets = {(column, place): code for column, place, code in found.get(key, [])}
        assert len(targets) == len(found.get(key, []))
        for word in words:
            masked = [each[:2] in targets for each in word]
            assert all(masked) or not any(masked)
            for column, place, code in word if masked[0] else []:
                assert targets.pop((column, place)) == code % BUCKETS
                seen[code] += 1
        assert not targets
    # Also characters of several tokens, and those that are cut off.
    assert min(seen[ord(character)] for character in " tö東\ufffd") > 0
    where = np.zeros(BATCH.inputs.shape, dtype=np.int64)
    for (row, _), each in found.items():
        for column, _, _ in each:
            where[row, column] += 1
    np.testing.assert_array_equal(made.covered, where)
    np.testing.assert_array_equal(made.inputs, np.where(where > 0, MASK, BATCH.inputs))


def test_as_many_characters_as_asked_for_are_targets_in_short_documents_too():
    for sizes in ((60, 90), (2, 1, 3)):
        batch = batch_of(3000, 5, sizes)
        total = sum(len(word) for words in plain_documents(batch, 32).values() for word in words)
        share = (OBJECTIVE.apply(batch, CONTEXT).targets != IGNORED).sum() / total
        # In the shortest documents a word is a target as a whole or not at all: some 9,000 draws.
        assert share == pytest.approx(0.15, abs=0.003 if sizes[0] == 60 else 0.015)


def test_words_of_any_place_and_length_are_masked_alike():
    """All words of a document have the same length, so each word is masked with probability 0.15."""
    fox = SPELLED.index(b" fox")
    made = OBJECTIVE.apply(packed([[[CLS, *[fox] * 20, SEP]]] * 4000), CONTEXT)
    shares = (made.covered[:, 1:21] > 0).mean(axis=0)
    np.testing.assert_allclose(shares, 0.15, atol=5 * math.sqrt(0.15 * 0.85 / 4000))
    assert set((made.covered > 0).sum(axis=1).tolist()) == {3}


def test_the_order_of_prediction_is_random():
    fox = SPELLED.index(b" fox")
    made = replace(OBJECTIVE, rate=0.1).apply(packed([[[CLS, *[fox] * 10, SEP]]] * 6000), CONTEXT)
    orders = Counter(map(tuple, made.read[:, :4].tolist()))
    assert len(orders) == 24
    assert [orders[each] for each in sorted(orders)] == pytest.approx([250] * 24, abs=5 * math.sqrt(250))


def test_masks_are_functions_of_seed_and_sample_whatever_the_batch():
    some = [5, 2, 11]
    part, whole = OBJECTIVE.apply(chosen(BATCH, some), CONTEXT), ours(MADE)
    for (row, segment), targets in ours(part).items():
        assert whole[some[row], segment] == targets
    for name in ("inputs", "covered"):
        np.testing.assert_array_equal(getattr(part, name), getattr(MADE, name)[some])
    other = OBJECTIVE.apply(BATCH, replace(CONTEXT, seed=4))
    assert (other.inputs != MADE.inputs).any()


@pytest.fixture(scope="module")
def network():
    model = build_model(MODEL, SPECIAL_IDS, 0).eval()
    MODELS["canine"].spell(model, SPELLED, SPECIAL_IDS)
    with torch.no_grad():  # biases and norms too
        for parameter in model.decoder.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(len(parameter))))
    return model


def linear(values, layer):
    return [
        sum(w * value for w, value in zip(row, values, strict=True)) + bias
        for row, bias in zip(layer.weight.tolist(), layer.bias.tolist(), strict=True)
    ]


def norm(values, layer):
    mean = sum(values) / len(values)
    deviation = math.sqrt(sum((value - mean) ** 2 for value in values) / len(values) + 1e-12)
    weights = zip(values, layer.weight.tolist(), layer.bias.tolist(), strict=True)
    return [weight * (value - mean) / deviation + bias for value, weight, bias in weights]


def gelu(values):
    return [value * (1 + math.erf(value / math.sqrt(2))) / 2 for value in values]


def add(one, other):
    return [a + b for a, b in zip(one, other, strict=True)]


def plain_nats(network, characters, targets):
    """Return the loss of each target, computed in pure Python.

    `targets` lists (place in the document, class) in order of prediction, and `characters` are the code
    points that the encoder reads.
    """
    width = 128 * math.ceil((len(characters) + 8) / 128)
    ids = torch.tensor([[*characters, *[0] * (width - len(characters))]])
    states = network.canine(ids, attention_mask=(ids > 0).long()).last_hidden_state[0].tolist()
    decoder, embeddings, heads = network.decoder, network.canine.char_embeddings, 2

    def embedded(code):
        pieces = []
        for number, prime in enumerate([31, 43, 59, 61, 73, 97, 103, 113]):
            table = getattr(embeddings, f"HashBucketCodepointEmbedder_{number}").weight
            pieces += table[(code + 1) * prime % 300].tolist()
        return pieces

    def merged(place, code):
        return norm(gelu(linear([*states[place], *embedded(code)], decoder.merge)), decoder.norm)

    nats, known = [], []
    for place, target in targets:
        query = merged(place, 0xE003)
        read = [query, *known]
        q = linear(query, decoder.attention.query)
        keys, values = (
            [linear(each, layer) for each in read] for layer in (decoder.attention.key, decoder.attention.value)
        )
        size, context = len(q) // heads, []
        for head in range(heads):
            its = slice(head * size, (head + 1) * size)
            scores = [sum(a * b for a, b in zip(q[its], key[its], strict=True)) / math.sqrt(size) for key in keys]
            shares = [math.exp(score) for score in scores]
            context += [
                sum(share * value[its][k] for share, value in zip(shares, values, strict=True)) / sum(shares)
                for k in range(size)
            ]
        state = norm(add(linear(context, decoder.attended.dense), query), decoder.attended.LayerNorm)
        inner = gelu(linear(state, decoder.inner.dense))
        logits = linear(norm(add(linear(inner, decoder.outer.dense), state), decoder.outer.LayerNorm), decoder.predict)
        nats.append(math.log(sum(map(math.exp, logits))) - logits[target])
        known.append(merged(place, target))
    return nats


def test_the_loss_is_that_of_the_paper_character_by_character(network):
    made = replace(OBJECTIVE, rate=0.3).apply(batch_of(2, 7, (12, 20), 40), CONTEXT)
    with torch.no_grad():
        nats = Forward(network, "canine")(**tensors(made, "cpu"))["loss"].numpy()
    checked = 0
    for (row, segment), targets in ours(made).items():
        text, first = b"", {}
        for column in np.flatnonzero(made.segments[row] == segment):
            token = made.inputs[row, column]
            first[column] = len([byte for byte in text if byte & 0xC0 != 0x80])
            mark = {CLS: "\ue000", SEP: "\ue001", MASK: "\ue003" * made.covered[row, column]}.get(token)
            text += SPELLED[token] if mark is None else mark.encode()
        begun = [at for at, byte in enumerate(text) if byte & 0xC0 != 0x80]
        codes = [
            ord(text[at:end].decode(errors="replace")[0])
            for at, end in zip(begun, [*begun[1:], len(text)], strict=True)
        ]
        assert all(codes[first[column] + place] == 0xE003 for column, place, _ in targets)
        with torch.no_grad():
            expected = plain_nats(network, codes, [(first[column] + place, code) for column, place, code in targets])
        found = nats[row, made.decoder.segments[row] == segment]
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)
        checked += len(targets)
    assert checked > 20
    assert (nats[made.targets == IGNORED] == 0).all()


def test_a_character_is_predicted_from_those_before_it_in_its_document_and_not_from_itself(network):
    made = replace(OBJECTIVE, rate=0.5).apply(batch_of(1, 7, (20, 20), 60), CONTEXT)

    def states(codes):
        batch = replace(made, decoder=replace(made.decoder, inputs=codes))
        with torch.no_grad():
            return Forward(network, "canine").states(**tensors(batch, "cpu"))[0]

    before, segments = states(made.decoder.inputs), made.decoder.segments[0]
    for k in np.flatnonzero(segments >= 0):
        codes = made.decoder.inputs.copy()
        codes[0, k] = (codes[0, k] + 1) % BUCKETS
        differ = ((states(codes) - before).abs().amax(1) > 1e-6).numpy()
        np.testing.assert_array_equal(differ, (segments == segments[k]) & (np.arange(len(segments)) > k))


def test_a_batch_without_a_target_has_no_loss_and_training_goes_on(network):
    made = OBJECTIVE.apply(packed([[[CLS, SEP]], []], length=8), CONTEXT)
    nats = Forward(network, "canine")(**tensors(made, "cpu"))["loss"]
    assert nats.shape == (2, 8)
    nats.sum().backward()
    assert not nats.any()
    network.zero_grad()


def test_the_decoder_costs_its_layers_for_each_character(network):
    """Each target is read twice, as its mask and as its character. Both readings are merged with the
    encoder's state and have a key and a value.
    """
    width, inner = 16, 24
    merge, attention, feed_forward = (
        (2 * width + 1 + 2) * width,
        (width + 1) * width,
        (width + 1) * inner + (inner + 1) * width,
    )
    layer = 2 * (merge + 2 * attention) + 2 * attention + 2 * width + feed_forward + 2 * width
    subwords = build_model(replace(MODEL, character_buckets=None), SPECIAL_IDS, 0)
    MODELS["canine"].spell(subwords, SPELLED, SPECIAL_IDS)
    found, other = flops_of(network, MODEL, 64), flops_of(subwords, replace(MODEL, character_buckets=None), 64)
    assert found.predicted == 6 * (layer + BUCKETS + BUCKETS * width)
    head = subwords.cls
    assert other.read - found.read == 6 * (sum(p.numel() for p in head.parameters()) - head.decoder.weight.numel())


@pytest.mark.parametrize(
    ("recipe", "changes", "message"),
    [
        ("tiny_canine_c", ["model.architecture=roberta"], "got 1024, roberta has none"),
        (
            "tiny_canine_c",
            ["model.character_buckets=null"],
            "got null with objective masked_characters; set the number",
        ),
        ("tiny_canine", ["model.character_buckets=512"], "got 512 with objective masked_subwords; set the number"),
        ("tiny_canine_c", ["model.character_buckets=0"], "character_buckets: got 0, allowed 1 or more"),
        ("tiny_canine_c", ["objective.rate=0"], "rate: got 0.0, allowed above 0 and at most 1"),
        ("tiny_canine_c", ["objective.span_characters=0"], "span_characters: got 0, allowed 1 or more"),
    ],
)
def test_what_does_not_fit_is_refused(recipe, changes, message):
    with pytest.raises(ConfigError, match=message):
        parse(Pretraining, override(plain(RECIPES[recipe]()), changes), "x.yaml")


def test_both_objectives_of_canine_count_characters_and_only_one_predicts_them():
    assert MaskedSubwords().needs_character_counts
    assert OBJECTIVE.needs_character_counts
    assert (MaskedSubwords().predicts_characters, OBJECTIVE.predicts_characters) == (False, True)


def test_the_memory_of_a_pass_is_estimated_without_values(network):
    """The estimate assumes that tokens have the vocabulary's mean length, and may therefore be up to four
    times the measured memory.
    """
    made = OBJECTIVE.apply(batch_of(1, 7, (90,), 92), CONTEXT)
    forward, kept = Forward(network, "canine"), {}
    parameters = {parameter.untyped_storage().data_ptr() for parameter in network.parameters()}

    def pack(tensor):
        kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        forward(**tensors(made, "cpu"))
    sizes = [each.untyped_storage().nbytes() for address, each in kept.items() if address not in parameters]
    assert 1 <= bytes_kept(forward, made, "fp32") / sum(sizes) < 4
