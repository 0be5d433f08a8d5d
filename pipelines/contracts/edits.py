"""Edits: how a stage changes text without rewriting it. Only this module composes and applies them.

An edit replaces the bytes [start, end) of the stored text, start < end, both on code-point boundaries, by
`replacement`. `rule` gives the reason (an entity, a line rule). Edits of one step are sorted and do not
overlap.

When the edits of several steps overlap, an edit that contains another, earlier or later, absorbs it.
Otherwise an edit that inserts text wins over one that only removes, then the longer one wins, then that of
the earlier step. The winner is extended over the loser's range, so no byte that any step removed comes back.
As a consequence, inserted text survives unless another edit covers it whole, and such an edit never empties a
document.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.contracts.document import is_empty

EDIT = pa.struct([("start", pa.int64()), ("end", pa.int64()), ("replacement", pa.string()), ("rule", pa.string())])
EDITS = pa.list_(EDIT)
COMPOSITION = 2
"""Version of the rules above, for the fingerprints of steps that read edited text."""

_Edit = tuple[int, int, str, str]  # start, end, replacement, rule
# First bytes that only visible characters have (see `is_empty`): ASCII, U+00C0 to U+05FF, U+4000 to U+DFFF.
_VISIBLE = np.array([0x21 <= byte <= 0x7E or 0xC3 <= byte <= 0xD7 or 0xE4 <= byte <= 0xED for byte in range(256)])


def no_edits(rows: int) -> pa.Array:
    """Return an `edits` column of `rows` empty lists."""
    return pa.ListArray.from_arrays(pa.array(np.zeros(rows + 1, np.int32)), pa.array([], EDIT))


def edits_column(per_document: Sequence[Sequence[_Edit]]) -> pa.Array:
    """Build an `edits` column from (start, end, replacement, rule) tuples, sorted per document."""
    names = ("start", "end", "replacement", "rule")
    return pa.array([[dict(zip(names, edit, strict=True)) for edit in edits] for edits in per_document], EDITS)


def check_edits(text: pa.LargeStringArray, edits: pa.Array) -> None:
    """Raise AssertionError unless edits lie inside their text on code-point boundaries, sorted and without
    overlap.
    """
    document, start, end = _positions(edits)
    if not len(document):
        return
    offsets, data = _buffers(text)
    length = np.diff(offsets)[document]
    assert bool(((start >= 0) & (start < end) & (end <= length)).all()), "an edit lies outside its text"
    same = document[1:] == document[:-1]
    assert bool((start[1:][same] >= end[:-1][same]).all()), "edits of one document overlap or are not sorted"
    for position in (start, end):
        inner = position < length
        at = data[(offsets[:-1][document] + position)[inner]]
        assert bool(((at & 0xC0) != 0x80).all()), "an edit splits a character"


def apply_edits(text: pa.LargeStringArray, edits: pa.Array) -> pa.LargeStringArray:
    """Apply edits to texts. The cost grows with the bytes and the number of edits, not with the number of
    documents.
    """
    document, start, end = _positions(edits)
    if not len(document):
        return text
    offsets, data = _buffers(text)
    replacements = [r.encode() for r in edits.flatten().field("replacement").to_pylist()]
    base = offsets[:-1][document]
    view = memoryview(data.data)
    pieces: list[bytes | memoryview] = []
    at = int(offsets[0])
    for low, high, replacement in zip((base + start).tolist(), (base + end).tolist(), replacements, strict=True):
        pieces.append(view[at:low])
        pieces.append(replacement)
        at = high
    pieces.append(view[at : int(offsets[-1])])
    change = np.fromiter(map(len, replacements), np.int64, len(replacements)) - (end - start)
    lengths = np.diff(offsets) + np.bincount(document, weights=change, minlength=len(text)).astype(np.int64)
    edited = np.concatenate([[0], np.cumsum(lengths)])
    return pa.LargeStringArray.from_buffers(
        len(text), pa.py_buffer(edited.astype(np.int64)), pa.py_buffer(b"".join(pieces))
    )


def edited_lengths(lengths: np.ndarray, edits: pa.Array) -> np.ndarray:
    """Return the UTF-8 bytes of each text after its edits, int64 [rows], given the lengths before."""
    document, start, end = _positions(edits)
    if not len(document):
        return lengths
    replaced = pc.fill_null(pc.binary_length(edits.flatten().field("replacement")), 0).to_numpy().astype(np.int64)
    change = np.bincount(document, weights=replaced - (end - start), minlength=len(lengths))
    return lengths + change.astype(np.int64)


def compose(columns: Sequence[pa.Array]) -> pa.Array:
    """Combine the `edits` columns of one or more steps, in the order of the steps, into one column with the
    same effect.
    """
    rows = len(columns[0])
    columns = [column for column in columns if len(column.flatten())]
    if len(columns) <= 1:
        return columns[0] if columns else no_edits(rows)
    merged: dict[int, list[_Edit]] = {}
    for column in columns:
        touched = np.flatnonzero(pc.fill_null(pc.list_value_length(column), 0).to_numpy())
        for row in touched.tolist():
            new = [(e["start"], e["end"], e["replacement"], e["rule"]) for e in column[row].as_py()]
            merged[row] = _merge(merged[row], new) if row in merged else new
    return edits_column([merged.get(row, ()) for row in range(rows)])


def _merge(earlier: list[_Edit], later: list[_Edit]) -> list[_Edit]:
    """Merge the edits of all earlier steps with those of a later one. Both are sorted and without overlap."""
    result: list[_Edit] = []
    at = 0
    for edit in later:
        while at < len(earlier) and earlier[at][1] <= edit[0]:
            result.append(earlier[at])
            at += 1
        grown = [result.pop()] if result and edit[0] < result[-1][1] else []
        touching = []
        while at < len(earlier) and earlier[at][0] < edit[1]:
            touching.append(earlier[at])
            at += 1
        touching += grown
        winner = edit
        for rival in touching:
            if rival[0] <= edit[0] and edit[1] <= rival[1] and rival[:2] != edit[:2]:
                winner = rival
                break
            inside = edit[0] <= rival[0] and rival[1] <= edit[1]
            if not inside and _weight(rival) >= _weight(winner):
                winner = rival
        low, high = min(e[0] for e in (*touching, edit)), max(e[1] for e in (*touching, edit))
        result.append((low, high, winner[2], winner[3]))
    return [*result, *earlier[at:]]


def _weight(edit: _Edit) -> tuple[bool, int]:
    return not is_empty(edit[2]), edit[1] - edit[0]


def find_emptied(text: pa.LargeStringArray, columns: Sequence[pa.Array]) -> np.ndarray:
    """Return which texts have no visible characters after the last step's edits, bool [rows].

    `columns` are the `edits` of the steps in order. A text that the last step does not edit is False, so at
    most one step counts as emptying a text. `pipelines.contracts.document.is_empty` defines which characters
    are visible, as it does when documents are read. Edits are composed only for the few texts with no stored
    character left.
    """
    offsets, data = _buffers(text)
    touched = np.zeros(len(text), bool)
    touched[_positions(columns[-1])[0]] = True
    rows, starts, ends = map(np.concatenate, zip(*map(_positions, columns), strict=True))
    starts, ends = (places[touched[rows]] + offsets[rows[touched[rows]]] for places in (starts, ends))
    rows = rows[touched[rows]]
    order = np.lexsort((starts, rows))
    rows, starts, ends = rows[order], starts[order], np.maximum.accumulate(ends[order])
    # The ranges that remain: before each edit, and after the last edit of each text.
    last = np.flatnonzero(np.append(rows[1:] != rows[:-1], True)[: len(rows)])
    before = np.maximum(np.append(0, ends[:-1])[: len(ends)], offsets[rows])
    owners = np.concatenate([rows, rows[last]])
    lows, highs = np.concatenate([before, ends[last]]), np.concatenate([starts, offsets[rows[last] + 1]])
    owners, lows, highs = (values[lows < highs] for values in (owners, lows, highs))
    emptied = touched
    emptied[owners[_VISIBLE[data[lows]]]] = False
    for row, low, high in zip(owners.tolist(), lows.tolist(), highs.tolist(), strict=True):
        if emptied[row] and not is_empty(data[low:high].tobytes().decode()):
            emptied[row] = False
    for row in np.flatnonzero(emptied).tolist():
        left = compose([column.slice(row, 1) for column in columns]).flatten().field("replacement").to_pylist()
        emptied[row] = all(map(is_empty, left))
    return emptied


def map_back(applied: pa.Array, edits: pa.Array) -> pa.Array:
    """Convert edits of an edited text to the coordinates of the stored text. `applied` are the edits that
    produced the edited text.

    An edit that touches a replacement is extended to the whole range that was replaced.
    """
    if not len(applied.flatten()):
        return edits
    result: list[list[_Edit]] = []
    for row in range(len(edits)):
        new, old = edits[row].as_py() or [], _places(applied[row].as_py() or [])
        mapped: list[_Edit] = []
        for edit in new:
            low, high = old.stored(edit["start"], 0), old.stored(edit["end"], 1)
            if mapped and low < mapped[-1][1]:
                low, high = mapped[-1][0], max(high, mapped.pop()[1])
            mapped.append((low, high, edit["replacement"], edit["rule"]))
        result.append(mapped)
    return edits_column(result)


class _Places(NamedTuple):
    """Ranges of edits in the stored text (start, end), and of their replacements in the edited text (low,
    high).
    """

    starts: list[int]
    ends: list[int]
    lows: list[int]
    highs: list[int]

    def stored(self, position: int, side: int) -> int:
        """Convert an offset in the edited text to one in the stored text; `side` is 0 for a start, 1 for an
        end.
        """
        passed = bisect_left(self.highs, position) if side else bisect_right(self.highs, position)
        if passed < len(self.lows) and self.lows[passed] < position + 1 - side:
            return self.ends[passed] if side else self.starts[passed]
        return position - (self.highs[passed - 1] - self.ends[passed - 1] if passed else 0)


def _places(edits: list[dict[str, Any]]) -> _Places:
    places = _Places([], [], [], [])
    shift = 0
    for edit in edits:
        size = len(edit["replacement"].encode())
        for column, value in zip(places, (edit["start"], edit["end"], edit["start"] + shift), strict=False):
            column.append(value)
        places.highs.append(edit["start"] + shift + size)
        shift += size - (edit["end"] - edit["start"])
    return places


def _positions(edits: pa.Array) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return (row, start, end) of every edit, int64."""
    rows = np.asarray(pc.list_parent_indices(edits)).astype(np.int64)
    flat = edits.flatten()
    return rows, np.asarray(flat.field("start")), np.asarray(flat.field("end"))


def _buffers(text: pa.LargeStringArray) -> tuple[np.ndarray, np.ndarray]:
    """Return (offsets int64 [n + 1], bytes uint8) of a string array; the offsets index the bytes."""
    _, offsets, data = text.buffers()
    positions = np.frombuffer(offsets, np.int64, len(text) + 1, text.offset * 8) if offsets else np.zeros(1, np.int64)
    return positions, np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)
