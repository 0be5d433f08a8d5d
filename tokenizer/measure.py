"""What a tokenizer does to texts: fertility, compression, vocabulary use, and whether decoding gives the text back."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tokenizer.encode import Encoder


@dataclass(frozen=True)
class Measurement:
    """Counts over some documents and the two ratios made from them.

    A word is a run without white space, so `tokens_per_word` (fertility) compares tokenizers on languages that write
    spaces; `bytes_per_token` (UTF-8) compares them on any. Ratios of nothing are 0.
    """

    documents: int
    words: int
    bytes: int
    tokens: int
    distinct_tokens: int
    tokens_per_word: float
    bytes_per_token: float
    round_trip_failures: int
    """Documents that decoding does not give back to the byte; 0 for byte-level BPE without normaliser."""


@dataclass(frozen=True)
class Vocabulary:
    """Facts about a vocabulary, without any text."""

    path: str
    kind: str
    vocab_size: int
    library: str
    library_reason: str
    specials: dict[str, int]
    mean_token_bytes: float
    longest_tokens: tuple[str, ...]
    """Longest first, in bytes; control and other unprintable characters escaped."""


def measure(encoder: Encoder, texts: pa.LargeStringArray) -> Measurement:
    """Encode and decode documents and count; the documents of one call are held in memory."""
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
    """Facts about a vocabulary with its `longest` longest tokens; special tokens have no part in lengths."""
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
        mean_token_bytes=sum(map(len, written)) / len(written),
        longest_tokens=tuple(repr(token.decode("utf-8", "backslashreplace"))[1:-1] for token in written[:longest]),
    )
