"""Domain weights: any level may be given a weight, and a domain without one shares the weight of the nearest
level above it that has one.
"""

import shutil
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.config import override, parse, plain
from gristmill.errors import ConfigError, UserError
from pipelines.contracts.manifest import load_corpus, save_corpus
from trainers.config.pretraining import Pretraining
from trainers.data.domain_weights import assign_leaves, names_above, share_weights
from trainers.data.packed_corpus import open_corpus, training_data
from trainers.engine.loss_metrics import loss_fields, no_sums
from trainers.recipes import llama_tiny
from trainers.runs.resolve import describe_data, resolve

TOKENS = {"books": 40, "code": 100, "web:de": 60, "web:en:q1": 30, "web:en:q2": 10, "webster": 5}
GROUPS = {("plays", 0): "en:q1", ("plays", 1): "en:q2", ("plays", 2): "de:q2"}


@pytest.mark.parametrize(
    ("weights", "shares"),
    [
        ({"web": 2, "code": 1}, {"code": 1, "web:de": 1.2, "web:en:q1": 0.6, "web:en:q2": 0.2}),
        ({"web": 0.6, "web:en": 0.3}, {"web:de": 0.6, "web:en:q1": 0.225, "web:en:q2": 0.075}),
        ({"web": 0.7, "web:en:q2": 0.3}, {"web:de": 0.7 * 60 / 90, "web:en:q1": 0.7 * 30 / 90, "web:en:q2": 0.3}),
        ({"web:en": 1, "web:en:q1": 0}, {"web:en:q2": 1}),
        ({"web": 1, "web:en": 0, "web:en:q2": 2}, {"web:de": 1, "web:en:q2": 2}),
        ({"webster": 1, "books": 0}, {"webster": 1}),  # not below `web`
    ],
)
def test_a_name_stands_for_what_no_longer_name_covers(weights, shares):
    assert share_weights(weights, TOKENS, "w") == pytest.approx(shares)


def test_names_of_leaves_keep_their_weights_exactly():
    weights = {name: 0.1 * number / 3 for number, name in enumerate(sorted(TOKENS, reverse=True), 1)}
    shared = share_weights(weights, TOKENS, "w")
    assert shared == weights
    assert list(shared) == sorted(weights)


NAMES = ("web", "web:en", "web:en:q1", "web:de", "code", "books")
NO_LEAF_LEFT = ({"web", "web:en", "web:de"}, {"web:en", "web:en:q1", "web:en:q2"})


@given(st.dictionaries(st.sampled_from(NAMES), st.integers(1, 9)).filter(lambda w: not NO_LEAF_LEFT[0] <= w.keys()))
def test_no_weight_is_lost_and_resolving_again_changes_nothing(weights):
    shared = share_weights(weights, TOKENS, "w")
    assert sum(shared.values()) == pytest.approx(sum(weights.values()))
    assert share_weights(shared, TOKENS, "w") == shared
    for leaves in assign_leaves(weights, TOKENS, "w").values():
        per_token = [shared[leaf] / TOKENS[leaf] for leaf in leaves]
        assert per_token == pytest.approx([per_token[0]] * len(leaves))


@pytest.mark.parametrize("names", NO_LEAF_LEFT, ids=["web", "web:en"])
def test_a_name_that_stands_for_nothing_is_refused(names):
    whole, *parts = sorted(names)
    with pytest.raises(
        ConfigError, match=f"w.{whole}: {', '.join(parts)} are all of its domains, so it stands for none"
    ):
        share_weights(dict.fromkeys(sorted(names), 1), TOKENS, "w")


def test_levels():
    assert names_above("web:en:q1") == ["web:en:q1", "web:en", "web"]
    assert names_above("web") == ["web"]


@pytest.fixture(scope="module")
def grouped(corpus_directory, tmp_path_factory):
    """The tiny corpus with every training shard of `plays` in a group of its own. All validation documents of
    `plays` are in the group of the first shard.
    """
    directory = tmp_path_factory.mktemp("grouped") / "corpus"
    shutil.copytree(corpus_directory, directory)
    manifest = load_corpus(directory)
    shards, numbers = [], {}
    for shard in manifest.shard_sets["shards"].shards:
        number = numbers[shard.source, shard.split] = numbers.get((shard.source, shard.split), -1) + 1
        group = GROUPS.get((shard.source, number if shard.split == "train" else 0), "")
        shards.append(replace(shard, group=group))
    sets = {"shards": replace(manifest.shard_sets["shards"], shards=tuple(shards[::-1]))}  # the order is by name
    save_corpus(directory, replace(manifest, shard_sets=sets), lambda: None)
    return open_corpus((str(directory),), None)


def settings(*assignments):
    overrides = ["data.sequence_length=32", "batch.sequences=4", "budget={steps: 60}", *assignments]
    return parse(Pretraining, override(plain(llama_tiny()), overrides), "test")


def test_domains_are_read_like_sources_and_the_ledger_counts_them(grouped):
    assert list(grouped.train) == ["code", "notes", "plays:de:q2", "plays:en:q1", "plays:en:q2"]
    config = resolve(settings("data.weights={plays: 0.5, 'plays:en': 0.3, code: 0.2}"), grouped)
    english = {name: grouped.train[name].tokens for name in ("plays:en:q1", "plays:en:q2")}
    shares = {name: 0.3 * tokens / sum(english.values()) for name, tokens in english.items()}
    assert config.data.weights == pytest.approx({"code": 0.2, "plays:de:q2": 0.5, **shares})
    assert resolve(config, grouped) == config
    data = training_data(grouped, config)
    ledger = data.consumed(60 * 4)
    assert list(ledger) == sorted(config.data.weights)
    total = sum(entry["tokens"] for entry in ledger.values())
    for name, entry in ledger.items():
        assert entry["requested_tokens"] == pytest.approx(total * config.data.weights[name])
        assert abs(entry["tokens"] - entry["requested_tokens"]) <= 32
    described = describe_data(config, grouped, data.order)
    assert any(line.startswith("data  plays:en:q2: ") for line in described)


def test_weights_by_strategy_are_over_the_leaves(grouped):
    weights = resolve(settings("data.weights=uniform"), grouped).data.weights
    assert weights == dict.fromkeys(sorted(grouped.train), 1.0)
    assert resolve(settings(), grouped).data.weights == {n: s.tokens for n, s in sorted(grouped.train.items())}


def test_a_corpus_without_groups_has_the_weights_and_the_order_it_had(corpus_directory, grouped):
    corpus = open_corpus((str(corpus_directory),), None)
    config = resolve(settings("data.weights={plays: 0.7, code: 0.2, notes: 0}"), corpus)
    assert config.data.weights == {"code": 0.2, "plays": 0.7}
    # Measured before domains existed.
    assert training_data(corpus, config).order.identity == "99952b60cfd258ce7bb5bbb6f14546a0"


def test_caps_address_any_level(grouped):
    caps = resolve(
        settings("data.max_epochs={plays: 9, 'plays:en': 30}", "budget={steps: 12}"), grouped
    ).data.max_epochs
    assert caps == {"plays:de:q2": 9.0, "plays:en:q1": 30.0, "plays:en:q2": 30.0}
    every = resolve(settings("data.max_epochs=50.0", "budget={steps: 12}"), grouped).data.max_epochs
    assert every == dict.fromkeys(sorted(grouped.train), 50.0)


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("data.weights={'plays:e': 1}", "data.weights.plays:e: no such source or domain .* did you mean 'plays:en'"),
        (
            "data.weights={plays: 1, xyz: 0}",
            "data.weights.xyz: no such source or domain .* there are: code, notes, plays,",
        ),
        (
            "data.weights={plays: 1, 'plays:en': 1, 'plays:de:q2': 1}",
            "data.weights.plays: plays:en, plays:de:q2 are all",
        ),
        (
            "data.stages=[{until_tokens: 9, weights: {'code:q1': 1}}]",
            r"data.stages\[0\].weights.code:q1: no such source",
        ),
        ("data.max_epochs={'plays:fr': 1}", "data.max_epochs.plays:fr: no such source or domain"),
    ],
)
def test_names_that_are_no_domain_are_refused(grouped, assignment, message):
    with pytest.raises(ConfigError, match=message):
        resolve(settings(assignment), grouped)


def test_two_corpora_do_not_share_a_source_at_any_level(grouped, corpus_directory):
    with pytest.raises(UserError, match="the sources code, notes, plays are in an earlier corpus too"):
        open_corpus((str(corpus_directory), str(grouped.directory)), None)


def test_a_domain_without_training_documents_takes_the_weight_0_alone(grouped):
    train = {name: stream for name, stream in grouped.train.items() if not name.startswith("plays:de")}
    emptied = replace(grouped, train=train, empty=frozenset({"plays:de", "plays:de:q2"}))
    assert resolve(settings("data.weights={code: 1, 'plays:de': 0}"), emptied).data.weights == {"code": 1.0}
    with pytest.raises(
        ConfigError, match=r"data\.weights\.plays:de: the corpus has no training document of this source"
    ):
        resolve(settings("data.weights={code: 1, 'plays:de': 1}"), emptied)


def test_a_validation_mixes_the_levels_above_domains():
    names = ("code", "web:de", "web:en:q1", "web:en:q2")
    sources = [SimpleNamespace(name=name, text_bytes=4, tokens=1) for name in names]
    sums = no_sums(1, 4)
    sums[0] = np.array([[10.0, 40.0, 3.0, 8.0], [10, 20, 1, 2]])  # 1, 2, 3 and 4 nats a target
    weights = {"code": 5.0, "web:de": 1.0, "web:en:q1": 1.0, "web:en:q2": 3.0}
    fields = loss_fields(sums, ["loss"], sources, True, weights)
    assert {name: entry["loss"] for name, entry in fields["parents"].items()} == pytest.approx(
        {"web": (2 + 3 + 3 * 4) / 5, "web:en": (3 + 3 * 4) / 4}
    )
    assert {name: entry["tokens"] for name, entry in fields["parents"].items()} == {"web": 23, "web:en": 3}
    assert set(fields["sources"]) == set(names)
    unread = loss_fields(sums, ["loss"], sources, True, {"code": 1.0})["parents"]["web:en"]["loss"]
    assert unread == pytest.approx(3.5)  # equally, as for the whole
    assert "parents" not in loss_fields(sums[:, :, :1], ["loss"], sources[:1], True, weights)
    assert "parents" not in loss_fields(sums, ["loss"], sources, True)
