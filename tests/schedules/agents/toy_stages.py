"""Toy stages that compute next to nothing, but write in all the ways that real stages do.

`Length` and `Short` are fused into one task per part. `Elect` is a corpus stage that writes a column for each
part in a separate task, after tasks that leave files in `work/`. `Learn` is not reproducible, so of several
builds only the first publishes its result. `Pack` reads the file written by `Learn` and writes one file per
part.
"""

from dataclasses import asdict, dataclass

import pyarrow as pa
import pyarrow.compute as pc

from gristmill.host import host
from gristmill.storage.location import FileRecord, Location
from pipelines.contracts.columns import DROP
from pipelines.contracts.document_counts import count_drops
from pipelines.contracts.manifest import StepOutput, load_step, write_table
from pipelines.contracts.parts import Part
from pipelines.contracts.reads import TEXT, Column, Drop, StepFiles
from pipelines.contracts.stage import CorpusStage, PartStage, gather

SHORT = "short"
_LEAST = 30  # bytes of a text that is kept
_LENGTH, _DROPS = pa.schema([("length", pa.int64())]), pa.schema([(DROP, pa.string())])


@dataclass(frozen=True)
class Length(PartStage):
    def reads(self):
        return (TEXT,)

    def writes(self):
        return _LENGTH

    def annotate(self, docs):
        return pa.table({"length": pc.cast(pc.binary_length(docs["text"]), pa.int64())})


@dataclass(frozen=True)
class Short(PartStage):
    least: int = _LEAST

    def reads(self):
        return (Column("length"),)

    def writes(self):
        return _DROPS

    def annotate(self, docs):
        short = pc.less(docs["length"], self.least)
        return pa.table({DROP: pc.if_else(short, SHORT, pa.scalar(None, pa.string()))})


@dataclass(frozen=True)
class _ElectTask:
    part: Part
    out: StepOutput
    found: tuple[FileRecord, ...] = ()


def _find_part(task):
    unit = f"find-{task.part.unit}"
    receipt = task.out.receipt(unit)
    if receipt is None:
        lengths = task.part.table((Column("length").name,))
        receipt = task.out.commit(unit, {f"work/{unit}.arrow": write_table(lengths)}, {})
    return receipt.files[0]


def _elect_part(task):
    unit = task.part.unit
    if task.out.receipt(unit) is None:
        for record in task.found:
            task.out.directory.verify(record)
        dropped = pa.table({DROP: pa.nulls(task.part.rows, pa.string())})
        task.out.commit(unit, {f"parts/{unit}.arrow": write_table(dropped)}, count_drops(dropped).facts())


@dataclass(frozen=True)
class Elect(CorpusStage):
    def reads(self):
        return (Column("length"), Drop())

    def writes(self):
        return _DROPS

    def run(self, parts, out, cluster):
        tasks = [_ElectTask(part, out) for part in parts]
        found = tuple(gather(cluster, _find_part, tasks, lambda task: f"find {task.part.name}"))
        gather(cluster, _elect_part, [_ElectTask(part, out, found) for part in parts], lambda task: task.part.name)
        return {}


@dataclass(frozen=True)
class Learn(CorpusStage):
    @property
    def reproducible(self):
        return False

    def reads(self):
        return (TEXT, Drop())

    def run(self, parts, out, cluster):
        receipt = out.receipt("learnt")
        if receipt is None:
            mark = host().unique()
            receipt = out.commit("learnt", {f"learnt-{mark[:12]}.json": mark.encode()}, {})
        return {"files": [asdict(record) for record in receipt.files]}


@dataclass(frozen=True)
class _PackTask:
    part: Part
    out: StepOutput
    learnt: Location
    file: FileRecord


def _pack_part(task):
    unit = f"pack-{task.part.unit}"
    receipt = task.out.receipt(unit)
    if receipt is None:
        with host().open(str(task.learnt.verify(task.file))) as source:
            content = source.read() + task.part.name.encode()
        receipt = task.out.commit(unit, {f"packed/{task.part.unit}.bin": content}, {})
    return receipt.files[0]


@dataclass(frozen=True)
class Pack(CorpusStage):
    def reads(self):
        return (TEXT, Drop(), StepFiles("learn"))

    def run(self, parts, out, cluster):
        directory = out.inputs["learn"]
        learned = load_step(out.root, directory.name)
        assert learned is not None, f"{directory}: a step that is read is published"
        tasks = [_PackTask(part, out, directory, learned.files[0]) for part in parts]
        files = gather(cluster, _pack_part, tasks, lambda task: f"pack {task.part.name}")
        return {"files": [asdict(record) for record in files]}
