"""Tests of the stage without a build: what it measures, and which knobs it refuses."""

import pyarrow as pa
import pytest
from shouting import Shouts


def test_it_measures_every_document() -> None:
    """A document without words gets a null."""
    docs = pa.table({"edited_text": ["STOP it NOW", "I say this calmly", "1 2 3", ""]})
    assert Shouts().annotate(docs)["shouts"].to_pylist() == [pytest.approx(2 / 3), 0.0, None, None]


def test_wrong_knobs_are_refused() -> None:
    """`check` raises the error that a corpus file with this knob would cause."""
    with pytest.raises(ValueError, match="shortest"):
        Shouts(shortest=0).check()
