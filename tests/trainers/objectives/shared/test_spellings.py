"""The characters that tokens stand for, for each kind of vocabulary."""

import pyarrow as pa
import pytest

from tokenizer.encode import Encoder
from tokenizer.kinds.train import KINDS, WITHOUT_SIZE, train
from trainers.objectives.shared.spellings import numbered_spellings, spellings

TEXT = "the quick brown fox jumps over the lazy dog and quickly jumps over the other foxes of the brown wood"
ACCENTS = "était là 東 🙂"


@pytest.mark.parametrize("kind", KINDS)
def test_the_spellings_of_consecutive_tokens_make_up_the_text(kind, tmp_path):
    texts = [TEXT, ACCENTS] * 20
    sizes = {"byte_bpe": 420, "unigram": 160}
    size = None if kind in WITHOUT_SIZE else sizes.get(kind, 210)
    (tmp_path / "tokenizer.json").write_bytes(train(kind, texts, size))
    encoder = Encoder.load(str(tmp_path / "tokenizer.json"))
    spelled = spellings(encoder.definition)
    assert len(spelled) == encoder.vocab_size
    assert all(spelled[number] == b"" for number in encoder.definition.specials.values())
    for text in (TEXT, ACCENTS):
        ids, _ = encoder.encode(pa.array([text], pa.large_string()))
        assert b"".join(spelled[number] for number in ids).decode().strip(" ") == text


def test_a_vocabulary_of_code_points_spells_every_id_as_that_character():
    assert numbered_spellings(0xE001)[0x41:0x43] == [b"A", b"B"]
    assert numbered_spellings(0xE9 + 1)[0xE9].decode() == "é"
