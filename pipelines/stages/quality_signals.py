"""Quality signals: counts and ratios over words, lines, paragraphs and sentences of a document.

What a word, token, line, paragraph and sentence is, and where peers differ, is said once, in
pipelines/kernels/segment.py.
"""

from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa

from pipelines.contracts.stage import PartStage
from pipelines.stages.signal_columns import SIGNALS, derive


@dataclass(frozen=True)
class QualitySignals(PartStage):
    """Measure every document; decide nothing.

    The signals after the first five are those of the quality rules in Rae et al. 2021, "Scaling Language Models:
    Methods, Analysis & Insights from Training Gopher", appendix A.1.1. A ratio whose denominator is 0 is null: there is
    nothing to judge.

    | column | unit | definition |
    |---|---|---|
    | n_bytes | bytes | UTF-8 bytes of the text |
    | n_chars | code points | code points of the text |
    | n_lines | lines | lines that hold a character other than white space |
    | n_paragraphs | paragraphs | blocks of lines without a blank line between them |
    | n_sentences | sentences | sentences; 0 where the document is blank |
    | word_count | words | words |
    | mean_word_length | code points | code points in words / words |
    | hash_to_word_ratio | 1 | characters `#` / words |
    | ellipsis_to_word_ratio | 1 | (non-overlapping `...` + characters U+2026) / words |
    | bullet_line_ratio | 1 | lines that begin with a bullet (kernels/signals.py lists them) / lines |
    | ellipsis_line_ratio | 1 | lines that end with `...` or U+2026 / lines |
    | alpha_word_ratio | 1 | tokens (separated by white space) with at least one letter / tokens |
    | stop_word_count | words | how many of the, be, to, of, and, that, have, with occur, in any case: 0 to 8 |

    alpha_word_ratio counts tokens because our words are letters and digits by definition: symbols standing alone, which
    the paper's rule is about, would not count against a document.
    """

    version: ClassVar[int] = 2

    def reads(self) -> tuple[str, ...]:
        """The stored text."""
        return ("text",)

    def writes(self) -> pa.Schema:
        """The columns of the table above."""
        return SIGNALS

    def depends(self) -> dict[str, str]:
        """The Unicode version decides what a letter is."""
        from pipelines.kernels.tables import unicode_version

        return unicode_version()

    def annotate(self, docs: pa.Table) -> pa.Table:
        """The signals of each document."""
        import numpy as np

        from pipelines.kernels.buffers import blocks, text_buffers
        from pipelines.kernels.segment import segment
        from pipelines.kernels.signals import count

        offsets, data = text_buffers(docs["text"])
        if docs.num_rows == 0:
            return SIGNALS.empty_table()
        counted = [count(segment(*block)) for _, _, *block in blocks(offsets, data)]
        counts = {name: np.concatenate([block[name] for block in counted]) for name in counted[0]}
        return derive({"bytes": np.diff(offsets), **counts})
