"""Read the mixtures and metrics of finished runs: two CSV files with a row per run, as RegMix and Olmix write them.

ratios.csv    a key (run_id, run, index or name), then a column per domain with its share of the tokens
metrics.csv   the same key, then a column per metric
"""

import csv
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256
from pathlib import Path

import numpy as np

from gristmill.errors import ConfigError
from gristmill.storage.store import digest

KEYS = ("run_id", "run", "index", "name")
"""Columns that identify a run. The two files are joined by the first one that both have."""
_ROUNDING = 1e-5  # a sum farther from 1 is an error; dozens of shares with six digits each stay closer


@dataclass(frozen=True)
class RunTable:
    """The mixtures `ratios` [runs, domains], each with sum 1, and the metrics `values` [runs, metrics], for
    which lower is better.

    `censored`, bool [runs, metrics], marks metrics that a run does not have because it diverged; their value
    is NaN. `negated` names metrics for which higher is better; their values are stored with the opposite
    sign.
    """

    runs: tuple[str, ...]
    domains: tuple[str, ...]
    ratios: np.ndarray
    metrics: tuple[str, ...]
    values: np.ndarray
    negated: frozenset[str] = frozenset()

    @property
    def censored(self) -> np.ndarray:
        """Which values are missing, bool [runs, metrics]."""
        return np.isnan(self.values)

    @cached_property
    def fingerprint(self) -> str:
        """A digest of the names and numbers of the table."""
        names = [self.runs, self.domains, self.metrics, sorted(self.negated)]
        return digest([*names, sha256(self.ratios.tobytes() + self.values.tobytes()).hexdigest()])

    def select(self, metrics: Sequence[str]) -> "RunTable":
        """Return the table with `metrics` alone. Raises ConfigError for a metric that it does not have."""
        for name in metrics:
            if name not in self.metrics:
                raise ConfigError(f"--metric: got {name!r}, the table has {_listed(self.metrics)}")
        columns = [self.metrics.index(name) for name in metrics]
        return replace(self, metrics=tuple(metrics), values=self.values[:, columns])

    def require_runs(self, law: str, least: int) -> None:
        """Raise ConfigError unless every metric is measured in at least `least` runs."""
        for name, measured in zip(self.metrics, (~self.censored).sum(axis=0), strict=True):
            if measured < least:
                raise ConfigError(
                    f"{name}: {measured} of {len(self.runs)} runs have a value; the law {law} of {len(self.domains)} "
                    f"domains needs {least} or more: train more runs or choose a law of fewer parameters"
                )


def read_run_table(
    ratios: Path, metrics: Path, normalise: bool = False, higher_is_better: Collection[str] = ()
) -> RunTable:
    """Read the mixtures and the metrics of runs; `normalise` divides each mixture by its sum.

    A metric that is empty, `nan` or infinite is censored. Raises ConfigError, in one line, for a file that cannot be
    read as such a table, runs that only one file has, and mixtures that do not sum to 1.
    """
    shares, scores = _read(ratios), _read(metrics)
    key = next((name for name in KEYS if name in shares.keys and name in scores.keys), None)
    if key is None:
        raise ConfigError(f"{metrics}: shares no key with {ratios}; give both a column {' or '.join(KEYS)}")
    first, second = shares.keys[key], scores.keys[key]
    for file, other, here, there in ((metrics, ratios, second, first), (ratios, metrics, first, second)):
        if missing := sorted(set(there) - set(here), key=there.index):
            raise ConfigError(
                f"{file}: has no row for {len(missing)} of {len(there)} runs of {other} ({key} {_listed(missing)}); "
                f"add their rows, with an empty metric if they failed"
            )
    for name in higher_is_better:
        if name not in scores.columns:
            raise ConfigError(f"--higher-is-better: got {name!r}, {metrics} has {_listed(scores.columns)}")
    values = scores.values[[second.index(run) for run in first]]
    values = np.where(np.isfinite(values), values, np.nan)
    values[:, [scores.columns.index(name) for name in higher_is_better]] *= -1
    mixtures = _mixtures(ratios, key, first, shares.values, normalise)
    return RunTable(first, shares.columns, mixtures, scores.columns, values, frozenset(higher_is_better))


def align_domains(table: RunTable, other: RunTable, source: str) -> RunTable:
    """Return `other`, which was read from `source`, with its domains in the order of `table`. Raises ConfigError if
    they differ.
    """
    if set(other.domains) != set(table.domains):
        more, fewer = set(other.domains) - set(table.domains), set(table.domains) - set(other.domains)
        parts = [f"{word} {_listed(sorted(names))}" for word, names in (("has also", more), ("lacks", fewer)) if names]
        raise ConfigError(
            f"{source}: {' and '.join(parts)}, compared with the runs that are fitted; use the same domains"
        )
    columns = [other.domains.index(name) for name in table.domains]
    return replace(other, domains=table.domains, ratios=other.ratios[:, columns])


@dataclass(frozen=True)
class _Columns:
    """A CSV file: its key columns as text, and the others as numbers [rows, columns], NaN where a cell is empty."""

    keys: dict[str, tuple[str, ...]]
    columns: tuple[str, ...]
    values: np.ndarray


def _read(path: Path) -> _Columns:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = [row for row in csv.reader(file, strict=True) if row]
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"{path}: not a CSV file in UTF-8: {error}") from None
    if len(rows) < 2:
        raise ConfigError(f"{path}: has no rows; expected a header and a row per run")
    header, rows = [name.strip() for name in rows[0]], rows[1:]
    if doubled := sorted({name for name in header if header.count(name) > 1}):
        raise ConfigError(f"{path}: the column {doubled[0]!r} occurs twice; name each column once")
    for line, row in enumerate(rows, 2):
        if len(row) != len(header):
            raise ConfigError(f"{path}: row {line} has {len(row)} cells, the header has {len(header)}")
    keys = {name: tuple(row[i].strip() for row in rows) for i, name in enumerate(header) if name in KEYS}
    if not keys:
        raise ConfigError(f"{path}: has no column that names runs; expected {' or '.join(KEYS)}")
    for name, cells in keys.items():
        if name != "name" and len(set(cells)) < len(cells):
            twice = next(cell for cell in cells if cells.count(cell) > 1)
            raise ConfigError(f"{path}: the run {name} {twice} has two rows; keep one")
    columns = [(i, name) for i, name in enumerate(header) if name not in KEYS]
    if not columns:
        raise ConfigError(f"{path}: has no column beside {', '.join(keys)}; expected one per domain or metric")
    values = np.array([[_number(path, line, name, row[i]) for i, name in columns] for line, row in enumerate(rows, 2)])
    return _Columns(keys, tuple(name for _, name in columns), values)


def _number(path: Path, line: int, column: str, cell: str) -> float:
    try:
        return float(cell) if cell.strip() else float("nan")
    except ValueError:
        raise ConfigError(f"{path}: row {line}, {column}: got {cell.strip()!r}, expected a number") from None


def _mixtures(path: Path, key: str, runs: Sequence[str], values: np.ndarray, normalise: bool) -> np.ndarray:
    """Return the mixtures: shares of at least 0 with sum 1."""
    for run, row in zip(runs, values, strict=True):
        if not np.isfinite(row).all() or row.min() < 0 or row.sum() <= 0:
            raise ConfigError(f"{path}: {key} {run}: a share is missing or negative, or all are 0; allowed 0 or more")
    sums = values.sum(axis=1)
    off = np.flatnonzero(np.abs(sums - 1) > _ROUNDING)
    if len(off) and not normalise:
        shown = _listed([f"{runs[i]} to {sums[i]:.6g}" for i in off.tolist()])
        raise ConfigError(
            f"{path}: {len(off)} of {len(runs)} mixtures do not sum to 1 ({key} {shown}); correct them, or give "
            f"--normalise to divide each by its sum"
        )
    return values / sums[:, None]


def _listed(names: Sequence[str], most: int = 5) -> str:
    """Return the first few names as text, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{', '.join(map(str, names[:most]))}{more}"
