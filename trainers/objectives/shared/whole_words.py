"""Where words begin and end, by token: what whole-word masking needs to know of a tokenizer.

A word is a run of letters, digits and combining marks with the white space before it; every other character is a word of
its own where the vocabulary allows it, as in BERT's basic tokenizer. So is every token of scripts that put no space between words
(Chinese, Japanese, Thai, Lao, Khmer, Burmese): their words are not known here.
"""

import re
import unicodedata

import numpy as np

from tokenizer.vocabulary.definition import Definition
from trainers.objectives.shared.masking_kernels import BEGINS, ENDS

_METASPACE = "▁"  # SentencePiece's mark of a space
_BYTE = re.compile("<0x([0-9A-F]{2})>")  # a token of SentencePiece's byte fallback
# Without spaces between words: Thai and Lao, Burmese, Khmer, kana, ideographs.
_UNSPACED = (
    (0x0E00, 0x0EFF),
    (0x1000, 0x109F),
    (0x1780, 0x17FF),
    (0x3040, 0x30FF),
    (0x3400, 0x9FFF),
    (0xF900, 0xFAFF),
    (0x20000, 0x3FFFF),
)


def word_marks(definition: Definition) -> np.ndarray:
    """BEGINS and ENDS of every token, uint8 [vocab_size].

    Raises ValueError for a BPE of characters whose file does not say how words end.
    """
    model, marks = definition.data["model"], np.zeros(definition.vocab_size, dtype=np.uint8)
    prefix, suffix = model.get("continuing_subword_prefix") or "", definition.end_of_word or ""
    spaced = any(token.startswith(_METASPACE) for token in definition.tokens.values())
    if definition.kind == "bpe" and not (prefix or suffix or spaced):
        raise ValueError(
            f"{definition.path}: nothing in this BPE's tokens tells where words begin; mask tokens (objective.unit=tokens), or "
            f"take a byte-level BPE, WordPiece or Unigram"
        )
    for token_id in definition.tokens:
        text = _text(definition, token_id)
        inside, ended = bool(prefix) and text.startswith(prefix), bool(suffix) and text.endswith(suffix)
        text = text.removeprefix(prefix).removesuffix(suffix)
        if definition.kind in ("wordpiece", "word_level"):
            marks[token_id] = 0 if inside else BEGINS
            continue
        if text and not inside and _begins(text[0]):
            marks[token_id] |= BEGINS
        if ended or (text and not text.isspace() and _ends(text[-1])):
            marks[token_id] |= ENDS
    return marks


def text_of(definition: Definition, token_id: int) -> bytes:
    """The UTF-8 bytes that a token stands for in a text, its marks of words (`▁`) as the file writes them."""
    byte = _BYTE.fullmatch(definition.tokens[token_id])
    if byte and definition.data["model"].get("byte_fallback"):
        return bytes([int(byte[1], 16)])
    return definition.token_bytes(token_id)


def _text(definition: Definition, token_id: int) -> str:
    """What a token stands for; bytes of a character that the vocabulary cuts become surrogates."""
    return text_of(definition, token_id).decode("utf-8", "surrogateescape").replace(_METASPACE, " ")


def _begins(character: str) -> bool:
    """Whether a token that begins so begins a word; of bytes those that begin a character of three bytes or more."""
    cut = 0xDC80 <= ord(character) <= 0xDCFF
    return ord(character) >= 0xDCE0 if cut else _ends(character)


def _ends(character: str) -> bool:
    """Whether a token that ends so ends a word: the character is no part of a longer one."""
    code = ord(character)
    if any(first <= code <= last for first, last in _UNSPACED):
        return True
    cut = 0xDC80 <= code <= 0xDCFF
    return not (cut or character.isalnum() or unicodedata.category(character).startswith("M"))
