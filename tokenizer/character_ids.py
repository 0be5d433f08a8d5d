"""Encode text as character ids, with one table look-up per code point."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Offsets: TypeAlias = npt.NDArray[np.int64]
_CODE_POINTS = 0x110000  # of Unicode
_NONE = -1
_BATCH_BYTES = 1 << 24  # bytes of text per batch; encoding briefly needs about nine times as much


@dataclass(frozen=True)
class CharacterIds:
    """A table with the id of every code point, int32 [0x110000]. If the vocabulary has no unknown token,
    unknown characters have the id -1.
    """

    path: str
    ids: npt.NDArray[np.int32]

    @classmethod
    def of(cls, path: str, characters: Mapping[str, int], unknown: int | None) -> "CharacterIds":
        """Build the table for a vocabulary of characters. `unknown` is the id of unknown characters, or None
        if they have no id.
        """
        ids = np.full(_CODE_POINTS, _NONE if unknown is None else unknown, np.int32)
        for character, number in characters.items():
            ids[ord(character)] = number
        return cls(path, ids)

    def encode(self, texts: pa.LargeStringArray) -> tuple[npt.NDArray[Any], Offsets]:
        """Return the flat ids (int32) and the offsets of `texts`, as `Encoder.encode` does. Raises ValueError
        for a character without an id.
        """
        offsets: Offsets = np.concatenate([[0], np.cumsum(pc.utf8_length(texts).to_numpy(), dtype=np.int64)])
        ids = np.empty(offsets[-1], np.int32)
        begins: Offsets = np.concatenate([[0], np.cumsum(pc.binary_length(texts).to_numpy(), dtype=np.int64)])
        start = 0
        while start < len(texts):
            stop = max(int(np.searchsorted(begins, begins[start] + _BATCH_BYTES, side="right")) - 1, start + 1)
            text = "".join(texts.slice(start, stop - start).to_pylist())
            points = np.frombuffer(text.encode("utf-32-le"), np.uint32)
            ids[offsets[start] : offsets[stop]] = self.ids[points]
            self._refuse_unknown(ids[offsets[start] : offsets[stop]], points, offsets[start : stop + 1], start)
            start = stop
        return ids, offsets

    def _refuse_unknown(self, ids: npt.NDArray[Any], points: npt.NDArray[Any], offsets: Offsets, first: int) -> None:
        unknown = ids == _NONE
        if unknown.any():
            position = int(np.argmax(unknown))
            document = int(np.searchsorted(offsets - offsets[0], position, side="right")) - 1
            raise ValueError(
                f"{self.path}: document {first + document} of the batch: character {position - offsets[document] + offsets[0]} "
                f"is U+{points[position]:04X}, which is not in the vocabulary; train the "
                "tokenizer on text that contains it, or with `unknown: unk`"
            )


def characters_at(texts: pa.LargeStringArray, positions: Offsets, position_offsets: Offsets) -> npt.NDArray[np.int32]:
    """Return, for each byte position in a text, the index of the character that contains this byte. The end
    of a text maps to its number of characters.

    `positions` and `position_offsets` are as in `Encoder.token_offsets`. Positions must not lie outside their
    texts.
    """
    document = np.repeat(np.arange(len(texts)), np.diff(position_offsets))
    holders = np.zeros(len(positions), np.int32)
    for row in np.unique(document):
        own = document == row
        data = np.frombuffer(texts[int(row)].as_buffer(), np.uint8)
        leads: Offsets = np.cumsum(np.append((data & 0xC0) != 0x80, True))
        holders[own] = leads[positions[own]] - 1
    return holders
