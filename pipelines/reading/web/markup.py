"""Detect HTML markup in plain text."""

import pyarrow as pa
import pyarrow.compute as pc

_BLOCK_END = (
    r"(?i)</(article|blockquote|body|div|h[1-6]|head|html|li|ol|p|pre|script|section|style|table|td|th|tr|ul)\s*>"
)


def has_markup(texts: pa.Array) -> pa.Array:
    """Return, as a bool array, whether each text contains the end tag of an HTML block, such as `</p>`."""
    return pc.match_substring_regex(texts, _BLOCK_END)
