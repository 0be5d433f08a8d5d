"""Mixtures of objectives: the objective of a sample, the mode token of its inputs, and UL2's published
denoisers.
"""

from math import sqrt

import numpy as np
import pytest

from gristmill.config import override, parse, plain
from gristmill.errors import ConfigError
from tests.trainers.objectives.packed import BOS, FIRST, IGNORED, VOCABULARY, both_sides, context, one_side, packed
from tokenizer.vocabulary.specials import SPECIAL_IDS
from trainers.objectives.causal import Causal
from trainers.objectives.fill_in_the_middle import FillInTheMiddle
from trainers.objectives.mixture import UL2, MixturePart, ObjectiveMixture
from trainers.objectives.prefix_lm import PrefixLM
from trainers.objectives.spans.denoising import Denoising
from trainers.objectives.spans.span_corruption import SpanCorruption
from trainers.rows.batch import Frame

MODES = [SPECIAL_IDS[f"<reserved_{number}>"] for number in range(3)]


def rows(count, size=100):
    rng = np.random.default_rng(0)
    return [[rng.integers(FIRST, VOCABULARY, size).tolist()] for _ in range(count)]


def test_ul2_is_as_published():
    """Table 1 of Tay et al. gives the mean span and rate of the R and X denoisers. The S denoiser predicts
    the last quarter.
    """
    spans = {(p.objective.mean_span, p.objective.rate): p.token for p in UL2 if isinstance(p.objective, SpanCorruption)}
    r, x = "<reserved_0>", "<reserved_2>"
    assert spans == {(3, 0.15): r, (8, 0.15): r, (3, 0.5): x, (8, 0.5): x, (64, 0.15): x, (64, 0.5): x}
    assert [(part.objective, part.token) for part in UL2[6:]] == [(PrefixLM(target_share=0.25), "<reserved_1>")]
    assert sum(part.weight for part in UL2) == pytest.approx(1)
    assert UL2[-1].weight == 0.2


def test_rows_go_to_the_parts_by_their_weights():
    count = 4000
    made = ObjectiveMixture().apply(packed(rows(count, 20), frame=True), context())
    lead = made.inputs[:, 0]
    for mode, share in zip(MODES, (0.8 / 3, 0.2, 1.6 / 3), strict=True):
        assert abs((lead == mode).sum() - share * count) < 5 * sqrt(count * share * (1 - share))
    assert np.isin(lead, MODES).all()


@pytest.mark.parametrize("family", ["encoder_decoder", "decoder"])
def test_an_objective_makes_the_rows(family):
    batch, here = packed(rows(60), frame=True), context(family)
    read = both_sides if family == "encoder_decoder" else one_side
    lead = 0 if family == "encoder_decoder" else 1
    mixed = read(ObjectiveMixture().apply(batch, here))
    alone = [read(part.objective.apply(batch, here, SPECIAL_IDS[part.token])) for part in UL2]
    for key, sides in mixed.items():
        assert any(one[key] == sides for one in alone)
        assert sides[0][lead] in MODES
        assert (sides[0][0] == BOS) == (family == "decoder")
    assert all(any(one[key] == mixed[key] for key in mixed) for one in alone)


def test_s_predicts_the_last_quarter():
    made = ObjectiveMixture().apply(packed(rows(60), frame=True), context())
    for encoder, _, target in both_sides(made).values():
        if encoder[0] == MODES[1]:
            assert len(target) == 25 + 1
            assert len(encoder) == 1 + 75 + 1


def test_parts_share_a_stream():
    mixed = ObjectiveMixture(parts=(MixturePart(SpanCorruption()), MixturePart(Denoising())))
    assert mixed.frame == Frame(None, None)
    assert mixed.needs_sentences
    assert ObjectiveMixture().frame == Frame("<bos>", None)
    assert not ObjectiveMixture().needs_sentences
    code = ObjectiveMixture(parts=(MixturePart(Causal()), MixturePart(FillInTheMiddle())))
    assert code.frame == Frame("<bos>", None)
    assert code.families == ("decoder",)
    assert code.stream_length(512, "decoder") == 500  # <bos>, three marks, and 8 tokens that cuts may add
    assert code.needs_texts
    assert not ObjectiveMixture().needs_texts
    # R of spans of 3 would take 566 tokens beside its mode, X 765; S takes 510.
    assert ObjectiveMixture().stream_length(512, "encoder_decoder") == 510
    with pytest.raises(ConfigError, match="sentinels"):
        ObjectiveMixture().stream_length(1024, "encoder_decoder")
    refused = ObjectiveMixture(parts=(MixturePart(PrefixLM(bidirectional_prefix=False, loss_on_prefix=True)),))
    with pytest.raises(ConfigError, match="encoder-decoder does not predict its input"):
        refused.stream_length(512, "encoder_decoder")


def test_causal_rows_stay_as_they_are():
    code = ObjectiveMixture(parts=(MixturePart(Causal()), MixturePart(FillInTheMiddle(rate=1.0))))
    batch = packed(rows(40), frame=True)
    made, before = one_side(code.apply(batch, context("decoder"))), one_side(batch)
    same = [made[key] == before[key] for key in made]
    assert 5 < sum(same) < 35
    moved = [made[key][0] for key, is_same in zip(made, same, strict=True) if not is_same]
    assert all(SPECIAL_IDS["<fim_middle>"] in tokens for tokens in moved)


def test_prefixes_are_marked_only_where_a_part_has_them():
    both = ObjectiveMixture(parts=(MixturePart(PrefixLM()), MixturePart(SpanCorruption(), token="<reserved_5>")))
    made = both.apply(packed(rows(40), frame=True), context("decoder"))
    spans = made.inputs[:, 1] == SPECIAL_IDS["<reserved_5>"]
    assert 5 < spans.sum() < 35
    assert not made.prefix[spans].any()
    assert made.prefix[~spans].any(1).all()
    assert (made.targets != IGNORED).any(1).all()


def test_mixtures_are_read_from_a_configuration():
    data = {
        "parts": [{"objective": "causal"}, {"objective": {"kind": "fill_in_the_middle", "rate": 0.9}, "weight": 3.0}]
    }
    mixed = parse(ObjectiveMixture, data, "here")
    assert mixed == ObjectiveMixture(parts=(MixturePart(Causal()), MixturePart(FillInTheMiddle(rate=0.9), 3.0)))
    assert parse(ObjectiveMixture, plain(ObjectiveMixture()), "here") == ObjectiveMixture()
    assert parse(
        ObjectiveMixture, override(plain(mixed), ["parts=[{objective: prefix_lm}]"]), "here"
    ) == ObjectiveMixture(parts=(MixturePart(PrefixLM()),))


def test_what_does_not_fit_together_is_refused():
    with pytest.raises(ValueError, match="parts: got none"):
        ObjectiveMixture(parts=()).check()
    assert ObjectiveMixture(
        parts=(MixturePart(Denoising()), MixturePart(SpanCorruption()), MixturePart(Causal()))
    ).families == ("decoder",)
    with pytest.raises(ValueError, match="has no inputs for it to precede"):
        MixturePart(Causal(), token="<reserved_0>").check()
    with pytest.raises(ValueError, match="weight: got 0"):
        MixturePart(Causal(), weight=0.0).check()
    with pytest.raises(ConfigError, match=r"needs the special \[S\]"):
        ObjectiveMixture(parts=(MixturePart(PrefixLM(), token="[S]"),)).apply(packed(rows(2), frame=True), context())
