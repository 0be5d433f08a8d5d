"""Poison: documents that break a stage, and records that break the reader. The build stops at the first one
and names it, unless the user chooses to set poison aside with `build --quarantine-poison`.

What is set aside is listed in `poison.json` in the output directory and becomes part of the fingerprint of
the step that it broke. To try a document or record again, remove its entry before the next build.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from gristmill.errors import PoisonError
from gristmill.storage.location import Location
from gristmill.storage.store import read_json, write_json
from pipelines.contracts.columns import DROP
from pipelines.contracts.reads import Input
from pipelines.contracts.stage import CorpusStage, PartStage, annotate_checked

POISON = "poison"
"""The value of `drop`, or the reason of a quarantined record, for a document that was set aside."""
_FILE = "poison.json"

Poison = Mapping[tuple[str, str], tuple[str, ...]]
"""Maps (name of a step, source) to the documents that are set aside for the step, sorted: ids in hex, or
`path#record` for the step `read`.
"""


def load_poison(output: Location) -> Poison:
    """Return the documents and records listed in the `poison.json` of an output directory; none if there is
    no such file.
    """
    try:
        entries = read_json(output / _FILE)["documents"]
    except FileNotFoundError:
        return {}
    found: dict[tuple[str, str], list[str]] = {}
    for entry in entries:
        found.setdefault((entry["step"], entry["source"]), []).append(entry["document"])
    return {where: tuple(sorted(documents)) for where, documents in found.items()}


def record_poison(output: Location, error: PoisonError) -> None:
    """Add the document named by `error` to the list of withheld documents in an output directory. Raises
    `error` if the document is already listed for the same step.
    """
    try:
        entries = read_json(output / _FILE)["documents"]
    except FileNotFoundError:
        entries = []
    place = {"step": error.step, "source": error.source, "document": error.document}
    if any(place.items() <= entry.items() for entry in entries):
        raise error  # the document is already withheld from the step, so something else is wrong
    entry = {**place, "reason": error.reason}
    write_json(
        output / _FILE, {"documents": sorted([*entries, entry], key=lambda e: [e["step"], e["source"], e["document"]])}
    )


@dataclass(frozen=True)
class WithoutPoison(PartStage):
    """A wrapper that withholds `documents`, given by their ids in hex, from a stage. For these documents, the
    stage's columns are null and `drop` is `poison`.
    """

    stage: PartStage
    documents: tuple[str, ...]

    def reads(self) -> tuple[Input, ...]:
        return self.stage.reads()

    def writes(self) -> pa.Schema:
        written = self.stage.writes()
        return written if DROP in written.names else written.append(pa.field(DROP, pa.string()))

    def never_null(self) -> tuple[str, ...]:
        return ()

    def accepts(self) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        return self.stage.accepts()

    def derived_steps(self) -> Mapping[str, CorpusStage]:
        return self.stage.derived_steps()

    def depends(self) -> dict[str, str]:
        return self.stage.depends()

    def notice(self) -> str:
        return self.stage.notice()

    def setup(self) -> None:
        self.stage.setup()

    def gpus(self) -> float:
        return self.stage.gpus()

    def use(self, facts: Mapping[str, Any]) -> PartStage:
        return replace(self, stage=self.stage.use(facts))

    def annotate(self, docs: pa.Table) -> pa.Table:
        ids = docs["id"].combine_chunks()
        bad = pc.is_in(ids, value_set=pa.array([bytes.fromhex(document) for document in self.documents], ids.type))
        rows = pc.indices_nonzero(pc.invert(bad))
        table = annotate_checked(self.stage, docs.take(rows).combine_chunks())
        positions = pc.index_in(pa.array(range(docs.num_rows), pa.uint64()), value_set=rows.cast(pa.uint64()))
        table = table.take(positions)
        drop = table[DROP] if DROP in table.column_names else pa.nulls(docs.num_rows, pa.string())
        drop = pc.if_else(bad, pa.scalar(POISON), drop)
        return pa.table({**{name: table[name] for name in self.stage.writes().names}, DROP: drop}, schema=self.writes())


def unwrapped(stage: PartStage) -> PartStage:
    """Return a stage without the wrapper that withholds documents, if it has one."""
    return stage.stage if isinstance(stage, WithoutPoison) else stage
