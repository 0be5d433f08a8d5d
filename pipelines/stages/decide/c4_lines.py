"""C4's line rules, applied as edits that remove citation markers and the lines that C4 does not keep."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import pyarrow as pa

from gristmill.config import near_match
from pipelines.contracts.columns import DROP, EDITS_COLUMN
from pipelines.contracts.edits import EDIT, EDITS
from pipelines.contracts.reads_text import MeasuresText
from pipelines.contracts.stage import PartStage

if TYPE_CHECKING:
    import numpy as np

    from pipelines.kernels.text.line_variants import StrippedLines
    from pipelines.kernels.text.phrases import Hits
    from pipelines.kernels.text.segment import Segments

RULES = ("blank", "citation", "terminal_punctuation", "few_words", "long_word", "javascript", "policy")
_BLANK, _CITATION = 0, 1
TESTS = (
    "long_word",
    "terminal_punctuation",
    "few_words",
    "lorem_ipsum",
    "javascript",
    "curly_bracket",
    "policy",
    "citation",
)
COUNTS = pa.schema([(f"c4_{name}", pa.int32()) for name in ("sentences", "lorem_ipsum", "curly_bracket")])
_TESTS_OF_LINES = frozenset(("long_word", "terminal_punctuation", "few_words", "javascript", "policy"))


@dataclass(frozen=True)
class C4Lines(MeasuresText, PartStage):
    """Remove, by `edits`, the lines that C4 does not keep, and the citation markers in the lines that it keeps.

    Kept lines are separated by a single line break. An edit that removes a line has the rule `c4.TEST`, where TEST
    is the first test that removes it (docs/rule_sets.md): terminal_punctuation, few_words, long_word, javascript or
    policy. The rule is `c4.citation` for `[1]`, `[edit]` and `[citation needed]`. It is `c4.blank` for blank lines
    and white space before a line, unless the edit of the previous line covers them; in tfds and datatrove, also for
    white space at the end of a line and everything after the last line. For "lorem ipsum" or a curly bracket, C4
    drops the whole page, not the line. This is left to a filter, as are pages with too few sentences. A document
    without remaining lines is dropped as `STEP.empty`.

    | column | unit | definition |
    |---|---|---|
    | c4_sentences | sentences | sentences in the lines that stay (tfds, datatrove: without lines for which C4 drops the page) |
    | c4_lorem_ipsum | lines | lines for which C4 drops the page: "lorem ipsum" in any line (paper), or in a line that passed \
    the earlier tests |
    | c4_curly_bracket | lines | the same for `{` |

    If no test is skipped, these columns equal `c4_sentences_RULES`, `c4_lorem_ipsum_RULES` and `c4_curly_RULES` of
    `quality_signals` (paper) or `peer_signals` (tfds, datatrove), where RULES is the variant. `filter: [{rules:
    c4@RULES}]` tests them.
    """

    rules: str
    """Variant of the tests: paper, tfds or datatrove."""
    without: tuple[str, ...] = ()
    """Tests to skip: long_word, terminal_punctuation, few_words, lorem_ipsum, javascript, curly_bracket, policy,
    or citation to keep the markers. FineWeb skips terminal_punctuation."""

    version: ClassVar[int] = 3

    def writes(self) -> pa.Schema:
        return pa.schema([(DROP, pa.string()), (EDITS_COLUMN, EDITS), *self.named(COUNTS)])

    def never_null(self) -> tuple[str, ...]:
        return tuple(self.named(COUNTS).names)

    def depends(self) -> dict[str, str]:
        from pipelines.kernels.text.tables import unicode_version

        return unicode_version()

    def check(self) -> None:
        super().check()
        if self.rules not in ("paper", "tfds", "datatrove"):
            raise ValueError(f"rules: got {self.rules!r}, allowed: paper, tfds, datatrove")
        for test in self.without:
            if test not in TESTS:
                raise ValueError(
                    f"without: got {test!r}, no such test{near_match(test, TESTS)}; allowed: {', '.join(TESTS)}"
                )

    def judges(self) -> frozenset[str]:
        lines = _TESTS_OF_LINES.difference(self.without)
        words = lines & {"few_words", "terminal_punctuation"}
        return frozenset((*(["lines"] if lines else []), *(["words"] if words else [])))

    def annotate(self, docs: pa.Table) -> pa.Table:
        import numpy as np

        from pipelines.kernels.signals import c4
        from pipelines.kernels.text.buffers import blocks, text_buffers
        from pipelines.kernels.text.segment import segment

        block_edits, counts = [(np.zeros(0, np.int64),) * 4], [np.zeros((0, len(COUNTS)), np.int64)]
        without = sum(1 << c4.TESTS[test] for test in set(self.without))
        for first, _, offsets, data in blocks(*text_buffers(docs[self.text])):
            (row, starts, ends, rules), count = _edits(segment(offsets, data), self.rules, without)
            block_edits.append((first + row, starts - offsets[row], ends - offsets[row], rules))
            counts.append(count)
        rows, starts, ends, rules = map(np.concatenate, zip(*block_edits, strict=True))
        names = pa.array([f"c4.{name}" for name in RULES]).take(pa.array(rules))
        columns = [pa.array(starts), pa.array(ends), pa.array([""] * len(rows), pa.string()), names]
        first_edits = pa.array(np.searchsorted(rows, np.arange(docs.num_rows + 1)).astype(np.int32))
        edits = pa.ListArray.from_arrays(first_edits, pa.StructArray.from_arrays(columns, fields=list(EDIT)))
        counted = [pa.array(column.astype(np.int32)) for column in np.concatenate(counts).T]
        return pa.table([pa.nulls(docs.num_rows, pa.string()), edits, *counted], schema=self.writes())


def _edits(segments: "Segments", variant: str, without: int) -> tuple[tuple["np.ndarray", ...], "np.ndarray"]:
    """Return the edits and counts of a block of documents. The edits are int64 arrays (document, start, end,
    rule), sorted by start. Starts and ends are byte offsets in the block, and rules are indices into RULES.
    The counts are int64 [documents, 3], with the columns of COUNTS. `without` is a bit mask of the tests to
    skip: bit `c4.TESTS[test]` for each.
    """
    import numpy as np

    from pipelines.kernels.signals.c4 import CITATION
    from pipelines.kernels.text.line_variants import find_breaks
    from pipelines.kernels.text.phrases import MARKER, find_phrases

    offsets = segments.offsets
    hits = find_phrases(offsets, segments.data)
    lines, rules, counts = _judge_lines(segments, hits, variant, without)
    stays = rules == _BLANK
    # A line extends to the next non-blank line. The last one extends to the end of the document.
    stops = offsets[lines.documents + 1]
    follows = lines.documents[1:] == lines.documents[:-1]
    stops[:-1][follows] = lines.starts[1:][follows]
    starts = lines.starts.astype(np.int64)
    breaks, starts[stays] = find_breaks(segments.data, lines.ends[stays], stops[stays], variant == "paper")
    trimmed = np.zeros(0, np.int64)
    if variant != "paper":  # tfds and datatrove strip every line and join those that stay
        trimmed = lines.ends[stays].astype(np.int64)
        last = np.append(lines.documents[stays][1:] != lines.documents[stays][:-1], True)[: len(trimmed)]
        breaks[last] = starts[stays][last]
    # White space before the first line of a document, or the whole document if it has no line.
    heads = np.append(lines.starts, offsets[-1])[np.searchsorted(lines.documents, np.arange(len(offsets) - 1))]
    # Citation markers of the lines that stay.
    marked = np.searchsorted(lines.starts, hits.places, side="right") - 1
    marker = 0 if without >> CITATION & 1 else MARKER
    marked = np.flatnonzero((hits.kinds & marker != 0) & (marked >= 0) & np.append(stays, False)[marked])
    starts = np.concatenate([starts, offsets[:-1], hits.places[marked], trimmed])
    ends = np.concatenate([stops, np.minimum(heads, offsets[1:]), hits.ends[marked], breaks[: len(trimmed)]])
    blank = np.full(len(trimmed), _BLANK)
    rules = np.concatenate([rules, np.full(len(heads), _BLANK), np.full(len(marked), _CITATION), blank])
    order = np.flatnonzero(starts < ends)
    order = order[np.argsort(starts[order], kind="stable")]
    rows = np.searchsorted(offsets, starts[order], side="right") - 1
    return (rows, starts[order], ends[order], rules[order]), counts


def _judge_lines(
    segments: "Segments", hits: "Hits", variant: str, without: int
) -> tuple["StrippedLines", "np.ndarray", "np.ndarray"]:
    """Return (lines, rules, counts). `lines` are the non-blank lines as the variant defines them. `rules`,
    int64 [lines], holds the index in RULES of the rule that removes each line, or _BLANK if the line stays.
    `counts` are the COUNTS of each document, int64 [documents, 3].
    """
    import numpy as np

    from pipelines.kernels.signals import c4
    from pipelines.kernels.signals.tokens import find_tokens
    from pipelines.kernels.text.line_variants import BY_BREAKS, BY_FEEDS, StrippedLines, find_stripped_lines

    table = np.full(256, _BLANK)
    for verdict, name in c4.DROPPED.items():
        table[verdict] = RULES.index(name)
    tokens = find_tokens(segments.offsets, segments.data, segments.classes)
    kind, column_of = BY_FEEDS if variant == "paper" else BY_BREAKS, c4.VARIANTS.index(variant)
    lines_by_kind, rules, documents = [], [], len(segments.offsets) - 1
    counts = np.zeros((documents, len(COUNTS)), np.int64)
    for rows in find_stripped_lines(segments.data, segments.classes, segments.lines):
        judged = c4.judge(segments.data, segments.classes, segments.words, tokens, hits, rows, without)
        verdicts, of_kind = judged.verdicts[:, column_of], rows.kinds & kind != 0
        page = (judged.sentences[:, column_of], verdicts == c4.DROPS_LOREM, verdicts == c4.DROPS_CURLY)
        for column, values in enumerate(page):
            counts[:, column] += np.bincount(rows.documents[of_kind], values[of_kind], documents).astype(np.int64)
        lines_by_kind.append(StrippedLines(*(column[of_kind] for column in rows)))
        rules.append(table[verdicts[of_kind]])
    order = np.argsort(np.concatenate([rows.starts for rows in lines_by_kind]), kind="stable")
    lines = StrippedLines(*(np.concatenate(columns)[order] for columns in zip(*lines_by_kind, strict=True)))
    if variant == "paper":
        for column, lines_with in zip((1, 2), c4.count_page_lines(segments, hits), strict=True):
            left_out = without >> c4.TESTS[COUNTS.names[column].removeprefix("c4_")] & 1
            counts[:, column] = 0 if left_out else lines_with
    return lines, np.concatenate(rules)[order], counts
