"""Column profiles: for each part, histograms of its numeric columns, tables of the values of its other
columns, and samples of its documents. These summaries can be merged exactly.

The merged summary of a source does not depend on its division into parts, except for the locations of the
sampled documents, and its size does not grow with the corpus.

The bins of the histograms are fixed. A bin contains the positive values that are equal when cut to two
significant digits or, below 1, to two decimals. The key of a bin is its lower end: 0.07 is [0.07, 0.08), 3.2
is [3.2, 3.3), 120 is [120, 130), 4,500 is [4,500, 4,600). So bins are linear for ratios and logarithmic for
counts and bytes. Any threshold of two significant digits (below 1, of two decimals) falls between two bins.
In a column of integers, each value below 100 has a bin of its own. For negative values, the ends are
mirrored, and a bin still includes its lower end: -3.2 is [-3.2, -3.1).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

TEXT_BYTES = "text_bytes"
"""Name of the histogram of UTF-8 bytes of the stored text."""
VALUE_LIMIT = 256
"""Columns of strings with more distinct values than this in a source have no table of values."""
KEPT = ("", "")
"""The (step, rule) of documents that no step dropped."""
KEPT_SAMPLES = 6
"""Maximum number of kept documents sampled per source."""
DROPPED_SAMPLES = 3
"""Maximum number of dropped documents sampled per source, step and rule."""

_POWERS = np.array([float(f"1e{exponent}") for exponent in range(309)])
_TOLERANCE = 1e-4  # tolerance in bins: a float32 ratio of 0.7 is 1e-8 below the edge 0.70 and belongs above it


def bin_floors(values: np.ndarray) -> np.ndarray:
    """Return the lower end of each value's bin, float64 [n]. All values must be finite. Integers are binned
    exactly up to 2^53.
    """
    is_integer = values.dtype.kind in "iu"
    magnitude = np.abs(values.astype(np.float64))
    negative = values < 0
    digits = np.where(negative, np.searchsorted(_POWERS, magnitude), np.searchsorted(_POWERS, magnitude, side="right"))
    exponent = digits - 2  # the bin's width is 10 ** exponent
    if is_integer:
        exponent = np.maximum(exponent, 0)
    up, down = _POWERS[np.maximum(exponent, 0)], _POWERS[np.maximum(-exponent, 0)]
    position = magnitude * down / up
    tolerance = 0.0 if is_integer else _TOLERANCE
    index = np.where(negative, np.ceil(position - tolerance), np.floor(position + tolerance))
    return np.where(negative, -1.0, 1.0) * index * up / down + 0.0  # + 0.0 turns -0.0 into 0.0


def bin_width(floor: float, whole: bool) -> float:
    """Return the width of the bin whose lower end is `floor`. `whole` is true for a column of integers."""
    digits = int(np.searchsorted(_POWERS, abs(floor), side="left" if floor < 0 else "right"))
    return float(f"1e{max(digits - 2, 0) if whole else digits - 2}")


Counts = tuple[int, int]  # all documents, kept documents


@dataclass
class Histogram:
    """A histogram of a column. `bins` maps the lower end of each bin to two counts: all documents in the bin,
    and those that are kept. `whole` is true for a column of integers. `missing` counts nulls, and
    `not_finite` counts NaN and infinities.
    """

    whole: bool
    bins: dict[float, Counts] = field(default_factory=dict)
    minimum: float | None = None
    maximum: float | None = None
    missing: int = 0
    not_finite: int = 0

    def add(self, other: "Histogram") -> None:
        """Add the histogram of another part to this one."""
        self.bins = _add_counts(self.bins, other.bins)
        self.missing += other.missing
        self.not_finite += other.not_finite
        ends = [end for end in (self.minimum, self.maximum, other.minimum, other.maximum) if end is not None]
        self.minimum, self.maximum = min(ends, default=None), max(ends, default=None)

    def facts(self) -> dict[str, Any]:
        """Return the histogram as a dictionary for JSON. `bins` is a list of [lower end, all documents, kept
        documents].
        """
        bins = [[_number(floor), *self.bins[floor]] for floor in sorted(self.bins)]
        ends = {"minimum": _number(self.minimum), "maximum": _number(self.maximum)}
        return {"whole": self.whole, "bins": bins, **ends, "missing": self.missing, "not_finite": self.not_finite}


def histogram(column: pa.Array, kept: np.ndarray) -> Histogram:
    """Return the histogram of a numeric column. `kept` says whether each document is kept, bool [n]."""
    valid = pc.is_valid(column).to_numpy(zero_copy_only=False)
    values = column.drop_null().to_numpy(zero_copy_only=False)
    finite = np.isfinite(values)
    result = Histogram(pa.types.is_integer(column.type), missing=int((~valid).sum()), not_finite=int((~finite).sum()))
    values, kept = values[finite], kept[valid][finite]
    if len(values):
        floors, position = np.unique(bin_floors(values), return_inverse=True)
        every, left = (np.bincount(position[mask], minlength=len(floors)).tolist() for mask in (slice(None), kept))
        result.bins = dict(zip(floors.tolist(), zip(every, left, strict=True), strict=True))
        result.minimum, result.maximum = float(values.min()), float(values.max())
    return result


@dataclass(frozen=True, order=True)
class Sampled:
    """A document in a sample. A sample consists of the documents whose ids have the lowest hashes."""

    hash: int
    identifier: bytes
    part: int
    row: int

    def facts(self) -> dict[str, Any]:
        """Return the location of the document: its id in hex, the index of its part, and its row in the part."""
        return {"id": self.identifier.hex(), "part": self.part, "row": self.row}


@dataclass
class Summary:
    """The values of columns in a part or source, and samples of its documents. `histograms` describes the
    numeric columns. `values` maps each other column to the counts (all documents, kept documents) of each
    value, or to None if there are too many values. `samples` holds samples of the dropped documents, keyed by
    the (step, rule) that dropped them, and of the kept documents, under KEPT.
    """

    histograms: dict[str, Histogram] = field(default_factory=dict)
    values: dict[str, dict[str, Counts] | None] = field(default_factory=dict)
    samples: dict[tuple[str, str], list[Sampled]] = field(default_factory=dict)

    def add(self, other: "Summary") -> None:
        """Add the summary of another part of the same source to this summary."""
        for name, counted in other.histograms.items():
            self.histograms.setdefault(name, Histogram(counted.whole)).add(counted)
        for name, table in other.values.items():
            own = self.values.get(name, {})
            self.values[name] = None if own is None or table is None else _limit_values(_add_counts(own, table))
        for group, others in other.samples.items():
            self.samples[group] = sorted([*self.samples.get(group, []), *others])[: _samples_of(group)]


def summarise(
    measured: pa.Table,
    index: int,
    ids: Sequence[bytes],
    hashes: np.ndarray,
    text_bytes: pa.Array,
    groups: Mapping[tuple[str, str], np.ndarray],
) -> Summary:
    """Return the summary of a part: the distributions of the columns of `measured` and of the lengths of
    texts, and samples of documents.

    `index` is the index of the part, `hashes`, uint64, holds the xxh3_64 of each id, and `text_bytes` holds
    the length of each stored text in UTF-8 bytes. `groups` maps each (step, rule) to a mask of the documents
    that the rule dropped, and KEPT to a mask of the kept documents.
    """
    result = Summary()
    kept = groups[KEPT]
    result.histograms[TEXT_BYTES] = histogram(text_bytes, kept)
    for name in measured.column_names:
        _count_column(result, name, measured[name].combine_chunks(), kept)
    for group, mask in groups.items():
        rows = np.flatnonzero(mask)
        rows_of_group = rows[np.argsort(hashes[rows], kind="stable")[: _samples_of(group)]].tolist()
        result.samples[group] = [Sampled(int(hashes[row]), ids[row], index, row) for row in rows_of_group]
    return result


def _count_column(result: Summary, name: str, column: pa.Array, kept: np.ndarray) -> None:
    if pa.types.is_integer(column.type) or pa.types.is_floating(column.type):
        result.histograms[name] = histogram(column, kept)
        return
    strings = pc.cast(column, pa.string())
    every, left = _value_counts(strings), _value_counts(strings.filter(pa.array(kept)))
    result.values[name] = _limit_values({value: (count, left.get(value, 0)) for value, count in every.items()})


def _value_counts(strings: pa.Array) -> dict[str, int]:
    counted = pc.value_counts(strings.drop_null())
    return dict(zip(counted.field("values").to_pylist(), counted.field("counts").to_pylist(), strict=True))


def _add_counts(one: Mapping[Any, Counts], other: Mapping[Any, Counts]) -> dict[Any, Counts]:
    result = dict(one)
    for key, (every, kept) in other.items():
        before = result.get(key, (0, 0))
        result[key] = (before[0] + every, before[1] + kept)
    return result


def _limit_values(table: dict[str, Counts]) -> dict[str, Counts] | None:
    # For any division into parts, some merge exceeds the limit if and only if the whole source does.
    return table if len(table) <= VALUE_LIMIT else None


def _samples_of(group: tuple[str, str]) -> int:
    return KEPT_SAMPLES if group == KEPT else DROPPED_SAMPLES


def _number(value: float | None) -> float | int | None:
    return int(value) if value is not None and value.is_integer() else value
