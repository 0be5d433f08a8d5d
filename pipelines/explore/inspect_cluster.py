"""Inspect a cluster of duplicates: its members beside the one that is kept, with what differs between them.

As all that shows documents: escaped, edited, personal data taken out, unless the raw text is asked for.
"""

import difflib
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from gristmill.console import Page
from gristmill.errors import UserError
from gristmill.terminal import printable
from pipelines.contracts.document import ID
from pipelines.contracts.lineage import Corpus, Located, Quarantined, open_corpus, select_rows
from pipelines.explore.inspect_document import winner_name
from pipelines.stages.pii.redaction import without_personal_data

_TEXT = (1500, 30)  # characters and lines shown of the kept document,
_COMPARED = 2000  # words compared with it, from the beginning,
_AROUND = 4  # words shown around a difference,
_DIFFERENCES = 12  # and differences shown of a document.


def show_cluster(corpus: Path, identifier: str, samples: int, *, raw: bool) -> None:
    """Print the clusters that a document is in: the kept one, and up to `samples` others with what differs from it.

    UserError where the corpus has no such document or it is in no cluster.
    """
    if samples < 1:
        raise UserError(f"--samples: got {samples}, expected 1 or more")
    opened = open_corpus(corpus)
    found = opened.find(identifier)
    page = Page()
    clusters = [] if isinstance(found, Quarantined) else list(_clusters(found))
    if not clusters:
        raise UserError(f"{identifier}: this document is in no cluster of duplicates; see inspect --doc")
    for column, winner in clusters:
        _show(page, opened, column, winner, samples, raw)


def _clusters(found: Located) -> Iterator[tuple[str, bytes]]:
    """(column, winner) of every cluster that a document is in."""
    for annotation in found.part.annotations:
        for column in annotation.schema:
            if column.endswith("_cluster"):
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
            goes_for = column.replace("_cluster", "_winner")
            compared = part.table((goes_for,))[goes_for][0].as_py() if part.has(goes_for) else None
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


def _show_differences(page: Page, kept: list[str], mine: list[str]) -> None:
    """What a text has otherwise than the first one shown: words of that one after -, its own after +, some around."""
    first, second = kept[:_COMPARED], mine[:_COMPARED]
    # Words that are more than 1 in 100 anchor nothing (autojunk): texts of few different words would take minutes.
    found = [] if first == second else difflib.SequenceMatcher(None, first, second).get_opcodes()
    blocks = [block for block in found if block[0] != "equal"]
    if not blocks:
        page.line(
            "  the same words" + ("" if len(kept) == len(mine) == len(first) else ", as far as they were compared")
        )
    for _, i, i_end, j, j_end in blocks[:_DIFFERENCES]:
        page.line(f"  | {printable(' '.join(['...', *first[max(0, i - _AROUND) : i]]))}")
        for mark, some, style in (("-", first[i:i_end], "red"), ("+", second[j:j_end], "green")):
            if some:
                shown = " ".join(some[:40]) + (f" ... ({len(some) - 40:,} more words)" if len(some) > 40 else "")
                page.line(f"  {mark} {printable(shown)[:2000]}", style)
    if len(blocks) > _DIFFERENCES:
        page.line(f"  {len(blocks) - _DIFFERENCES:,} more differences not shown")
    if max(len(kept), len(mine)) > _COMPARED:
        page.line(f"  only the first {_COMPARED:,} words were compared")
