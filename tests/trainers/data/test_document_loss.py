"""Bits per byte of whole documents: every run scores the same documents and chunks, and the sums are correct."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from pipelines.contracts.shard_set import open_shard
from tokenizer.vocabulary.specials import SPECIAL_IDS
from trainers.config.pretraining import Data
from trainers.data import document_loss
from trainers.data.document_loss import add_document_fields, document_data
from trainers.data.packed_corpus import open_corpus
from trainers.engine.forward import Forward, tensors
from trainers.engine.loss_metrics import no_sums, sums_by_source
from trainers.models import build_model
from trainers.objectives.fill_in_the_middle import FillInTheMiddle
from trainers.objectives.masked import Masked
from trainers.objectives.mixture import ObjectiveMixture
from trainers.objectives.prefix_lm import PrefixLM
from trainers.objectives.spans.span_corruption import SpanCorruption
from trainers.recipes import RECIPES
from trainers.runs.resolve import resolve


@pytest.fixture(scope="module")
def corpus(corpus_directory):
    return open_corpus((str(corpus_directory),), None)


def configured(corpus, recipe="tiny_gpt2", **changes):
    return resolve(replace(RECIPES[recipe](), **changes), corpus)


def total(data, config, size=8, world=1):
    model = Forward(build_model(config.model, SPECIAL_IDS, 0).eval(), config.model.architecture)
    sums = no_sums(1, len(data.sources))
    with torch.no_grad():
        for rank in range(world):
            for batch in data.batches(size, rank, world):
                sums += sums_by_source(model(**tensors(batch, "cpu")), batch, model.losses, len(data.sources))
    return sums[0]


def texts(source, budget):
    """Return (tokens, number of bytes) of the nonempty documents with the smallest ids, as many as are needed
    to reach `budget` bytes.
    """
    found = []
    for record in source.shards:
        shard = open_shard(source.directory, record.file)
        ends = zip(shard.offsets, shard.offsets[1:], strict=False)
        parts = (shard.tokens[first:end].astype(np.int64) for first, end in ends)
        found += zip(shard.doc_ids.to_pylist(), parts, shard.n_bytes.tolist(), strict=True)
    found = [(text, size) for _, text, size in sorted(found, key=lambda entry: entry[0]) if size]
    sums = np.cumsum([size for _, size in found])
    return found[: int((sums < budget).sum()) + 1]


def by_hand(corpus, config, half, budget):
    """Return {source: (bits, bytes)}. Each chunk of `half` tokens is scored with the chunk before it as
    context, by the plain model.
    """
    model = build_model(config.model, SPECIAL_IDS, 0).eval()
    found = {}
    for name, source in sorted(corpus.validation.items()):
        nats = 0.0
        for text, _ in texts(source, budget):
            for start in range(0, len(text), half):
                asked = text[start : start + half]
                given = [SPECIAL_IDS["<bos>"], *text[max(0, start - half) : start]]
                with torch.no_grad():
                    logits = model(torch.tensor([[*given, *asked[:-1]]])).logits[0]
                shares = torch.log_softmax(logits[len(given) - 1 :].double(), dim=1)
                nats -= float(shares.gather(1, torch.from_numpy(asked)[:, None]).sum())
        found[name] = nats / math.log(2), sum(size for _, size in texts(source, budget))
    return found


@pytest.fixture
def few(monkeypatch):
    monkeypatch.setattr(document_loss, "BUDGET_BYTES", 1_000)


@pytest.fixture(scope="module")
def plain(corpus):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(document_loss, "BUDGET_BYTES", 1_000)
        config = configured(corpus)
        data = document_data(corpus, config)
        return config, data, total(data, config)


def test_it_is_the_likelihood_of_whole_documents_by_hand(corpus, plain):
    config, data, sums = plain
    fields = data.fields(sums)
    expected = by_hand(corpus, config, 64, 1_000)
    assert fields["document_window"] == 128
    for name, (bits, size) in expected.items():
        assert fields["sources"][name]["document_bits_per_byte"] == pytest.approx(bits / size, rel=1e-5)
    bits, size = np.sum(list(expected.values()), axis=0)
    assert fields["document_bits_per_byte"] == pytest.approx(bits / size, rel=1e-5)


@pytest.mark.parametrize(
    "changes",
    [
        {"data": Data(sequence_length=32)},
        {"data": Data(packing="documents")},
        {"data": Data(packing="best_fit", isolation=False)},
        {"data": Data(weights={"code": 1.0})},
        {"seed": 3},
        {"objective": FillInTheMiddle()},
        {"objective": PrefixLM(bidirectional_prefix=False)},
        {"objective": ObjectiveMixture()},
    ],
    ids=str,
)
def test_packing_length_mixture_and_objective_do_not_move_it(corpus, few, plain, changes):
    (usual, expected, sums), config = plain, configured(corpus, **changes)
    found = document_data(corpus, replace(config, model=usual.model))
    if isinstance(
        config.objective, ObjectiveMixture
    ):  # whose part for text sees its input in both directions, behind a token
        assert np.concatenate(found.targets).tolist() == np.concatenate(expected.targets).tolist()
        return
    np.testing.assert_allclose(total(found, usual), sums, rtol=1e-6)


def test_batches_and_workers_do_not_move_it(plain):
    config, data, sums = plain
    np.testing.assert_allclose(total(data, config, size=3, world=4), sums, rtol=1e-5)
    counts = [len(list(data.batches(3, rank, 4))) for rank in range(4)]
    assert len(set(counts)) == 1


@pytest.mark.parametrize("objective", [PrefixLM(), ObjectiveMixture()], ids=["prefix", "ul2"])
@pytest.mark.parametrize("recipe", ["tiny_t5", "tiny_prefix_lm"])
def test_every_token_of_the_documents_is_a_target_once_and_rows_fit_the_model(corpus, few, recipe, objective):
    config = configured(corpus, recipe, objective=objective)
    data = document_data(corpus, config)
    sums = total(data, config)
    assert sums[1].sum() == sum(map(len, data.targets))
    whole = document_data(corpus, configured(corpus))
    assert sums[1].tolist() == np.bincount(whole.source, list(map(len, whole.targets))).tolist()
    for batch in data.batches(8, 0, 1):
        assert batch.inputs.shape[1] <= config.model.positions
        assert batch.positions.max() < config.model.positions


def test_objectives_without_a_likelihood_of_text_have_none(corpus):
    for recipe, objective in (("tiny_roberta", Masked()), ("tiny_t5", SpanCorruption())):
        assert document_data(corpus, configured(corpus, recipe, objective=objective)) is None
    losses = {"loss": 1.0, "sources": {"a": {"loss": 1.0}}}
    assert add_document_fields(losses, {}) == losses


def test_only_so_many_bytes_of_a_source_are_read_whole_documents_of_the_smallest_ids(corpus, few):
    data = document_data(corpus, configured(corpus))
    for number, source in enumerate(data.sources):
        expected = texts(source, 1_000)
        assert data.text_bytes[number] == sum(size for _, size in expected)
        found = [one for one, its in zip(data.targets, data.source, strict=True) if its == number]
        np.testing.assert_array_equal(np.concatenate(found), np.concatenate([text for text, _ in expected]))
