"""Encoding every distinct word once, for tokenizers whose tokens never depend on what stands beyond a space.

Texts are cut at spaces and line feeds. Hugging Face `tokenizers` encodes the pieces that were not seen before, and the ids
of a text are those of its pieces in a row. The pieces of natural text repeat: what is left to encode falls with its length.
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
# A piece and byte places within it: the token of each.
Hold: TypeAlias = Callable[[str, Offsets], Offsets]

BATCH_BYTES = 1 << 24
MOST_BYTES, MOST_WORDS = 1 << 26, 1 << 22
"""What is remembered, at most: text, and pieces."""

# White space that Unigram's normaliser strips from the ends of a text and keeps elsewhere.
NEXT_LINE = "\x85"


def cuts_at_spaces(definition: Definition) -> bool:
    """Whether the ids of a text are those of its pieces between spaces and line feeds: for the kinds trained here, and BERT's.

    BERT's normaliser works on characters and combining marks, its pre-tokenizer cuts at white space. NFC and NFKC join
    nothing with a space.
    """
    normalizer, cutter = definition.data["normalizer"], definition.data["pre_tokenizer"]
    if normalizer is None or cutter is None or any(not token["special"] for token in definition.data["added_tokens"]):
        return False
    if definition.kind == "wordpiece":
        return normalizer["type"] == "BertNormalizer" and cutter["type"] == "BertPreTokenizer"
    if definition.kind == "bpe":
        return cutter["type"] == "WhitespaceSplit" and normalizer in _both(word_normalizer)
    if definition.kind == "unigram":
        split = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
        return cutter == split and normalizer in _both(unigram_normalizer)
    return False


def _both(normalizer: Callable[[bool], Any]) -> list[Any]:
    return [json.loads(normalizer(lowercase).__getstate__()) for lowercase in (False, True)]


class Pieces(NamedTuple):
    """The pieces of a batch of n texts: k, one after the other.

    `known` int64 [k], which of the remembered words each is; `first` int64 [n + 1] the first piece of each text; `starts`
    int64 [k] the byte at which a piece begins, counted over all texts with one byte between two; `sizes` int64 [k] its bytes.
    """

    known: Offsets
    first: Offsets
    starts: Offsets
    sizes: Offsets


class WordMemory:
    """The pieces seen so far and their ids. Not for several threads at once."""

    def __init__(self, encode: Encode) -> None:
        self._encode = encode
        self._forget()

    def _forget(self) -> None:
        self.words = pa.array([], pa.large_string())
        self.ids: Ids = self._encode(self.words)[0]
        self.offsets: Offsets = np.zeros(1, np.int64)

    def cut(self, texts: pa.LargeStringArray) -> Pieces:
        """The pieces of texts; those not seen before are encoded."""
        parts = pc.split_pattern(pc.replace_substring(texts, "\n", " "), " ")
        flat = parts.flatten()
        coded = flat.dictionary_encode()
        index = self._look_up(coded.dictionary)[coded.indices.to_numpy()]
        first = parts.offsets.to_numpy().astype(np.int64)
        sizes = pc.binary_length(flat).to_numpy()
        return Pieces(index, first - first[0], np.cumsum(sizes + 1) - sizes - 1, sizes)

    def _look_up(self, words: pa.LargeStringArray) -> Offsets:
        """Where each of distinct words is remembered, int64 [words]."""
        if len(self.words) + len(words) > MOST_WORDS or self.words.nbytes > MOST_BYTES:
            self._forget()
        found = pc.index_in(words, value_set=self.words)
        new = pc.is_null(found).to_numpy(zero_copy_only=False)
        index: Offsets = pc.fill_null(found, 0).to_numpy().astype(np.int64)
        index[new] = len(self.words) + np.arange(np.count_nonzero(new))
        if new.any():
            missing = words.filter(pa.array(new))
            ids, offsets = self._encode(missing)
            self.words = pa.concat_arrays([self.words, missing])
            self.offsets = np.concatenate([self.offsets, self.offsets[-1] + offsets[1:]])
            self.ids = np.concatenate([self.ids, ids])
        return index

    def assemble(self, pieces: Pieces) -> tuple[Ids, Offsets]:
        """The ids of all pieces in a row, and int64 [k + 1] where those of each begin."""
        counts = np.diff(self.offsets)[pieces.known]
        ends: Offsets = np.concatenate([[0], np.cumsum(counts)])
        return self.ids[np.repeat(self.offsets[pieces.known] - ends[:-1], counts) + np.arange(ends[-1])], ends

    def hold(self, pieces: Pieces, ends: Offsets, places: Offsets, place_offsets: Offsets, holders: Hold) -> Offsets:
        """The token, counted within its text, of each byte place of the texts, int64 of the shape of `places`.

        A place at the beginning of a piece is its first token's, one between pieces the next token's; `holders` finds it
        within one.
        """
        document = np.repeat(np.arange(len(pieces.first) - 1), np.diff(place_offsets))
        begins = pieces.first[:-1][document]
        wanted = pieces.starts[begins] + places
        piece = np.searchsorted(pieces.starts, wanted, side="right") - 1
        within = wanted - pieces.starts[piece]
        tokens: Offsets = np.where(within >= pieces.sizes[piece], ends[piece + 1], ends[piece])
        inner = np.flatnonzero((within > 0) & (within < pieces.sizes[piece]))
        if len(inner):
            inner = inner[np.argsort(pieces.known[piece[inner]], kind="stable")]
            words = pieces.known[piece[inner]]
            for run in np.split(inner, np.flatnonzero(np.diff(words)) + 1):
                word = self.words[int(pieces.known[piece[run[0]]])].as_py()
                tokens[run] += holders(word, within[run])
        return tokens - ends[begins]
