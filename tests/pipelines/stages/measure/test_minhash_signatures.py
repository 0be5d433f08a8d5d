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

from gristmill.config import parse
from gristmill.errors import ConfigError
from pipelines.kernels.search.minhash import jaccard
from pipelines.stages.dedup.lsh import band_keys, best_bands, signatures_of
from pipelines.stages.measure.minhash_signatures import MinhashSignatures
from tests.pipelines.kernels.test_minhash import letters_apart, shingles, units, words


def sign(documents, stage=None):
    stage = stage or MinhashSignatures()
    table = stage.annotate(pa.table({"text": pa.array(documents, pa.large_string())}))
    assert table.schema == stage.writes()
    return table["minhash"].chunk(0) if documents else table["minhash"]


def oracle(text, stage):
    minhash = MinHash(stage.num_perm, seed=stage.seed, scheme="affine32", hashfunc=xxhash.xxh32_intdigest)
    minhash.update_batch(shingles(units(text), stage.ngram))
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


GOLDEN = {1: "8398d7dcef757933", 2: "43dce1a32025ae26"}


def test_golden_output():
    digest = xxhash.xxh3_64_hexdigest(sign(DOCUMENTS).values.to_numpy())
    assert GOLDEN[MinhashSignatures.version] == digest, "the output changed: raise MinhashSignatures.version"


@pytest.mark.long
@pytest.mark.skipif("GRISTMILL_DATA" not in os.environ, reason="GRISTMILL_DATA is not set: no real texts to try")
@pytest.mark.parametrize("name", ["news_bbc", "wiki_zh", "forum_20news"])
def test_real_texts(name):
    with gzip.open(Path(os.environ["GRISTMILL_DATA"]) / "prose" / f"{name}.jsonl.gz", "rt") as lines:
        documents = [json.loads(line)["text"] for _, line in zip(range(40), lines, strict=False)]
    assert sign(documents).to_pylist() == [oracle(text, MinhashSignatures()) for text in documents]


def simplified(text):
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
        if unit == "word":
            expected = shingles(units(text) if normalisation == "plain" else letters_apart(simplified(text)), 5)
        else:
            characters = " ".join(words(text)) if normalisation == "plain" else simplified(text)
            expected = (
                [characters[i : i + 5].encode() for i in range(max(1, len(characters) - 4))] if characters else []
            )
        minhash = MinHash(16, seed=1, scheme="affine32", hashfunc=xxhash.xxh32_intdigest)
        minhash.update_batch(sorted(expected))
        assert found == (minhash.hashvalues.tolist() if expected else None)
        assert hashes == sorted(hashes)
        assert len(hashes) == len(set(expected))


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


COMMON = "的一是不了人我在有他这为之大来以个中上们到说国和地也子时道出而要于就下得可你年生自会那后能对着事其里所去"
SENTENCES = {
    "Chinese": COMMON,
    "Japanese": "のにはをたがでてとしれさあるいるもする日本年月人国会学カタナーンスト",
    "Thai": ["กา", "ร", "ที่", "น", "มี", "ค", "ว", "ม", "เ", "ป็", "อ", "ย", "ง", "ไ", "ด้", "ส", "ท", "ธ", "พ", "ล"],
    "Khmer": [
        "ក",
        "ខ្",
        "មែ",
        "រ",
        "ន",
        "ង",
        "បា",
        "ន",
        "ជា",
        "ស",
        "ភា",
        "ទី",
        "លោ",
        "ដែ",
        "ល",
        "មា",
        "ពី",
        "ថា",
        "ប្",
        "រ",
    ],
    "Burmese": [
        "မ",
        "န်",
        "မာ",
        "စာ",
        "က",
        "သ",
        "တွ",
        "င်",
        "များ",
        "ဖြ",
        "စ်",
        "ည်",
        "အ",
        "နေ",
        "နှ",
        "င့်",
        "ရှိ",
        "ခဲ့",
        "လေ",
        "ပ",
    ],
    "Hindi": [
        "है ",
        "के ",
        "में ",
        "की ",
        "और ",
        "हिन्दी ",
        "भाषा ",
        "यह ",
        "एक ",
        "को ",
        "से ",
        "पर ",
        "नहीं ",
        "भारत ",
        "गया ",
    ],
    "Arabic": [
        "في ",
        "من ",
        "على ",
        "إلى ",
        "عن ",
        "هذا ",
        "كان ",
        "التي ",
        "مدينة ",
        "عام ",
        "بعد ",
        "ذلك ",
        "العربية ",
        "كل ",
    ],
    "Russian": [
        "и ",
        "в ",
        "не ",
        "на ",
        "что ",
        "он ",
        "город ",
        "был ",
        "года ",
        "Россия ",
        "это ",
        "как ",
        "после ",
        "для ",
    ],
}


@pytest.mark.parametrize("language", SENTENCES)
def test_copies_with_one_unit_in_a_hundred_changed_share_a_band(language):
    rng = np.random.default_rng(7)
    pool = list(SENTENCES[language])
    spaced = pool[0].endswith(" ")
    originals = [list(rng.choice(pool, 300 if spaced else 600)) for _ in range(40)]
    copies = [list(document) for document in originals]
    for copy in copies:
        for place in rng.choice(len(copy), len(copy) // 100, replace=False):
            copy[place] = next(unit for unit in rng.permutation(pool) if unit != copy[place])
    keys = [band_keys(signatures_of(sign(["".join(d) for d in docs])), 14, 8) for docs in (originals, copies)]
    assert (keys[0] == keys[1]).any(axis=1).mean() >= 0.95
    assert not (keys[0] == np.roll(keys[0], 1, axis=0)).any()


def test_breaking_lines_of_a_text_without_spaces_changes_nothing():
    text = COMMON * 2
    assert sign([text]) == sign([text[:17] + "\n" + text[17:60] + " " + text[60:]])


def test_scripts_mixed_in_one_document_and_in_one_step():
    mixed = "The city of 北京市是中华人民共和国的首都 has about 21 million inhabitants and is called ปักกิ่งเมืองหลวง"
    assert sign([mixed]).to_pylist() == [oracle(mixed, MinhashSignatures())]
    assert sign([mixed, "plain words of one script only"])[0] == sign([mixed])[0]
