"""Measure a tokenizer on texts (fertility, compression, vocabulary use, and whether decoding restores the
text), and describe its vocabulary.
"""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tokenizer.encode import Encoder


@dataclass(frozen=True)
class Measurement:
    """The measurements of a tokenizer on a set of documents.

    Words are separated by white space, so `tokens_per_word` (fertility) is meaningful only for languages with
    spaces between words. `bytes_per_token` counts UTF-8 bytes.
    """

    documents: int
    words: int
    bytes: int
    tokens: int
    distinct_tokens: int
    tokens_per_word: float
    bytes_per_token: float
    round_trip_failures: int
    """Number of documents that decoding does not restore exactly; 0 for a byte-level BPE that keeps every
    byte of a text.
    """


@dataclass(frozen=True)
class Vocabulary:
    """Facts about a vocabulary that do not depend on any text."""

    path: str
    kind: str
    vocab_size: int
    library: str
    library_reason: str
    specials: dict[str, int]
    mean_token_bytes: float
    longest_tokens: tuple[str, ...]
    """The longest tokens, by length in bytes in descending order. Unprintable characters are escaped."""


def measure(encoder: Encoder, texts: pa.LargeStringArray) -> Measurement:
    """Return the measurements of a tokenizer on `texts`, which are encoded and then decoded."""
    tokens, offsets = encoder.encode(texts)
    words = size = failures = 0
    for row, text in enumerate(texts.to_pylist()):
        words += len(text.split())
        size += len(text.encode())
        failures += encoder.decode(tokens[offsets[row] : offsets[row + 1]]) != text
    return Measurement(
        documents=len(texts),
        words=words,
        bytes=size,
        tokens=len(tokens),
        distinct_tokens=int(np.count_nonzero(np.bincount(tokens, minlength=encoder.vocab_size))),
        tokens_per_word=len(tokens) / words if words else 0.0,
        bytes_per_token=size / len(tokens) if len(tokens) else 0.0,
        round_trip_failures=failures,
    )


def describe_vocabulary(encoder: Encoder, longest: int = 20) -> Vocabulary:
    """Return facts about an encoder's vocabulary, including up to `longest` of its longest tokens. Special
    tokens count neither for that list nor for the mean token length.
    """
    definition = encoder.definition
    special = set(encoder.specials.values())
    written = [definition.token_bytes(token_id) for token_id in definition.tokens if token_id not in special]
    written.sort(key=lambda token: (-len(token), token))
    return Vocabulary(
        path=definition.path,
        kind=encoder.kind,
        vocab_size=encoder.vocab_size,
        library=encoder.library,
        library_reason=encoder.library_reason,
        specials=encoder.specials,
        mean_token_bytes=sum(map(len, written)) / len(written) if written else 0.0,
        longest_tokens=tuple(repr(token.decode("utf-8", "backslashreplace"))[1:-1] for token in written[:longest]),
    )
