"""Peer signals: measures computed as other implementations compute them, for the rule sets named after these
implementations (`@datatrove`, `@tfds`).

They are in a separate stage from `quality_signals`, so that only corpora that filter by these rule sets bear
their cost.
"""

from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa

from pipelines.contracts.reads_text import MeasuresText
from pipelines.contracts.stage import PartStage
from pipelines.stages.measure.signal_columns import PEER_COUNTS, PEER_SIGNALS, count_blocks, derive_peers


@dataclass(frozen=True)
class PeerSignals(MeasuresText, PartStage):
    """Measure every document as other implementations do; decide nothing.

    Columns that end in `_datatrove` follow the code of datatrove 0.10.1, and columns that end in `_tfds` follow
    the code of tensorflow_datasets. Tokens are those of datatrove (pipelines/kernels/signals/tokens.py), and
    characters are code points. A ratio has the unit 1, and is null if its denominator is 0. Some rule sets also
    test columns of `quality_signals` (`n_chars`, `n_lines`); in that case, the plan says so.

    | column | unit | definition |
    |---|---|---|
    | **Gopher quality** | | |
    | word_count_datatrove | tokens | tokens that are not only symbols |
    | mean_word_length_datatrove | code points | code points in the tokens counted by word_count_datatrove / these tokens |
    | hash_to_word_ratio_datatrove | 1 | `#` characters / all tokens |
    | ellipsis_to_word_ratio_datatrove | 1 | (non-overlapping `...` + U+2026 characters) / all tokens |
    | bullet_line_ratio_datatrove | 1 | lines that begin with `•` or `-`, after any white space / all lines, \
    blank ones included, as str.splitlines separates them |
    | ellipsis_line_ratio_datatrove | 1 | lines that end with `...` or U+2026, before any white space / all lines, \
    as for bullet_line_ratio_datatrove |
    | alpha_word_ratio_datatrove | 1 | tokens with at least one letter / tokens |
    | stop_word_count_datatrove | words | how many of the words `the`, `be`, `to`, `of`, `and`, `that`, \
    `have` and `with` occur, in lower case only |
    | **Gopher repetition** | | |
    | dup_line_ratio_datatrove | 1 | lines that equal an earlier one / all lines; a line is the untrimmed text between \
    runs of line feeds |
    | dup_paragraph_ratio_datatrove | 1 | paragraphs that equal an earlier one / all paragraphs; a paragraph is \
    the text between runs of two or more line feeds |
    | dup_line_char_ratio_datatrove | 1 | characters in lines that equal an earlier one / all characters |
    | dup_paragraph_char_ratio_datatrove | 1 | characters in paragraphs that equal an earlier one / \
    all characters |
    | top_Ngram_char_ratio_datatrove | 1 | N = 2, 3, 4: characters of the most frequent n-gram of tokens, joined by \
    spaces, times its count (which may be 1, and occurrences may overlap) / all characters; null where there is no n-gram |
    | dup_Ngram_char_ratio_datatrove | 1 | N = 5 to 10: characters of n-grams that occurred before / all characters; \
    the scan from left to right skips each such n-gram as a whole |
    | **C4** (V: tfds, datatrove) | | defined in pipelines/kernels/signals/c4.py |
    | c4_sentences_V | sentences | sentences in the lines that C4's line rules keep |
    | c4_lorem_ipsum_V | lines | lines with "lorem ipsum" that no earlier test dropped; one such line \
    drops the page |
    | c4_curly_V | lines | the same for lines with `{` |
    | **FineWeb** | | |
    | terminal_line_ratio_datatrove | 1 | non-blank lines whose last character, untrimmed, is one of \
    FineWeb's terminal marks / all non-blank lines |
    | short_line_ratio_datatrove | 1 | non-blank lines of at most 30 characters, untrimmed / all non-blank lines |
    | dup_line_char_ratio_fineweb_datatrove | 1 | characters in non-blank lines that equal an earlier one / \
    all characters except line feeds |
    | newline_to_word_ratio_datatrove | 1 | line feeds / tokens |
    """

    version: ClassVar[int] = 1

    def writes(self) -> pa.Schema:
        return self.named(PEER_SIGNALS)

    def never_null(self) -> tuple[str, ...]:
        return tuple(f"{self.prefix}{name}" for name in PEER_COUNTS)

    def depends(self) -> dict[str, str]:
        from pipelines.kernels.text.tables import unicode_version

        return unicode_version()

    def annotate(self, docs: pa.Table) -> pa.Table:
        from pipelines.kernels.signals.peer_counts import count_peers

        if docs.num_rows == 0:
            return self.writes().empty_table()
        return derive_peers(count_blocks(docs[self.text], count_peers)).rename_columns(self.writes().names)
