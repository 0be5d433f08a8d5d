import gzip
import json
import os
import re
import unicodedata
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from datasketch import MinHash, MinHashLSH

from pipelines.bands import best_bands
from pipelines.contracts.config import parse
from pipelines.contracts.errors import ConfigError
from pipelines.kernels.minhash import jaccard
from pipelines.stages.minhash_signatures import MinhashSignatures


def sign(documents, stage=None):
    stage = stage or MinhashSignatures()
    table = stage.annotate(pa.table({"text": pa.array(documents, pa.large_string())}))
    assert table.schema == stage.writes()
    return table["minhash"].chunk(0) if documents else table["minhash"]


def oracle(text, stage):
    minhash = MinHash(stage.num_perm, seed=stage.seed, scheme="affine32", hashfunc=xxhash.xxh32_intdigest)
    words = re.findall(r"\w+", text.lower())
    for start in range(max(1, len(words) - stage.ngram + 1)):
        minhash.update(" ".join(words[start : start + stage.ngram]).encode())
    return minhash.hashvalues.tolist()


DOCUMENTS = [
    "one",
    "ONE two, three: four",
    "One two three four five",
    "one two three four five six " * 30,
    "ΟΔΟΣ ΑΣ, İstanbul’da 中文 — naïve_x 2² हिन्दी",
]


@pytest.mark.parametrize("stage", [MinhashSignatures(), MinhashSignatures(num_perm=9, ngram=3, seed=7)])
def test_signatures_are_datasketchs(stage):
    assert sign(DOCUMENTS, stage).to_pylist() == [oracle(text, stage) for text in DOCUMENTS]


def test_a_document_without_words_has_no_signature():
    found = sign(["a", "", " ... \n", "a"])
    assert found.is_valid().to_pylist() == [True, False, False, True]
    assert found[0] == found[3]


def test_the_values_lie_in_one_buffer():
    found = sign([*DOCUMENTS, ""])
    matrix = found.values.to_numpy().reshape(-1, 112)
    assert matrix.dtype == np.uint32
    assert matrix[:5].tolist() == found.to_pylist()[:5]


def test_slices_and_no_documents():
    column = pa.array(["pad", *DOCUMENTS, "pad"], pa.large_string()).slice(1, len(DOCUMENTS))
    assert MinhashSignatures().annotate(pa.table({"text": column}))["minhash"].chunk(0) == sign(DOCUMENTS)
    assert len(sign([])) == 0


def test_dependencies():
    assert MinhashSignatures().depends().keys() == {"datasketch", "unicode"}


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"num_perm": 0}, "num_perm: got 0, expected 1 to 4096"),
        ({"ngram": 0}, "ngram: got 0, expected 1 to 1000"),
        ({"seed": -1}, "seed: got -1, expected 0 to"),
        ({"unit": "byte"}, "unit: got 'byte', expected one of 'word', 'character'"),
    ],
)
def test_knobs_out_of_range(knobs, message):
    with pytest.raises(ConfigError, match=message):
        parse(MinhashSignatures, knobs, "demo.yaml")


GOLDEN = {1: "8398d7dcef757933"}


def test_golden_output():
    digest = xxhash.xxh3_64_hexdigest(sign(DOCUMENTS).values.to_numpy())
    assert GOLDEN[MinhashSignatures.version] == digest, "the output changed: raise MinhashSignatures.version"


@pytest.mark.skipif("GRISTMILL_DATA" not in os.environ, reason="GRISTMILL_DATA is not set: no real texts to try")
@pytest.mark.parametrize("name", ["news_bbc", "wiki_zh", "forum_20news"])
def test_real_texts(name):
    with gzip.open(Path(os.environ["GRISTMILL_DATA"]) / "prose" / f"{name}.jsonl.gz", "rt") as lines:
        documents = [json.loads(line)["text"] for _, line in zip(range(40), lines, strict=False)]
    assert sign(documents).to_pylist() == [oracle(text, MinhashSignatures()) for text in documents]


def simplified(text):
    """The normal form `fineweb`, character by character."""
    text = re.sub(r"[0-9]+(\.[0-9]+)?", "0", text.lower())
    text = "".join(" " if unicodedata.category(c)[0] in "PSC" else c for c in text)
    decomposed = unicodedata.normalize("NFD", text)
    return " ".join("".join(c for c in decomposed if unicodedata.category(c) != "Mn").split())


@pytest.mark.parametrize("unit", ["word", "character"])
@pytest.mark.parametrize("normalisation", ["plain", "fineweb"])
def test_shingles_of_words_and_characters_of_named_normal_forms(unit, normalisation):
    stage = MinhashSignatures(num_perm=16, ngram=5, unit=unit, normalisation=normalisation)
    documents = [*DOCUMENTS, "Pi is 3.14159, π≈3; don't\tE-mail: café_naïve $5.00!", "a", "\n"]
    sets = stage.shingle_sets(pa.array(documents, pa.large_string())).to_pylist()
    for text, found, hashes in zip(documents, sign(documents, stage).to_pylist(), sets, strict=True):
        normal = " ".join(re.findall(r"\w+", text.lower())) if normalisation == "plain" else simplified(text)
        units = normal.split() if unit == "word" else list(normal)
        join = " " if unit == "word" else ""
        shingles = {join.join(units[i : i + 5]).encode() for i in range(max(1, len(units) - 4))} if units else set()
        minhash = MinHash(16, seed=1, scheme="affine32", hashfunc=xxhash.xxh32_intdigest)
        minhash.update_batch(sorted(shingles))
        assert found == (minhash.hashvalues.tolist() if shingles else None)
        assert hashes == sorted(hashes)
        assert len(hashes) == len(shingles)


def test_similarity_of_shingle_sets_is_that_of_sets():
    rng = np.random.default_rng(0)
    sets = [set(rng.integers(0, 40, rng.integers(0, 30)).tolist()) for _ in range(40)]
    places = rng.integers(0, 40, 40)
    offsets = np.cumsum([0, *map(len, sets)])
    hashes = np.array([h for s in sets for h in sorted(s)], np.uint32)
    found = jaccard(offsets, hashes, offsets, hashes, places)
    union = [(a & sets[p], a | sets[p]) for a, p in zip(sets, places, strict=True)]
    assert found.tolist() == pytest.approx([len(both) / len(all_) if all_ else 1.0 for both, all_ in union])


@pytest.mark.parametrize("threshold", [0.5, 0.7, 0.8])
@pytest.mark.parametrize("num_perm", [16, 112])
def test_the_best_bands_are_datasketchs(threshold, num_perm):
    lsh = MinHashLSH(threshold=threshold, num_perm=num_perm)
    assert best_bands(threshold, num_perm) == (lsh.b, lsh.r)
