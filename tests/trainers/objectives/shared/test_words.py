"""Word boundaries for each kind of tokenizer, compared with the words of the text itself."""

import re
from itertools import pairwise

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from tokenizer.kinds.train import train
from tokenizer.vocabulary.definition import read_definition
from trainers.objectives.shared.masking_kernels import BEGINS, ENDS
from trainers.objectives.shared.whole_words import word_marks

TEXT = (
    "The quick brown fox, said Mr. O'Neill (1984), isn't unbelievable; it re-reads Müller's naïve encyclopaedia twice!\n"
    "Unbelievably quick foxes\treread 3.14 encyclopaedias. Были слова и 東京都は大きい。"
)


def byte_level():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=330, initial_alphabet=alphabet, show_progress=False)
    return tokenizer, trainer


def wordpiece():
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=False)
    trainer = trainers.WordPieceTrainer(vocab_size=120, special_tokens=["[UNK]"], show_progress=False)
    return tokenizer, trainer


def unigram():
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=90, unk_token="<unk>", special_tokens=["<unk>"], show_progress=False)
    return tokenizer, trainer


def end_of_word():
    tokenizer = Tokenizer(models.BPE(end_of_word_suffix="</w>", unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.BpeTrainer(
        vocab_size=140, end_of_word_suffix="</w>", special_tokens=["<unk>"], show_progress=False
    )
    return tokenizer, trainer


def trained(kind, directory, text=TEXT):
    tokenizer, trainer = kind()
    tokenizer.train_from_iterator([text] * 20, trainer)
    tokenizer.save(str(directory / "tokenizer.json"))
    return tokenizer, read_definition(str(directory / "tokenizer.json"))


def ours(kind, vocab_size, directory, text=TEXT):
    (directory / "tokenizer.json").write_bytes(train(kind, [text] * 20, vocab_size, coverage=1.0))
    definition = read_definition(str(directory / "tokenizer.json"))
    return Tokenizer.from_str(definition.plain_json), definition


KINDS = [
    byte_level,
    wordpiece,
    unigram,
    end_of_word,
    ("bpe", 240),
    ("wordpiece", 256),
    ("bytes", 384),
    ("characters", None),
]


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_of_a_text_fall_into_its_words(kind, tmp_path):
    tokenizer, definition = ours(*kind, tmp_path) if isinstance(kind, tuple) else trained(kind, tmp_path)
    marks, encoded = word_marks(definition), tokenizer.encode(TEXT)
    pieces, goes_on = [], False
    for token, (start, end) in zip(encoded.ids, encoded.offsets, strict=True):
        if goes_on and not marks[token] & BEGINS:
            pieces[-1][1] = end
        else:
            pieces.append([start, end])
        goes_on = not marks[token] & ENDS
    texts = [TEXT[start:end].strip() for start, end in pieces]
    assert len(encoded.ids) > len(pieces) + 15  # the vocabulary is small enough to cut words
    # A word of letters and digits is never in two pieces, and no piece has two words.
    latin = re.findall(r"\w+", TEXT.split("東")[0])
    found = [word for text in texts for word in re.findall(r"\w+", text)]
    assert found[: len(latin)] == latin
    assert all(len(re.findall(r"\w+", text)) <= 1 for text in texts)
    # Ideographs and kana are not the one long word that a run without spaces would be.
    assert sum(bool(re.search("[東京都は大きい]", text)) for text in texts) >= 3


UNSPACED = {
    "Thai": "ภาษาไทยไม่มีช่องว่างระหว่างคำ",
    "Lao": "ພາສາລາວບໍ່ມີຊ່ອງຫວ່າງ",
    "Khmer": "ភាសាខ្មែរគ្មានដកឃ្លា",
    "Burmese": "မြန်မာစာတွင်နေရာလွတ်မရှိ",
    "hiragana": "にほんごにはくうはくがありません",
    "katakana": "ニホンゴニハクウハクガアリマセン",
    "half-width katakana": "ﾆﾎﾝｺﾞﾆﾊｸｳﾊｸｶﾞｱﾘﾏｾﾝ",
    "ideographs": "漢字之間没有空格也没有詞界",
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("script", UNSPACED)
def test_a_sentence_without_spaces_is_not_one_word(kind, script, tmp_path):
    """Each of its words is a single token, or several tokens that share a character."""
    text = f"low {UNSPACED[script]} lower"
    learned = f"{TEXT} {text}"
    made = ours(*kind, tmp_path, learned) if isinstance(kind, tuple) else trained(kind, tmp_path, learned)
    tokenizer, definition = made
    encoded, marks = tokenizer.encode(text), word_marks(definition)
    words, goes_on = [], False
    for token, (start, end) in zip(encoded.ids, encoded.offsets, strict=True):
        if goes_on and not marks[token] & BEGINS:
            words[-1].append((start, end))
        else:
            words.append([(start, end)])
        goes_on = not marks[token] & ENDS
    whole = [text[word[0][0] : word[-1][1]].strip() for word in words]
    for word, each in zip(words, whole, strict=True):
        assert each.isascii() or all(after[0] < before[1] for before, after in pairwise(word))
    assert [each for each in whole if each.isascii() and each] == ["low", "lower"]


def test_pieces_of_a_wordpiece_vocabulary_are_words_where_their_script_has_no_spaces(tmp_path):
    vocabulary = ["[UNK]", "ไทย", "##ภาษา", "カ", "##タ", "low", "##er", "##タlow", "##lowタ", "中", "##"]
    Tokenizer(models.WordPiece({token: n for n, token in enumerate(vocabulary)}, unk_token="[UNK]")).save(
        str(tmp_path / "tokenizer.json")
    )
    both = BEGINS | ENDS
    expected = [BEGINS, both, both, both, both, BEGINS, 0, BEGINS, ENDS, both, 0]
    assert np.array_equal(word_marks(read_definition(str(tmp_path / "tokenizer.json"))), expected)


def test_characters_cut_by_the_vocabulary_are_not_cut_by_words(tmp_path):
    _, definition = trained(byte_level, tmp_path)
    marks = word_marks(definition)
    ids = {definition.token_bytes(token): token for token in definition.tokens}
    assert marks[ids[b"\xe6"]] == BEGINS  # the first byte of an ideograph
    assert marks[ids[b"\xbc"]] == 0  # a later byte
    assert marks[ids[b"\xc3"]] == 0  # of a letter with an accent
    assert marks[ids[b"e"]] == 0
    assert marks[ids[b","]] == BEGINS | ENDS
    assert marks[ids[b" "]] == BEGINS  # belongs to the word after it


def test_byte_fallback_tokens_are_their_bytes(tmp_path):
    bytes_of = {f"<0x{value:02X}>": 2 + value for value in range(256)}
    model = models.BPE({"<unk>": 0, "▁": 1, **bytes_of}, [], byte_fallback=True, unk_token="<unk>")
    Tokenizer(model).save(str(tmp_path / "tokenizer.json"))
    marks = word_marks(read_definition(str(tmp_path / "tokenizer.json")))
    assert marks[2 + 0xE6] == BEGINS
    assert marks[2 + 0x97] == 0
    assert marks[2 + ord("a")] == 0


def test_a_bpe_that_hides_its_words_is_refused(tmp_path):
    Tokenizer(models.BPE({"a": 0, "b": 1, "ab": 2}, [("a", "b")])).save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(ValueError, match=r"where words begin.*objective\.unit=tokens"):
        word_marks(read_definition(str(tmp_path / "tokenizer.json")))


def test_every_token_of_a_word_level_vocabulary_is_a_word(tmp_path):
    Tokenizer(models.WordLevel({"low": 0, "er": 1}, unk_token="low")).save(str(tmp_path / "tokenizer.json"))
    assert np.array_equal(word_marks(read_definition(str(tmp_path / "tokenizer.json"))), [BEGINS, BEGINS])
