"""The fastText kernel against the library: every loss, n-grams of characters and words, quantised and pruned
models.
"""

import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.errors import UserError
from gristmill.storage.store import file_checksum
from pipelines.stages.score.fasttext_model import load_fasttext
from tests.conftest import train_fasttext

WORDS = ["mill", "grain", "Häuser", "река", "水车", "stone", "a", "wind", "🙂", "don't", "the", "of", "x" * 40]
ODD = [
    "",
    " ",
    "\t\v\f\r\0",
    "</s>",
    "grain </s> mill",
    "__label__0 grain",
    "__label__new",
    "unknown wörd",
    "mill\0stone",
    "é",
]
MODELS = {
    "words": {"loss": "softmax", "wordNgrams": 1},
    "bigrams": {"loss": "softmax", "wordNgrams": 3, "bucket": 500},
    "characters": {"loss": "hs", "minn": 2, "maxn": 4, "bucket": 1000},
    "single_characters": {"loss": "ova", "minn": 1, "maxn": 3, "bucket": 1000, "wordNgrams": 2},
    "negative": {"loss": "ns", "minn": 3, "maxn": 3, "bucket": 300},
}


def sentence(generator):
    return " ".join(generator.choices(WORDS, k=generator.randrange(1, 12)))


@pytest.fixture(scope="module")
def train_file(tmp_path_factory):
    generator = random.Random(7)
    path = tmp_path_factory.mktemp("fasttext") / "train.txt"
    lines = [
        f"__label__{min(generator.randrange(7), generator.randrange(7))} {sentence(generator)}\n" for _ in range(400)
    ]
    path.write_text("".join(lines), encoding="utf-8")
    return path


def agree(library, path, texts):
    ours = load_fasttext(path, file_checksum(path), "test")
    encoded = [text.encode() for text in texts]
    offsets = np.cumsum([0, *map(len, encoded)])
    data = np.frombuffer(b"".join(encoded), np.uint8)
    places, scores = ours.predict(data, offsets[:-1], offsets[1:], 3)
    for text, row, ranked in zip(texts, places, scores, strict=True):
        known = dict(zip(*library.predict(text, -1), strict=True))
        wanted = sorted((min(1.0, float(probability)) for probability in known.values()), reverse=True)[:3]
        assert ranked[: len(wanted)].tolist() == pytest.approx(wanted, rel=1e-5), text
        for place, score in zip(row[: len(wanted)], ranked, strict=False):  # labels of one probability have no order
            assert min(1.0, known[f"__label__{ours.labels[place]}"]) == pytest.approx(score, rel=1e-5), text


@pytest.mark.long
@pytest.mark.parametrize("name", MODELS)
def test_labels_and_probabilities_are_those_of_the_library(name, train_file, tmp_path):
    library = train_fasttext(train_file, dim=6, epoch=8, lr=0.5, **MODELS[name])
    library.save_model(str(tmp_path / "model.bin"))
    generator = random.Random(3)
    texts = [*ODD, *(sentence(generator) for _ in range(60)), " ".join(WORDS) * 20]
    agree(library, tmp_path / "model.bin", texts)


@pytest.mark.long
@pytest.mark.parametrize(
    "knobs", [{"cutoff": 300}, {"cutoff": 300, "qnorm": True}, {"qnorm": True}, {"qout": True}], ids=str
)
def test_quantised_models(knobs, tmp_path):
    # A quantiser has 256 centroids, so it needs as many rows; with qout, as many labels.
    lines = [f"__label__l{i % 300} word{i % 900} word{i * 7 % 900} grain{i % 31}\n" for i in range(2000)]
    (tmp_path / "train.txt").write_text("".join(lines))
    library = train_fasttext(
        tmp_path / "train.txt", dim=7, epoch=2, minn=2, maxn=3, bucket=600, wordNgrams=2, loss="hs"
    )
    library.quantize(dsub=2, verbose=False, thread=1, **knobs)
    library.save_model(str(tmp_path / "model.ftz"))
    agree(library, tmp_path / "model.ftz", [line.split(" ", 1)[1].strip() for line in lines[:80]])


@pytest.fixture(scope="module")
def fuzzed(train_file):
    knobs = {"loss": "hs", "minn": 1, "maxn": 4, "wordNgrams": 3, "bucket": 700}
    library = train_fasttext(train_file, dim=5, epoch=3, lr=0.5, **knobs)
    path = train_file.with_name("fuzzed.bin")
    library.save_model(str(path))
    return library, path


@pytest.mark.long
@given(
    st.lists(
        st.one_of(st.text(), st.sampled_from(["</s>", "__label__2", " ", "\t", "\0", "mill", "grain"])), max_size=9
    )
)
def test_any_text(fuzzed, pieces):
    agree(*fuzzed, ["".join(pieces).replace("\n", " "), " ".join(pieces).replace("\n", " ")])


@pytest.mark.long
@pytest.mark.parametrize("keep", [0, 4, 8, 60, 200, -1])
def test_a_file_that_is_cut_short_is_an_error(keep, train_file, tmp_path):
    library = train_fasttext(train_file, dim=4, epoch=1)
    path = tmp_path / "model.bin"
    library.save_model(str(path))
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(UserError, match=r"model\.bin: not a supervised fastText model"):
        load_fasttext(path, file_checksum(path), "test")


@pytest.mark.long
def test_word_vectors_are_no_model_of_labels(train_file, tmp_path):
    library = train_fasttext(train_file, "unsupervised", dim=4, epoch=1, minCount=1)
    library.save_model(str(tmp_path / "vectors.bin"))
    with pytest.raises(UserError, match="it has word vectors but no labels"):
        load_fasttext(Path(tmp_path / "vectors.bin"), file_checksum(tmp_path / "vectors.bin"), "test")
