"""The kinds of tokenizers that can be trained here, by name."""

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any

from tokenizer.byte_vocabulary import VOCAB_SIZE, byte_vocabulary
from tokenizer.learned import COVERAGE
from tokenizer.train import train_byte_bpe
from tokenizer.unigram import train_unigram
from tokenizer.word_bpe import train_word_bpe
from tokenizer.wordpiece import train_wordpiece

TRAINERS: Mapping[str, Callable[..., bytes]] = MappingProxyType(
    {
        "byte_bpe": train_byte_bpe,
        "bpe": train_word_bpe,
        "wordpiece": train_wordpiece,
        "unigram": train_unigram,
    }
)
KINDS = (*TRAINERS, "bytes")

REPRODUCIBLE = frozenset({"byte_bpe", "bpe", "bytes"})
"""Kinds whose file is the same at every training on the same texts."""


def train(
    kind: str, texts: Iterable[str], vocab_size: int, *, lowercase: bool = False, coverage: float = COVERAGE
) -> bytes:
    """The content of a `tokenizer.json` of that kind. `texts` may be read more than once, so an iterator will not do.

    `lowercase` and `coverage` (share of the characters that are known) are of no use to the kinds over bytes; ValueError
    where lower case is asked of them, for `bytes` with a `vocab_size` other than 384, and as the trainers say.
    """
    if kind not in KINDS:
        raise ValueError(f"kind: got {kind!r}, allowed {', '.join(KINDS)}")
    knobs: dict[str, Any] = {}
    if kind in ("byte_bpe", "bytes"):
        if lowercase:
            raise ValueError(f"lowercase: {kind} keeps every byte of a text; leave it out, or choose another kind")
    else:
        knobs = {"lowercase": lowercase, "coverage": coverage}
    if kind == "bytes":
        if vocab_size != VOCAB_SIZE:
            raise ValueError(f"vocab_size: got {vocab_size}, bytes has {VOCAB_SIZE}: 128 reserved tokens and 256 bytes")
        return byte_vocabulary()
    return TRAINERS[kind](texts, vocab_size, **knobs)
