"""Truncation of long texts, compared with `tokenizers` and with the rules applied one token at a time."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers

from trainers.data.examples.truncation import Truncation, cut_longest_first, cut_windows

sizes = st.lists(st.integers(0, 40), min_size=1, max_size=6)


@pytest.mark.parametrize("room", [1, 2, 7, 8, 15])
def test_longest_first_is_that_of_tokenizers(room):
    reference = Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    reference.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    reference.enable_truncation(room, strategy="longest_first")
    first, second = (grid.ravel() for grid in np.meshgrid(np.arange(20), np.arange(20)))
    kept = np.stack(cut_longest_first(first, second, room))
    for a, b, ours in zip(first.tolist(), second.tolist(), kept.T.tolist(), strict=True):
        ids = reference.encode(" ".join("a" * a), " ".join("b" * b), add_special_tokens=False).type_ids
        assert ours == [ids.count(0), ids.count(1)], (a, b)


@given(sizes, st.integers(1, 12), st.integers(1, 20))
def test_windows_cover_their_texts(texts, room, stride):
    """Every token lies in some window. All windows are full except possibly the last, which ends with its
    text.
    """
    windows = cut_windows(np.array(texts), np.full(len(texts), room), stride)
    for number, size in enumerate(texts):
        own = range(windows.first[number], windows.first[number + 1])
        covered = [token for w in own for token in range(windows.starts[w], windows.starts[w] + windows.sizes[w])]
        assert set(covered) == set(range(size))
        assert [windows.sizes[w] for w in own[:-1]] == [room] * (len(own) - 1)
        assert windows.starts[own[-1]] + windows.sizes[own[-1]] == size
        assert all(windows.starts[w] - windows.starts[w - 1] == room - min(stride, room // 2) for w in own[1:])
        assert (windows.text[own.start : own.stop] == number).all()


@given(sizes, st.integers(1, 12), st.integers(1, 20))
def test_each_token_has_the_window_of_most_context(texts, room, stride):
    windows = cut_windows(np.array(texts), np.full(len(texts), room), stride)
    asked = [(text, token) for text, size in enumerate(texts) for token in range(size)]
    if not asked:
        return
    chosen = windows.of_tokens(*np.array(asked).T)

    def context(window, token):
        before = token - windows.starts[window]
        return min(before, windows.sizes[window] - 1 - before)

    for (text, token), window in zip(asked, chosen.tolist(), strict=True):
        own = range(windows.first[text], windows.first[text + 1])
        assert window == max(own, key=lambda w: (context(w, token), -w))


def test_what_was_cut_is_said():
    assert Truncation(10).message == ""
    cut = Truncation(1000, 5, 1234, 7, 21, 2)
    assert cut.message == (
        "5 of 1,000 examples (0.5%) lose 1,234 tokens; 7 of 1,000 examples are cut into 21 windows; 2 answers fit in no window"
    )
