"""Exclude: drop listed documents, such as opt-outs, takedowns and texts whose licence forbids their use."""

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gristmill.errors import UserError
from gristmill.storage.store import file_checksum
from pipelines.contracts.columns import DROP
from pipelines.contracts.document_counts import count_drops
from pipelines.contracts.manifest import StepOutput, write_table
from pipelines.contracts.parts import Part
from pipelines.contracts.reads import Column, Input
from pipelines.contracts.stage import Cluster, CorpusStage, gather
from pipelines.stages.lists.entry_lists import EntryList, host_keys, load_entries, page_key
from pipelines.stages.lists.url_normal import normalise_url

_NAME = re.compile(r"[a-z][a-z0-9_]*")
_BATCH = 65_536  # URLs per batch: bounds the keys in memory


@dataclass(frozen=True)
class ExclusionList:
    """A list of documents to drop: files whose entries all name documents in the same way (`by`)."""

    name: str
    """Name of the list, in lower case. The documents that it names are dropped by the rule `NAME.BY`, such as
    `opt_outs.host`.
    """
    by: Literal["id", "url", "host", "text_hash"]
    """What an entry names. id: a document, `source/path#record` or 32 hex digits. url: a page; normal forms are compared (see
    stages/lists/url_normal.py), without `http://` or `https://` and `www.`. host: a host and all its subdomains. text_hash:
    every document whose column `text_hash` has this value, in 32 hex digits."""
    files: tuple[str, ...]
    """Files with one entry per line, UTF-8, plain or .gz. Blank lines and lines that begin with `#` are
    ignored.
    """

    def check(self) -> None:
        """Raise ValueError if the name cannot be part of a rule, if no file is given, or if a file does not
        exist.
        """
        if not _NAME.fullmatch(self.name):
            raise ValueError(f"name: got {self.name!r}, expected lower-case letters, digits and underscores")
        if not self.files:
            raise ValueError("files: got an empty list, expected at least one file")
        for number, file in enumerate(self.files):
            if not Path(file).is_file():
                raise ValueError(
                    f"files[{number}]: got {file!r}, expected a file with one entry per line; relative to the working directory"
                )

    @property
    def reason(self) -> str:
        """The value of `drop` for the documents that this list names."""
        return f"{self.name}.{self.by}"


@dataclass(frozen=True)
class Exclude(CorpusStage):
    """Drop the documents that given lists name, such as opt-outs and takedowns. No text is read.

    In YAML the knob is the list itself: `exclude: [{name: opt_outs, by: host, files: [opt_outs.txt.gz]}]`. If
    several lists name a document, the first of them drops it. A malformed entry is an error when the build is
    planned; an entry that matches nothing in the corpus is not.

    The facts of the step show when a list has become useless. For each list, they give the number of distinct
    entries, of lines that repeat an entry, of entries that match a document, of entries that match none, and
    of documents that the list names. Documents that an earlier step dropped are counted too.
    """

    lists: tuple[ExclusionList, ...]
    """The lists, at least one, in order."""

    version: ClassVar[int] = 2
    list_knob: ClassVar[str] = "lists"
    paths: ClassVar[tuple[str, ...]] = ("lists",)

    def check(self) -> None:
        if not self.lists:
            raise ValueError("lists: got an empty list, expected at least one {name: ..., by: ..., files: [...]}")
        reasons = [each.reason for each in self.lists]
        for number, reason in enumerate(reasons):
            if reason in reasons[:number]:
                raise ValueError(
                    f"lists[{number}]: {reason!r} occurs twice; give this list another `name`, or join the files"
                )

    @property
    def extrapolates(self) -> bool:
        """True, because the lists decide about each document independently."""
        return True

    def reads(self) -> tuple[Input, ...]:
        columns = {"url": "url", "host": "url", "text_hash": "text_hash"}
        names = dict.fromkeys(columns[each.by] for each in self.lists if each.by in columns)
        return tuple(map(Column, names))

    def writes(self) -> pa.Schema:
        return pa.schema([(DROP, pa.string())])

    def depends(self) -> dict[str, str]:
        """Return the names, kinds and file checksums of the lists. Raises UserError for a line that is not an
        entry.
        """
        for each in self.lists:
            load_list(each, self._checksums[each.reason])
        checksums = {reason: ", ".join(digests) for reason, digests in self._checksums.items()}
        return {"lists": ", ".join(checksums), **{f"{name} xxh3_128": value for name, value in checksums.items()}}

    @cached_property
    def _checksums(self) -> dict[str, tuple[str, ...]]:
        return {each.reason: tuple(file_checksum(Path(file)) for file in each.files) for each in self.lists}

    def run(self, parts: Sequence[Part], out: StepOutput, cluster: Cluster) -> dict[str, Any]:
        tasks = [_Task(self, out, part) for part in parts]
        lists = [load_list(each, self._checksums[each.reason]) for each in self.lists]
        matched, documents = [np.zeros(len(each.entries), bool) for each in lists], [0] * len(lists)
        for found in gather(cluster, exclude_documents, tasks, lambda task: f"{out.name}: part {task.part.name}"):
            for number, (count, entries) in enumerate(found):
                documents[number] += count
                matched[number][entries] = True
        facts = {}
        for each, listed, hits, count in zip(self.lists, lists, matched, documents, strict=True):
            facts[each.reason] = {
                "entries": len(hits), "repeated": listed.repeated, "matched": int(hits.sum()),
                "never_matched": int((~hits).sum()), "documents": count,
            }  # fmt: skip
        return {"lists": facts}

    def find(self, docs: pa.Table) -> tuple[pa.Array, list[tuple[int, list[int]]]]:
        """Return the `drop` of each document, and for each list the number of documents that it names and the
        sorted indices of the entries that match.
        """
        drop, found = pa.nulls(docs.num_rows, pa.string()), []
        for each in self.lists:
            rows, keys = _keys(each.by, docs)
            at = load_list(each, self._checksums[each.reason]).find(keys)
            named = np.zeros(docs.num_rows, bool)
            named[rows[at >= 0]] = True
            found.append((int(named.sum()), np.unique(at[at >= 0]).tolist()))
            own = pc.if_else(pa.array(named), pa.scalar(each.reason), pa.scalar(None, pa.string()))
            drop = pc.coalesce(drop, own)
        return drop, found


@lru_cache(maxsize=64)
def load_list(each: ExclusionList, checksums: tuple[str, ...]) -> EntryList:
    """Return the entries of the list `each`. Raises UserError if a file no longer matches its checksum in
    `checksums`, or if a line is not an entry.
    """
    for file, checksum in zip(each.files, checksums, strict=True):
        if file_checksum(Path(file)) != checksum:
            raise UserError(
                f"exclude: {file}: changed after the build was planned; restore it, or run the command again"
            )
    return load_entries(each.by, each.files)


def _keys(by: str, docs: pa.Table) -> tuple[np.ndarray, np.ndarray]:
    """Return (rows, keys). `keys`, S16, holds the keys under which the documents are looked up in a list, and
    `rows`, int64, holds the row of each key's document. A document may have no key or, if `by` is "host",
    several.
    """
    if by in ("id", "text_hash"):
        column = docs[by].combine_chunks()
        known = np.flatnonzero(pc.is_valid(column).to_numpy(zero_copy_only=False))
        return known, np.array(column.drop_null().to_pylist(), "S16")
    rows: list[int] = []
    keys = bytearray()
    for number, text in enumerate(docs["url"].to_pylist()):
        if text is not None:
            url = normalise_url(text)
            own = host_keys(url) if by == "host" else [page_key(url)]
            rows += [number] * len(own)
            keys += b"".join(own)
    return np.array(rows, np.int64), np.frombuffer(keys, "S16")


@dataclass(frozen=True)
class _Task:
    stage: Exclude
    out: StepOutput
    part: Part


def exclude_documents(task: _Task) -> list[tuple[int, list[int]]]:
    """Commit the `drop` of the documents of a part. Return, for each list, the number of documents that it
    names and the indices of the entries that match.
    """
    receipt = task.out.receipt(task.part.unit)
    if receipt is None:
        docs = task.part.table(("id", *task.stage.read_columns()))
        pieces = [task.stage.find(docs.slice(low, _BATCH)) for low in range(0, docs.num_rows, _BATCH)]
        drops = pa.chunked_array([drop for drop, _ in pieces], pa.string())
        found = []
        for each in zip(*(found for _, found in pieces), strict=True):
            entries = sorted(set(itertools.chain.from_iterable(entries for _, entries in each)))
            found.append((sum(count for count, _ in each), entries))
        table = pa.table([drops], schema=task.stage.writes()).combine_chunks()
        counts = {**count_drops(table).facts(), "lists": found}
        receipt = task.out.commit(task.part.unit, {f"parts/{task.part.unit}.arrow": write_table(table)}, counts)
    return [(count, entries) for count, entries in receipt.counts["lists"]]
