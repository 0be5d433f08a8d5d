"""N-grams of words against the words that the segmenter finds."""

import random

import pyarrow as pa
import pytest

from pipelines.explore.searching.word_borders import count_words, first_words
from pipelines.kernels.text.buffers import blocks, text_buffers
from pipelines.kernels.text.characters import classify
from pipelines.kernels.text.words import find_words


def borders(text):
    offsets, data = text_buffers(pa.array([text], pa.large_string()))
    inside = set()
    for _, _, local, block in blocks(offsets, data):
        words = find_words(local, block, classify(local, block))
        for start, end in zip(words.starts.tolist(), words.ends.tolist(), strict=True):
            inside |= set(range(start + 1, end))
    return set(range(len(text.encode()) + 1)) - inside


def expected(text, ngram):
    data, phrase, edges = text.encode(), ngram.encode(), borders(text)
    found = [i for i in range(len(data)) if data[i : i + len(phrase)] == phrase]
    return [i for i in found if i in edges and i + len(phrase) in edges]


@pytest.mark.parametrize(
    ("text", "ngram", "count"),
    [
        ("the mill, the windmill and the mill", "mill", 2),
        ("so so so so", "so so", 3),
        ("don't do, don", "don", 1),
        ("3.14 and 14", "14", 1),
        ("我喜欢水车小屋", "水车", 1),
        ("Ελλάς, Ελλά", "Ελλά", 1),
        ("", "mill", 0),
    ],
)
def test_counts(text, ngram, count):
    assert count_words(pa.array(["x", text, ""], pa.large_string()), ngram).to_pylist() == [0, count, 0]


def test_random_texts():
    choose = random.Random(3)
    texts = ["".join(choose.choices("aab' .,1水é-\u0301", k=choose.randint(0, 30))) for _ in range(200)]
    column = pa.array(["", *texts], pa.large_string()).slice(1)
    hits = 0
    for ngram in ("a", "a a", "ab", "1", "水", "b'a", "é", "a, a"):
        counts = count_words(column, ngram).to_pylist()
        assert counts == [len(expected(text, ngram)) for text in texts]
        for text, count in zip(texts, counts, strict=True):
            if count:
                assert len(text[: first_words(text, ngram)].encode()) == expected(text, ngram)[0]
        hits += sum(counts)
    assert hits > 100
