"""Peer signals: the columns that rule sets named after other implementations (`@datatrove`, `@tfds`) test.

Apart from `quality_signals`, so that only corpora that filter by such sets pay for them. Formulas over the
kernels' counts: pipelines/stages/measure/signal_columns.py.
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

    `_datatrove` follows the code of datatrove 0.10.1 (its tokens: pipelines/kernels/signals/tokens.py), `_tfds`
    that of tensorflow_datasets. A ratio whose denominator is 0 is null; the unit of ratios is 1; characters are
    code points. Some sets also test columns of `quality_signals` (`n_chars`, `n_lines`); the plan says so.

    | column | unit | definition |
    |---|---|---|
    | **Gopher quality** | | |
    | word_count_datatrove | tokens | tokens that are not only symbols |
    | mean_word_length_datatrove | code points | code points in those / those |
    | hash_to_word_ratio_datatrove | 1 | characters `#` / all tokens |
    | ellipsis_to_word_ratio_datatrove | 1 | (non-overlapping `...` + characters U+2026) / all tokens |
    | bullet_line_ratio_datatrove | 1 | lines of str.splitlines, blank or not, that begin with • or - / those lines |
    | ellipsis_line_ratio_datatrove | 1 | of the same lines, those that end with `...` or U+2026 |
    | alpha_word_ratio_datatrove | 1 | tokens with at least one letter / tokens |
    | stop_word_count_datatrove | words | how many of the, be, to, of, and, that, have, with occur, in lower case only |
    | **Gopher repetition** | | |
    | dup_line_ratio_datatrove | 1 | lines that equal an earlier one / lines; lines are pieces between runs of line \
    feeds, untrimmed |
    | dup_paragraph_ratio_datatrove | 1 | the same of paragraphs, pieces between two or more line feeds |
    | dup_line_char_ratio_datatrove | 1 | characters in copied lines / all characters |
    | dup_paragraph_char_ratio_datatrove | 1 | characters in copied paragraphs / all characters |
    | top_Ngram_char_ratio_datatrove | 1 | N = 2, 3, 4: characters of the most frequent n-gram of tokens, joined by \
    spaces, times its count (which may be 1, and occurrences may overlap) / all characters; null where there is no n-gram |
    | dup_Ngram_char_ratio_datatrove | 1 | N = 5 to 10: characters of n-grams seen before, skipping each as a whole / \
    all characters |
    | **C4** (V: tfds, datatrove) | | kernels/signals/c4.py |
    | c4_sentences_V | sentences | sentences in the lines that C4's line rules keep |
    | c4_lorem_ipsum_V | lines | lines with "lorem ipsum" that passed the tests before it, each of which drops the page |
    | c4_curly_V | lines | the same for `{` |
    | **FineWeb** | | |
    | terminal_line_ratio_datatrove | 1 | untrimmed lines, not blank, that end with one of its marks / those lines |
    | short_line_ratio_datatrove | 1 | of the same lines, those of at most 30 characters |
    | dup_line_char_ratio_fineweb_datatrove | 1 | characters in copies of such lines / characters but line feeds |
    | newline_to_word_ratio_datatrove | 1 | line feeds / tokens |
    """

    version: ClassVar[int] = 1

    def writes(self) -> pa.Schema:
        """Return the columns of the table above."""
        return self.named(PEER_SIGNALS)

    def never_null(self) -> tuple[str, ...]:
        """Return the counts; a ratio with denominator 0 is null."""
        return tuple(f"{self.prefix}{name}" for name in PEER_COUNTS)

    def depends(self) -> dict[str, str]:
        """Return the Unicode version, which defines letters."""
        from pipelines.kernels.text.tables import unicode_version

        return unicode_version()

    def annotate(self, docs: pa.Table) -> pa.Table:
        """Return the signals of each document."""
        from pipelines.kernels.signals.peer_counts import count_peers

        if docs.num_rows == 0:
            return self.writes().empty_table()
        return derive_peers(count_blocks(docs[self.text], count_peers)).rename_columns(self.writes().names)
