"""The UTF-8 bytes that each token of a vocabulary spells, and the number of its characters, for models that
read characters.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tokenizer.vocabulary.definition import Definition
from trainers.objectives.shared.whole_words import text_of

_METASPACE = "▁".encode()  # SentencePiece's mark of a space


def spellings(definition: Definition) -> list[bytes]:
    """Return the UTF-8 bytes that each id contributes to a text, including the spaces between words. Special
    tokens, the unknown token and unused ids have no bytes.

    The bytes of consecutive tokens make up the normalised text: if a vocabulary lower-cases letters or
    removes punctuation, the original cannot be restored. With WordPiece and word-level vocabularies, every
    word and punctuation mark has a space before it, whether or not the text has one.

    A token of a byte-level vocabulary may begin or end within a character. The space between two words
    belongs to the first word if the vocabulary marks the ends of words, otherwise to the second.
    """
    model = definition.data["model"]
    prefix, suffix = (model.get("continuing_subword_prefix") or "").encode(), (definition.end_of_word or "").encode()
    special = {*definition.specials.values(), definition.unknown_id}
    spelled = [b""] * definition.vocab_size
    for number in definition.tokens:
        if number in special:
            continue
        text = text_of(definition, number).replace(_METASPACE, b" ")
        if suffix:
            text = text.removesuffix(suffix) + b" " if text.endswith(suffix) else text
        elif prefix:
            text = text.removeprefix(prefix) if text.startswith(prefix) else b" " + text
        elif definition.kind == "word_level":
            text = b" " + text
        spelled[number] = text
    return spelled


@dataclass(frozen=True)
class SpelledTokens:
    """The bytes of all tokens, one after another: `content`, uint8 [bytes], and `offsets`, int64 [tokens +
    1].
    """

    content: np.ndarray
    offsets: np.ndarray

    @classmethod
    def of(cls, spelled: Sequence[bytes]) -> "SpelledTokens":
        """Return the `SpelledTokens` of a vocabulary, given the bytes of each token."""
        content = np.frombuffer(b"".join(spelled) or b"\0", dtype=np.uint8).copy()
        return cls(content, np.concatenate([[0], np.cumsum([len(text) for text in spelled])]).astype(np.int64))


def numbered_spellings(size: int) -> Sequence[bytes]:
    """Return the UTF-8 bytes of the characters with code points 0 to `size` - 1, for a vocabulary whose ids
    are code points.
    """
    return [chr(number).encode("utf-8", "surrogatepass") for number in range(size)]


def character_counts(spelled: Sequence[bytes]) -> np.ndarray:
    """Return the number of characters that begin in the bytes of each token, int64 [tokens]."""
    return np.array([sum(byte & 0xC0 != 0x80 for byte in text) for text in spelled], dtype=np.int64)
