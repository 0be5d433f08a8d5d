import re
import unicodedata

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from datasketch import MinHash
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.kernels.search.minhash import signatures, xxh32
from pipelines.kernels.text.buffers import text_buffers
from pipelines.kernels.text.characters import lower_runs
from pipelines.kernels.text.tables import UNITS
from tests.pipelines.kernels.scripts import TIBETAN, UNSPACED


@pytest.mark.long
@settings(deadline=None, max_examples=200)
@given(st.binary(max_size=200))
def test_xxh32_is_the_librarys(data):
    assert xxh32(data) == xxhash.xxh32_intdigest(data)


@pytest.mark.parametrize("size", [0, 1, 3, 4, 15, 16, 17, 31, 32, 33, 63, 64, 1_000_003])
def test_xxh32_at_the_borders_of_its_lanes(size):
    data = bytes(i * 131 % 251 for i in range(min(size, 4096))) * (size // 4096 + 1)
    assert xxh32(data[:size]) == xxhash.xxh32_intdigest(data[:size])


def alone(character):
    return UNSPACED.match(character) is not None and (character.isalnum() or character == "_")


def continues(character):
    selector = "\ufe00" <= character <= "\ufe0f" or "\U000e0100" <= character <= "\U000e01ef"
    return character in "\u200c\u200d" or (unicodedata.category(character) in ("Mn", "Mc") and not selector)


MARKS = "".join(filter(continues, map(chr, [*range(0xD800), *range(0xE000, 0x20000), *range(0xE0000, 0xE1000)])))
WORD = re.compile(rf"\w[\w{MARKS}]*")


def words(text):
    r"""Return what `\w+` finds in the lower-case text, together with the marks and joiners inside a word and
    after it.
    """
    return WORD.findall(text.lower())


def letters_apart(text):
    """Split a normalised text into words; in scripts without spaces, each letter with its marks is a word."""
    return re.sub(rf"({UNSPACED.pattern}(?<=\w)[{MARKS}]*)", r" \1 ", text).split()


def units(text):
    return letters_apart(" ".join(words(text)))


def shingles(units, ngram):
    """Return shingles at least as long as `ngram` words; a shorter text is one shingle. Six letters of a
    script without spaces, or six Tibetan syllables, count as much as five words.
    """
    weights = [5 if alone(unit[0]) or TIBETAN.match(unit) else 6 for unit in units]
    found = []
    for k in range(len(units)):
        end = next((e for e in range(k + 1, len(units) + 1) if sum(weights[k:e]) >= 6 * ngram), None)
        if end is None and found:
            break
        found.append(" ".join(units[k:end]).encode())
    return found


def by_datasketch(text, num_perm, ngram, seed):
    minhash = MinHash(num_perm, seed=seed, scheme="affine32", hashfunc=xxhash.xxh32_intdigest)
    minhash.update_batch(shingles(units(text), ngram))
    return minhash.hashvalues.tolist()


def by_kernel(documents, num_perm, ngram, seed):
    permutations = MinHash(num_perm, seed=seed, scheme="affine32").permutations
    return signatures(*text_buffers(pa.array(documents, pa.large_string())), permutations, ngram)


WESTERN = ["the", "The", "ÉCOLE", "ΟΔΟΣ", "İzmir", "a_b", "x2", "straße", "\U00010400", "1\ufe0f\u20e3", "\u0301"]
OTHERS = ["中文", "क्षि", "กินข้าวแล้ว", "ភាសាខ្មែរ", "a中b", "می\u200cروم", "ひらがな、カタカナー", "İ中", "Ⱥ中", "བོད་སྐད"]
pieces = st.sampled_from([*WESTERN, *OTHERS])
texts = st.lists(pieces | st.text(max_size=6), max_size=30).map(" ".join)


@pytest.mark.long
@settings(deadline=None, max_examples=60)
@given(st.lists(texts, max_size=4), st.sampled_from([(1, 5, 1), (7, 1, 1), (112, 5, 1), (112, 5, 42), (130, 2, 1)]))
def test_signatures_are_datasketchs(documents, knobs):
    num_perm, ngram, seed = knobs
    found, count = by_kernel(documents, num_perm, ngram, seed)
    assert found.dtype == np.uint32
    assert found.tolist() == [by_datasketch(text, num_perm, ngram, seed) for text in documents]
    assert count.tolist() == [len(shingles(units(text), ngram)) for text in documents]


def test_words_of_scripts_with_spaces_are_those_of_a_regular_expression():
    for text in ("It's 3.14 1\ufe0f\u20e3 ❤\ufe0f naïve_x, ÉCOLE!", "Привет, мир 2²", "한국어 위키백과", "Ελλάδα αβγ"):
        assert units(text) == re.findall(r"\w+", text.lower())
        assert by_kernel([text], 8, 1, 1)[1].tolist() == [len(units(text))]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("हिन्दी भाषा", ["हिन्दी", "भाषा"]),
        ("中文abc字", ["中", "文", "abc", "字"]),
        ("กินข้าว", ["กิ", "น", "ข้", "า", "ว"]),
        ("བོད་སྐད་", ["བོད", "སྐད"]),
    ],
)
def test_units_of_several_scripts(text, expected):
    offsets, data = text_buffers(pa.array([text], pa.large_string()))
    runs = lower_runs(offsets, data, UNITS)
    assert runs.data.tobytes().decode().split(" ") == expected == units(text)


def test_more_shingles_than_a_batch_holds():
    documents = [" ".join(f"w{i * i % 977}" for i in range(size)) for size in (512, 515, 516, 517, 1028, 3000)]
    found, _ = by_kernel(documents, 112, 5, 1)
    assert found.tolist() == [by_datasketch(text, 112, 5, 1) for text in documents]


@pytest.mark.long
def test_a_ten_megabyte_word():
    text = "Long" * 2_500_000
    found, count = by_kernel([text, "short"], 112, 5, 1)
    assert count.tolist() == [1, 1]
    assert found[0].tolist() == by_datasketch(text, 112, 5, 1)
