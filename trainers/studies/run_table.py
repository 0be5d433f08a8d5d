"""Tables of the mixtures and metrics of runs, read from two CSV files with a row per run, as RegMix and Olmix
write them.

ratios.csv    a key (run_id, run, index or name), then a column per domain with its share of the tokens
metrics.csv   the same key, then a column per metric; with a column `item` after the key, a row per run and item
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256
from pathlib import Path

import numpy as np

from gristmill.errors import ConfigError
from gristmill.storage.store import digest
from trainers.studies.run_files import KEYS, RunColumns, listed, read_run_columns

_ROUNDING = 1e-5  # a sum farther from 1 is an error; dozens of shares with six digits each stay closer


@dataclass(frozen=True)
class RunTable:
    """The mixtures and the metrics of runs. Each row of `ratios` [runs, domains] sums to 1. `values` [runs,
    metrics] holds the metrics, for which lower is better.

    A metric that a run lacks, for example because it diverged, is NaN. `negated` names metrics for which
    higher is better; their values are stored with the opposite sign. `sizes` [runs, sizes] holds log(size of
    the run / size of the target), or is None.
    """

    runs: tuple[str, ...]
    domains: tuple[str, ...]
    ratios: np.ndarray
    metrics: tuple[str, ...]
    values: np.ndarray
    negated: frozenset[str] = frozenset()
    sizes: np.ndarray | None = None
    size_names: tuple[str, ...] = ()

    @property
    def censored(self) -> np.ndarray:
        """Whether each value is missing, bool [runs, metrics]."""
        return np.isnan(self.values)

    @property
    def features(self) -> np.ndarray:
        """The inputs of the laws: the mixtures, followed by the sizes if there are any, [runs, columns]."""
        return self.ratios if self.sizes is None else np.concatenate([self.ratios, self.sizes], axis=1)

    @cached_property
    def fingerprint(self) -> str:
        """A digest of the names of runs, domains and metrics, of all numbers in the table, and of which
        metrics are negated.
        """
        names = [self.runs, self.domains, self.metrics, sorted(self.negated)]
        return digest([*names, sha256(self.features.tobytes() + self.values.tobytes()).hexdigest()])

    def select(self, metrics: Sequence[str]) -> "RunTable":
        """Return the table with only `metrics`. Raises ConfigError for a metric that the table lacks."""
        for name in metrics:
            if name not in self.metrics:
                raise ConfigError(f"--metric: got {name!r}, the table has {listed(self.metrics)}")
        columns = [self.metrics.index(name) for name in metrics]
        return replace(self, metrics=tuple(metrics), values=self.values[:, columns])

    def require_runs(self, law: str, least: int) -> None:
        """Raise ConfigError unless every metric has a value in at least `least` runs."""
        for name, measured in zip(self.metrics, (~self.censored).sum(axis=0), strict=True):
            if not measured:
                raise ConfigError(f"{name}: no run has a value; leave this metric out")
            if measured < least:
                raise ConfigError(
                    f"{name}: {measured} of {len(self.runs)} runs have a value; the law {law} of {len(self.domains)} "
                    f"domains needs {least} or more: train more runs or choose a law with fewer parameters"
                )


def read_run_table(
    ratios: Path,
    metrics: Path,
    normalise: bool = False,
    higher_is_better: Collection[str] = (),
    key: str | None = None,
    chosen: Collection[str] = (),
    target: Mapping[str, float] | None = None,
) -> RunTable:
    """Read a table of runs from two CSV files: their mixtures from `ratios`, their metrics from `metrics`.
    Only the `chosen` metrics are read, or all if `chosen` is empty. `normalise` divides each mixture by its
    sum. The metrics named in `higher_is_better` are negated. `key` is the column that names runs; by default,
    it is the first of KEYS that identifies the runs in both files. If columns of `ratios` hold sizes of the
    runs instead of shares, `target` maps each of these columns to the size of the target.

    Raises ConfigError for a file that is not of the expected form, for a run that only one file has and,
    unless `normalise` is set, for a mixture that does not sum to 1.
    """
    shares, scores = read_run_columns(ratios, key), read_run_columns(metrics, key, chosen)
    if key is None:
        key = _common_key(ratios, shares, metrics, scores)
    first, second = shares.keys[key], scores.keys[key]
    for file, other, here, there in ((metrics, ratios, second, first), (ratios, metrics, first, second)):
        if missing := sorted(set(there) - set(here), key=there.index):
            raise ConfigError(
                f"{file}: has no row for {len(missing)} of {len(there)} runs of {other} ({key} {listed(missing)}); "
                f"add their rows, with an empty metric if they failed"
            )
    for name in higher_is_better:
        if name not in scores.columns:
            raise ConfigError(f"--higher-is-better: got {name!r}, {metrics} has {listed(scores.columns)}")
    places = {run: i for i, run in enumerate(second)}
    values = scores.values[[places[run] for run in first]]
    values[:, [scores.columns.index(name) for name in higher_is_better]] *= -1
    shares, sizes = _split_sizes(ratios, shares, target or {})
    mixtures, better = _mixtures(ratios, key, shares, normalise), frozenset(higher_is_better)
    return RunTable(first, shares.columns, mixtures, scores.columns, values, better, sizes, tuple(target or ()))


def _split_sizes(path: Path, shares: RunColumns, target: Mapping[str, float]) -> tuple[RunColumns, np.ndarray | None]:
    """Split the size columns from `shares`. `target` maps the name of each size column to the size of the
    target. Return the remaining columns, and log(size / target size) [runs, sizes], or None if `target` is
    empty.
    """
    if not target:
        return shares, None
    columns = []
    for name, size in target.items():
        if name not in shares.columns:
            raise ConfigError(f"--at: got {name!r}, {path} has {listed(shares.columns)}")
        values = shares.values[:, shares.columns.index(name)]
        if not (values > 0).all():
            raise ConfigError(f"{path}: {name}: a value is missing or not above 0")
        columns.append(np.log(values / size))
    kept = [i for i, name in enumerate(shares.columns) if name not in target]
    if not kept:
        raise ConfigError(f"{path}: has no column except {', '.join(target)}; expected one per domain")
    names = tuple(shares.columns[i] for i in kept)
    return replace(shares, columns=names, values=shares.values[:, kept]), np.stack(columns, axis=1)


def _common_key(ratios: Path, shares: RunColumns, metrics: Path, scores: RunColumns) -> str:
    for file, keys, other, columns in ((ratios, shares, metrics, scores), (metrics, scores, ratios, shares)):
        if both := [name for name in keys.keys if name in columns.columns]:
            raise ConfigError(
                f"{file}: {both[0]} is read as a key, but in {other} it is a column of numbers; name the column of the "
                f"runs with --key"
            )
    for name in (*KEYS, *shares.keys):
        if name in shares.keys and name in scores.keys:
            unique = [len(set(its.keys[name])) == len(its.keys[name]) for its in (shares, scores)]
            if all(unique):
                return name
    raise ConfigError(f"{metrics}: shares no key with {ratios}; give both a column {' or '.join(KEYS)}")


def align_domains(table: RunTable, other: RunTable, source: str) -> RunTable:
    """Return `other` with its domains in the order of `table`. Raises ConfigError if the domains differ;
    `source` names `other` in the message.
    """
    if set(other.domains) != set(table.domains):
        more, fewer = set(other.domains) - set(table.domains), set(table.domains) - set(other.domains)
        parts = [f"{word} {listed(sorted(names))}" for word, names in (("has also", more), ("lacks", fewer)) if names]
        raise ConfigError(
            f"{source}: {' and '.join(parts)}, compared with the runs that are fitted; use the same domains"
        )
    columns = [other.domains.index(name) for name in table.domains]
    return replace(other, domains=table.domains, ratios=other.ratios[:, columns])


def _mixtures(path: Path, key: str, shares: RunColumns, normalise: bool) -> np.ndarray:
    """Return the mixtures, [runs, domains], each divided by its sum, which must be 1 unless `normalise` is
    true.
    """
    runs, values = shares.keys[key], shares.values
    for run, row in zip(runs, values, strict=True):
        if not np.isfinite(row).all() or row.min() < 0 or row.sum() <= 0:
            raise ConfigError(f"{path}: {key} {run}: a share is missing or negative, or all are 0; allowed 0 or more")
    sums = values.sum(axis=1)
    off = np.flatnonzero(np.abs(sums - 1) > _ROUNDING)
    if len(off) and not normalise:
        shown = listed([f"{runs[i]} to {sums[i]:.6g}" for i in off.tolist()])
        also = [name for name in shares.keys if name != key]
        hint = f"; if {also[0]} is a domain, give --key {key}" if also else ""
        raise ConfigError(
            f"{path}: {len(off)} of {len(runs)} mixtures do not sum to 1 ({key} {shown}); correct them, or give "
            f"--normalise to divide each by its sum{hint}"
        )
    return values / sums[:, None]
