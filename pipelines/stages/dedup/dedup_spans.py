"""Deduplication of lines, paragraphs and sentences: keep only the first occurrence of a span that occurs more
than once in the corpus.

Raffel et al. 2020 (C4, arXiv 1910.10683), section 2.2: "we discarded all but one of any three-sentence span
occurring more than once in the data set". Wenzek et al. 2020 (CCNet, arXiv 1911.00359), section 3, do the
same with paragraphs.

Spans are compared by the 64-bit hash of their normalised text: of n distinct spans, about n^2 / 2^65 pairs
collide by chance, 3 pairs for 10 billion spans. Each part sends each of its hashes once, with its part
number, to the partition of the hash, so frequent spans do not make partitions large. The part with the lowest
number has the first occurrence. Documents with too little text left are dropped. A dropped document may have
held the first occurrence of a span, so the first occurrences are determined again among the remaining
documents. The second round can only keep more text than the first, so it drops no further documents.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gristmill.storage.location import FileRecord
from pipelines.cluster.shuffle import FileList, partitions_for, scatter_rows, write_list
from pipelines.contracts.columns import DROP, EDITS_COLUMN, EMPTY
from pipelines.contracts.document_counts import count_drops
from pipelines.contracts.edits import EDIT, EDITS, check_edits, map_back
from pipelines.contracts.manifest import StepOutput, read_table, schema_facts, write_table
from pipelines.contracts.parts import Part
from pipelines.contracts.reads import Drop, GivenSplits, Input
from pipelines.contracts.reads_text import ReadsText
from pipelines.contracts.stage import Cluster, CorpusStage, gather

if TYPE_CHECKING:
    from pipelines.kernels.search.spans import Units

_BYTES_PER_SPAN = 100  # estimate for ordinary text; affects only the number of partitions
_SPANS = pa.schema(
    [("row", pa.int64()), ("start", pa.int64()), ("end", pa.int64()), ("feed", pa.int64()), ("words", pa.int64())]
)
_WINDOWS = pa.schema([("first", pa.int64()), ("hash", pa.uint64())])
_VOTES = pa.schema([("hash", pa.uint64()), ("part", pa.int64())])
_RESULTS = pa.schema([("hash", pa.uint64()), ("won", pa.bool_())])


@dataclass(frozen=True)
class DedupSpans(ReadsText, CorpusStage):
    """Remove, by `edits`, every later occurrence of a span: a line, paragraph or sentence, or a window of
    several.

    Spans are compared unit by unit, as `" ".join(unit.lower().split())`. The first of equal spans is kept, in
    the order of sources, files, records and positions in the text. Documents that an earlier step dropped do
    not compete, nor do documents in their source's own validation or test split. Every removed unit still
    occurs in a kept document. Where windows overlap, each one that repeats an earlier window is removed. An
    edit's rule is `dedup_spans.` followed by the unit.

    A document that lost units and has fewer than `min_left_words` words left is dropped as
    `dedup_spans.UNIT.few_words`, and its spans do not count as occurrences. This step must therefore follow
    all other steps that drop: a later step could drop the document with the only copy. If `min_left_words` is
    0, a document that loses all its text is dropped as `dedup_spans.UNIT.empty`. Columns for the unit `line`:
    `lines_removed` and `words_left_by_line`; the other units have columns of the same form.
    """

    unit: Literal["line", "paragraph", "sentence"]
    """The unit of spans, as defined in pipelines/kernels/text/segment.py."""
    window: int = 1
    """Neighbouring units per span; C4 uses 3 sentences. A document with fewer units is one span."""
    min_words: int = 1
    """Spans of fewer words do not count as repeats."""
    min_left_words: int = 50
    """Minimum number of words left in a document that lost units (50 in datatrove's sentence deduplication);
    with 0, only documents that become empty are dropped, as `dedup_spans.UNIT.empty`.
    """
    text: str = field(default="edited_text", kw_only=True)
    """The text whose spans are compared: `text`, `text@STEP` or `edited_text`."""

    version: ClassVar[int] = 3
    elects: ClassVar[bool] = True
    keeps_spans: ClassVar[bool] = True

    @property
    def drops_only_emptied(self) -> bool:
        return self.min_left_words == 0

    def check(self) -> None:
        for name, minimum in (("window", 1), ("min_words", 1), ("min_left_words", 0)):
            if getattr(self, name) < minimum:
                raise ValueError(f"{name}: got {getattr(self, name)}, expected {minimum} or more")
        super().check()

    @property
    def rule(self) -> str:
        """The rule of the step's edits. Rules of dropped documents add a suffix to it."""
        return f"dedup_spans.{self.unit}"

    def reads(self) -> tuple[Input, ...]:
        return (self.input_text, Drop(), GivenSplits())

    def writes(self) -> pa.Schema:
        """Return `drop`, `edits`, the number of removed units, and the number of words left. Both counts are
        null if a document did not compete. A document dropped because too few words are left gets no edits,
        but its counts show why it was dropped.
        """
        counts = [(f"{self.unit}s_removed", pa.int32()), (f"words_left_by_{self.unit}", pa.int32())]
        return pa.schema([(DROP, pa.string()), (EDITS_COLUMN, EDITS), *counts])

    def depends(self) -> dict[str, str]:
        from pipelines.kernels.text.tables import unicode_version

        return unicode_version()

    def run(self, parts: Sequence[Part], out: StepOutput, cluster: Cluster) -> dict[str, Any]:
        partitions = partitions_for(sum(part.text_bytes for part in parts) // _BYTES_PER_SPAN)

        def over_parts(function: Any, *inputs: FileList) -> list[Any]:
            tasks = [_PartTask(self, out, part, number, inputs, partitions) for number, part in enumerate(parts)]
            return gather(cluster, function, tasks, lambda task: f"{self.rule}: part {task.part.name}")

        def elect(votes: Sequence[FileRecord], name: str) -> FileList:
            listed = write_list(out, f"votes-for-{name}", votes)
            tasks = [_Election(out, listed, partition, len(parts), name) for partition in range(partitions)]
            label = f"{self.rule}: partition"
            elected = gather(cluster, elect_firsts, tasks, lambda task: f"{label} {task.partition}")
            return write_list(out, name, elected)

        results = [elect(over_parts(measure_spans), "firsts")]
        if self.min_left_words:
            results.append(elect(over_parts(vote_again, *results), "seconds"))
        counts = over_parts(write_edits, *results)
        return {name: sum(count[name] for count in counts) for name in ("units", "removed", "dropped")}


@dataclass(frozen=True)
class _PartTask:
    stage: DedupSpans
    out: StepOutput
    part: Part
    number: int
    inputs: tuple[FileList, ...]
    partitions: int


def measure_spans(task: _PartTask) -> FileRecord:
    """Commit the units and windows of a part, and the distinct hashes of its windows, grouped by partition.
    Returns the file of the hashes.
    """
    unit = f"spans.{task.number:05d}"
    receipt = task.out.receipt(unit)
    if receipt is None:
        spans, windows = _find_spans(task)
        files = {
            f"work/votes-{task.number:05d}.arrow": _votes(task, np.unique(windows["hash"].to_numpy())),
            f"work/{unit}.arrow": write_table(spans),
            f"work/windows-{task.number:05d}.arrow": write_table(windows),
        }
        receipt = task.out.commit(unit, files, {})
    return receipt.files[0]


def _find_spans(task: _PartTask) -> tuple[pa.Table, pa.Table]:
    """Return the units of a part's competing documents in order, and the windows of at least `min_words`
    words.
    """
    from pipelines.kernels.search.spans import find_units, hash_windows
    from pipelines.kernels.text.buffers import blocks, text_buffers

    stage = task.stage
    table = task.part.table((stage.input_text, DROP))
    rows = np.flatnonzero(pc.is_null(table[DROP]).to_numpy() & ~task.part.held_out())
    spans, windows, count = [_SPANS.empty_table()], [_WINDOWS.empty_table()], 0
    for begin, _, offsets, data in blocks(*text_buffers(table[stage.text].take(pa.array(rows)))):
        units = find_units(offsets, data, stage.unit)
        firsts, hashes = hash_windows(units.hashes, units.documents, stage.window)
        long_enough = _window_words(units, firsts, stage.window) >= stage.min_words
        columns = [rows[begin + units.documents], units.starts, units.ends, units.feeds, units.words]
        spans.append(pa.table(list(map(pa.array, columns)), schema=_SPANS))
        columns = [count + firsts[long_enough], hashes[long_enough]]
        windows.append(pa.table(list(map(pa.array, columns)), schema=_WINDOWS))
        count += len(units.starts)
    return pa.concat_tables(spans).combine_chunks(), pa.concat_tables(windows).combine_chunks()


def _window_words(units: "Units", firsts: np.ndarray, size: int) -> np.ndarray:
    before = np.concatenate([[0], np.cumsum(units.words)])
    return before[_window_ends(units.documents, firsts, size)] - before[firsts]


def _window_ends(documents: np.ndarray, firsts: np.ndarray, size: int) -> np.ndarray:
    """Return the exclusive end of each window, int64 [windows]. Windows are cut at the end of their document."""
    return np.minimum(firsts + size, np.searchsorted(documents, documents[firsts], side="right"))


def _votes(task: _PartTask, hashes: np.ndarray) -> Any:
    table = pa.table([pa.array(hashes), pa.array(np.full(len(hashes), task.number, np.int64))], schema=_VOTES)
    partition = (hashes % np.uint64(task.partitions)).astype(np.int64)
    return scatter_rows(table, partition, task.partitions)


@dataclass(frozen=True)
class _Election:
    out: StepOutput
    files: FileList
    partition: int
    parts: int
    name: str


def elect_firsts(task: _Election) -> FileRecord:
    """Commit the hashes of a partition that occur in several parts, grouped by part. A flag says whether the
    part is the first one with the hash.
    """
    unit = f"{task.name}.{task.partition:05d}"
    receipt = task.out.receipt(unit)
    if receipt is None:
        votes = task.files.gather_rows(task.partition)
        hashes, parts = votes["hash"].to_numpy(), votes["part"].to_numpy()
        order = np.lexsort((parts, hashes))
        hashes, parts = hashes[order], parts[order]
        same = hashes[1:] == hashes[:-1]
        won, shared = np.append(True, ~same)[: len(hashes)], np.zeros(len(hashes), bool)
        shared[1:] |= same
        shared[:-1] |= same
        table = pa.table([pa.array(hashes[shared]), pa.array(won[shared])], schema=_RESULTS)
        receipt = task.out.commit(unit, {f"work/{unit}.arrow": scatter_rows(table, parts[shared], task.parts)}, {})
    return receipt.files[0]


@dataclass(frozen=True)
class _Spans:
    """The outcome of an election for a part: the `table` of its units of text, which of them are removed
    (bool [units]), and which documents are dropped (`gone`, bool [rows]).
    """

    table: pa.Table
    removed: np.ndarray
    gone: np.ndarray


def vote_again(task: _PartTask) -> FileRecord:
    """Commit a part's votes for the second election, grouped by partition. The votes are hashes of windows in
    documents of this part that the first election does not drop, limited to hashes that the first election
    found in several parts.
    """
    unit = f"votes2.{task.number:05d}"
    receipt = task.out.receipt(unit)
    if receipt is None:
        spans, windows = _measured(task)
        results = task.inputs[0].gather_rows(task.number)
        first = _judge(task, spans, windows, results, np.zeros(task.part.rows, bool))
        hashes = windows["hash"].to_numpy()[~first.gone[_rows(spans)[windows["first"].to_numpy()]]]
        shared = np.intersect1d(hashes, results["hash"].to_numpy())
        receipt = task.out.commit(unit, {f"work/{unit}.arrow": _votes(task, shared)}, {})
    return receipt.files[0]


def _measured(task: _PartTask) -> tuple[pa.Table, pa.Table]:
    receipt = task.out.receipt(f"spans.{task.number:05d}")
    assert receipt is not None
    _, *files = receipt.files
    spans, windows = (
        read_table(task.out.directory, file, schema.names, schema_facts(schema))
        for file, schema in zip(files, (_SPANS, _WINDOWS), strict=True)
    )
    return spans, windows


def _rows(spans: pa.Table) -> np.ndarray:
    return spans["row"].to_numpy()


def _judge(task: _PartTask, spans: pa.Table, windows: pa.Table, results: pa.Table, out: np.ndarray) -> _Spans:
    """Return which units an election removes from the documents of a part, and which documents are dropped.
    The documents marked in `out` (bool [rows]) are already dropped and lose no units.
    """
    stage, rows = task.stage, _rows(spans)
    firsts, hashes = windows["first"].to_numpy(), windows["hash"].to_numpy()
    stay = ~out[rows[firsts]]
    firsts, hashes = firsts[stay], hashes[stay]
    lost = results["hash"].to_numpy()[~results["won"].to_numpy(zero_copy_only=False)]
    later = np.ones(len(hashes), bool)
    later[np.unique(hashes, return_index=True)[1]] = False
    later |= np.isin(hashes, lost)
    # A unit is removed if more removed windows have begun than ended.
    change = np.zeros(len(rows) + 1, np.int64)
    np.add.at(change, firsts[later], 1)
    np.add.at(change, _window_ends(rows, firsts[later], stage.window), -1)
    removed = np.cumsum(change[:-1]) > 0
    left = np.bincount(rows, spans["words"].to_numpy() * ~removed, task.part.rows)
    touched = np.bincount(rows, removed, task.part.rows) > 0
    return _Spans(spans, removed, out | (touched & (left < stage.min_left_words)))


def write_edits(task: _PartTask) -> dict[str, int]:
    """Commit the columns of a part, and return its counts: `units`, `removed` (units) and `dropped`
    (documents).
    """
    unit = task.part.unit
    receipt = task.out.receipt(unit)
    if receipt is None:
        table, facts = _columns(task)
        counts = {**count_drops(table).facts(), "spans": facts}
        receipt = task.out.commit(unit, {f"parts/{unit}.arrow": write_table(table)}, counts)
    return {**receipt.counts["spans"], "dropped": sum(receipt.counts["dropped"].values())}


def _columns(task: _PartTask) -> tuple[pa.Table, dict[str, int]]:
    stage, part = task.stage, task.part
    spans, windows = _measured(task)
    first = task.inputs[0].gather_rows(task.number)
    after = before = _judge(task, spans, windows, first, np.zeros(part.rows, bool))
    if stage.min_left_words:
        after = _judge(task, spans, windows, task.inputs[1].gather_rows(task.number), before.gone)
        assert (after.gone == before.gone).all(), "a document lost more to fewer rivals"
    text = part.table((stage.input_text, DROP))
    compete = pc.is_null(text[DROP]).to_numpy() & ~part.held_out()
    rows, words = _rows(spans), spans["words"].to_numpy()
    shown = np.where(before.gone[rows], before.removed, after.removed)
    removed, left = np.bincount(rows, shown, part.rows), np.bincount(rows, words * ~shown, part.rows)
    edits = _edits(stage, part, _Spans(spans, after.removed, after.gone), text[stage.text])
    drop = pc.if_else(pa.array(after.gone), f"{stage.rule}.few_words", pa.scalar(None, pa.string()))
    emptied = pa.array(part.emptied(edits))
    drop = pc.coalesce(drop, pc.if_else(emptied, f"{stage.rule}.{EMPTY}", pa.scalar(None, pa.string())))
    counts = [pa.array(values.astype(np.int32), mask=~compete) for values in (removed, left)]
    table = pa.table([drop, edits, *counts], schema=stage.writes())
    return table, {"units": len(rows), "removed": int(after.removed.sum())}


def _edits(stage: DedupSpans, part: Part, spans: _Spans, text: pa.ChunkedArray) -> pa.Array:
    """Return the edits of each document of a part, with positions in the stored text."""
    column = text.chunk(0) if text.num_chunks == 1 else text.combine_chunks()
    lengths = pc.binary_length(column).to_numpy().astype(np.int64)
    rows, starts, ends = _cuts(spans, lengths)
    columns = [
        pa.array(starts),
        pa.array(ends),
        pa.array([""] * len(rows), pa.string()),
        pa.array([stage.rule] * len(rows), pa.string()),
    ]
    bounds = pa.array(np.searchsorted(rows, np.arange(part.rows + 1)).astype(np.int32))
    edits = pa.ListArray.from_arrays(bounds, pa.StructArray.from_arrays(columns, fields=list(EDIT)))
    check_edits(column, edits)
    applied = part.edits_of(stage.input_text)
    if applied is None or not len(rows):
        return edits
    touched = np.unique(rows)
    mapped = map_back(applied.take(pa.array(touched)), edits.take(pa.array(touched)))
    sizes = np.zeros(part.rows, np.int64)
    sizes[touched] = pc.list_value_length(mapped).to_numpy()
    bounds = pa.array(np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32))
    return pa.ListArray.from_arrays(bounds, mapped.flatten())


def _cuts(spans: _Spans, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the rows, starts and ends of the cuts, one for each run of removed units. A cut includes white
    space next to its run, so that the rest keeps its layout.
    """
    rows, starts, ends, feeds = (spans.table[name].to_numpy() for name in ("row", "start", "end", "feed"))
    if not len(rows):
        return rows, starts, ends
    first = np.append(True, rows[1:] != rows[:-1])  # whether a unit is the first of its document
    last = np.append(first[1:], True)
    removed = spans.removed
    opens = np.flatnonzero(removed & (first | ~np.append(False, removed[:-1])))
    closes = np.flatnonzero(removed & (last | ~np.append(removed[1:], False)))
    lines = first[opens] | ((feeds[opens] >= 0) & ~last[closes])
    following = np.minimum(closes + 1, len(rows) - 1)
    next_line = np.where(feeds[following] >= 0, feeds[following], starts[following])
    low = np.where(first[opens], 0, np.where(lines, feeds[opens], ends[opens - 1]))
    high = np.where(last[closes], lengths[rows[closes]], np.where(lines, next_line, ends[closes]))
    return rows[opens], low, high
