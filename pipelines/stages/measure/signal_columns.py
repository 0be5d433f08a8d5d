"""The columns of `quality_signals`: types, and formulas over the kernels' counts.

The table in `quality_signals.QualitySignals` gives their meanings, units and sources.
"""

from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    import numpy as np

# Columns that are a count.
COUNTS = {
    "n_bytes": "bytes",
    "n_chars": "chars",
    "n_lines": "lines",
    "n_paragraphs": "paragraphs",
    "n_sentences": "sentences",
    "word_count": "words",
    "stop_word_count": "stop_words",
    "word_count_datatrove": "words_datatrove",
    "stop_word_count_datatrove": "stop_words_datatrove",
    "javascript_line_count": "javascript_lines",
    "max_line_chars": "longest_line",
    **{
        f"c4_{name}_{v}": f"c4_{name}_{v}"
        for name in ("sentences", "lorem_ipsum", "curly")
        for v in ("paper", "tfds", "datatrove")
    },
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
    "mean_word_length_datatrove": ("word_chars_datatrove", "words_datatrove"),
    "hash_to_word_ratio_datatrove": ("hashes", "tokens_datatrove"),
    "ellipsis_to_word_ratio_datatrove": ("ellipses", "tokens_datatrove"),
    "bullet_line_ratio_datatrove": ("bullet_rows_datatrove", "breaks"),
    "ellipsis_line_ratio_datatrove": ("ellipsis_rows_datatrove", "breaks"),
    "alpha_word_ratio_datatrove": ("letter_tokens_datatrove", "tokens_datatrove"),
    # Gopher repetition
    "dup_line_ratio": ("line_copies", "lines"),
    "dup_paragraph_ratio": ("paragraph_copies", "paragraphs"),
    "dup_line_char_ratio": ("line_chars_copied", "line_chars"),
    "dup_paragraph_char_ratio": ("paragraph_chars_copied", "paragraph_chars"),
    **{f"top_{n}gram_char_ratio": (f"ngram{n}", "word_chars") for n in (2, 3, 4)},
    **{f"dup_{n}gram_char_ratio": (f"ngram{n}", "word_chars") for n in range(5, 11)},
    "dup_line_ratio_datatrove": ("line_datatrove_copies", "lines_datatrove"),
    "dup_paragraph_ratio_datatrove": ("paragraph_datatrove_copies", "paragraphs_datatrove"),
    "dup_line_char_ratio_datatrove": ("line_datatrove_chars_copied", "chars"),
    "dup_paragraph_char_ratio_datatrove": ("paragraph_datatrove_chars_copied", "chars"),
    **{f"top_{n}gram_char_ratio_datatrove": (f"ngram{n}_datatrove", f"chars_of_{n}_tokens") for n in (2, 3, 4)},
    **{f"dup_{n}gram_char_ratio_datatrove": (f"ngram{n}_datatrove", "chars") for n in range(5, 11)},
    # FineWeb
    "terminal_line_ratio": ("terminal_lines", "lines"),
    "short_line_ratio": ("short_lines", "lines"),
    "terminal_line_ratio_datatrove": ("terminal_lines_datatrove", "full_lines_datatrove"),
    "short_line_ratio_datatrove": ("short_lines_datatrove", "full_lines_datatrove"),
    "dup_line_char_ratio_fineweb_datatrove": ("full_line_chars_copied_datatrove", "chars_but_feeds"),
    "newline_to_word_ratio_datatrove": ("feeds", "tokens_datatrove"),
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

SIGNALS = pa.schema(
    [(name, pa.int64() if name in ("n_bytes", "n_chars") else pa.int32()) for name in COUNTS]
    + [(name, pa.float32()) for name in (*RATIOS, "unigram_entropy")]
)


def derive(counts: dict[str, "np.ndarray"]) -> pa.Table:
    """The columns from the counts of `kernels.signals.count` and `bytes`."""
    import numpy as np

    chars, tokens = counts["chars"], counts["tokens_datatrove"]
    counts = {
        **counts,
        "chars_but_feeds": chars - counts["feeds"],
        "symbols": counts["hashes"] + counts["ellipses"],
        # A document of fewer than n tokens has no n-grams; its ratio is null, not 0.
        **{f"chars_of_{n}_tokens": np.where(tokens >= n, chars, 0) for n in (2, 3, 4)},
    }
    words = counts["words"]
    spread = np.log(np.maximum(words, 1)) - counts["entropy"] / np.maximum(words, 1)
    columns = {name: pa.array(counts[count]) for name, count in COUNTS.items()}
    columns |= {name: _ratio(counts[part], counts[whole]) for name, (part, whole) in RATIOS.items()}
    columns["unigram_entropy"] = pa.array(spread.astype(np.float32), mask=words == 0)
    return pa.table([columns[field.name].cast(field.type) for field in SIGNALS], schema=SIGNALS)


def _ratio(numerator: "np.ndarray", denominator: "np.ndarray") -> pa.Array:
    """float32, null where the denominator is 0. Divided as float64 first, so that a ratio of exactly 0.1
    becomes float32's 0.1.
    """
    import numpy as np

    nothing = denominator == 0
    return pa.array((numerator / np.maximum(denominator, 1)).astype(np.float32), mask=nothing)
