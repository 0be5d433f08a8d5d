"""Decontamination: find documents that contain items of evaluation sets, by shared n-grams of words.

Brown et al. 2020 (GPT-3, arXiv 2005.14165), appendix C, use n-grams of 8 to 13 words, lower-cased, without
punctuation, and ignore those in more than 10 training documents, "as inspection revealed the majority of
these to be common cultural phrases, legal boilerplate, or similar content that we likely do want the model to
learn".

Text is searched only once: the hits of each part are stored, the n-grams are counted over all parts, and then
the stored hits are scored.
"""

import functools
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gristmill.errors import UserError
from gristmill.storage.location import FileRecord
from pipelines.contracts.columns import DROP, EDITS_COLUMN, EMPTY
from pipelines.contracts.contamination.found_items import COLUMN, ITEMS, ITEMS_FILE, SPAN
from pipelines.contracts.document_counts import count_drops
from pipelines.contracts.edits import EDIT, EDITS
from pipelines.contracts.manifest import StepOutput, read_table, schema_facts, write_table
from pipelines.contracts.parts import Part
from pipelines.contracts.reads_text import MeasuresText
from pipelines.contracts.stage import Cluster, CorpusStage, gather
from pipelines.stages.lists.url_lists import checksums
from pipelines.stages.measure.evaluation_sets import FIELDS, EvaluationSet, Index, covered_words, index_sets

RULE = "decontaminate"
_HITS = pa.schema([("row", pa.int64()), ("start", pa.int64()), ("end", pa.int64()), ("ngram", pa.int32())])
_COUNTS = pa.schema([("ngram", pa.int32()), ("documents", pa.int64())])
_FOUND_TEXTS = pa.schema([("text", pa.int64())])


@dataclass(frozen=True)
class Decontaminate(MeasuresText, CorpusStage):
    """Measure how much of each evaluation item a document contains. Dropping documents by these measures is
    left to `filter`; `redact_at` removes the occurrences from the text.

    | column | unit | definition |
    |---|---|---|
    | contamination_prompt | 1 | the highest share of a prompt's words that lie in n-grams found in the document; 0 for none |
    | contamination_answer | 1 | the same for answers |
    | contamination_items | items | number of items found; of items with an equal text, only the first counts |
    | contamination | | the evidence: for every occurrence, its item, field, bytes [start, end) in the text read, and share |

    Words are those of pipelines/kernels/text/segment.py, in lower case. A text of an item is not searched for
    if it has fewer than `min_words` words. If it has fewer than `ngram` words, the whole text is one n-gram.

    N-grams in more than `common` texts of the sets are ignored: a word counts in shares only if it lies in
    another n-gram. A text is found in a document that contains at least one of its remaining n-grams, unless
    that n-gram occurs in more than `common` documents. Popular items are often copied, so a text of several
    n-grams is also found in a document that contains all of it, however common its n-grams are in documents.
    An item is found if one of its texts is. Documents that an earlier step dropped are measured and counted
    like any other.

    For each set, the facts count items, items found, distinct texts, repeated texts, and texts not searched
    for. The file `items.arrow` lists the texts that are searched for. `trainers evaluate` reads it together
    with the evidence, to show scores without the items that a corpus contains (docs/evaluation.md).
    """

    sets: tuple[EvaluationSet, ...]
    """The evaluation sets."""
    ngram: int = 13
    """Number of words in an n-gram (GPT-3: at most 13)."""
    min_words: int = 8
    """Texts of fewer words are not searched for (GPT-3: 8)."""
    common: int = 10
    """An n-gram in more than this many documents, or in more than this many texts of the sets, is a common
    phrase and by itself not evidence (GPT-3).
    """
    redact_at: float | None = None
    """Remove the occurrences of texts whose share is at least this, as `edits` with the rule `decontaminate`.
    A document that becomes empty is dropped as `decontaminate.empty`.
    """

    version: ClassVar[int] = 5
    paths: ClassVar[tuple[str, ...]] = ("sets",)

    def check(self) -> None:
        super().check()
        if not self.sets:
            raise ValueError("sets: got an empty list, expected at least one evaluation set")
        names = [each.name for each in self.sets]
        if len(set(names)) < len(names):
            raise ValueError(f"sets: got the names {', '.join(names)}, expected unique names")
        if not 1 <= self.min_words <= self.ngram:
            raise ValueError(f"min_words: got {self.min_words}, expected 1 to ngram, {self.ngram}")
        if self.common < 1:
            raise ValueError(f"common: got {self.common}, expected 1 or more")
        if self.redact_at is not None and not 0 < self.redact_at <= 1:
            raise ValueError(f"redact_at: got {self.redact_at}, expected more than 0 and at most 1")

    def writes(self) -> pa.Schema:
        scores = [(f"contamination_{field}", pa.float32()) for field in FIELDS]
        measured = [*scores, ("contamination_items", pa.int32()), (COLUMN, pa.list_(SPAN))]
        columns = list(self.named(pa.schema(measured)))
        return pa.schema(
            [*columns, *([(DROP, pa.string()), (EDITS_COLUMN, EDITS)] if self.redact_at is not None else [])]
        )

    def depends(self) -> dict[str, str]:
        from pipelines.kernels.text.tables import unicode_version

        files = {_described(each): self._checksums[each.file] for each in self.sets}
        return unicode_version() | {"sets": ", ".join(each.name for each in self.sets)} | files

    @functools.cached_property
    def _checksums(self) -> dict[str, str]:
        return _checksums(self)

    def run(self, parts: Sequence[Part], out: StepOutput, cluster: Cluster) -> dict[str, Any]:
        if _checksums(self) != self._checksums:
            raise UserError(f"{RULE}: a set changed after the build was planned; restore it, or run the command again")

        def over_parts(function: Any, inputs: Sequence[FileRecord]) -> list[Any]:
            tasks = [_PartTask(self, out, part, number, tuple(inputs)) for number, part in enumerate(parts)]
            return gather(cluster, function, tasks, lambda task: f"{RULE}: part {task.part.name}")

        counts = over_parts(find_items, ())
        tally = next(
            iter(cluster.map(count_ngrams, [_TallyTask(self, out, tuple(counts))], lambda _: f"{RULE}: counts"))
        )
        common, searched = tally[1]
        found_texts = over_parts(score_documents, [common])
        facts = _facts(self, [_table(out, record, _FOUND_TEXTS) for record in found_texts])
        return {"sets": facts, "redact_at": self.redact_at, "files": [asdict(searched)]}


def _described(each: EvaluationSet) -> str:
    fields = f"{each.name}: {', '.join(each.prompts)}; {', '.join(each.answers)}"
    return fields if each.ids is None else f"{fields}; {each.ids}"


def _checksums(stage: Decontaminate) -> dict[str, str]:
    files = [each.file for each in stage.sets]
    return dict(zip(files, checksums("sets", files).values(), strict=True))


def _index(stage: Decontaminate) -> Index:
    return _load_index(stage.sets, stage.ngram, stage.min_words, stage.common, tuple(stage._checksums.values()))


@functools.lru_cache(maxsize=1)
def _load_index(
    sets: tuple[EvaluationSet, ...], ngram: int, min_words: int, common: int, checksums: tuple[str, ...]
) -> Index:
    return index_sets(sets, ngram, min_words, common)


def _table(out: StepOutput, record: FileRecord, schema: pa.Schema) -> pa.Table:
    return read_table(out.directory, record, schema.names, schema_facts(schema))


def _facts(stage: Decontaminate, found_texts: Sequence[pa.Table]) -> dict[str, dict[str, int]]:
    index = _index(stage)
    found = {text for table in found_texts for text in table["text"].to_pylist()}
    items = {index.names[text] for text in found} | {item for item, text in index.copies if text in found}
    facts = {name: {**fact, "items_found": 0} for name, fact in index.facts.items()}
    for item in items:
        facts[item.partition("#")[0]]["items_found"] += 1
    return facts


@dataclass(frozen=True)
class _PartTask:
    stage: Decontaminate
    out: StepOutput
    part: Part
    number: int
    inputs: tuple[FileRecord, ...]


def find_items(task: _PartTask) -> FileRecord:
    """Commit the occurrences of the evaluation sets' n-grams in a part, and the number of documents in the
    part that contain each n-gram. Returns the file of document counts.
    """
    unit = f"hits.{task.number:05d}"
    receipt = task.out.receipt(unit)
    if receipt is None:
        hits = pa.concat_tables([_HITS.empty_table(), *_hits(task)]).combine_chunks()
        document_ngrams = np.unique(hits["ngram"].to_numpy() * np.int64(task.part.rows + 1) + hits["row"].to_numpy())
        ngrams, documents = np.unique(document_ngrams // (task.part.rows + 1), return_counts=True)
        counts = pa.table([pa.array(ngrams.astype(np.int32)), pa.array(documents.astype(np.int64))], schema=_COUNTS)
        files = {f"work/counts-{task.number:05d}.arrow": counts, f"work/{unit}.arrow": hits}
        receipt = task.out.commit(unit, {path: write_table(table) for path, table in files.items()}, {})
    return receipt.files[0]


def _hits(task: _PartTask) -> list[pa.Table]:
    from pipelines.kernels.signals.ngrams import find_ngrams, hash_words
    from pipelines.kernels.text.buffers import blocks, text_buffers
    from pipelines.kernels.text.characters import classify
    from pipelines.kernels.text.words import find_words

    index, tables = _index(task.stage), []
    for first, _, offsets, data in blocks(*text_buffers(task.part.table((task.stage.input_text,))[task.stage.text])):
        words = find_words(offsets, data, classify(offsets, data))
        hits = find_ngrams(hash_words(data, words), words.offsets, index.table)
        documents = np.searchsorted(words.offsets, hits.words, side="right") - 1
        starts, ends = words.starts[hits.words], words.ends[hits.words + hits.lengths - 1]
        base = offsets[documents]
        columns = [first + documents, starts - base, ends - base, hits.ngrams]
        tables.append(pa.table(list(map(pa.array, columns)), schema=_HITS))
    return tables


@dataclass(frozen=True)
class _TallyTask:
    stage: Decontaminate
    out: StepOutput
    files: tuple[FileRecord, ...]


def count_ngrams(task: _TallyTask) -> tuple[FileRecord, FileRecord]:
    """Commit two files and return them: the n-grams that occur in more than `stage.common` documents, with
    their document counts, and the texts of evaluation sets that are searched for.
    """
    receipt = task.out.receipt("common")
    if receipt is None:
        index = _index(task.stage)
        documents = np.zeros(len(index.table.keys), np.int64)
        for record in task.files:
            table = _table(task.out, record, _COUNTS)
            documents[table["ngram"].to_numpy()] += table["documents"].to_numpy()
        common = np.flatnonzero(documents > task.stage.common)
        table = pa.table([pa.array(common.astype(np.int32)), pa.array(documents[common])], schema=_COUNTS)
        files = {"work/common.arrow": write_table(table), ITEMS_FILE: write_table(_searched(index))}
        receipt = task.out.commit("common", files, {})
    return receipt.files[0], receipt.files[1]


def _searched(index: Index) -> pa.Table:
    """Return a table of the texts that are searched for, with their copies: those with at least one n-gram in
    the index.
    """
    named = [*zip(index.names, range(len(index.names)), strict=True), *index.copies]
    rows = [(name, FIELDS[index.fields[text]], index.names[text]) for name, text in named if index.counts[text]]
    columns = zip(*rows, strict=True) if rows else ((), (), ())
    return pa.table([pa.array(column, pa.string()) for column in columns], schema=ITEMS)


@dataclass(frozen=True)
class _Finds:
    """The finds of a part: the texts of the index that were found in each of its documents, sorted by
    document, then by text. Find number i is the text `texts[i]` in the document `rows[i]`, with the score
    `scores[i]`. Occurrence j is the range of bytes [`starts[j]`, `ends[j]`) in the document, and belongs to
    find number `find[j]`.
    """

    rows: np.ndarray
    texts: np.ndarray
    scores: np.ndarray
    find: np.ndarray  # of each occurrence, ascending
    starts: np.ndarray
    ends: np.ndarray


def score_documents(task: _PartTask) -> FileRecord:
    """Commit the step's columns for a part. Returns the record of the file that lists the texts of evaluation
    sets found in the part.
    """
    unit = task.part.unit
    receipt = task.out.receipt(unit)
    if receipt is None:
        index = _index(task.stage)
        counted = task.out.receipt(f"hits.{task.number:05d}")
        assert counted is not None
        hits = _table(task.out, counted.files[1], _HITS)
        common = _table(task.out, task.inputs[0], _COUNTS)["ngram"].to_numpy()
        rows, starts, ends, ngrams = (hits[name].to_numpy() for name in _HITS.names)
        finds = find_texts(index, rows, starts, ends, ngrams, common)
        table = _columns(task.stage, index, finds, task.part)
        found_texts = pa.table([pa.array(np.unique(finds.texts), pa.int64())], schema=_FOUND_TEXTS)
        files = {f"parts/{unit}.arrow": write_table(table), f"work/found-{unit}.arrow": write_table(found_texts)}
        receipt = task.out.commit(unit, files, count_drops(table).facts())
    return receipt.files[1]


def find_texts(
    index: Index, rows: np.ndarray, starts: np.ndarray, ends: np.ndarray, ngrams: np.ndarray, common: np.ndarray
) -> _Finds:
    """Find the evaluation texts in each document, keeping those with sufficient evidence. Occurrence i is the
    n-gram `ngrams[i]` in the bytes [`starts[i]`, `ends[i]`) of document `rows[i]`; `common` lists the n-grams
    that occur in too many documents.

    The evidence is sufficient if at least one of the n-grams found is not in `common`, or if the text has
    several n-grams and those found cover as many words as all of them.
    """
    many = index.bounds[ngrams + 1] - index.bounds[ngrams]
    hit = np.repeat(np.arange(len(ngrams)), many)
    posting = np.arange(len(hit)) + np.repeat(index.bounds[ngrams] - np.cumsum(many) + many, many)
    order = np.lexsort((starts[hit], index.texts[posting], rows[hit]))
    hit, posting = hit[order], posting[order]
    row, text = rows[hit], index.texts[posting]
    new = np.append(True, (row[1:] != row[:-1]) | (text[1:] != text[:-1]))[: len(hit)]
    group, count, texts = np.cumsum(new) - 1, int(new.sum()), text[new]
    rare = np.bincount(group[~np.isin(ngrams[hit], common)], minlength=count) > 0
    # Each distinct n-gram of a text is taken once, with its first position in the text.
    one = np.unique(group * len(index.texts) + posting)
    groups, postings = (one // len(index.texts), one % len(index.texts)) if len(one) else (one, one)
    covered = covered_words(groups, index.positions[postings], index.lengths[texts], count)
    complete = (covered == index.words[texts]) & (index.counts[texts] > 1)
    # Overlapping occurrences are merged.
    first = np.flatnonzero(new | np.append(True, starts[hit][1:] > ends[hit][:-1])[: len(hit)])
    last = np.append(first[1:], len(hit))[: len(first)] - 1
    is_evidence = rare | complete
    number, kept = np.cumsum(is_evidence) - 1, is_evidence[group[first]]
    scores = (covered / np.maximum(index.words[texts], 1)).astype(np.float32)
    occurrences = (number[group[first]][kept], starts[hit][first][kept], ends[hit][last][kept])
    return _Finds(row[new][is_evidence], texts[is_evidence], scores[is_evidence], *occurrences)


def _columns(stage: Decontaminate, index: Index, finds: _Finds, part: Part) -> pa.Table:
    rows = part.rows
    columns: list[Any] = []
    for field in range(len(FIELDS)):
        score, of_field = np.zeros(rows, np.float32), index.fields[finds.texts] == field
        np.maximum.at(score, finds.rows[of_field], finds.scores[of_field])
        columns.append(pa.array(score))
    names, items = np.unique(np.array(index.names, dtype=str), return_inverse=True)
    different = np.unique(finds.rows * (len(names) + 1) + items[finds.texts]) // (len(names) + 1)
    columns.append(pa.array(np.bincount(different, minlength=rows).astype(np.int32)))
    owner, text = finds.rows[finds.find], finds.texts[finds.find]
    spans = [
        pa.array([index.names[t] for t in text.tolist()], pa.string()),
        pa.array([FIELDS[f] for f in index.fields[text].tolist()], pa.string()),
        pa.array(finds.starts),
        pa.array(finds.ends),
        pa.array(finds.scores[finds.find]),
    ]
    columns.append(_lists(owner, rows, pa.StructArray.from_arrays(spans, fields=list(SPAN))))
    if stage.redact_at is not None:
        edits = part.in_stored_text(_redactions(finds, rows, np.float32(stage.redact_at)), stage.input_text)
        drop = pc.if_else(pa.array(part.emptied(edits)), f"{RULE}.{EMPTY}", pa.scalar(None, pa.string()))
        columns += [drop, edits]
    return pa.table(columns, schema=stage.writes())


def _lists(owners: np.ndarray, rows: int, values: pa.Array) -> pa.Array:
    """Group values into one list per row. `owners` contains the row of each value, in ascending order."""
    return pa.ListArray.from_arrays(pa.array(np.searchsorted(owners, np.arange(rows + 1)).astype(np.int32)), values)


def _redactions(finds: _Finds, rows: int, min_share: np.float32) -> pa.Array:
    """Return edits that remove the occurrences of texts whose score is at least `min_share`."""
    reaches = finds.scores[finds.find] >= min_share
    owners, starts, ends = finds.rows[finds.find][reaches], finds.starts[reaches], finds.ends[reaches]
    order = np.lexsort((starts, owners))
    owners, starts, ends = owners[order], starts[order], ends[order]
    reach = np.zeros(len(ends), np.int64)
    for k in range(len(ends)):
        before = reach[k - 1] if k and owners[k] == owners[k - 1] else 0
        reach[k] = max(ends[k], before)
    new = np.append(True, (owners[1:] != owners[:-1]) | (starts[1:] > reach[:-1]))[: len(ends)]
    first = np.flatnonzero(new)
    last = np.append(first[1:], len(ends))[: len(first)] - 1
    same = [pa.array([value] * len(first), pa.string()) for value in ("", RULE)]
    columns = [pa.array(starts[first]), pa.array(reach[last]), *same]
    return _lists(owners[first], rows, pa.StructArray.from_arrays(columns, fields=list(EDIT)))
