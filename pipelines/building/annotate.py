"""Run part stages on a worker. A task reads the text of one part of a source once, runs several stages over
it, and writes one annotation file per stage.
"""

import time
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from gristmill.budget import MODELS, spend
from gristmill.errors import PoisonError, StorageError, UserError
from gristmill.libraries.provenance import check_code
from pipelines.building.bisect import Probe, first_failing
from pipelines.contracts.columns import DROP, EDITS_COLUMN, EMPTY
from pipelines.contracts.document_counts import count_drops
from pipelines.contracts.edits import check_edits
from pipelines.contracts.manifest import Receipt, StepOutput, schema_facts, write_table
from pipelines.contracts.parts import DOCUMENT_COLUMNS, Annotation, Part
from pipelines.contracts.reads import Text
from pipelines.contracts.stage import PartStage, StageOutputError, annotate_checked
from pipelines.planning.poison import unwrapped


@dataclass(frozen=True)
class StageWork:
    """One stage's share of a task. If `where` is given, the stage receives only the documents that the steps
    up to and including `where` keep. `visible` lists the steps whose columns the stage may read. `code` is
    the result of `provenance` on the machine that planned the build.
    """

    name: str
    key: str
    stage: PartStage
    where: str | None
    visible: tuple[str, ...]
    out: StepOutput
    code: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class AnnotateTask:
    """One task: the stages to run over one part, each after the stages whose columns it reads."""

    part: Part
    works: tuple[StageWork, ...]

    @property
    def gpus(self) -> float:
        """The number of GPUs that pipelines.cluster.ray reserves for this task: the most that any of its
        stages asks for.
        """
        return max(work.stage.gpus() for work in self.works)


_NOT_OF_A_DOCUMENT = (UserError, StorageError, OSError, MemoryError, ImportError)  # errors that no document causes
_READY: dict[
    str, PartStage
] = {}  # stages after setup(), by step directory, so that a worker process loads a model only once


def annotate_documents(task: AnnotateTask) -> tuple[dict[str, Receipt], dict[str, float]]:
    """Run the stages of a task over the task's part, and commit the columns of each. Stages whose columns are
    already committed are not run again. Returns (receipts, seconds that each stage took), both keyed by step
    directory.
    """
    part, receipts, seconds = task.part, {}, {}
    available = {annotation.step: annotation for annotation in part.annotations}
    part = replace(part, loaded=part.table(DOCUMENT_COLUMNS))
    for work in task.works:
        started = time.perf_counter()
        unit = part.unit
        receipt = work.out.receipt(unit)
        table = None
        if receipt is None:
            view = replace(part, annotations=tuple(available[name] for name in work.visible))
            table = _run_stage(work, view)
            receipt = work.out.commit(unit, {f"parts/{unit}.arrow": write_table(table)}, count_drops(table).facts())
        available[work.name] = Annotation(
            work.name, work.out.directory, receipt.files[0], schema_facts(work.stage.writes()), table
        )
        receipts[work.out.name] = receipt
        seconds[work.out.name] = time.perf_counter() - started
    return receipts, seconds


def annotate_rows(probe: Probe) -> None:
    """Run the stage of a probe over the probe's rows, and discard the output. The task's earlier stages must
    have committed their columns.
    """
    part, work = probe.task.part, probe.task.works[probe.stage]
    available = {annotation.step: annotation for annotation in part.annotations}
    for earlier in probe.task.works[: probe.stage]:
        receipt = earlier.out.receipt(part.unit)
        assert receipt is not None, f"{earlier.name}: the step before the one that breaks has committed"
        facts = schema_facts(earlier.stage.writes())
        available[earlier.name] = Annotation(earlier.name, earlier.out.directory, receipt.files[0], facts)
    view = replace(part, annotations=tuple(available[name] for name in work.visible))
    stage, docs, _ = _ready(work, view, probe.low, probe.high)
    if docs.num_rows:
        _annotate(stage, docs)


def _ready(work: StageWork, part: Part, low: int = 0, high: int | None = None) -> tuple[PartStage, pa.Table, Any]:
    """Return (stage, documents, rows). The stage is set up once per process. `documents` are those documents
    of the part that the stage receives. `rows` contains the indices of their rows, or is None if the stage
    receives all documents. With `high`, only the rows [low, high) are considered, and the indices count from
    `low`.
    """
    stage = _READY.get(work.key)
    if stage is None:
        stage = work.stage
        check_code(work.name, unwrapped(work.stage), work.code)
        with spend(MODELS):
            stage.setup()
        _READY[work.key] = stage
    docs = part.table(("id", *stage.read_columns()))
    if high is not None:
        docs = docs.slice(low, high - low).combine_chunks()
    if work.where is None:
        return stage, docs, None
    kept = pc.is_null(part.drop(work.where))
    rows = pc.indices_nonzero(kept if high is None else kept.slice(low, high - low))
    return stage, docs.take(rows).combine_chunks(), rows


def _run_stage(work: StageWork, part: Part) -> pa.Table:
    """Run a stage over a part and return its columns for all rows of the part, with nulls for documents that
    the stage does not receive. Raises PoisonError if one document alone makes the stage fail.
    """
    stage, docs, rows = _ready(work, part)
    try:
        with spend(work.name):
            table = _annotate(stage, docs)
    except _NOT_OF_A_DOCUMENT:
        raise
    except Exception as error:
        row = first_failing(docs.num_rows, lambda low, high: _raises(stage, docs.slice(low, high - low)))
        wrong = f" ({error})" if isinstance(error, StageOutputError) else ""
        if row is None and wrong:
            raise UserError(f"{work.name}: part {part.name}: the stage returned wrong output{wrong}; fix it") from error
        if row is None:
            raise
        identifier, reason = docs["id"][row].as_py().hex(), type(error).__name__
        raise PoisonError(
            f"{work.name}: document {identifier} of part {part.name} makes it fail with {reason}{wrong}, alone and "
            f"repeatedly; fix the stage, or set the document aside with build --quarantine-poison",
            work.name, part.source, identifier, reason,
        ) from error  # fmt: skip
    if EDITS_COLUMN in table.column_names:
        text = _edited_text(stage)
        mapped = part.in_stored_text(_single(table[EDITS_COLUMN]), text, rows)
        table = table.set_column(table.schema.get_field_index(EDITS_COLUMN), EDITS_COLUMN, mapped)
    if rows is not None:
        positions = pc.index_in(pa.array(range(part.rows), pa.int64()), value_set=pc.cast(rows, pa.int64()))
        table = table.take(positions).combine_chunks()
    if {DROP, EDITS_COLUMN} <= {*table.column_names}:
        emptied = pa.array(part.emptied(_single(table[EDITS_COLUMN])))
        drop = pc.if_else(emptied, f"{work.name}.{EMPTY}", pa.scalar(None, pa.string()))
        drop = pc.coalesce(_single(table[DROP]), drop)
        table = table.set_column(table.schema.get_field_index(DROP), DROP, drop)
    return table


def _annotate(stage: PartStage, docs: pa.Table) -> pa.Table:
    table = annotate_checked(stage, docs).combine_chunks()
    if EDITS_COLUMN in table.column_names:
        try:
            check_edits(_single(docs[_edited_text(stage).name]), _single(table[EDITS_COLUMN]))
        except AssertionError as error:
            raise StageOutputError(str(error)) from None
    return table


def _edited_text(stage: PartStage) -> Text:
    """Return the text column that a stage edits."""
    return next(each for each in stage.read_columns() if isinstance(each, Text))


def _single(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _raises(stage: PartStage, docs: pa.Table) -> bool:
    try:
        _annotate(stage, docs.combine_chunks())
    except _NOT_OF_A_DOCUMENT:
        raise
    except Exception:
        return True
    return False
