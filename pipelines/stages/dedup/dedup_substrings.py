"""Deduplication of substrings: keep only the first occurrence of a run of bytes that occurs more than once in
the corpus.

Lee et al. 2022, "Deduplicating Training Data Makes Language Models Better" (arXiv 2107.06499), section 4.1,
find the repeats in a suffix array of the whole corpus. Here two shuffles find them
(pipelines/stages/dedup/find_repeats.py), and no task holds more than a part or a partition.

If documents are dropped because fewer than `min_left_words` words are left, the repeats are found again among
the remaining documents, since a dropped document may have held the first occurrence of a substring.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.contracts.columns import DROP, EDITS_COLUMN, EMPTY
from pipelines.contracts.document import ID
from pipelines.contracts.document_counts import count_drops
from pipelines.contracts.edits import EDIT, EDITS, apply_edits, check_edits
from pipelines.contracts.manifest import StepOutput, write_table
from pipelines.contracts.parts import Part
from pipelines.contracts.reads import Drop, GivenSplits, Input
from pipelines.contracts.reads_text import ReadsText
from pipelines.contracts.stage import Cluster, CorpusStage
from pipelines.stages.dedup.find_repeats import CUTS, GONE, PartTask, RepeatSearch, gone_rows

RULE = "dedup_substrings"
_WRITTEN = pa.schema(
    [
        (DROP, pa.string()),
        (EDITS_COLUMN, EDITS),
        ("substring_bytes_removed", pa.int64()),
        ("substrings_winner", ID),
        ("substrings_winners", pa.list_(ID)),
    ]
)


@dataclass(frozen=True)
class DedupSubstrings(ReadsText, CorpusStage):
    """Remove every later occurrence of a substring of at least `min_bytes` bytes, by `edits`.

    A character is removed if it lies entirely within a repeated window of `min_bytes` bytes. A window is
    repeated if the same bytes occur in an earlier document, in the order of sources, files and records, or
    earlier in the same document without overlap. So the first `min_bytes` bytes of a long run of one
    character stay, and a character stays if only some of its bytes are repeated. Cuts may fall within words
    and lines. Texts are compared byte by byte, including case and white space. Documents that an earlier step
    dropped do not compete, nor do documents in their source's own validation or test split. An edit's rule is
    `dedup_substrings`.

    Every visible character that is removed stays in a kept document, as part of another occurrence. Where
    repeats overlap, a passage may survive in two pieces, with its beginning in one document and its end in
    another.

    With `min_left_words`, a document that lost text and has fewer words left is dropped as
    `dedup_substrings.few_words`, and its substrings do not count as occurrences. This step must therefore
    follow all other steps that drop. Any other document left without a visible character is dropped as
    `dedup_substrings.empty`.

    Columns: `substring_bytes_removed`, `substrings_winners` and `substrings_winner`. The winner of a cut is
    the document with the first occurrence of the cut's beginning: `substrings_winners` lists those of all
    cuts, in order, and `substrings_winner` is that of the longest cut. For a dropped document, these columns
    show why it was dropped. A document dropped for its few words gets no edits.
    """

    min_bytes: int = 100
    """Length in UTF-8 bytes of the shortest substring that is removed (Lee et al. 2022: 50 tokens, 100
    to 200 bytes of English text)."""
    min_left_words: int = 0
    """Minimum number of words left in a document that lost text; with 0, only documents that become empty are
    dropped."""
    text: str = field(default="edited_text", kw_only=True)
    """The text that is compared: `text`, `text@STEP` or `edited_text`."""

    elects: ClassVar[bool] = True
    keeps_spans: ClassVar[bool] = True

    @property
    def drops_only_emptied(self) -> bool:
        return self.min_left_words == 0

    def check(self) -> None:
        for name, minimum in (("min_bytes", 10), ("min_left_words", 0)):
            if getattr(self, name) < minimum:
                raise ValueError(f"{name}: got {getattr(self, name)}, expected {minimum} or more")
        super().check()

    def reads(self) -> tuple[Input, ...]:
        return (self.input_text, Drop(), GivenSplits())

    def writes(self) -> pa.Schema:
        """Return `drop`, `edits`, `substring_bytes_removed`, `substrings_winner` and `substrings_winners`.
        The last three are null if a document did not compete; `substrings_winner` is also null if nothing was
        cut.
        """
        return _WRITTEN

    def depends(self) -> dict[str, str]:
        from pipelines.kernels.text.tables import unicode_version

        return unicode_version() if self.min_left_words else {}

    def run(self, parts: Sequence[Part], out: StepOutput, cluster: Cluster) -> dict[str, Any]:
        search = RepeatSearch(RULE, self.input_text, self.min_bytes, self.min_left_words, parts, out, cluster)
        search.find(1)
        last = 1
        if self.min_left_words and any(search.over_parts(judge_documents, 1)):
            last = 2
            search.find(last)
        counts = search.over_parts(write_edits, last)
        return {name: sum(count[name] for count in counts) for name in ("substrings", "bytes", "dropped")}


def judge_documents(task: PartTask) -> int:
    """Find the documents of a part that lost text and have too few words left. Commits their rows, and
    returns their number.
    """
    unit = f"gone.{task.number:05d}"
    receipt = task.out.receipt(unit)
    if receipt is None:
        cuts = task.table(task.unit("cuts"), CUTS)
        rows = np.unique(cuts["row"].to_numpy())
        whole = task.part.table((task.text,), pa.array(rows))[task.text.name].combine_chunks()
        left = apply_edits(whole, _edits(cuts, task.part.rows).take(pa.array(rows)))
        gone = pa.table([pa.array(rows[_count_words(left) < task.min_left_words])], schema=GONE)
        receipt = task.out.commit(unit, {f"work/{unit}.arrow": write_table(gone)}, {"gone": len(gone)})
    return int(receipt.counts["gone"])


def _count_words(texts: pa.LargeStringArray) -> np.ndarray:
    from pipelines.kernels.text.buffers import text_buffers
    from pipelines.kernels.text.characters import classify
    from pipelines.kernels.text.words import find_words

    offsets, data = text_buffers(texts)
    return np.diff(np.searchsorted(find_words(offsets, data, classify(offsets, data)).starts, offsets))


def _edits(cuts: pa.Table, rows: int) -> pa.Array:
    same = [pa.array([value] * len(cuts), pa.string()) for value in ("", RULE)]
    columns = [cuts["start"].combine_chunks(), cuts["end"].combine_chunks(), *same]
    return _lists(cuts, rows, pa.StructArray.from_arrays(columns, fields=list(EDIT)))


def _lists(cuts: pa.Table, rows: int, values: pa.Array) -> pa.Array:
    """Group `values`, one for each cut, into one list per row. The cuts must be sorted by row."""
    bounds = np.searchsorted(cuts["row"].to_numpy(), np.arange(rows + 1)).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(bounds), values)


def write_edits(task: PartTask) -> dict[str, int]:
    """Commit the annotations of a part, unless they are already committed. Returns the number of cuts
    (`substrings`), the number of bytes cut (`bytes`) and the number of dropped documents (`dropped`).
    """
    unit = task.part.unit
    receipt = task.out.receipt(unit)
    if receipt is None:
        table, facts = _columns(task)
        counts = {**count_drops(table).facts(), "cuts": facts}
        receipt = task.out.commit(unit, {f"parts/{unit}.arrow": write_table(table)}, counts)
    return {**receipt.counts["cuts"], "dropped": sum(receipt.counts["dropped"].values())}


def _columns(task: PartTask) -> tuple[pa.Table, dict[str, int]]:
    part = task.part
    gone = np.zeros(part.rows, bool)
    gone[gone_rows(task)] = True
    cuts, before = (task.table(f"cuts{election}.{task.number:05d}", CUTS) for election in (task.election, 1))
    cuts = cuts.filter(pa.array(~gone[cuts["row"].to_numpy()])).combine_chunks()
    before = before.filter(pa.array(gone[before["row"].to_numpy()]))
    table = part.table((task.text, DROP))
    edits = _edits(cuts, part.rows)
    check_edits(table[task.text.name].combine_chunks(), edits)
    edits = part.in_stored_text(edits, task.text)
    drop = pc.if_else(pa.array(gone), f"{RULE}.few_words", pa.scalar(None, pa.string()))
    emptied = pa.array(part.emptied(edits))
    drop = pc.coalesce(drop, pc.if_else(emptied, f"{RULE}.{EMPTY}", pa.scalar(None, pa.string())))
    compete = pc.is_null(table[DROP]).to_numpy() & ~part.held_out()
    shown = pa.concat_tables([cuts, before]).sort_by([("row", "ascending"), ("start", "ascending")])
    written = pa.table([drop, edits, *_describe(shown, compete)], schema=_WRITTEN)
    sizes = cuts["end"].to_numpy() - cuts["start"].to_numpy()
    return written, {"substrings": len(cuts), "bytes": int(sizes.sum())}


def _describe(cuts: pa.Table, compete: np.ndarray) -> tuple[pa.Array, pa.Array, pa.Array]:
    """Return, for each row, the number of bytes removed, the winner of its longest cut, and the winners of
    all its cuts, null for a document that does not compete.
    """
    rows, lengths = cuts["row"].to_numpy(), cuts["end"].to_numpy() - cuts["start"].to_numpy()
    removed = np.bincount(rows, lengths, len(compete)).astype(np.int64)
    place = np.full(len(compete), -1, np.int64)
    backwards = np.lexsort((-np.arange(len(rows)), lengths))
    place[rows[backwards]] = backwards  # the last assignment counts: the longest, of equal ones the first
    ids = cuts["winner"].combine_chunks()
    winners = pc.if_else(pa.array(~compete), pa.scalar(None, pa.list_(ID)), _lists(cuts, len(compete), ids))
    return pa.array(removed, mask=~compete), ids.take(pa.array(place, mask=place < 0)), winners
