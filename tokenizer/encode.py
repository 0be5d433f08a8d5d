"""Encode text to token ids.

There are four implementations: NumPy, for vocabularies of bytes or characters; `tokenizers` with a cache of
words, if tokens never cross spaces; `gigatoken`, for a byte-level BPE whose pre-tokenizer it supports; and
`tokenizers` alone for all others.

Documents are passed in as one Arrow array, and their ids are returned as one flat array with offsets. No
special tokens are added. Text never yields the id of a special token other than the unknown token; this is
checked on every batch.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tokenizer.character_ids import CharacterIds, characters_at
from tokenizer.offsets import check_positions, find_tokens
from tokenizer.vocabulary.definition import Definition, read_definition
from tokenizer.word_cache import BATCH_BYTES, NEXT_LINE, WordCache, cuts_at_spaces

Library = Literal["gigatoken", "tokenizers", "numpy", "words"]
Ids: TypeAlias = npt.NDArray[Any]
Offsets: TypeAlias = npt.NDArray[np.int64]

# `tokenizers` returns one Python list per document; batches bound how many exist at a time.
HF_BATCH_BYTES = 1 << 20
# What a Split does, as (behavior, invert), if gigatoken reads it right: the pieces are the matches of its regex.
_READ_SPLITS = (("Isolated", False), ("Isolated", True), ("Removed", True))


@dataclass(frozen=True)
class Encoder:
    """A tokenizer that is ready to encode documents. Create one with `Encoder.load`."""

    definition: Definition
    library: Library
    library_reason: str

    @classmethod
    def load(cls, path: str, library: Library | None = None) -> "Encoder":
        """Load a `tokenizer.json`, given its path or the directory that contains it.

        The default `library` is `numpy` for bytes and characters, `words` (`tokenizer.word_cache`) if tokens
        never cross spaces, `gigatoken` for a byte-level BPE whose pre-tokenizer it supports, and `tokenizers`
        otherwise. Raises ValueError for a missing or broken file, or if `library` cannot load it.
        """
        definition = read_definition(path)
        if library == "tokenizers":
            return cls(definition, library, "requested")
        if library in (None, "numpy") and definition.kind == "bytes":
            return cls(definition, "numpy", "ids are bytes")
        if library in (None, "numpy") and definition.kind == "characters":
            return cls(definition, "numpy", "every character has an id")
        if library in (None, "words") and cuts_at_spaces(definition):
            return cls(definition, "words", "tokens end at spaces; `tokenizers` encodes each distinct word once")
        if library in ("numpy", "words"):
            raise ValueError(
                f"{definition.path}: {library} cannot encode it ({definition.kind}); use library='tokenizers'"
            )
        if library is None and definition.kind != "byte_bpe":
            return cls(definition, "tokenizers", "not a byte-level BPE")
        encoder = cls(definition, "gigatoken", "requested" if library else "knows the pre-tokenizer")
        try:
            encoder._gigatoken  # noqa: B018 - loads it
            refusal = _unread_by_gigatoken(definition)
        except RuntimeError as error:  # the file is valid, since `tokenizers` has just read it
            refusal = str(error).split("\n", 1)[0]
        if refusal is None:
            return encoder
        if library == "gigatoken":
            raise ValueError(f"{definition.path}: gigatoken cannot read it ({refusal}); use library='tokenizers'")
        return cls(definition, "tokenizers", f"gigatoken: {refusal}")

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle only the definition and the choice of library."""
        return Encoder, (self.definition, self.library, self.library_reason)

    @property
    def kind(self) -> str:
        """The kind of vocabulary: `byte_bpe`, `bytes`, `bpe`, `wordpiece`, `unigram`, `characters` or `word_level`."""
        return self.definition.kind

    @property
    def vocab_size(self) -> int:
        """The number of rows that an embedding table needs: one more than the largest id."""
        return self.definition.vocab_size

    @property
    def specials(self) -> dict[str, int]:
        """The ids of the special tokens, keyed by their roles in `tokenizer.vocabulary.specials` (BERT's
        `[CLS]` is `<cls>`). A token without a role is listed under its own name.
        """
        return self.definition.roles

    @property
    def dtype(self) -> npt.DTypeLike:
        """The dtype of ids: uint16 if every id fits, else uint32."""
        return np.uint16 if self.vocab_size <= 1 << 16 else np.uint32

    def encode(self, texts: pa.LargeStringArray, *, parallel: bool = False) -> tuple[Ids, Offsets]:
        """Encode n documents. Returns one flat array of ids (`dtype`), and int64 offsets of shape (n + 1,):
        document i is ids[offsets[i]:offsets[i + 1]].

        `parallel` lets gigatoken use all cores; the ids are the same. Raises ValueError for a null text, for
        a text that yields a special token other than the unknown token, and for a character that the
        vocabulary cannot encode. A BPE without an unknown token leaves such characters out instead.
        """
        _require_texts(texts)
        encode = {
            "gigatoken": self._encode_gigatoken,
            "numpy": self._encode_characters if self.kind == "characters" else self._encode_bytes,
            "words": self._encode_words,
            "tokenizers": self._encode_hf,
        }[self.library]
        ids, offsets = encode(texts, parallel)
        ids = ids.astype(self.dtype, copy=False)
        self._refuse_reserved(ids, offsets)
        return ids, offsets

    def decode(self, ids: Ids | Sequence[int]) -> str:
        """Decode ids to text, with special tokens written out. Invalid UTF-8 becomes U+FFFD."""
        return self._full.decode(np.asarray(ids).tolist(), skip_special_tokens=False)

    def check(self, texts: pa.LargeStringArray, ids: Sequence[str]) -> int:
        """Check that this encoder's library and `tokenizers` encode a sample, and literal special tokens, to
        the same ids. Returns the number of documents in the sample, or 0 if `library` is `tokenizers` and
        nothing is compared.

        Raises ValueError at the first difference. `ids` contains the names of the documents, for the message.
        """
        _require_texts(texts)
        assert len(ids) == len(texts)
        if self.library == "tokenizers":
            return 0
        # A token of one character cannot be a special one, whose characters need not be known.
        declared = () if self.kind == "characters" else self.definition.specials
        literals = [f"{token}a{token} {token}" for token in declared]
        self._compare(pa.array(literals, pa.large_string()), [f"(a text with {token})" for token in declared])
        self._compare(texts, ids)
        return len(texts)

    def token_starts(self, tokens: Ids, offsets: Offsets) -> Offsets:
        """Return the byte offset at which each token begins within its document, as int64 with the shape of
        `tokens`. `tokens` and `offsets` are as returned by `encode`.

        A token may begin inside a character. Raises ValueError for a tokenizer that does not keep every byte
        of the text (`Definition.keeps_bytes`).
        """
        ends = self._ends(tokens)
        return ends[:-1] - np.repeat(ends[offsets[:-1]], np.diff(offsets))

    def token_offsets(
        self, tokens: Ids, offsets: Offsets, positions: Offsets, position_offsets: Offsets
    ) -> npt.NDArray[np.int32]:
        """Convert byte positions within documents to token positions: the index, within the document, of the
        token that contains the byte.

        `tokens` and `offsets` are as returned by `encode` for n documents. `positions` is the flat array of
        the positions in all documents, with `position_offsets` of shape (n + 1,), as in an Arrow list array.
        The end of a document maps to its number of tokens. Returns int32 with the shape of `positions`.
        Raises ValueError for a position outside its document, and for a tokenizer that does not keep every
        byte of the text (`Definition.keeps_bytes`).
        """
        ends = self._ends(tokens)
        document: Offsets = np.repeat(np.arange(len(offsets) - 1), np.diff(position_offsets))
        first, last = ends[offsets[:-1]][document], ends[offsets[1:]][document]
        wanted = first + positions
        outside = (positions < 0) | (wanted > last)
        if outside.any():
            row = int(np.argmax(outside))
            raise ValueError(
                f"document {document[row]} of the batch: byte {positions[row]} is outside its {last[row] - first[row]} "
                "bytes; pass byte offsets of the text that was encoded"
            )
        holder = np.searchsorted(ends, wanted, side="right") - 1
        return (holder - offsets[:-1][document]).astype(np.int32)

    def encode_with_positions(
        self, texts: pa.LargeStringArray, positions: Offsets, position_offsets: Offsets
    ) -> tuple[Ids, Offsets, npt.NDArray[np.int32]]:
        """Encode documents, and convert byte positions within them into token positions. This works for any
        tokenizer.

        `positions` and `position_offsets` are as in `token_offsets`, which converts the positions for
        tokenizers that keep every byte. For other tokenizers, a position normally belongs to the first token
        that ends after it (`tokenizer.offsets.find_tokens`).

        Returns ids and offsets as `encode` does, and the token positions as int32 with the shape of
        `positions`. Raises ValueError for a position outside its document, and where `encode` does.
        """
        if self.definition.keeps_bytes:
            ids, offsets = self.encode(texts)
            return ids, offsets, self.token_offsets(ids, offsets, positions, position_offsets)
        _require_texts(texts)
        check_positions(texts, positions, position_offsets)
        if self.library == "words":
            ids, offsets, holders = self._encode_words_with_positions(texts, positions, position_offsets)
        elif self.library == "numpy":
            ids, offsets = self.encode(texts)
            holders = characters_at(texts, positions, position_offsets)
        else:
            ids, offsets, holders = self._encode_hf_with_positions(texts, positions, position_offsets)
        self._refuse_reserved(ids, offsets)
        return ids, offsets, holders

    def _ends(self, tokens: Ids) -> Offsets:
        """Return the number of bytes before each token, counted over all documents, followed by the total
        number, as int64 of shape (tokens + 1,).
        """
        ends: Offsets = np.zeros(len(tokens) + 1, np.int64)
        np.cumsum(self._byte_lengths[tokens], out=ends[1:])
        return ends

    def _encode_gigatoken(self, texts: pa.LargeStringArray, parallel: bool) -> tuple[Ids, Offsets]:
        import awkward

        parameters = {"__array__": "char"}
        offsets, data = _text_buffers(texts)
        layout = awkward.contents.ListOffsetArray(
            awkward.index.Index64(offsets),
            awkward.contents.NumpyArray(data, parameters=parameters),
            parameters={"__array__": "string"},
        )
        encoded = self._gigatoken.encode_batch(awkward.Array(layout), parallel=parallel).layout
        ends = encoded.offsets.data
        return encoded.content.data[ends[0] : ends[-1]], ends - ends[0] if ends[0] else ends

    def _encode_bytes(self, texts: pa.LargeStringArray, parallel: bool) -> tuple[Ids, Offsets]:
        """Encode each byte as a token. `parallel` is ignored, because memory bandwidth is the limit."""
        assert self.definition.first_byte is not None
        offsets, data = _text_buffers(texts)
        ids: Ids = np.add(data[offsets[0] : offsets[-1]], self.definition.first_byte, dtype=np.int64).astype(self.dtype)
        return ids, offsets - offsets[0]

    def _encode_characters(self, texts: pa.LargeStringArray, parallel: bool) -> tuple[Ids, Offsets]:
        return self._characters.encode(texts)

    def _encode_hf(self, texts: pa.LargeStringArray, parallel: bool) -> tuple[Ids, Offsets]:
        """Encode with `tokenizers`. `parallel` is ignored, because RAYON_NUM_THREADS sets the number of
        threads.
        """
        pieces: list[Ids] = []
        counts: Offsets = np.zeros(len(texts) + 1, np.int64)
        for start, stop in _batches(texts, HF_BATCH_BYTES):
            batch = texts.slice(start, stop - start).to_pylist()
            encoded = [encoding.ids for encoding in self._run(self._plain.encode_batch_fast, batch)]
            counts[start + 1 : stop + 1] = [len(ids) for ids in encoded]
            pieces.extend(np.array(ids, self.dtype) for ids in encoded)
        ids = np.concatenate(pieces) if pieces else np.zeros(0, self.dtype)
        return ids, np.cumsum(counts)

    def _encode_hf_with_positions(
        self, texts: pa.LargeStringArray, positions: Offsets, position_offsets: Offsets
    ) -> tuple[Ids, Offsets, npt.NDArray[np.int32]]:
        pieces: list[Ids] = []
        counts: Offsets = np.zeros(len(texts) + 1, np.int64)
        holders: npt.NDArray[np.int32] = np.zeros(len(positions), np.int32)
        for start, stop in _batches(texts, HF_BATCH_BYTES):
            batch = texts.slice(start, stop - start).to_pylist()
            for row, encoding in enumerate(self._run(self._plain.encode_batch, batch), start):
                own = slice(position_offsets[row], position_offsets[row + 1])
                holders[own] = find_tokens(encoding, batch[row - start], positions[own])
                pieces.append(np.array(encoding.ids, self.dtype))
                counts[row + 1] = len(pieces[-1])
        ids = np.concatenate(pieces) if pieces else np.zeros(0, self.dtype)
        return ids, np.cumsum(counts), holders

    def _run(self, encode: Callable[..., list[Any]], batch: list[str]) -> list[Any]:
        try:
            return encode(batch, add_special_tokens=False)
        except Exception as error:  # `tokenizers` raises plain Exception
            raise ValueError(
                f"{self.definition.path}: tokenizers cannot encode a character of a text ({error}); train the tokenizer on "
                "text that contains all characters, or with an unknown token"
            ) from error

    def _encode_words(self, texts: pa.LargeStringArray, parallel: bool) -> tuple[Ids, Offsets]:
        none: Offsets = np.zeros(0, np.int64)
        return self._encode_words_with_positions(texts, none, np.zeros(len(texts) + 1, np.int64))[:2]

    def _encode_words_with_positions(
        self, texts: pa.LargeStringArray, positions: Offsets, position_offsets: Offsets
    ) -> tuple[Ids, Offsets, npt.NDArray[np.int32]]:
        pieces: list[Ids] = [np.zeros(0, self.dtype)]
        counts: Offsets = np.zeros(len(texts) + 1, np.int64)
        holders: npt.NDArray[np.int32] = np.zeros(len(positions), np.int32)
        for start, stop in _batches(texts, BATCH_BYTES):
            batch = texts.slice(start, stop - start)
            own = slice(position_offsets[start], position_offsets[stop])
            local = position_offsets[start : stop + 1] - position_offsets[start]
            if self.kind == "unigram" and pc.any(pc.match_substring(batch, NEXT_LINE)).as_py():
                ids, offsets, holders[own] = self._encode_hf_with_positions(batch, positions[own], local)
            else:
                cut = self._words.cut(batch)
                ids, ends = self._words.assemble(cut)
                offsets = ends[cut.first]
                holders[own] = self._words.find_tokens(cut, ends, positions[own], local, self._find_in_word)
            pieces.append(ids)
            counts[start + 1 : stop + 1] = np.diff(offsets)
        return np.concatenate(pieces), np.cumsum(counts), holders

    def _find_in_word(self, word: str, positions: Offsets) -> Offsets:
        return find_tokens(self._plain.encode(word, add_special_tokens=False), word, positions)

    @cached_property
    def _characters(self) -> CharacterIds:
        return CharacterIds.of(self.definition.path, self.definition.characters, self.definition.unknown_id)

    @cached_property
    def _words(self) -> WordCache:
        return WordCache(lambda words: self._encode_hf(words, False))

    def _compare(self, texts: pa.LargeStringArray, names: Sequence[str]) -> None:
        fast, fast_offsets = self.encode(texts)
        plain, plain_offsets = self._encode_hf(texts, False)
        if np.array_equal(fast, plain) and np.array_equal(fast_offsets, plain_offsets):
            return
        for row, name in enumerate(names):
            ours = fast[fast_offsets[row] : fast_offsets[row + 1]]
            reference = plain[plain_offsets[row] : plain_offsets[row + 1]]
            if not np.array_equal(ours, reference):
                shared = min(len(ours), len(reference))
                different = np.nonzero(ours[:shared] != reference[:shared])[0]
                position = int(different[0]) if len(different) else shared
                raise ValueError(
                    f"{self.definition.path}: document {name}: at token {position} {self._library_name} "
                    f"has {_at(ours, position)}, tokenizers {version('tokenizers')} has {_at(reference, position)}; they "
                    "must agree on every token: encode with library='tokenizers'"
                )

    @property
    def _library_name(self) -> str:
        return "words" if self.library == "words" else f"{self.library} {version(self.library)}"

    def _refuse_reserved(self, ids: Ids, offsets: Offsets) -> None:
        reserved = self._reserved[ids]
        if reserved.any():
            position = int(np.argmax(reserved))
            document = int(np.searchsorted(offsets, position, side="right")) - 1
            token = self.definition.tokens[int(ids[position])]
            raise ValueError(
                f"{self.definition.path}: document {document} of the batch: token {position - offsets[document]} is "
                f"the reserved {token} (id {ids[position]}), which text must never yield: the vocabulary reaches it by "
                "merges or as a whole word; declare it as not special, or use another tokenizer"
            )

    @cached_property
    def _reserved(self) -> npt.NDArray[np.bool_]:
        table: npt.NDArray[np.bool_] = np.zeros(self.vocab_size, np.bool_)
        special = self.definition.specials.values()
        table[[token_id for token_id in special if token_id != self.definition.unknown_id]] = True
        return table

    @cached_property
    def _byte_lengths(self) -> npt.NDArray[np.int64]:
        return self.definition.byte_lengths()

    @cached_property
    def _gigatoken(self) -> Any:
        import gigatoken

        return gigatoken.Tokenizer.from_json(self.definition.plain_json)

    @cached_property
    def _plain(self) -> Any:
        from tokenizers import Tokenizer

        return Tokenizer.from_str(self.definition.plain_json)

    @cached_property
    def _full(self) -> Any:
        from tokenizers import Tokenizer

        return Tokenizer.from_str(self.definition.json)


def _unread_by_gigatoken(definition: Definition) -> str | None:
    """Return what gigatoken would ignore without an error in the pre-tokenizer of a byte-level BPE, as a
    phrase such as "would ignore Digits", or None if there is nothing. gigatoken treats a lone ByteLevel as
    GPT-2's, and reads only the regexes of the Splits in a sequence.
    """
    if definition.kind != "byte_bpe":
        return None
    first = definition.data["pre_tokenizer"]
    if first["type"] == "ByteLevel":
        return None if first["use_regex"] else "would ignore use_regex: false of ByteLevel"
    for part in first["pretokenizers"]:
        kind = part["type"]
        if kind == "ByteLevel":
            read = not part["use_regex"] and not part["add_prefix_space"]
        else:
            read = kind == "Split" and (part["behavior"], part["invert"]) in _READ_SPLITS
        if not read:
            return f"would ignore a setting of {kind}" if kind in ("ByteLevel", "Split") else f"would ignore {kind}"
    return None


def _require_texts(texts: pa.LargeStringArray) -> None:
    assert pa.types.is_large_string(texts.type), texts.type
    if texts.null_count:
        row = texts.is_null().index(True).as_py()
        raise ValueError(f"document {row} of the batch: its text is null; give an empty string or leave it out")


def _text_buffers(texts: pa.LargeStringArray) -> tuple[Offsets, npt.NDArray[np.uint8]]:
    """Return the offsets and bytes of an Arrow string array as numpy views without a copy. For a slice, the
    bytes are those of the whole array, and the offsets need not begin at 0.
    """
    _, offsets, data = texts.buffers()
    if not len(texts):
        return np.zeros(1, np.int64), np.zeros(0, np.uint8)
    window = np.frombuffer(offsets, np.int64, len(texts) + 1, texts.offset * 8)
    return window, np.frombuffer(data, np.uint8) if data is not None and data.size else np.zeros(0, np.uint8)


def _batches(texts: pa.LargeStringArray, size: int) -> Iterator[tuple[int, int]]:
    offsets, _ = _text_buffers(texts)
    start = 0
    while start < len(texts):
        stop = int(np.searchsorted(offsets, offsets[start] + size, side="right")) - 1
        stop = min(max(stop, start + 1), len(texts))
        yield start, stop
        start = stop


def _at(ids: Ids, position: int) -> str:
    return f"id {ids[position]}" if position < len(ids) else "no token"
