"""Sorted places (truncated suffix arrays), against Python's own search."""

import random

import numpy as np
import pytest

from pipelines.explore.searching.word_borders import find_everywhere
from pipelines.kernels.search import sorted_places
from pipelines.kernels.search.sorted_places import find_phrase, sort_places, without_overlap

ALPHABETS = ["ab", "aé水\U0001f468 ", "a\0", "the mil"]


def as_bytes(text):
    return np.frombuffer(text.encode(), np.uint8)


@pytest.fixture(params=[3, 4])
def width(request, monkeypatch):
    """Bytes per place: 3, or 4, which only long texts need."""
    if request.param == 4:
        monkeypatch.setattr(sorted_places, "MOST_NARROW", -1)
    return request.param


@pytest.mark.long
@pytest.mark.parametrize("alphabet", ALPHABETS)
def test_every_phrase_is_found_as_often_as_by_python(alphabet, width):
    choose = random.Random(len(alphabet))
    for _ in range(60):
        text = "".join(choose.choices(alphabet, k=choose.randint(0, 80)))
        places = sort_places(as_bytes(text))
        assert places.shape == (len(text), width)
        for _ in range(8):
            at = choose.randrange(len(text) + 1)
            phrase = text[at : at + choose.randint(1, 12)] or choose.choice(alphabet)
            starts = find_phrase(as_bytes(text), places, phrase.encode())
            assert starts.tolist() == find_everywhere(text.encode(), phrase.encode()).tolist()
            assert len(without_overlap(starts, phrase.encode())) == text.count(phrase)


def test_a_text_that_repeats_itself(width):
    text = "aab" * 5000 + "水" * 500
    places = sort_places(as_bytes(text))
    for phrase in ("aab" * 50, "水" * 30, "ba", "a" * 3):
        starts = find_phrase(as_bytes(text), places, phrase.encode())
        assert len(without_overlap(starts, phrase.encode())) == text.count(phrase)
        assert starts.tolist() == find_everywhere(text.encode(), phrase.encode()).tolist()


def test_places_are_those_of_characters_in_the_order_of_their_beginnings():
    text = "水車 the mill, the Mill"
    data = text.encode()
    places = sort_places(as_bytes(text)).astype(np.int64) @ np.array([1, 1 << 8, 1 << 16])
    expected = [i for i in range(len(data)) if data[i] & 0xC0 != 0x80]
    assert places.tolist() == sorted(expected, key=lambda i: (data[i : i + 5].ljust(5, b"\0"), i))
