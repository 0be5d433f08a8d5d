"""Find the tokens that contain given bytes of a text, from the character offsets that `tokenizers` reports."""

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Offsets: TypeAlias = npt.NDArray[np.int64]
_SPACES = ("▁", "Ġ")  # a space in SentencePiece and in byte-level vocabularies


def check_positions(texts: pa.LargeStringArray, positions: Offsets, position_offsets: Offsets) -> None:
    """Raise ValueError for a byte position outside its text; the end of a text is allowed. For n texts,
    `position_offsets` has the shape [n + 1].
    """
    document = np.repeat(np.arange(len(texts)), np.diff(position_offsets))
    sizes = pc.binary_length(texts).to_numpy()[document]
    outside = (positions < 0) | (positions > sizes)
    if outside.any():
        row = int(np.argmax(outside))
        raise ValueError(
            f"document {document[row]} of the batch: byte {positions[row]} is outside its {sizes[row]} bytes; pass byte "
            "offsets of the text that was encoded"
        )


def _characters(text: str, positions: Offsets) -> Offsets:
    """Return, for each byte position, the index of the character that contains it."""
    data = np.frombuffer(text.encode(), np.uint8)
    if len(data) == len(text):
        return positions
    leading: Offsets = np.concatenate([np.cumsum((data & 0xC0) != 0x80), [len(text) + 1]])
    return leading[positions] - 1


def find_tokens(encoding: Any, text: str, positions: Offsets) -> Offsets:
    """Return, for each byte position in `text`, the index of the first token that ends after it, or of the
    token before that one if it is only a space mark (`▁` or `Ġ`). Positions after the last token map to the
    number of tokens. `encoding` is the `tokenizers.Encoding` of `text`.
    """
    spans: Offsets = np.array(encoding.offsets, np.int64).reshape(-1, 2)
    tokens = np.searchsorted(np.maximum.accumulate(spans[:, 1]), _characters(text, positions), side="right")
    if len(tokens):
        spaces = np.array([token in _SPACES for token in encoding.tokens] + [False])
        tokens -= spaces[tokens - 1] & (tokens > 0) & (tokens < len(spans))
    return tokens
