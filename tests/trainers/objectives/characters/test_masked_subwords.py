"""Subwords predicted by a character model, with masks on their characters, against a direct implementation of
the paper (Clark et al., 2022, section 3.2).
"""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from gristmill.config import override, parse, plain
from gristmill.errors import ConfigError
from tests.trainers.objectives.packed import chosen, packed
from tokenizer.vocabulary.specials import SPECIAL_IDS
from trainers.config.pretraining import Pretraining
from trainers.objectives.characters.masked_subwords import MaskedSubwords
from trainers.objectives.shared.context import Context
from trainers.recipes import RECIPES
from trainers.rows.batch import IGNORED

FIRST, VOCABULARY = len(SPECIAL_IDS), 1000
MASK = SPECIAL_IDS["<mask>"]
COUNTS = np.zeros(VOCABULARY, dtype=np.int64)  # of characters: 0 to 6; a single token has 6
COUNTS[FIRST:-1] = np.random.default_rng(0).integers(0, 6, VOCABULARY - FIRST - 1)
COUNTS[-1] = 6
CONTEXT = Context(3, dict(SPECIAL_IDS), VOCABULARY, "encoder", 200, character_counts=COUNTS)


def rows(count, seed=1, size=190):
    rng = np.random.default_rng(seed)
    texts = [
        [[SPECIAL_IDS["<cls>"], *rng.integers(FIRST, VOCABULARY, size), SPECIAL_IDS["<sep>"]]] for _ in range(count)
    ]
    return packed(texts, length=200)


BATCH = rows(600)
MADE = MaskedSubwords().apply(BATCH, CONTEXT)
PLACES = MADE.targets != IGNORED


def test_as_many_tokens_as_asked_for_are_targets_and_never_marks_or_tokens_without_a_character():
    text = BATCH.inputs >= FIRST
    assert PLACES[text].mean() == pytest.approx(0.15 * (COUNTS[BATCH.inputs[text]] > 0).mean(), abs=0.003)
    assert not PLACES[~text].any()
    assert (COUNTS[BATCH.inputs[PLACES]] > 0).all()
    assert (MADE.targets[PLACES] == BATCH.inputs[PLACES]).all()
    assert (MADE.inputs[~PLACES] == BATCH.inputs[~PLACES]).all()


def test_a_mask_covers_the_characters_of_its_token_and_a_random_token_has_as_many():
    masked = MADE.inputs == MASK
    assert (MADE.covered == np.where(masked, COUNTS[BATCH.inputs], 0)).all()
    kept = PLACES & (MADE.inputs == BATCH.inputs)
    random = PLACES & ~masked & ~kept
    shares = [each.sum() / PLACES.sum() for each in (masked, random)]
    assert shares == [pytest.approx(0.8, abs=0.01), pytest.approx(0.1, abs=0.01)]
    assert (COUNTS[MADE.inputs[PLACES & ~masked]] == COUNTS[BATCH.inputs[PLACES & ~masked]]).all()
    assert (MADE.inputs[random] >= FIRST).all()
    # Every token of a length is drawn, with one probability.
    few = np.flatnonzero(COUNTS == 2)[:5]
    counts = np.where(np.isin(np.arange(VOCABULARY), few), 2, 1) * (np.arange(VOCABULARY) >= FIRST)
    two = packed([[np.full(190, few[0])]] * 100)
    drawn = MaskedSubwords(rate=1.0, mask_share=0.0, random_share=1.0).apply(
        two, replace(CONTEXT, character_counts=counts)
    )
    found = Counter(drawn.inputs[drawn.targets != IGNORED].tolist())
    assert set(found) == set(few.tolist())
    assert min(found.values()) / max(found.values()) > 0.9
    # The only token of its length replaces itself.
    alone = MaskedSubwords(rate=1.0, mask_share=0.0, random_share=1.0).apply(packed([[[VOCABULARY - 1] * 9]]), CONTEXT)
    assert (alone.inputs[alone.targets != IGNORED] == VOCABULARY - 1).all()


def test_the_character_that_predicts_a_token_is_any_of_its_characters():
    assert (MADE.read[~PLACES] == 0).all()
    for length in range(1, 6):
        read = MADE.read[PLACES & (COUNTS[BATCH.inputs] == length)]
        shares = np.bincount(read, minlength=length) / len(read)
        assert shares == pytest.approx(np.full(length, 1 / length), abs=0.03)


def test_masks_are_functions_of_seed_and_sample_whatever_the_batch():
    some = [5, 2, 11]
    part = MaskedSubwords().apply(chosen(BATCH, some), CONTEXT)
    for name in ("inputs", "targets", "covered", "read"):
        assert (getattr(part, name) == getattr(MADE, name)[some]).all()
    other = MaskedSubwords().apply(BATCH, replace(CONTEXT, seed=4))
    assert (other.targets != MADE.targets).any()


def test_only_a_model_that_reads_characters_is_trained_with_it():
    changed = override(plain(RECIPES["tiny_canine"]()), ["model.architecture=roberta"])
    with pytest.raises(
        ConfigError, match="got roberta with objective masked_subwords, which masks the characters of tokens"
    ):
        parse(Pretraining, changed, "x.yaml")
