"""Text to token ids: gigatoken where it knows the pre-tokenizer of a byte-level BPE, plain arithmetic for bytes, every
distinct word once where words are encoded alone, Hugging Face `tokenizers` otherwise.

Documents go in as one Arrow array and come out as one flat array of ids with offsets, without a Python object per
token. No special tokens are added, and text never yields a reserved id: that is checked on every batch.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tokenizer.offsets import holders, require_places
from tokenizer.vocabulary.definition import Definition, read_definition
from tokenizer.word_cache import BATCH_BYTES, NEXT_LINE, WordMemory, cuts_at_spaces

Library = Literal["gigatoken", "tokenizers", "numpy", "words"]
Ids: TypeAlias = npt.NDArray[Any]
Offsets: TypeAlias = npt.NDArray[np.int64]

# `tokenizers` returns one Python list per document: a batch bounds how many of them live at a time.
HF_BATCH_BYTES = 1 << 20


@dataclass(frozen=True)
class Encoder:
    """A tokenizer ready to encode documents; make one with `Encoder.load`."""

    definition: Definition
    library: Library
    library_reason: str

    @classmethod
    def load(cls, path: str, library: Library | None = None) -> "Encoder":
        """Load a `tokenizer.json` or the directory that holds it.

        `library` chooses who encodes; by default numpy for bytes, gigatoken for a byte-level BPE whose pre-tokenizer it
        knows, words (`tokenizer.word_cache`) where spaces part tokens, else `tokenizers`; `library_reason` says why. Raises
        ValueError for a missing or broken file and where `library` cannot load it.
        """
        definition = read_definition(path)
        if library == "tokenizers":
            return cls(definition, library, "asked for")
        if library in (None, "numpy") and definition.kind == "bytes":
            return cls(definition, "numpy", "ids are bytes")
        if library in (None, "words") and cuts_at_spaces(definition):
            return cls(definition, "words", "spaces part tokens; `tokenizers` encodes each distinct word once")
        if library in ("numpy", "words"):
            raise ValueError(
                f"{definition.path}: {library} cannot encode it ({definition.kind}); use library='tokenizers'"
            )
        if library is None and definition.kind != "byte_bpe":
            return cls(definition, "tokenizers", "no byte-level BPE")
        encoder = cls(definition, "gigatoken", "asked for" if library else "knows the pre-tokenizer")
        try:
            encoder._gigatoken  # noqa: B018 - loads it
        except RuntimeError as error:  # the file is sound: `tokenizers` has just read it
            refusal = str(error).split("\n", 1)[0]
            if library == "gigatoken":
                raise ValueError(
                    f"{definition.path}: gigatoken cannot load it ({refusal}); use library='tokenizers'"
                ) from error
            return cls(definition, "tokenizers", f"gigatoken: {refusal}")
        return encoder

    def __reduce__(self) -> tuple[Any, ...]:
        """What travels to another process is the definition; the libraries load it there."""
        return Encoder, (self.definition, self.library, self.library_reason)

    @property
    def kind(self) -> str:
        """`byte_bpe`, `bytes`, `bpe`, `wordpiece`, `unigram` or `word_level`."""
        return self.definition.kind

    @property
    def vocab_size(self) -> int:
        """Rows of an embedding table: one more than the greatest id, special tokens included."""
        return self.definition.vocab_size

    @property
    def specials(self) -> dict[str, int]:
        """Special tokens and their ids: by the names of `tokenizer.vocabulary.specials` where they play such a role (`[CLS]` is
        `<cls>`), else by their own.
        """
        return self.definition.roles

    @property
    def dtype(self) -> npt.DTypeLike:
        """uint16 where every id fits, else uint32."""
        return np.uint16 if self.vocab_size <= 1 << 16 else np.uint32

    def encode(self, texts: pa.LargeStringArray, *, parallel: bool = False) -> tuple[Ids, Offsets]:
        """Encode n documents: flat ids (`dtype`) and int64 offsets of shape (n + 1,); document i is ids[o[i]:o[i + 1]].

        `parallel` lets gigatoken use all cores; one task per core is the better use of a machine. The ids are the same.
        Raises ValueError for a null text, and where a text yields a reserved id.
        """
        _require_texts(texts)
        encode = {
            "gigatoken": self._encode_gigatoken,
            "numpy": self._encode_bytes,
            "words": self._encode_words,
            "tokenizers": self._encode_hf,
        }[self.library]
        ids, offsets = encode(texts, parallel)
        ids = ids.astype(self.dtype, copy=False)
        self._refuse_reserved(ids, offsets)
        return ids, offsets

    def decode(self, ids: Ids | Sequence[int]) -> str:
        """The text of ids, special tokens written out; bytes that are not UTF-8 become U+FFFD."""
        return self._full.decode(np.asarray(ids).tolist(), skip_special_tokens=False)

    def check(self, texts: pa.LargeStringArray, ids: Sequence[str]) -> int:
        """Encode a sample by both libraries and return how many documents were compared, 0 where only one can.

        `ids` are the names of the documents for the message. A text with each special token in it is compared besides.
        Raises ValueError at the first difference, naming the document and the position of the token.
        """
        _require_texts(texts)
        assert len(ids) == len(texts)
        if self.library == "tokenizers":
            return 0
        declared = self.definition.specials
        literals = [f"{token}a{token} {token}" for token in declared]
        self._compare(pa.array(literals, pa.large_string()), [f"(a text with {token})" for token in declared])
        self._compare(texts, ids)
        return len(texts)

    def token_starts(self, tokens: Ids, offsets: Offsets) -> Offsets:
        """Byte of its document at which each token begins, int64 of the shape of `tokens`.

        Exact for byte-level BPE, whose tokens are the bytes of the text, cut; a token may begin within a character.
        Raises ValueError for other tokenizers.
        """
        ends = self._ends(tokens)
        return ends[:-1] - np.repeat(ends[offsets[:-1]], np.diff(offsets))

    def token_offsets(
        self, tokens: Ids, offsets: Offsets, places: Offsets, place_offsets: Offsets
    ) -> npt.NDArray[np.int32]:
        """Turn byte offsets within documents into token offsets within documents: the token that holds the byte.

        `places` are the byte offsets of all documents, flat, with `place_offsets` of shape (n + 1,), as in an Arrow
        list array. A place at the end of its document gives its number of tokens. For the beginnings of sentences give
        the first byte that is no white space: in "One. Two" the token " Two" begins before the sentence and belongs to
        it. Returns int32 of the shape of `places`. Raises ValueError for a place outside its document, and for
        tokenizers that are not byte-level.
        """
        ends = self._ends(tokens)
        document: Offsets = np.repeat(np.arange(len(offsets) - 1), np.diff(place_offsets))
        first, last = ends[offsets[:-1]][document], ends[offsets[1:]][document]
        wanted = first + places
        outside = (places < 0) | (wanted > last)
        if outside.any():
            row = int(np.argmax(outside))
            raise ValueError(
                f"document {document[row]} of the batch: byte {places[row]} is outside its {last[row] - first[row]} "
                "bytes; give byte offsets of the text that was encoded"
            )
        holder = np.searchsorted(ends, wanted, side="right") - 1
        return (holder - offsets[:-1][document]).astype(np.int32)

    def encode_with_places(
        self, texts: pa.LargeStringArray, places: Offsets, place_offsets: Offsets
    ) -> tuple[Ids, Offsets, npt.NDArray[np.int32]]:
        """Encode, and turn byte offsets within documents into token offsets within documents, for any tokenizer.

        `places` and `place_offsets` as in `token_offsets`, which says it for byte-level tokenizers. Others tell where in
        the text each token comes from: a place belongs to the first token that ends after it, also where white space or a
        dropped character comes first, and to the token of the white space before that one, for it begins a word (`▁`).
        Behind the last token a place gives the number of tokens. Returns what `encode` does, and int32 of the shape of
        `places`. Raises ValueError for a place outside its document.
        """
        if self.definition.keeps_bytes:
            ids, offsets = self.encode(texts)
            return ids, offsets, self.token_offsets(ids, offsets, places, place_offsets)
        _require_texts(texts)
        require_places(texts, places, place_offsets)
        if self.library == "words":
            ids, offsets, found = self._encode_words_with_places(texts, places, place_offsets)
        else:
            ids, offsets, found = self._encode_with_offsets(texts, places, place_offsets)
        self._refuse_reserved(ids, offsets)
        return ids, offsets, found

    def _ends(self, tokens: Ids) -> Offsets:
        """Bytes before each token, counted over all documents, and after the last: int64 of shape (tokens + 1,)."""
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
        """Memory bandwidth is the limit: `parallel` has no part here."""
        assert self.definition.first_byte is not None
        offsets, data = _text_buffers(texts)
        ids: Ids = np.add(data[offsets[0] : offsets[-1]], self.definition.first_byte, dtype=np.int64).astype(self.dtype)
        return ids, offsets - offsets[0]

    def _encode_hf(self, texts: pa.LargeStringArray, parallel: bool) -> tuple[Ids, Offsets]:
        """`parallel` has no part here: `tokenizers` takes its threads from RAYON_NUM_THREADS."""
        pieces: list[Ids] = []
        counts: Offsets = np.zeros(len(texts) + 1, np.int64)
        for start, stop in _batches(texts, HF_BATCH_BYTES):
            batch = texts.slice(start, stop - start).to_pylist()
            encoded = [encoding.ids for encoding in self._plain.encode_batch_fast(batch, add_special_tokens=False)]
            counts[start + 1 : stop + 1] = [len(ids) for ids in encoded]
            pieces.extend(np.array(ids, self.dtype) for ids in encoded)
        ids = np.concatenate(pieces) if pieces else np.zeros(0, self.dtype)
        return ids, np.cumsum(counts)

    def _encode_with_offsets(
        self, texts: pa.LargeStringArray, places: Offsets, place_offsets: Offsets
    ) -> tuple[Ids, Offsets, npt.NDArray[np.int32]]:
        pieces: list[Ids] = []
        counts: Offsets = np.zeros(len(texts) + 1, np.int64)
        found: npt.NDArray[np.int32] = np.zeros(len(places), np.int32)
        for start, stop in _batches(texts, HF_BATCH_BYTES):
            batch = texts.slice(start, stop - start).to_pylist()
            for row, encoding in enumerate(self._plain.encode_batch(batch, add_special_tokens=False), start):
                mine = slice(place_offsets[row], place_offsets[row + 1])
                found[mine] = holders(encoding, batch[row - start], places[mine])
                pieces.append(np.array(encoding.ids, self.dtype))
                counts[row + 1] = len(pieces[-1])
        ids = np.concatenate(pieces) if pieces else np.zeros(0, self.dtype)
        return ids, np.cumsum(counts), found

    def _encode_words(self, texts: pa.LargeStringArray, parallel: bool) -> tuple[Ids, Offsets]:
        nowhere: Offsets = np.zeros(0, np.int64)
        return self._encode_words_with_places(texts, nowhere, np.zeros(len(texts) + 1, np.int64))[:2]

    def _encode_words_with_places(
        self, texts: pa.LargeStringArray, places: Offsets, place_offsets: Offsets
    ) -> tuple[Ids, Offsets, npt.NDArray[np.int32]]:
        pieces: list[Ids] = [np.zeros(0, self.dtype)]
        counts: Offsets = np.zeros(len(texts) + 1, np.int64)
        found: npt.NDArray[np.int32] = np.zeros(len(places), np.int32)
        for start, stop in _batches(texts, BATCH_BYTES):
            batch = texts.slice(start, stop - start)
            mine = slice(place_offsets[start], place_offsets[stop])
            here = place_offsets[start : stop + 1] - place_offsets[start]
            if self.kind == "unigram" and pc.any(pc.match_substring(batch, NEXT_LINE)).as_py():
                ids, offsets, found[mine] = self._encode_with_offsets(batch, places[mine], here)
            else:
                cut = self._memory.cut(batch)
                ids, ends = self._memory.assemble(cut)
                offsets = ends[cut.first]
                found[mine] = self._memory.hold(cut, ends, places[mine], here, self._hold)
            pieces.append(ids)
            counts[start + 1 : stop + 1] = np.diff(offsets)
        return np.concatenate(pieces), np.cumsum(counts), found

    def _hold(self, word: str, places: Offsets) -> Offsets:
        return holders(self._plain.encode(word, add_special_tokens=False), word, places)

    @cached_property
    def _memory(self) -> WordMemory:
        return WordMemory(lambda words: self._encode_hf(words, False))

    def _compare(self, texts: pa.LargeStringArray, names: Sequence[str]) -> None:
        fast, fast_offsets = self.encode(texts)
        plain, plain_offsets = self._encode_hf(texts, False)
        if np.array_equal(fast, plain) and np.array_equal(fast_offsets, plain_offsets):
            return
        for row, name in enumerate(names):
            mine = fast[fast_offsets[row] : fast_offsets[row + 1]]
            theirs = plain[plain_offsets[row] : plain_offsets[row + 1]]
            if not np.array_equal(mine, theirs):
                shared = min(len(mine), len(theirs))
                different = np.nonzero(mine[:shared] != theirs[:shared])[0]
                position = int(different[0]) if len(different) else shared
                raise ValueError(
                    f"{self.definition.path}: document {name}: at token {position} {self._who} "
                    f"has {_at(mine, position)}, tokenizers {version('tokenizers')} has {_at(theirs, position)}; they "
                    "must agree on every token: encode with library='tokenizers'"
                )

    @property
    def _who(self) -> str:
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


def _require_texts(texts: pa.LargeStringArray) -> None:
    assert pa.types.is_large_string(texts.type), texts.type
    if texts.null_count:
        row = texts.is_null().index(True).as_py()
        raise ValueError(f"document {row} of the batch: its text is null; give an empty string or leave it out")


def _text_buffers(texts: pa.LargeStringArray) -> tuple[Offsets, npt.NDArray[np.uint8]]:
    """Offsets and bytes of an Arrow string array (a slice, too) as numpy views, nothing copied."""
    _, offsets, data = texts.buffers()
    if not len(texts):
        return np.zeros(1, np.int64), np.zeros(0, np.uint8)
    window = np.frombuffer(offsets, np.int64, len(texts) + 1, texts.offset * 8)
    return window, np.frombuffer(data, np.uint8) if data is not None and data.size else np.zeros(0, np.uint8)


def _batches(texts: pa.LargeStringArray, size: int) -> Iterator[tuple[int, int]]:
    """Row ranges of about `size` bytes of text, at least one row each."""
    offsets, _ = _text_buffers(texts)
    start = 0
    while start < len(texts):
        stop = int(np.searchsorted(offsets, offsets[start] + size, side="right")) - 1
        stop = min(max(stop, start + 1), len(texts))
        yield start, stop
        start = stop


def _at(ids: Ids, position: int) -> str:
    return f"id {ids[position]}" if position < len(ids) else "no token"
