"""The n-gram losses that docs/reproduced.md compares with those of models."""

from math import log

import numpy as np
import pytest

from benchmarks.character_ngrams import ngram_losses


def test_losses_of_a_text_counted_by_hand():
    """The training text is `aab` three times and then `b`, so `a` has a share of 6/10. Witten-Bell smoothing
    with N = 10 and T = 2 mixes in the uniform 1/2.
    """
    train = [np.array([1, 1, 2] * 3 + [2], np.uint16)]
    found = ngram_losses(train, [np.array([1, 1], np.uint16)])
    unigram = (6 + 2 * 0.5) / 12
    after_a = (3 + 2 * unigram) / (6 + 2)  # six a's are followed by three a's and three b's
    assert found["uniform"] == pytest.approx(log(2))
    assert found["unigram"] == pytest.approx(-log(unigram))
    assert found["2-gram"] == pytest.approx(-(log(unigram) + log(after_a)) / 2)
    assert found["8-gram"] == pytest.approx(found["2-gram"])
