"""Quality signals: counts and ratios over words, lines, paragraphs and sentences of a document.

What a word, token, line, paragraph and sentence is, and where peers differ, is said once, in
pipelines/kernels/segment.py.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from pipelines.contracts.stage import PartStage

if TYPE_CHECKING:
    import numpy as np

SIGNALS = pa.schema(
    [
        ("n_bytes", pa.int64()),
        ("n_chars", pa.int64()),
        ("n_lines", pa.int32()),
        ("n_paragraphs", pa.int32()),
        ("n_sentences", pa.int32()),
        ("word_count", pa.int32()),
        ("mean_word_length", pa.float32()),
        ("hash_to_word_ratio", pa.float32()),
        ("ellipsis_to_word_ratio", pa.float32()),
        ("bullet_line_ratio", pa.float32()),
        ("ellipsis_line_ratio", pa.float32()),
        ("alpha_word_ratio", pa.float32()),
        ("stop_word_count", pa.int32()),
    ]
)


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
        from pipelines.kernels.signals import COUNTS, count

        offsets, data = text_buffers(docs["text"])
        counted = [count(segment(*block)) for _, _, *block in blocks(offsets, data)]
        table = np.concatenate([np.zeros((0, len(COUNTS)), np.int64), *counted])
        counts = {name: table[:, column] for column, name in enumerate(COUNTS)}
        columns = {
            "n_bytes": np.diff(offsets),
            "n_chars": counts["chars"],
            "n_lines": counts["lines"],
            "n_paragraphs": counts["paragraphs"],
            "n_sentences": counts["sentences"],
            "word_count": counts["words"],
            "mean_word_length": _ratio(counts["word_chars"], counts["words"]),
            "hash_to_word_ratio": _ratio(counts["hashes"], counts["words"]),
            "ellipsis_to_word_ratio": _ratio(counts["ellipses"], counts["words"]),
            "bullet_line_ratio": _ratio(counts["bullet_lines"], counts["lines"]),
            "ellipsis_line_ratio": _ratio(counts["ellipsis_lines"], counts["lines"]),
            "alpha_word_ratio": _ratio(counts["letter_tokens"], counts["tokens"]),
            "stop_word_count": counts["stop_words"],
        }
        return pa.table([pa.array(columns[field.name]).cast(field.type) for field in SIGNALS], schema=SIGNALS)


def _ratio(numerator: "np.ndarray", denominator: "np.ndarray") -> pa.Array:
    """float32, null where the denominator is 0. Divided as float64 first: a ratio of exactly 0.1 is then float32's
    0.1."""
    import numpy as np

    nothing = denominator == 0
    return pa.array((numerator / np.maximum(denominator, 1)).astype(np.float32), mask=nothing)
