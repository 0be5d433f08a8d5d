"""Byte places of texts and the tokens that hold them, by what `tokenizers` tells of where tokens come from."""

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Offsets: TypeAlias = npt.NDArray[np.int64]
_SPACES = ("▁", "Ġ")  # a space, as SentencePiece and as byte-level vocabularies write it


def require_places(texts: pa.LargeStringArray, places: Offsets, place_offsets: Offsets) -> None:
    """ValueError for a place outside its text; `place_offsets` [n + 1] as in an Arrow list array."""
    document = np.repeat(np.arange(len(texts)), np.diff(place_offsets))
    sizes = pc.binary_length(texts).to_numpy()[document]
    outside = (places < 0) | (places > sizes)
    if outside.any():
        row = int(np.argmax(outside))
        raise ValueError(
            f"document {document[row]} of the batch: byte {places[row]} is outside its {sizes[row]} bytes; give byte "
            "offsets of the text that was encoded"
        )


def _characters(text: str, places: Offsets) -> Offsets:
    """The character that holds each byte of a text; the end of the text for its length in bytes."""
    data = np.frombuffer(text.encode(), np.uint8)
    if len(data) == len(text):
        return places
    leading: Offsets = np.concatenate([np.cumsum((data & 0xC0) != 0x80), [len(text) + 1]])
    return leading[places] - 1


def holders(encoding: Any, text: str, places: Offsets) -> Offsets:
    """The token of each place of a text: the first that ends after it, or a token of nothing but a space right before that."""
    spans: Offsets = np.array(encoding.offsets, np.int64).reshape(-1, 2)
    found = np.searchsorted(np.maximum.accumulate(spans[:, 1]), _characters(text, places), side="right")
    if len(found):
        spaces = np.array([token in _SPACES for token in encoding.tokens] + [False])
        found -= spaces[found - 1] & (found > 0) & (found < len(spans))
    return found
