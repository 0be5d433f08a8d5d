"""Quality signals: counts and ratios over words, lines, paragraphs and sentences of a document.

pipelines/kernels/text/segment.py defines words, tokens, lines, paragraphs and sentences, and says how other
implementations differ.
"""

from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa

from pipelines.contracts.reads_text import MeasuresText
from pipelines.contracts.stage import PartStage
from pipelines.stages.measure.signal_columns import COUNTS, SIGNALS, count_blocks, derive


@dataclass(frozen=True)
class QualitySignals(MeasuresText, PartStage):
    """Measure every document; decide nothing.

    A ratio whose denominator is 0 is null. Sources: Rae et al. 2021 (Gopher), appendix A.1.1; Raffel et al.
    2020 (C4), section 2.2; Penedo et al. 2024 (FineWeb), section 3; Weber et al. 2024 (RedPajama-v2). The
    columns follow the papers' definitions, applied to our segmentation; `peer_signals` follows the code of
    datatrove and tensorflow_datasets. Characters are code points.

    | column | unit | definition |
    |---|---|---|
    | n_bytes | bytes | UTF-8 bytes of the text |
    | n_chars | code points | code points of the text |
    | n_lines | lines | lines with a character other than white space |
    | n_paragraphs | paragraphs | blocks of lines without a blank line between them |
    | n_sentences | sentences | sentences; 0 where the document is blank |
    | **Gopher quality** | | |
    | word_count | words | words |
    | mean_word_length | code points | code points in words / words |
    | hash_to_word_ratio | 1 | characters `#` / words |
    | ellipsis_to_word_ratio | 1 | (non-overlapping `...` + characters U+2026) / words |
    | bullet_line_ratio | 1 | lines that begin with a bullet (`line_signals.py` lists them) / lines |
    | ellipsis_line_ratio | 1 | lines that end with `...` or U+2026 / lines |
    | alpha_word_ratio | 1 | tokens (separated by white space) with at least one letter / tokens |
    | stop_word_count | words | how many of `the`, `be`, `to`, `of`, `and`, `that`, `have`, `with` occur, in any case: 0 to 8 |
    | **Gopher repetition** | | |
    | dup_line_ratio | 1 | lines that equal an earlier one / lines |
    | dup_paragraph_ratio | 1 | the same for paragraphs |
    | dup_line_char_ratio | 1 | characters in lines that equal an earlier one / characters in lines |
    | dup_paragraph_char_ratio | 1 | the same for paragraphs |
    | top_Ngram_char_ratio | 1 | N = 2, 3, 4: characters in occurrences of the most frequent n-gram (the first, if several are \
    equally frequent) / characters in words; 0 if no n-gram occurs twice. Case matters, and a word in two overlapping \
    occurrences is counted once. In scripts without spaces, N words are 1.6 N letters of Han or kana or syllables of \
    Tibetan, or 3 N letters of Thai, Lao, Khmer or Burmese |
    | dup_Ngram_char_ratio | 1 | N = 5 to 10: the same for all n-grams that occur at least twice |
    | **C4**, the paper's page rules | | pipelines/kernels/signals/c4.py |
    | c4_sentences_paper | sentences | sentences in the lines that C4's line rules keep |
    | c4_lorem_ipsum_paper | lines | lines with "lorem ipsum", in any case; one of them drops the page |
    | c4_curly_paper | lines | the same for `{` |
    | **FineWeb** | | dup_line_char_ratio is the paper's measure of duplicate lines |
    | terminal_line_ratio | 1 | lines that end with a sentence stop or one of `"'’”` / lines |
    | short_line_ratio | 1 | lines shorter than 30 characters / lines |
    | **RedPajama-v2**, signals of the text alone | | words as written; RedPajama-v2 lower-cases them |
    | curly_bracket_ratio | 1 | characters `{` and `}` / characters |
    | all_caps_word_ratio | 1 | words with an upper-case letter and no lower-case one / words |
    | unique_word_ratio | 1 | distinct words / words |
    | unigram_entropy | nats | - sum of p ln p over the shares p of distinct words |
    | numerical_char_ratio | 1 | characters of the categories N* / characters |
    | uppercase_char_ratio | 1 | characters of the category Lu / characters |
    | stop_word_ratio | 1 | occurrences of Gopher's eight stop words, in any case / words |
    | lorem_ipsum_ratio | 1 | occurrences of "lorem ipsum", in any case / characters |
    | javascript_line_count | lines | lines that contain "javascript", in any case |
    | symbol_to_word_ratio | 1 | (characters `#` + ellipses) / words |
    | **Code** | | Chen et al. 2021 (Codex), section 3.1; Kocetkov et al. 2022 (The Stack), section 3 |
    | max_line_chars | code points | code points of the longest line, without white space at its ends; 0 where there is none |
    | mean_line_chars | code points | code points in lines / lines |
    | alpha_char_ratio | 1 | characters of the categories L* / characters |

    alpha_word_ratio counts tokens because isolated symbols, which the paper's rule targets, are not words
    here and would not count against a document.
    """

    version: ClassVar[int] = 5

    def writes(self) -> pa.Schema:
        return self.named(SIGNALS)

    def never_null(self) -> tuple[str, ...]:
        return tuple(f"{self.prefix}{name}" for name in COUNTS)

    def depends(self) -> dict[str, str]:
        from pipelines.kernels.text.tables import unicode_version

        return unicode_version()

    def annotate(self, docs: pa.Table) -> pa.Table:
        from pipelines.kernels.signals.counts import count
        from pipelines.kernels.text.segment import segment

        if docs.num_rows == 0:
            return self.writes().empty_table()
        counts = count_blocks(docs[self.text], lambda offsets, data: count(segment(offsets, data)))
        return derive(counts).rename_columns(self.writes().names)
