"""The columns of `quality_signals` and `peer_signals`: their types, and the formulas that compute them from
the kernels' counts.

The tables in `QualitySignals` and `PeerSignals` give the meanings, units and sources of the columns.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    import numpy as np

Counts = Mapping[str, "np.ndarray"]
"""Arrays of counts by name, [documents] each."""

_C4 = ("c4_sentences", "c4_lorem_ipsum", "c4_curly")

# Columns that are a count.
COUNTS = {
    "n_bytes": "bytes",
    "n_chars": "chars",
    "n_lines": "lines",
    "n_paragraphs": "paragraphs",
    "n_sentences": "sentences",
    "word_count": "words",
    "stop_word_count": "stop_words",
    "javascript_line_count": "javascript_lines",
    "max_line_chars": "longest_line",
    **{f"{name}_paper": f"{name}_paper" for name in _C4},
}
PEER_COUNTS = {
    "word_count_datatrove": "words_datatrove",
    "stop_word_count_datatrove": "stop_words_datatrove",
    **{f"{name}_{variant}": f"{name}_{variant}" for name in _C4 for variant in ("tfds", "datatrove")},
}

# Columns that are a ratio of two counts.
RATIOS = {
    # Gopher quality
    "mean_word_length": ("word_chars", "words"),
    "hash_to_word_ratio": ("hashes", "words"),
    "ellipsis_to_word_ratio": ("ellipses", "words"),
    "bullet_line_ratio": ("bullet_lines", "lines"),
    "ellipsis_line_ratio": ("ellipsis_lines", "lines"),
    "alpha_word_ratio": ("letter_chunks", "chunks"),
    # Gopher repetition
    "dup_line_ratio": ("line_copies", "lines"),
    "dup_paragraph_ratio": ("paragraph_copies", "paragraphs"),
    "dup_line_char_ratio": ("line_chars_copied", "line_chars"),
    "dup_paragraph_char_ratio": ("paragraph_chars_copied", "paragraph_chars"),
    **{f"top_{n}gram_char_ratio": (f"ngram{n}", "word_chars") for n in (2, 3, 4)},
    **{f"dup_{n}gram_char_ratio": (f"ngram{n}", "word_chars") for n in range(5, 11)},
    # FineWeb
    "terminal_line_ratio": ("terminal_lines", "lines"),
    "short_line_ratio": ("short_lines", "lines"),
    # RedPajama-v2
    "curly_bracket_ratio": ("braces", "chars"),
    "all_caps_word_ratio": ("capital_words", "words"),
    "unique_word_ratio": ("distinct_words", "words"),
    "numerical_char_ratio": ("numbers", "chars"),
    "uppercase_char_ratio": ("capitals", "chars"),
    "stop_word_ratio": ("stop_word_occurrences", "words"),
    "lorem_ipsum_ratio": ("lorem_ipsums", "chars"),
    "symbol_to_word_ratio": ("symbols", "words"),
    # Codex, The Stack
    "mean_line_chars": ("line_chars", "lines"),
    "alpha_char_ratio": ("letters", "chars"),
}

PEER_RATIOS = {
    # Gopher quality
    "mean_word_length_datatrove": ("word_chars_datatrove", "words_datatrove"),
    "hash_to_word_ratio_datatrove": ("hashes", "tokens_datatrove"),
    "ellipsis_to_word_ratio_datatrove": ("ellipses", "tokens_datatrove"),
    "bullet_line_ratio_datatrove": ("bullet_rows_datatrove", "breaks"),
    "ellipsis_line_ratio_datatrove": ("ellipsis_rows_datatrove", "breaks"),
    "alpha_word_ratio_datatrove": ("letter_tokens_datatrove", "tokens_datatrove"),
    # Gopher repetition
    "dup_line_ratio_datatrove": ("line_datatrove_copies", "lines_datatrove"),
    "dup_paragraph_ratio_datatrove": ("paragraph_datatrove_copies", "paragraphs_datatrove"),
    "dup_line_char_ratio_datatrove": ("line_datatrove_chars_copied", "chars"),
    "dup_paragraph_char_ratio_datatrove": ("paragraph_datatrove_chars_copied", "chars"),
    **{f"top_{n}gram_char_ratio_datatrove": (f"ngram{n}_datatrove", f"chars_of_{n}_tokens") for n in (2, 3, 4)},
    **{f"dup_{n}gram_char_ratio_datatrove": (f"ngram{n}_datatrove", "chars") for n in range(5, 11)},
    # FineWeb
    "terminal_line_ratio_datatrove": ("terminal_lines_datatrove", "full_lines_datatrove"),
    "short_line_ratio_datatrove": ("short_lines_datatrove", "full_lines_datatrove"),
    "dup_line_char_ratio_fineweb_datatrove": ("full_line_chars_copied_datatrove", "chars_but_feeds"),
    "newline_to_word_ratio_datatrove": ("feeds", "tokens_datatrove"),
}

SIGNALS = pa.schema(
    [(name, pa.int64() if name in ("n_bytes", "n_chars") else pa.int32()) for name in COUNTS]
    + [(name, pa.float32()) for name in (*RATIOS, "unigram_entropy")]
)
PEER_SIGNALS = pa.schema(
    [*((name, pa.int32()) for name in PEER_COUNTS), *((name, pa.float32()) for name in PEER_RATIOS)]
)


def count_blocks(
    text: pa.ChunkedArray, count: Callable[["np.ndarray", "np.ndarray"], dict[str, "np.ndarray"]]
) -> Counts:
    """Run `count(offsets, data)` on the documents of a text column, one block at a time. Return the
    concatenated counts, and `bytes`, the number of UTF-8 bytes of each document. `text` must have at least
    one document.
    """
    import numpy as np

    from pipelines.kernels.text.buffers import blocks, text_buffers

    offsets, data = text_buffers(text)
    counted = [count(*block) for _, _, *block in blocks(offsets, data)]
    counts = {name: np.concatenate([block[name] for block in counted]) for name in counted[0]}
    return {"bytes": np.diff(offsets), **counts}


def derive(counts: Counts) -> pa.Table:
    """Compute the columns of SIGNALS from the counts of `kernels.signals.counts`."""
    import numpy as np

    words = counts["words"]
    spread = np.log(np.maximum(words, 1)) - counts["entropy"] / np.maximum(words, 1)
    counts = {**counts, "symbols": counts["hashes"] + counts["ellipses"]}
    columns = _columns(counts, COUNTS, RATIOS)
    columns["unigram_entropy"] = pa.array(spread.astype(np.float32), mask=words == 0)
    return _table(columns, SIGNALS)


def derive_peers(counts: Counts) -> pa.Table:
    """Return the table of PEER_SIGNALS, computed from the counts of `kernels.signals.peer_counts`."""
    import numpy as np

    chars, tokens = counts["chars"], counts["tokens_datatrove"]
    counts = {
        **counts,
        "chars_but_feeds": chars - counts["feeds"],
        # A document of fewer than n tokens has no n-grams; its ratio is null, not 0.
        **{f"chars_of_{n}_tokens": np.where(tokens >= n, chars, 0) for n in (2, 3, 4)},
    }
    return _table(_columns(counts, PEER_COUNTS, PEER_RATIOS), PEER_SIGNALS)


def _columns(counts: Counts, whole: Mapping[str, str], ratios: Mapping[str, tuple[str, str]]) -> dict[str, pa.Array]:
    columns = {name: pa.array(counts[count]) for name, count in whole.items()}
    return columns | {name: _ratio(counts[part], counts[total]) for name, (part, total) in ratios.items()}


def _table(columns: Mapping[str, pa.Array], schema: pa.Schema) -> pa.Table:
    return pa.table([columns[field.name].cast(field.type) for field in schema], schema=schema)


def _ratio(numerator: "np.ndarray", denominator: "np.ndarray") -> pa.Array:
    """Return the ratio as float32, null where the denominator is 0. It is computed in float64, so that a
    ratio of exactly 0.1 becomes the float32 nearest to 0.1.
    """
    import numpy as np

    nothing = denominator == 0
    return pa.array((numerator / np.maximum(denominator, 1)).astype(np.float32), mask=nothing)
