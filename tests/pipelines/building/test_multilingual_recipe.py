"""The quality rules of the multilingual recipe: the shares of Wikipedia articles, and of articles with
planted repetition, that they drop.
"""

import random

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from benchmarks.scripts import LEAST, MOST, planted, quality_rules, units, wikipedia
from pipelines.stages.measure.quality_signals import QualitySignals

ORDINARY, PLANTED = 5000, 60


def dropped(texts, language):
    measured = QualitySignals().annotate(pa.table({"text": pa.array(texts, pa.large_string())}))
    labels = {"language": [language] * len(texts), "language_score": [1.0] * len(texts)}
    for name, values in labels.items():
        measured = measured.append_column(name, pa.array(values))
    return pc.mean(pc.is_valid(quality_rules().annotate(measured)["drop"])).as_py()


@pytest.mark.slow
@pytest.mark.parametrize("language", ["zh", "ko"])
def test_at_most_a_twentieth_of_wikipedia_goes_and_nine_tenths_of_planted_repetition(language, shared_data):
    texts = wikipedia(shared_data, language, ORDINARY)
    assert dropped(texts, language) <= 0.05
    long = [text for text in texts if LEAST <= len(units(text, language)) < MOST][:PLANTED]
    made = [planted(text, language, random.Random(3)) for text in long]
    shares = {name: dropped([each[name] for each in made], language) for name in made[0]}
    assert min(shares.values()) >= 0.9, shares
