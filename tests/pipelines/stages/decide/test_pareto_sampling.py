"""Pareto sampling: the probability of keeping a document, and a choice that depends only on seed and id."""

import numpy as np
import pyarrow as pa
import pytest

from gristmill.config import parse
from gristmill.errors import ConfigError, UserError
from pipelines.stages.decide.pareto_sampling import ParetoSampling

COUNT = 20_000
IDS = [row.to_bytes(16) for row in range(COUNT)]


def kept(scores, ids=IDS, **knobs):
    docs = pa.table({"id": pa.array(ids, pa.binary(16)), "quality": pa.array(scores, pa.float32())})
    stage = ParetoSampling(score="quality", **knobs)
    result = stage.annotate(docs)
    assert result.schema == stage.writes()
    assert set(result["drop"].to_pylist()) <= {None, "pareto_sampling"}
    return [drop is None for drop in result["drop"].to_pylist()]


@pytest.mark.parametrize(("score", "alpha"), [(0.0, 9), (0.5, 9), (0.9, 9), (0.5, 1)])
def test_the_share_kept_is_that_of_numpys_pareto(score, alpha):
    share = np.mean(kept([score] * COUNT, alpha=alpha))
    drawn = np.mean(np.random.default_rng(5).pareto(alpha, 400_000) > 1 - score)
    assert share == pytest.approx((2 - score) ** -alpha, abs=3 * (0.25 / COUNT) ** 0.5)
    assert share == pytest.approx(drawn, abs=4 * (0.25 / COUNT) ** 0.5)


def test_score_1_and_null_are_always_kept():
    assert all(kept([1.0] * 500 + [None] * 500, IDS[:1000]))
    assert kept([], []) == []


def test_a_choice_depends_on_seed_and_id_alone_and_grows_with_the_score():
    scores = np.random.default_rng(1).random(2000)
    whole = kept(scores, IDS[:2000])
    assert kept(scores[500:700], IDS[500:700]) == whole[500:700]
    assert kept(scores[::-1], IDS[:2000][::-1]) == whole[::-1]
    assert kept(scores, IDS[:2000], seed=1) != whole
    assert all(higher or not lower for lower, higher in zip(whole, kept(scores + 0.1, IDS[:2000]), strict=True))


def test_golden():
    """The choices for seed 0 are fixed, so that a change of the hash is noticed."""
    assert np.flatnonzero(kept([0.5] * 200, IDS[:200])).tolist() == [67, 98, 102, 126, 130, 146, 150, 177, 192]


@pytest.mark.parametrize("knobs", [{"alpha": 0}, {"alpha": -1}, {"seed": -1}])
def test_knobs_out_of_range(knobs):
    with pytest.raises(UserError, match=f"{next(iter(knobs))}: got"):
        parse(ParetoSampling, {"score": "quality", **knobs}, where="corpus.yaml")


def test_a_column_without_numbers_is_refused_before_the_build():
    with pytest.raises(ConfigError, match="pareto_sampling: score: language holds string, expected numbers"):
        ParetoSampling("language").check_types(pa.schema([("language", pa.string())]))
