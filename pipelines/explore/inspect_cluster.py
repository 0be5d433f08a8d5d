"""Inspect a cluster of duplicates: its members, and how they differ from the member that is kept."""

import difflib
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from gristmill.console import Page
from gristmill.errors import UserError
from gristmill.storage.location import Location
from gristmill.terminal import printable
from pipelines.contracts.document import ID
from pipelines.contracts.lineage import Corpus, Located, Quarantined, open_corpus, select_rows
from pipelines.explore.inspect_document import winner_name
from pipelines.stages.pii.display_redaction import without_personal_data

_TEXT = (1500, 30)  # characters and lines shown of the kept document
_COMPARED = 2000  # leading words compared
_CONTEXT = 4  # words shown before a difference
_DIFFERENCES = 12  # differences shown per document


def show_cluster(corpus: Location, identifier: str, samples: int, *, raw: bool) -> None:
    """Print the clusters that contain a document. For each cluster, show one member, normally the kept one,
    and up to `samples` other members with their differences from it. Raises UserError if the corpus has no
    such document, or if the document is in no cluster.
    """
    if samples < 1:
        raise UserError(f"--samples: got {samples}, expected 1 or more")
    opened = open_corpus(corpus)
    located = opened.find(identifier)
    page = Page()
    clusters = [] if isinstance(located, Quarantined) else list(_clusters(located))
    if not clusters:
        raise UserError(f"{identifier}: this document is in no cluster of duplicates; see inspect --doc")
    for column, winner in clusters:
        _show(page, opened, column, winner, samples, raw)


def _clusters(found: Located) -> Iterator[tuple[str, bytes]]:
    for annotation in found.part.annotations:
        for column, kind in annotation.schema.items():
            if column.endswith("_cluster") and kind == str(ID):
                winner = annotation.column(column)[found.row].as_py()
                if winner is not None:
                    yield column, winner


def _show(page: Page, corpus: Corpus, column: str, winner: bytes, samples: int, raw: bool) -> None:
    members: list[tuple[bool, bytes, str, int, int]] = []
    for part in corpus.parts():
        if part.has(column):
            rows = pc.indices_nonzero(pc.equal(part.table((column,))[column], pa.scalar(winner, ID)))
            ids = part.table(("id",))["id"].take(rows).to_pylist() if len(rows) else []
            members += [
                (i != winner, i, part.source, part.index, r) for i, r in zip(ids, rows.to_pylist(), strict=True)
            ]
    members.sort()
    page.line(
        f"{column}: {len(members):,} members in this corpus, kept is {printable(winner_name(corpus, winner))}", "bold"
    )
    first: list[str] | None = None
    for other, identifier, source, index, row in members[: samples + 1]:
        part = next(part for part in corpus.parts(source) if part.index == index)
        part = without_personal_data(corpus, select_rows(part, [row]))
        text = "text" if raw else "edited_text"
        values = part.table((text,))[text][0].as_py()
        page.heading(corpus.printed_id(identifier))
        rule = part.drop()[0].as_py()
        page.field("verdict", "kept" if rule is None else f"dropped by {rule}")
        similarity = column.replace("_cluster", "_similarity")
        if other and part.has(similarity):
            winner_column = column.replace("_cluster", "_winner")
            compared = part.table((winner_column,))[winner_column][0].as_py() if part.has(winner_column) else None
            other_name = "the kept" if compared in (None, winner) else printable(winner_name(corpus, compared))
            page.field(f"similarity to {other_name}", f"{part.table((similarity,))[similarity][0].as_py():.4f}")
        if first is None:
            page.text(values, _TEXT)
            first = values.split()
        else:
            _show_differences(page, first, values.split())
    if len(members) > samples + 1:
        page.line()
        page.line(f"{len(members) - samples - 1:,} more members not shown; see --samples")


def _show_differences(page: Page, kept: list[str], other: list[str]) -> None:
    first, second = kept[:_COMPARED], other[:_COMPARED]
    # autojunk does not anchor on words above 1 %. Without it, texts of few distinct words would take minutes.
    opcodes = [] if first == second else difflib.SequenceMatcher(None, first, second).get_opcodes()
    blocks = [block for block in opcodes if block[0] != "equal"]
    if not blocks:
        page.line(
            "  the same words" + ("" if len(kept) == len(other) == len(first) else ", as far as they were compared")
        )
    for _, i, i_end, j, j_end in blocks[:_DIFFERENCES]:
        page.line(f"  | {printable(' '.join(['...', *first[max(0, i - _CONTEXT) : i]]))}")
        for mark, some, style in (("-", first[i:i_end], "red"), ("+", second[j:j_end], "green")):
            if some:
                shown = " ".join(some[:40]) + (f" ... ({len(some) - 40:,} more words)" if len(some) > 40 else "")
                page.line(f"  {mark} {printable(shown)[:2000]}", style)
    if len(blocks) > _DIFFERENCES:
        page.line(f"  {len(blocks) - _DIFFERENCES:,} more differences not shown")
    if max(len(kept), len(other)) > _COMPARED:
        page.line(f"  only the first {_COMPARED:,} words were compared")
