"""C4's line rules as edits: the lines of a page that C4 does not keep."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from pipelines.contracts.edits import EDIT, EDITS
from pipelines.contracts.stage import EDITS_COLUMN, PartStage

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True)
class C4Lines(PartStage):
    """`edits` that remove the lines which C4 does not keep, and citation markers from those it keeps.

    Three variants of the tests and their order: pipelines/kernels/c4_lines.py. An edit's rule is `c4.` and the first test
    that the line meets: long_word, no_end_mark (so with blank lines), few_words, javascript or policy; citation for
    `[1]`, `[edit]` and `[citation needed]`. A line goes with what ends it. Lines for which a page goes (lorem ipsum, a
    curly bracket) stay: dropping the page, also for too few sentences, is for `filter: [{rules: c4@paper}]`.
    """

    rules: str
    """Whose tests: paper, tfds or datatrove."""

    def reads(self) -> tuple[str, ...]:
        """The stored text."""
        return ("text",)

    def writes(self) -> pa.Schema:
        """`edits`."""
        return pa.schema([(EDITS_COLUMN, EDITS)])

    def depends(self) -> dict[str, str]:
        """The Unicode version decides what a word and white space are."""
        from pipelines.kernels.tables import unicode_version

        return unicode_version()

    def check(self) -> None:
        """ValueError for a variant that is not known."""
        if self.rules not in ("paper", "tfds", "datatrove"):
            raise ValueError(f"rules: got {self.rules!r}, allowed: paper, tfds, datatrove")

    def annotate(self, docs: pa.Table) -> pa.Table:
        """The edits of each document."""
        import numpy as np

        from pipelines.kernels.buffers import blocks, text_buffers
        from pipelines.kernels.c4_lines import VERDICTS

        offsets, data = text_buffers(docs["text"])
        found = [(np.zeros(0, np.int64),) * 4]
        found += [_edits(first, *block, self.rules) for first, _, *block in blocks(offsets, data)]
        rows, starts, ends, rules = map(np.concatenate, zip(*found, strict=True))
        names = pa.array([f"c4.{name}" for name in (*VERDICTS, "citation")])
        columns = [
            pa.array(starts),
            pa.array(ends),
            pa.array([""] * len(rows), pa.string()),
            names.take(pa.array(rules)),
        ]
        first_edits = pa.array(np.searchsorted(rows, np.arange(docs.num_rows + 1)).astype(np.int32))
        edits = pa.ListArray.from_arrays(first_edits, pa.StructArray.from_arrays(columns, fields=list(EDIT)))
        return pa.table({EDITS_COLUMN: edits}, schema=self.writes())


def _edits(first: int, offsets: "np.ndarray", data: "np.ndarray", variant: str) -> tuple["np.ndarray", ...]:
    """(row, start, end, rule) of the edits of a block whose first row is `first`, in their order."""
    import numpy as np

    from pipelines.kernels import c4_lines as c4
    from pipelines.kernels.characters import classify
    from pipelines.kernels.segment import find_words

    classes, phrases = classify(offsets, data), c4.find_phrases(data)
    lines = c4.c4_lines(offsets, data, classes, find_words(offsets, data, classes), phrases, variant)
    dropped = np.flatnonzero(~np.isin(lines.verdicts, [c4.KEPT, c4.LOREM_IPSUM, c4.CURLY_BRACKET]))
    marked, marker_starts, marker_ends = c4.find_markers(data, phrases, lines)
    line = np.concatenate([dropped, marked])
    starts = np.concatenate([lines.starts[dropped], marker_starts])
    ends = np.concatenate([lines.nexts[dropped], marker_ends])
    rules = np.concatenate([lines.verdicts[dropped], np.full(len(marked), len(c4.VERDICTS))])
    order = np.argsort(starts, kind="stable")
    row = np.searchsorted(lines.offsets, line[order], side="right") - 1
    return first + row, starts[order] - offsets[row], ends[order] - offsets[row], rules[order].astype(np.int64)
