"""Uniform sampling: its share, and that a choice depends on seed and id alone."""

import numpy as np
import pyarrow as pa
import pytest

from gristmill.config import parse
from gristmill.errors import UserError
from pipelines.stages.decide.pareto_sampling import ParetoSampling
from pipelines.stages.decide.sample import UniformSample

COUNT = 20_000
IDS = [row.to_bytes(16) for row in range(COUNT)]


def kept(stage, ids=IDS):
    docs = pa.table({"id": pa.array(ids, pa.binary(16)), "quality": pa.array([0.5] * len(ids), pa.float32())})
    result = stage.annotate(docs)
    assert result.schema == stage.writes()
    assert set(result["drop"].to_pylist()) <= {None, "sample", "pareto_sampling"}
    return np.array([drop is None for drop in result["drop"].to_pylist()], bool)


@pytest.mark.parametrize("share", [0.001, 0.1, 0.5, 0.9])
def test_the_share_is_kept(share):
    assert kept(UniformSample(share)).mean() == pytest.approx(share, abs=4 * (share * (1 - share) / COUNT) ** 0.5)


def test_a_share_of_1_keeps_everything():
    assert kept(UniformSample(1.0)).all()
    assert not len(kept(UniformSample(1.0), []))


def test_a_choice_depends_on_seed_and_id_alone_and_grows_with_the_share():
    whole = kept(UniformSample(0.3))
    assert (kept(UniformSample(0.3), IDS[500:700]) == whole[500:700]).all()
    assert (kept(UniformSample(0.3), IDS[::-1]) == whole[::-1]).all()
    assert (kept(UniformSample(0.3, seed=1)) != whole).any()
    assert not (whole & ~kept(UniformSample(0.31))).any()


def test_a_sample_is_independent_of_pareto_sampling():
    """With the same seed, the share that Pareto sampling keeps is the same inside and outside the sample."""
    sampled, pareto = kept(UniformSample(0.3)), kept(ParetoSampling("quality", alpha=1.0))
    assert pareto[sampled].mean() == pytest.approx(pareto.mean(), abs=0.03)


def test_golden():
    """Choices of seed 0, so that a change of the hash is seen."""
    assert np.flatnonzero(kept(UniformSample(0.05), IDS[:200])).tolist() == [
        1,
        25,
        57,
        76,
        108,
        121,
        124,
        134,
        140,
        141,
        142,
        158,
        160,
    ]


@pytest.mark.parametrize(
    ("knobs", "message"),
    [({"share": 0}, "share: got 0"), ({"share": 1.1}, "share: got 1.1"), ({"share": 0.5, "seed": -1}, "seed: got -1")],
)
def test_bad_knobs_are_named(knobs, message):
    with pytest.raises(UserError, match=message):
        parse(UniformSample, knobs, "x")
