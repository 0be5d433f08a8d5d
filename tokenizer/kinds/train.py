"""Train a tokenizer of a kind given by name."""

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any

from tokenizer.kinds.byte_bpe import train_byte_bpe
from tokenizer.kinds.byte_vocabulary import VOCAB_SIZE, byte_vocabulary
from tokenizer.kinds.character_vocabulary import character_vocabulary
from tokenizer.kinds.learned import COVERAGE
from tokenizer.kinds.unigram import train_unigram
from tokenizer.kinds.word_bpe import train_word_bpe
from tokenizer.kinds.wordpiece import train_wordpiece

TRAINERS: Mapping[str, Callable[..., bytes]] = MappingProxyType(
    {
        "byte_bpe": train_byte_bpe,
        "bpe": train_word_bpe,
        "wordpiece": train_wordpiece,
        "unigram": train_unigram,
    }
)
KINDS = (*TRAINERS, "bytes", "characters")

WITHOUT_SIZE = frozenset({"bytes", "characters"})
"""Kinds whose vocabulary size cannot be chosen. `bytes` has 384 tokens; `characters` has the reserved tokens
and the characters of the texts.
"""

REPRODUCIBLE = frozenset({"byte_bpe", "bpe", "bytes", "characters"})
"""Kinds whose training on the same texts always gives the same file."""

NOTICES: Mapping[str, str] = MappingProxyType(
    {
        "unigram": "unigram takes 5 to 15 seconds of one core for every MB of text; a sample of some 50 MB is usually enough"
    }
)
"""Notices shown before slow training. Times were measured on English Wikipedia and Python code, one core,
2026-11-22.
"""

_KNOBS: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "byte_bpe": frozenset({"pattern", "min_frequency"}),
        "bpe": frozenset({"lowercase", "coverage", "min_frequency"}),
        "wordpiece": frozenset({"lowercase", "coverage", "min_frequency"}),
        "unigram": frozenset({"lowercase", "coverage"}),
        "bytes": frozenset(),
        "characters": frozenset({"unknown"}),
    }
)


def train(
    kind: str,
    texts: Iterable[str],
    vocab_size: int | None,
    *,
    lowercase: bool = False,
    coverage: float = COVERAGE,
    min_frequency: int | None = None,
    pattern: str | None = None,
    unknown: str | None = None,
) -> bytes:
    """Train a tokenizer of `kind` and return the content of its `tokenizer.json`.

    `texts` may be read more than once, so it must not be an iterator. `vocab_size` must be None for
    `characters`, whose vocabulary follows from the texts, and may be None for `bytes`. `coverage`, the share
    of characters that the vocabulary covers, is ignored for `bytes`, `byte_bpe` and `characters`.

    Raises ValueError for an unknown kind, for an unsuitable `vocab_size`, and for an option other than
    `coverage` that the kind does not have. Also raises the errors of the kind's training function.
    """
    if kind not in KINDS:
        raise ValueError(f"kind: got {kind!r}, allowed {', '.join(KINDS)}")
    given = {"lowercase": lowercase or None, "min_frequency": min_frequency, "pattern": pattern, "unknown": unknown}
    knobs: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if foreign := sorted(knobs.keys() - _KNOBS[kind]):
        raise ValueError(f"{foreign[0]}: got {knobs[foreign[0]]!r}, which {kind} does not have; leave it out")
    if "coverage" in _KNOBS[kind]:
        knobs["coverage"] = coverage
    if kind == "bytes":
        if vocab_size not in (None, VOCAB_SIZE):
            raise ValueError(
                f"vocab_size: got {vocab_size}, bytes always has {VOCAB_SIZE}: 128 reserved tokens and 256 bytes"
            )
        return byte_vocabulary()
    if kind == "characters":
        if vocab_size is not None:
            raise ValueError(f"vocab_size: got {vocab_size}, but characters takes that of the texts; leave it out")
        return character_vocabulary(texts, **knobs)
    if vocab_size is None:
        raise ValueError(f"vocab_size: not given, but {kind} requires it")
    return TRAINERS[kind](texts, vocab_size, **knobs)
