"""A cache of encoded words, for tokenizers in which no token depends on text beyond a space.

Texts are cut into pieces at spaces and line feeds. Hugging Face `tokenizers` encodes the pieces that are not
in the cache, and the ids of a text are the concatenated ids of its pieces.
"""

import json
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tokenizer.kinds.unigram import unigram_normalizer
from tokenizer.kinds.word_bpe import word_normalizer
from tokenizer.vocabulary.definition import Definition

Ids: TypeAlias = npt.NDArray[Any]
Offsets: TypeAlias = npt.NDArray[np.int64]
Encode: TypeAlias = Callable[[pa.LargeStringArray], tuple[Ids, Offsets]]
# From a piece and byte positions within it to the token of each position.
FindInWord: TypeAlias = Callable[[str, Offsets], Offsets]

BATCH_BYTES = 1 << 24
MAX_BYTES, MAX_WORDS = 1 << 26, 1 << 22
"""Limits of the cache: bytes of text, and pieces."""

# White space that unigram's normaliser strips from the ends of a text but keeps elsewhere.
NEXT_LINE = "\x85"


def cuts_at_spaces(definition: Definition) -> bool:
    """Return whether a text's ids are known to be the concatenated ids of its pieces between spaces and line
    feeds. This holds for the kinds `bpe`, `wordpiece` and `unigram` as trained here, and for BERT's
    tokenizer. With `unigram`, callers must encode texts that contain NEXT_LINE as a whole.
    """
    normalizer, cutter = definition.data["normalizer"], definition.data["pre_tokenizer"]
    if normalizer is None or cutter is None or any(not token["special"] for token in definition.data["added_tokens"]):
        return False
    if definition.kind == "wordpiece":
        return normalizer["type"] == "BertNormalizer" and cutter["type"] == "BertPreTokenizer"
    if definition.kind == "bpe":
        return cutter["type"] == "WhitespaceSplit" and normalizer in _both_cases(word_normalizer)
    if definition.kind == "unigram":
        split = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
        return cutter == split and normalizer in _both_cases(unigram_normalizer)
    return False


def _both_cases(normalizer: Callable[[bool], Any]) -> list[Any]:
    return [json.loads(normalizer(lowercase).__getstate__()) for lowercase in (False, True)]


class Pieces(NamedTuple):
    """The k pieces into which a batch of n texts is cut at spaces and line feeds, in text order."""

    words: Offsets  # int64 [k], index of each piece in the cache
    first: Offsets  # int64 [n + 1], first piece of each text
    starts: Offsets  # int64 [k], first byte of each piece, counted over all texts with one byte between two pieces
    sizes: Offsets  # int64 [k], bytes of each piece


class WordCache:
    """A cache of the token ids of words, the pieces of text between spaces and line feeds. When it is full
    (MAX_BYTES, MAX_WORDS), `cut` empties it first, so only the pieces that the last `cut` returned are valid.
    Not thread-safe.
    """

    def __init__(self, encode: Encode) -> None:
        self._encode = encode
        self._forget()

    def _forget(self) -> None:
        self.words = pa.array([], pa.large_string())
        self.ids: Ids = self._encode(self.words)[0]
        self.offsets: Offsets = np.zeros(1, np.int64)

    def cut(self, texts: pa.LargeStringArray) -> Pieces:
        """Cut texts into pieces, encode the pieces that are not in the cache, and return all pieces."""
        parts = pc.split_pattern(pc.replace_substring(texts, "\n", " "), " ")
        flat = parts.flatten()
        coded = flat.dictionary_encode()
        index = self._look_up(coded.dictionary)[coded.indices.to_numpy()]
        first = parts.offsets.to_numpy().astype(np.int64)
        sizes = pc.binary_length(flat).to_numpy()
        return Pieces(index, first - first[0], np.cumsum(sizes + 1) - sizes - 1, sizes)

    def _look_up(self, words: pa.LargeStringArray) -> Offsets:
        """Return the index of each word in the cache (int64), after adding the words that it lacks. The words
        must be distinct.
        """
        if len(self.words) + len(words) > MAX_WORDS or self.words.nbytes > MAX_BYTES:
            self._forget()
        cached = pc.index_in(words, value_set=self.words)
        new = pc.is_null(cached).to_numpy(zero_copy_only=False)
        index: Offsets = pc.fill_null(cached, 0).to_numpy().astype(np.int64)
        index[new] = len(self.words) + np.arange(np.count_nonzero(new))
        if new.any():
            missing = words.filter(pa.array(new))
            ids, offsets = self._encode(missing)
            self.words = pa.concat_arrays([self.words, missing])
            self.offsets = np.concatenate([self.offsets, self.offsets[-1] + offsets[1:]])
            self.ids = np.concatenate([self.ids, ids])
        return index

    def assemble(self, pieces: Pieces) -> tuple[Ids, Offsets]:
        """Return the concatenated ids of all pieces, and the offsets that delimit each piece's ids, int64 [k
        + 1].
        """
        counts = np.diff(self.offsets)[pieces.words]
        ends: Offsets = np.concatenate([[0], np.cumsum(counts)])
        return self.ids[np.repeat(self.offsets[pieces.words] - ends[:-1], counts) + np.arange(ends[-1])], ends

    def find_tokens(
        self, pieces: Pieces, ends: Offsets, positions: Offsets, position_offsets: Offsets, find_in_word: FindInWord
    ) -> Offsets:
        """Return, for each byte position within a text, the index within the text of the token at that
        position, as int64 with the shape of `positions`.

        `ends` are the offsets that `assemble` returns. `positions` and `position_offsets` are as in
        `Encoder.token_offsets`; positions must not lie outside their texts. `find_in_word` finds the tokens
        of positions inside a piece.
        """
        document = np.repeat(np.arange(len(pieces.first) - 1), np.diff(position_offsets))
        begins = pieces.first[:-1][document]
        wanted = pieces.starts[begins] + positions
        piece = np.searchsorted(pieces.starts, wanted, side="right") - 1
        within = wanted - pieces.starts[piece]
        tokens: Offsets = np.where(within >= pieces.sizes[piece], ends[piece + 1], ends[piece])
        inner = np.flatnonzero((within > 0) & (within < pieces.sizes[piece]))
        if len(inner):
            inner = inner[np.argsort(pieces.words[piece[inner]], kind="stable")]
            words = pieces.words[piece[inner]]
            for run in np.split(inner, np.flatnonzero(np.diff(words)) + 1):
                word = self.words[int(pieces.words[piece[run[0]]])].as_py()
                tokens[run] += find_in_word(word, within[run])
        return tokens - ends[begins]
