"""Determine which tokens of a vocabulary begin or end a word, for whole-word masking.

A word is a run of letters, digits and combining marks, together with the white space before it. Every other
character is a word by itself if the vocabulary allows it, as in BERT's basic tokenizer. Scripts without
spaces between words (Chinese, Japanese, Thai, Lao, Khmer, Burmese) are not segmented: each of their tokens is
a word, and WordPiece's `##` is ignored in them.
"""

import re
import unicodedata
from functools import lru_cache

import numpy as np

from tokenizer.vocabulary.definition import Definition
from trainers.objectives.shared.masking_kernels import BEGINS, ENDS

_METASPACE = "▁"  # SentencePiece's mark of a space
_BYTE = re.compile("<0x([0-9A-F]{2})>")  # a token of SentencePiece's byte fallback
# Scripts without spaces between words: Thai and Lao, Burmese, Khmer, kana, ideographs.
_UNSPACED = (
    (0x0E00, 0x0EFF),
    (0x1000, 0x109F),
    (0x1780, 0x17FF),
    (0x3040, 0x30FF),
    (0x31F0, 0x31FF),
    (0x3400, 0x9FFF),
    (0xF900, 0xFAFF),
    (0xFF66, 0xFF9F),
    (0x20000, 0x3FFFF),
)


def word_marks(definition: Definition) -> np.ndarray:
    """Return the flags of every token, uint8 [vocab_size]: BEGINS if the token begins a word, ENDS if every
    token that can follow it begins a word.

    Raises ValueError for a character-level BPE whose file does not say where words begin or end.
    """
    model, marks = definition.data["model"], np.zeros(definition.vocab_size, dtype=np.uint8)
    prefix, suffix = model.get("continuing_subword_prefix") or "", definition.end_of_word or ""
    spaced = any(token.startswith(_METASPACE) for token in definition.tokens.values())
    if definition.kind == "bpe" and not (prefix or suffix or spaced):
        raise ValueError(
            f"{definition.path}: the tokens of this BPE do not say where words begin; mask tokens (objective.unit=tokens), or "
            f"use a byte-level BPE, WordPiece or Unigram"
        )
    for token_id in definition.tokens:
        text = _text(definition, token_id)
        inside, ended = bool(prefix) and text.startswith(prefix), bool(suffix) and text.endswith(suffix)
        text = text.removeprefix(prefix).removesuffix(suffix)
        if definition.kind in ("wordpiece", "word_level"):
            marks[token_id] = 0 if inside and not (text and _is_unspaced(text[0])) else BEGINS
            if text and _is_unspaced(text[-1]):
                marks[token_id] |= ENDS
            continue
        if text and not inside and _begins_word(text[0]):
            marks[token_id] |= BEGINS
        if ended or (text and not text.isspace() and _ends_word(text[-1])):
            marks[token_id] |= ENDS
    return marks


def text_of(definition: Definition, token_id: int) -> bytes:
    """Return the UTF-8 bytes of a token's text, including word marks such as `▁` and `##`. A byte-fallback
    token such as `<0x0A>` has the one byte that it names.
    """
    if definition.data["model"].get("byte_fallback") and (byte := _BYTE.fullmatch(definition.tokens[token_id])):
        return bytes([int(byte[1], 16)])
    return definition.token_bytes(token_id)


def _text(definition: Definition, token_id: int) -> str:
    """Return the text of a token, with each `▁` replaced by a space. Bytes that are not valid UTF-8, such as
    part of a character, become surrogates.
    """
    return text_of(definition, token_id).decode("utf-8", "surrogateescape").replace(_METASPACE, " ")


def _begins_word(character: str) -> bool:
    """Return whether a token with this first character begins a word. A lone byte begins a word if it is the
    first byte of a character of three or more bytes.
    """
    cut = 0xDC80 <= ord(character) <= 0xDCFF
    return ord(character) >= 0xDCE0 if cut else _ends_word(character)


@lru_cache(maxsize=1 << 14)
def _ends_word(character: str) -> bool:
    if _is_unspaced(character):
        return True
    cut = 0xDC80 <= ord(character) <= 0xDCFF
    return not (cut or character.isalnum() or unicodedata.category(character).startswith("M"))


@lru_cache(maxsize=1 << 14)
def _is_unspaced(character: str) -> bool:
    return any(first <= ord(character) <= last for first, last in _UNSPACED)
