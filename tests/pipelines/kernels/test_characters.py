import re
import subprocess
import sys
import unicodedata

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.kernels.text import tables
from pipelines.kernels.text.buffers import blocks, text_buffers
from pipelines.kernels.text.characters import classify, lower_runs
from pipelines.kernels.text.tables import IN_TOKEN, IN_WORD

OTHER_PLANES = [chr(c) for c in [*range(0x40000, 0xE0000), *range(0xE1000, 0x110000)]]
EVERY_CHARACTER = [chr(c) for c in [*range(0xD800), *range(0xE000, 0x40000), *range(0xE0000, 0xE1000)]]
EVERY_CHARACTER += OTHER_PLANES[::997]
# Characters whose lower case is longer, shorter, two characters or depends on its neighbours, and what makes it depend.
TRICKY = "İΣσςΑα\u0307ʰ'.:\u00adȺȾẞΩKÅ𐐀ſǅ \n\t\u00a0\u2003\u200b_-9²Ⅷ中あカ한ก\U0001f600\0aZ"
texts = st.lists(st.text(st.sampled_from(TRICKY) | st.characters(exclude_categories=["Cs"]), max_size=30), max_size=8)


def lowered(documents, keep, block_bytes=1 << 20):
    found, starts = [], []
    for _, _, offsets, data in blocks(*text_buffers(pa.array(documents, pa.large_string())), block_bytes):
        runs = lower_runs(offsets, data, keep)
        for d in range(len(offsets) - 1):
            found.append(runs.data[runs.offsets[d] : runs.offsets[d + 1]].tobytes().decode())
            starts.append((runs.starts[runs.run_offsets[d] : runs.run_offsets[d + 1]] - runs.offsets[d]).tolist())
    return found, starts


def run_starts(text):
    return [len(text[: match.start()].encode()) for match in re.finditer("[^ ]+", text)]


@pytest.mark.long
@settings(deadline=None, max_examples=200)
@given(texts, st.sampled_from([1, 20, 1 << 20]))
def test_lower_case_is_pythons(documents, block_bytes):
    words, starts = lowered(documents, IN_WORD, block_bytes)
    assert words == [" ".join(re.findall(r"\w+", text.lower())) for text in documents]
    assert starts == [run_starts(text) for text in words]
    tokens, _ = lowered(documents, IN_TOKEN, block_bytes)
    assert tokens == [" ".join(text.lower().split()) for text in documents]


def test_planes_left_out_of_the_tables_hold_no_characters():
    assert {unicodedata.category(character) for character in OTHER_PLANES} == {"Cn", "Co"}


@pytest.mark.long
def test_every_character_alone_and_inside_words():
    lines = [f"{c}\nA{c}Σ\naΣ{c}\nΣ{c}b" for c in EVERY_CHARACTER]
    documents = ["\n".join(batch) for batch in (lines[i : i + 4096] for i in range(0, len(lines), 4096))]
    assert lowered(documents, IN_WORD)[0] == [" ".join(re.findall(r"\w+", text.lower())) for text in documents]


@pytest.mark.long
def test_classes_of_every_character():
    offsets, data = text_buffers(pa.array(["".join(EVERY_CHARACTER)], pa.large_string()))
    classes = classify(offsets, data)
    lead = (data & 0xC0) != 0x80
    per_character = classes[lead]
    assert len(per_character) == len(EVERY_CHARACTER)
    assert np.array_equal(per_character[np.cumsum(lead) - 1], classes), "every byte of a character has its class"
    for bit, belongs in (
        (tables.LETTER, str.isalpha),
        (tables.SPACE, str.isspace),
        (tables.LOWER, lambda c: unicodedata.category(c) == "Ll"),
        (tables.WORD, lambda c: unicodedata.category(c)[0] in "LMN" or unicodedata.category(c) in ("Pc", "Cf")),
    ):
        wrong = [c for c, kind in zip(EVERY_CHARACTER, per_character, strict=True) if bool(kind & bit) != belongs(c)]
        assert wrong == (["\u200b"] if bit == tables.WORD else [])


BROKEN = [b"\xff", b"a\xc3", b"\xe4\xb8", b"\xf0\x9f\x98", b"\x80\x80", b"\xf7\xbf\xbf\xbf", b"\xc1\x81"]


@pytest.mark.parametrize("broken", BROKEN)
def test_bytes_that_are_not_utf8_are_read_within_bounds(broken):
    offsets, data = text_buffers(pa.array([broken], pa.large_binary()).view(pa.large_string()))
    assert len(classify(offsets, data)) == len(broken)
    assert lower_runs(offsets, data, IN_TOKEN).run_offsets[-1] == 1


@pytest.mark.long
def test_planning_needs_no_numba():
    code = (
        "import sys; from pipelines.stages.measure import quality_signals as q, text_hash as t, minhash_signatures as m; "
        "from pipelines.stages.measure.peer_signals import PeerSignals; import pipelines.stages.decide.filter; "
        "stages = q.QualitySignals(), PeerSignals(), t.TextHash(), m.MinhashSignatures(); "
        "[stage.depends() for stage in stages]; "
        "print('numba' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "False"
