"""The named rule sets as data, one entry per set. Names have the form FAMILY@SOURCE, because implementations
of one paper differ.

A document that fails a test gets the `drop` FAMILY.TEST, where TEST is the `name` of the test or, by default,
its signal. Two sets of a family may therefore use one TEST only for the same rule. docs/rule_sets.md quotes
the sources.
"""

import struct
from collections.abc import Mapping
from typing import NamedTuple


class Limit(NamedTuple):
    """A condition that a document must satisfy to be kept, with tests as in `rules.Rule`."""

    signal: str
    at_least: float | None = None
    at_most: float | None = None
    none_of: tuple[str | bool | int | float, ...] = ()
    name: str = ""
    """The name of the test in `drop`, after the family; default: the signal."""


def above(bound: float) -> float:
    """Round a positive bound to float32, the type of ratios, and return the next float32 above it. Rule sets
    use this as `at_least` where their source also drops values equal to the bound.
    """
    return float(struct.unpack("<f", struct.pack("<i", struct.unpack("<i", struct.pack("<f", bound))[0] + 1))[0])


def below(bound: float) -> float:
    """Return the next float32 below a positive bound, which is first rounded to float32, the type of ratios.
    It is the `at_most` of rule sets whose source also drops values equal to the bound.
    """
    return float(struct.unpack("<f", struct.pack("<i", struct.unpack("<i", struct.pack("<f", bound))[0] - 1))[0])


# Rae et al. 2021, table A1: the largest share of characters in the most frequent n-gram, and in all duplicate
# n-grams.
_NGRAMS = {
    "top_2gram_char_ratio": 0.20,
    "top_3gram_char_ratio": 0.18,
    "top_4gram_char_ratio": 0.16,
    "dup_5gram_char_ratio": 0.15,
    "dup_6gram_char_ratio": 0.14,
    "dup_7gram_char_ratio": 0.13,
    "dup_8gram_char_ratio": 0.12,
    "dup_9gram_char_ratio": 0.11,
    "dup_10gram_char_ratio": 0.10,
}

SETS: Mapping[str, tuple[Limit, ...]] = {
    # Rae et al. 2021 (Gopher, arXiv 2112.11446), appendix A.1.1, "Quality Filtering", in the order of the
    # text:
    "gopher_quality@massivetext": (
        # "does not contain between 50 and 100,000 words"
        Limit("word_count", at_least=50, at_most=100_000),
        # "mean word length is outside the range of 3 to 10 characters"
        Limit("mean_word_length", at_least=3, at_most=10),
        # "a symbol-to-word ratio greater than 0.1 for either the hash symbol or the ellipsis"
        Limit("hash_to_word_ratio", at_most=0.1),
        Limit("ellipsis_to_word_ratio", at_most=0.1),
        # "more than 90% of lines starting with a bullet point, or more than 30% ending with an ellipsis"
        Limit("bullet_line_ratio", at_most=0.9),
        Limit("ellipsis_line_ratio", at_most=0.3),
        # "80% of words in a document contain at least one alphabetic character"
        Limit("alpha_word_ratio", at_least=0.8),
        # "do not contain at least two of the following English words: the, be, to, of, and, that, have,
        # with". Read as two different ones, in any case. datatrove: different ones, in lower case; dolma:
        # occurrences of any.
        Limit("stop_word_count", at_least=2),
    ),
    # datatrove 0.10.1, gopher_quality_filter: the same thresholds in the same order, over its own tokens and
    # lines.
    "gopher_quality@datatrove": (
        Limit("word_count_datatrove", at_least=50, at_most=100_000),
        Limit("mean_word_length_datatrove", at_least=3, at_most=10),
        Limit("hash_to_word_ratio_datatrove", at_most=0.1),
        Limit("ellipsis_to_word_ratio_datatrove", at_most=0.1),
        Limit("bullet_line_ratio_datatrove", at_most=0.9),
        Limit("ellipsis_line_ratio_datatrove", at_most=0.3),
        Limit("alpha_word_ratio_datatrove", at_least=0.8),
        Limit("stop_word_count_datatrove", at_least=2),
    ),
    # Rae et al. 2021, table A1, "the limit above which a document is filtered out", in the order of the
    # table.
    "gopher_repetition@massivetext": (
        Limit("dup_line_ratio", at_most=0.30),
        Limit("dup_paragraph_ratio", at_most=0.30),
        Limit("dup_line_char_ratio", at_most=0.20),
        Limit("dup_paragraph_char_ratio", at_most=0.20),
        *(Limit(signal, at_most=limit) for signal, limit in _NGRAMS.items()),
    ),
    # datatrove 0.10.1, gopher_repetition_filter: empty documents are dropped, paragraphs are tested first,
    # and the limits are the same.
    "gopher_repetition@datatrove": (
        Limit("n_chars", at_least=1, name="empty"),
        Limit("dup_paragraph_ratio_datatrove", at_most=0.30),
        Limit("dup_paragraph_char_ratio_datatrove", at_most=0.20),
        Limit("dup_line_ratio_datatrove", at_most=0.30),
        Limit("dup_line_char_ratio_datatrove", at_most=0.20),
        *(Limit(f"{signal}_datatrove", at_most=limit) for signal, limit in _NGRAMS.items()),
    ),
    # Raffel et al. 2020 (T5, arXiv 1910.10683), section 2.2: its rules for dropping pages. Its rules for
    # lines are the stage `c4_lines`. The bad-words list and the deduplication of spans of sentences are left
    # out.
    "c4@paper": (
        # "discarded any page with fewer than 3 sentences" in the lines that are left, which have 5 words.
        # Another version of the text says 5 sentences and 3 words, and so does datatrove.
        Limit("c4_sentences_paper", at_least=3, name="sentences_paper"),
        # "any page where the phrase lorem ipsum appeared"
        Limit("c4_lorem_ipsum_paper", at_most=0, name="lorem_ipsum_paper"),
        # "any pages that contained a curly bracket": the opening one
        Limit("c4_curly_paper", at_most=0, name="curly_paper"),
    ),
    # tensorflow_datasets, text/c4_utils.py, clean_page: it counts lines that passed the earlier tests;
    # sentences are tested last.
    "c4@tfds": (
        Limit("c4_lorem_ipsum_tfds", at_most=0, name="lorem_ipsum_tfds"),
        Limit("c4_curly_tfds", at_most=0, name="curly_tfds"),
        Limit("c4_sentences_tfds", at_least=3, name="sentences_tfds"),
    ),
    # datatrove 0.10.1, C4QualityFilter with its defaults: as tfds, but at least 5 sentences, in lines of at
    # least 3 words.
    "c4@datatrove": (
        Limit("c4_lorem_ipsum_datatrove", at_most=0, name="lorem_ipsum_datatrove"),
        Limit("c4_curly_datatrove", at_most=0, name="curly_datatrove"),
        Limit("c4_sentences_datatrove", at_least=5, name="sentences_datatrove"),
    ),
    # Penedo et al. 2024 (FineWeb, arXiv 2406.17557), section 3, custom filters. Each drops at its bound
    # itself.
    "fineweb@paper": (
        # "fraction of lines ending with punctuation" <= 0.12
        Limit("terminal_line_ratio", at_least=above(0.12)),
        # "fraction of characters in duplicated lines" >= 0.1
        Limit("dup_line_char_ratio", at_most=below(0.1)),
        # "fraction of lines shorter than 30 characters" >= 0.67
        Limit("short_line_ratio", at_most=below(0.67)),
    ),
    # datatrove 0.10.1, FineWebQualityFilter with its defaults: 0.01 instead of 0.1, and a fourth test.
    "fineweb@datatrove": (
        Limit("n_lines", at_least=1, name="empty"),
        Limit("terminal_line_ratio_datatrove", at_least=0.12),
        Limit("short_line_ratio_datatrove", at_most=0.67),
        Limit("dup_line_char_ratio_fineweb_datatrove", at_most=0.01),
        Limit("newline_to_word_ratio_datatrove", at_most=0.3),
    ),
    # Penedo et al. 2023 (RefinedWeb, arXiv 2306.01116), appendix G.1: a block-list, then a page is dropped
    # for one strict or hard word in its URL, or for two soft ones. The lists are knobs of `url_rules`.
    "refinedweb_url@paper": (
        Limit("url_blocked", none_of=(True,)),
        Limit("url_strict_words", at_most=0),
        Limit("url_hard_words", at_most=0),
        Limit("url_soft_words", at_most=1),
    ),
}
