"""The texts of examples as token ids, and the tokens at which their words and answers begin or end. Tokens
are cached locally under a digest of the texts and the tokenizer.

If a text changes, for example because a file or a template was edited, the digest changes too. Tasks with the
same texts share the cache. A text that occurs several times is encoded once, except for tagging, where the
positions of words may differ.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from gristmill.storage.store import digest
from tokenizer.encode import Encoder
from trainers.rows.index_cache import load_or_make

_VERSION = 3  # version 2 may hold the ids that gigatoken gave for a pre-tokenizer that it only partly read
_BATCH_BYTES = 1 << 22  # bytes of text in which tokens are located at a time


@dataclass(frozen=True)
class EncodedTexts:
    """n texts as token ids, without special tokens: text i is `tokens[first[i] : first[i] + sizes[i]]`.

    `tokens` is int32, `first` and `sizes` are int64 [n]. `starts` and `ends`, int32 of the shape of `tokens`,
    delimit the bytes of the text that each token comes from; only `TextEncoder.encode_located` fills them,
    otherwise they are empty. A token without bytes of its own has the bytes of the previous token.
    """

    tokens: np.ndarray
    first: np.ndarray
    sizes: np.ndarray
    starts: np.ndarray
    ends: np.ndarray

    def tokens_at(self, texts: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """Return the index of the token that contains the byte at each of `positions`, int64, counted within
        the text. If no token contains the byte, the index is that of the next token or, after the last token,
        the number of tokens. `texts` holds the index of each position's text.

        The texts must come from `TextEncoder.encode_located`.
        """
        # The ends in a text ascend, so the count of ends at or before a byte is the index of its token.
        low, high = self.first[texts].copy(), (self.first + self.sizes)[texts]
        last = high.copy()
        while (low < high).any():
            middle = (low + high) // 2
            before = self.ends[np.minimum(middle, last - 1)] <= positions
            low, high = np.where((low < high) & before, middle + 1, low), np.where((low < high) & ~before, middle, high)
        return low - self.first[texts]


class TextEncoder:
    """Encodes texts with the tokenizer in the file `path`, and caches the tokens. `checksum` is the file's
    xxh3_128, which is not verified.
    """

    def __init__(self, path: str, checksum: str) -> None:
        self._path, self._checksum = path, checksum

    @cached_property
    def encoder(self) -> Encoder:
        """The tokenizer, loaded on first use."""
        return Encoder.load(self._path)

    def encode(self, texts: pa.LargeStringArray) -> EncodedTexts:
        """Return the tokens of texts. Raises ValueError as `Encoder.encode` does."""
        return self._encoded("texts", texts, self._encode)

    def encode_located(self, texts: pa.LargeStringArray) -> EncodedTexts:
        """Return the tokens of texts, with the bytes that each token comes from. Raises ValueError as
        `Encoder.encode` does.
        """
        return self._encoded("located", texts, self._encode_located)

    def encode_words(
        self, texts: pa.LargeStringArray, starts: np.ndarray, offsets: np.ndarray
    ) -> tuple[EncodedTexts, np.ndarray]:
        """Return the tokens of texts and, for each word, the index of its first token within its text, int64.
        For a word after the last token, the index is the number of tokens.

        The words of text i start at its bytes `starts[offsets[i] : offsets[i + 1]]`.
        """
        places = [xxhash.xxh3_128_hexdigest(np.asarray(array, np.int64).tobytes()) for array in (starts, offsets)]

        def make() -> tuple[np.ndarray, ...]:
            ids, ends, words = self.encoder.encode_with_positions(texts, starts, offsets)
            return _packed(ids), np.asarray(ends, np.int64), words.astype(np.int64)

        tokens, ends, words = load_or_make(self._name("words", texts, places), make)
        none = np.empty(0, np.int32)
        return EncodedTexts(tokens.view(np.int32)[: ends[-1]], ends[:-1], np.diff(ends), none, none), words

    def _encoded(
        self, what: str, texts: pa.LargeStringArray, make: Callable[[pa.LargeStringArray], tuple[np.ndarray, ...]]
    ) -> EncodedTexts:
        coded = texts.dictionary_encode()
        distinct, index = coded.dictionary, coded.indices.to_numpy()
        tokens, ends, *places = load_or_make(self._name(what, distinct), lambda: make(distinct))
        starts, stops = (array.view(np.int32)[: ends[-1]] for array in places or (ends[:0], ends[:0]))
        return EncodedTexts(tokens.view(np.int32)[: ends[-1]], ends[:-1][index], np.diff(ends)[index], starts, stops)

    def _name(self, what: str, texts: pa.LargeStringArray, more: list[str] | None = None) -> str:
        content = xxhash.xxh3_128()
        for buffer in pa.concat_arrays([texts]).buffers()[1:]:
            content.update(buffer if buffer is not None else b"")
        return digest([_VERSION, what, self._checksum, len(texts), content.hexdigest(), more])

    def _encode(self, texts: pa.LargeStringArray) -> tuple[np.ndarray, ...]:
        ids, ends = self.encoder.encode(texts)
        return _packed(ids), np.asarray(ends, np.int64)

    def _encode_located(self, texts: pa.LargeStringArray) -> tuple[np.ndarray, ...]:
        sizes = pc.binary_length(texts).to_numpy().astype(np.int64)
        batch = np.cumsum(sizes) // _BATCH_BYTES
        bounds = [0, *(np.flatnonzero(np.diff(batch)) + 1).tolist(), len(texts)]
        parts = [locate(self.encoder, texts.slice(i, j - i), sizes[i:j]) for i, j in pairwise(bounds)]
        ids, counts, starts, ends = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        return _packed(ids), np.concatenate([[0], np.cumsum(counts)]), _packed(starts), _packed(ends)


def answer_tokens(passages: EncodedTexts, spans: list[list[tuple[int, int]]]) -> tuple[np.ndarray, np.ndarray]:
    """Return the indices of the first and the last token of each passage's first answer, each int64 [n]: the
    tokens that contain the first and the last byte of the answer. If no token contains the byte, the next
    token is taken; if there is no next token, the last index is that of the passage's last token. Both
    indices are -1 if there is no answer or it begins after the last token.

    `spans` holds the answers of each passage as (start, end) in bytes, ends exclusive. `passages` must come
    from `TextEncoder.encode_located`.
    """
    answered = np.array([i for i, answers in enumerate(spans) if answers], dtype=np.int64)
    chosen = np.array([spans[i][0] for i in answered], dtype=np.int64).reshape(-1, 2)
    first, last = np.full((2, len(spans)), -1, np.int64)
    first[answered] = passages.tokens_at(answered, chosen[:, 0])
    last[answered] = np.minimum(passages.tokens_at(answered, chosen[:, 1] - 1), passages.sizes[answered] - 1)
    first = np.where(first > last, -1, first)  # no token contains any part of the answer
    return first, np.where(first < 0, -1, last)


def locate(
    encoder: Encoder, texts: pa.LargeStringArray, sizes: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return (ids, number of tokens of each text, start of each token, end of each token) for texts of
    `sizes` bytes. Starts and ends are byte offsets within the text.
    """
    if encoder.definition.keeps_bytes:
        ids, offsets = encoder.encode(texts)
        starts = encoder.token_starts(ids, offsets)
        ends = np.roll(starts, -1)
        filled = np.diff(offsets) > 0
        ends[offsets[1:][filled] - 1] = sizes[filled]
        return ids.astype(np.int64), np.diff(offsets), starts, ends
    begins = np.concatenate([[0], np.cumsum(sizes)])
    within = np.arange(begins[-1]) - np.repeat(begins[:-1], sizes)
    ids, offsets, holders = encoder.encode_with_positions(texts, within, begins)
    token = holders + np.repeat(offsets[:-1], sizes)
    inside = holders < np.repeat(np.diff(offsets), sizes)  # bytes after the last token belong to no token
    token, within, before = token[inside], within[inside], np.repeat(begins[:-1], sizes)[inside]
    starts = ends = np.repeat(begins[:-1], np.diff(offsets))
    starts, ends = starts.copy(), ends.copy()
    starts[token[::-1]] = (within + before)[
        ::-1
    ]  # reversed, so that the assignment of a token's first byte is the last one
    ends[token] = within + before + 1
    # A token without bytes of its own gets those of the token before it. Positions count over all texts, so a
    # token never gets bytes of another text.
    base = np.repeat(begins[:-1], np.diff(offsets))
    starts, ends = np.maximum.accumulate(starts) - base, np.maximum.accumulate(ends) - base
    return ids.astype(np.int64), np.diff(offsets), np.maximum(starts, 0), np.maximum(ends, 0)


def _packed(values: np.ndarray) -> np.ndarray:
    """Return `values` as int32, packed two to an int64 element. An odd number of values is padded with 0."""
    packed: np.ndarray = np.zeros(len(values) + len(values) % 2, np.int32)
    packed[: len(values)] = values
    return packed.view(np.int64)
