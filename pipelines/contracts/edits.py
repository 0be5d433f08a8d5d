"""Edits: how a stage changes text without rewriting it.

An edit replaces the bytes [start, end) of the stored text with `replacement`, where start < end and both lie
on code-point boundaries. `rule` gives the reason. The edits of one step are sorted and do not overlap.

When edits of several steps overlap, an edit that contains another absorbs it, no matter which step came
first. Of edits with the same range, that of the later step wins. Otherwise an edit that inserts visible text
wins over an edit that does not, then the longer edit wins, then the edit of the earlier step. The winner is
extended over the loser's range, so no byte that any step removed comes back.
"""

from collections.abc import Sequence
from functools import reduce
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gristmill.budget import COMPOSING, spend
from pipelines.contracts.document import is_empty

EDIT = pa.struct([("start", pa.int64()), ("end", pa.int64()), ("replacement", pa.string()), ("rule", pa.string())])
EDITS = pa.list_(EDIT)
COMPOSITION = 2
"""Version of the rules for overlapping edits, for the fingerprints of what is made from edited text."""

_Edit = tuple[int, int, bool, int]  # start, end, whether it inserts text, its number
# First bytes that only visible characters have (see `is_empty`): ASCII, U+00C0 to U+05FF, U+4000 to U+DFFF.
_VISIBLE = np.array([0x21 <= byte <= 0x7E or 0xC3 <= byte <= 0xD7 or 0xE4 <= byte <= 0xED for byte in range(256)])


def no_edits(rows: int) -> pa.Array:
    """Return an `edits` column of `rows` empty lists."""
    return pa.ListArray.from_arrays(pa.array(np.zeros(rows + 1, np.int32)), pa.array([], EDIT))


def edits_column(per_document: Sequence[Sequence[tuple[int, int, str, str]]]) -> pa.Array:
    """Build an `edits` column from the (start, end, replacement, rule) tuples of each document, which must be
    sorted and must not overlap.
    """
    names = ("start", "end", "replacement", "rule")
    return pa.array([[dict(zip(names, edit, strict=True)) for edit in edits] for edits in per_document], EDITS)


def check_edits(text: pa.LargeStringArray, edits: pa.Array) -> None:
    """Raise AssertionError unless the edits of each text are sorted, do not overlap, and replace non-empty
    ranges that lie within the text and begin and end on code-point boundaries.
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


@spend(COMPOSING)
def apply_edits(text: pa.LargeStringArray, edits: pa.Array) -> pa.LargeStringArray:
    """Return the texts with their edits applied."""
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


@spend(COMPOSING)
def edited_lengths(lengths: np.ndarray, edits: pa.Array) -> np.ndarray:
    """Return the length of each text in UTF-8 bytes after its edits, int64 [rows]. `lengths` are the lengths
    before the edits.
    """
    document, start, end = _positions(edits)
    if not len(document):
        return lengths
    replaced = pc.fill_null(pc.binary_length(edits.flatten().field("replacement")), 0).to_numpy().astype(np.int64)
    change = np.bincount(document, weights=replaced - (end - start), minlength=len(lengths))
    return lengths + change.astype(np.int64)


@spend(COMPOSING)
def compose(columns: Sequence[pa.Array]) -> pa.Array:
    """Combine the `edits` columns of one or more steps, given in step order, into one column. The module's
    docstring says how overlapping edits are resolved.
    """
    rows = len(columns[0])
    columns = [column for column in columns if len(column.flatten())]
    if len(columns) <= 1:
        return columns[0] if columns else no_edits(rows)
    row, start, end = (np.concatenate(values) for values in zip(*map(_positions, columns), strict=True))
    flat = pa.concat_arrays([column.flatten() for column in columns])
    low, high = row * (span := int(end.max()) + 1) + start, row * span + end
    order = np.argsort(low, kind="stable")  # edits at one position stay in the order of their steps
    low, high = low[order], high[order]
    reach = np.maximum.accumulate(high)
    first = np.flatnonzero(np.append(True, low[1:] >= reach[:-1]))
    low_of, high_of = low[first], np.maximum.reduceat(high, first)
    cluster = np.repeat(np.arange(len(first)), np.diff(np.append(first, len(low))))
    covers = (low == low_of[cluster]) & (high == high_of[cluster])
    winner = np.maximum.reduceat(np.where(covers, np.arange(len(low)), -1), first)
    for unclear in np.flatnonzero(winner < 0).tolist():
        last = first[unclear + 1] if unclear + 1 < len(first) else len(low)
        steps: dict[int, list[_Edit]] = {}
        bounds = np.cumsum([len(column.flatten()) for column in columns])
        for place in range(first[unclear], last):
            number = int(order[place])
            inserts = not is_empty(flat.field("replacement")[number].as_py())
            edit = (int(low[place]), int(high[place]), inserts, place)
            steps.setdefault(int(np.searchsorted(bounds, number, side="right")), []).append(edit)
        ((*_, place),) = reduce(_merge, (steps[step] for step in sorted(steps)))
        winner[unclear] = place
    taken = flat.take(pa.array(order[winner]))
    owner = low_of // span
    return _edits_at(
        rows, owner, low_of - owner * span, high_of - owner * span, taken.field("replacement"), taken.field("rule")
    )


def _edits_at(
    rows: int, row: np.ndarray, start: np.ndarray, end: np.ndarray, replacement: pa.Array, rule: pa.Array
) -> pa.Array:
    """Build an `edits` column from edits that are sorted by row."""
    offsets = pa.array(np.searchsorted(row, np.arange(rows + 1)).astype(np.int32))
    edits = pa.StructArray.from_arrays([pa.array(start), pa.array(end), replacement, rule], fields=list(EDIT))
    return pa.ListArray.from_arrays(offsets, edits)


def _merge(earlier: list[_Edit], later: list[_Edit]) -> list[_Edit]:
    """Merge the edits of all earlier steps with those of a later step. The edits in each list are sorted and
    do not overlap.
    """
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
    return edit[2], edit[1] - edit[0]


@spend(COMPOSING)
def find_emptied(text: pa.LargeStringArray, columns: Sequence[pa.Array]) -> np.ndarray:
    """Return, for each text, whether the edits of all steps together leave it without visible characters,
    bool [rows]; False for texts that the last step does not edit.
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


@spend(COMPOSING)
def map_back(applied: pa.Array, edits: pa.Array) -> pa.Array:
    """Convert edits of an edited text to edits of the stored text. `applied` are the edits that produced the
    edited text. An edit that overlaps text inserted by `applied` is extended to the whole range that the
    inserted text replaced. Edits that overlap the same inserted text are merged into one, with the
    replacement and rule of the last.
    """
    flat, old = edits.flatten(), applied.flatten()
    if not len(old) or not len(flat):
        return edits
    row, start, end = _positions(edits)
    places = _Places.of(applied)
    low, high = places.stored(row, start, 0), places.stored(row, end, 1)
    # Edits that touch the same replacement become one, with what the last of them inserts.
    span = int(high.max()) + 1
    reach = np.maximum.accumulate(row * span + high)
    first = np.flatnonzero(np.append(True, (row * span + low)[1:] >= reach[:-1]))
    last = np.append(first[1:], len(row)) - 1
    taken = flat.take(pa.array(last))
    owner = row[first]
    return _edits_at(
        len(edits), owner, low[first], reach[last] - owner * span, taken.field("replacement"), taken.field("rule")
    )


class _Places(NamedTuple):
    """The edits of all rows: the row, the edited range `start` to `end` in the stored text, and the range
    `low` to `high` of its replacement in the edited text; all int64 [edits].
    """

    row: np.ndarray
    start: np.ndarray
    end: np.ndarray
    low: np.ndarray
    high: np.ndarray

    @classmethod
    def of(cls, edits: pa.Array) -> "_Places":
        row, start, end = _positions(edits)
        size = pc.binary_length(edits.flatten().field("replacement")).to_numpy().astype(np.int64)
        shift = np.append(0, np.cumsum(size - (end - start)))
        low = start + shift[:-1] - shift[np.searchsorted(row, row)]
        return cls(row, start, end, low, low + size)

    def stored(self, row: np.ndarray, position: np.ndarray, side: int) -> np.ndarray:
        """Convert each `position` in the edited text of its `row` to an offset in the stored text. `side` is
        0 if the positions are starts of ranges, 1 if they are ends.
        """
        span = max(int(self.high.max()), int(position.max())) + 1
        passed = np.searchsorted(self.row * span + self.high, row * span + position, side="left" if side else "right")
        here = np.minimum(passed, len(self.row) - 1)
        touches = (passed < len(self.row)) & (self.row[here] == row) & (self.low[here] < position + 1 - side)
        before = np.maximum(passed - 1, 0)
        follows = (passed > 0) & (self.row[before] == row)
        moved = position - np.where(follows, self.high[before] - self.end[before], 0)
        return np.where(touches, (self.end if side else self.start)[here], moved)


def _positions(edits: pa.Array) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the row, start and end of every edit as three arrays."""
    rows = np.asarray(pc.list_parent_indices(edits)).astype(np.int64)
    flat = edits.flatten()
    return rows, np.asarray(flat.field("start")), np.asarray(flat.field("end"))


def _buffers(text: pa.LargeStringArray) -> tuple[np.ndarray, np.ndarray]:
    """Return (offsets int64 [n + 1], bytes uint8) of a string array; the offsets index the bytes."""
    _, offsets, data = text.buffers()
    positions = np.frombuffer(offsets, np.int64, len(text) + 1, text.offset * 8) if offsets else np.zeros(1, np.int64)
    return positions, np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)
