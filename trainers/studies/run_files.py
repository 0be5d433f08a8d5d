"""Read CSV files with one row per run, or one row per run and item. A file begins with one or more key
columns, which name the run. If it has one row per run and item, the column `item` follows. All other columns
hold numbers.

  run_id,web,code            run,accuracy                run,item,correct
  a,0.25,0.75                a,0.31                      a,q1,1
"""

import csv
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gristmill.errors import ConfigError

KEYS = ("run_id", "run", "index", "name")
"""Names of key columns: columns at the beginning of a file that identify its runs."""
ITEM = "item"
"""The column that follows the key columns in a file with a row per item. If each run has one row, a column of this
name is one of numbers, such as the shares of a domain.
"""


@dataclass(frozen=True)
class RunColumns:
    """The content of a CSV file of runs. `keys` maps each key column to its value for each run. `values`
    [runs, columns] holds the numbers in `columns`, averaged over items if the file has a row per item.
    Missing and infinite values are NaN.
    """

    keys: dict[str, tuple[str, ...]]
    columns: tuple[str, ...]
    values: np.ndarray


def _names_items(rows: Sequence[Sequence[str]], places: Mapping[str, int], column: int) -> bool:
    """Return whether the column with index `column`, which is called ITEM, names items. It does if a run has
    several rows, or if a value in the column is neither a number nor blank. Otherwise, the column holds
    numbers, such as the shares of a domain called ITEM. `places` maps the key columns to their indices.
    """
    runs = [row[next(iter(places.values()))].strip() for row in rows]
    return len(set(runs)) < len(runs) or not all(_is_number(row[column]) for row in rows)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return not text.strip()
    return True


def read_run_columns(path: Path, key: str | None = None, columns: Collection[str] = ()) -> RunColumns:
    """Read a CSV file of runs. The runs are named by the column `key` or, by default, by the leading columns
    that are in KEYS. Of the other columns, only `columns` are read, or all of them if `columns` is empty.

    In a file with a row per item, the value of a run is the mean over the items that have a value in at least
    one run. If the run itself lacks a value for one of these items, its mean is NaN. Raises ConfigError if
    the file is not of this form.
    """
    header, rows = _cells(path)
    places = _key_places(path, header, key)
    after = max(places.values()) + 1
    item = after if len(header) > after and header[after] == ITEM and _names_items(rows, places, after) else None
    taken = {*places.values(), item}
    numbers = [(i, name) for i, name in enumerate(header) if i not in taken]
    if doubled := sorted({name for _, name in numbers if sum(name == other for _, other in numbers) > 1}):
        raise ConfigError(f"{path}: the column {doubled[0]!r} occurs twice; name each column once")
    if not numbers:
        raise ConfigError(f"{path}: has only the columns {', '.join(places)}; expected one more per domain or metric")
    for name in columns:
        if name not in header:
            raise ConfigError(f"{path}: has no column {name!r}; it has {listed([name for _, name in numbers])}")
    numbers = [(i, name) for i, name in numbers if not columns or name in columns]
    values = np.array([[_number(path, line, name, row[i]) for i, name in numbers] for line, row in enumerate(rows, 2)])
    values = np.where(np.isfinite(values), values, np.nan)
    keys = {name: tuple(row[place].strip() for row in rows) for name, place in places.items()}
    if item is not None:
        keys, values = _mean_of_items(path, keys, [row[item].strip() for row in rows], values)
    first, runs = next(iter(keys.items()))
    if len(set(runs)) < len(runs):
        twice = next(run for run in runs if runs.count(run) > 1)
        raise ConfigError(
            f"{path}: the run {first} {twice} has two rows; keep one, or name the items in a column {ITEM!r} after "
            f"{list(keys)[-1]}"
        )
    return RunColumns(keys, tuple(name for _, name in numbers), values)


def listed(names: Sequence[str], most: int = 5) -> str:
    """Return the first `most` names as text, followed by the number of further names if there are any."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{', '.join(map(str, names[:most]))}{more}"


def _cells(path: Path) -> tuple[list[str], list[list[str]]]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = [row for row in csv.reader(file, strict=True) if row]
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise ConfigError(f"{path}: is a directory; give a CSV file") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"{path}: not a CSV file in UTF-8: {error}") from None
    if len(rows) < 2:
        raise ConfigError(f"{path}: has no rows; expected a header and a row per run")
    header = [name.strip() for name in rows[0]]
    for line, row in enumerate(rows[1:], 2):
        if len(row) != len(header):
            raise ConfigError(f"{path}: row {line} has {len(row)} cells, the header has {len(header)}")
    return header, rows[1:]


def _key_places(path: Path, header: Sequence[str], key: str | None) -> dict[str, int]:
    if key is not None:
        if key not in header:
            raise ConfigError(f"{path}: --key: got {key!r}, the columns are {listed(header)}")
        return {key: header.index(key)}
    places: dict[str, int] = {}
    for i, name in enumerate(header):
        if name not in KEYS or name in places:
            break
        places[name] = i
    if not places:
        raise ConfigError(
            f"{path}: has no column that names runs; expected {' or '.join(KEYS)} first, or give --key NAME"
        )
    return places


def _number(path: Path, line: int, column: str, cell: str) -> float:
    try:
        return float(cell) if cell.strip() else float("nan")
    except ValueError:
        raise ConfigError(f"{path}: row {line}, {column}: got {cell.strip()!r}, expected a number") from None


def _mean_of_items(
    path: Path, keys: dict[str, tuple[str, ...]], items: Sequence[str], values: np.ndarray
) -> tuple[dict[str, tuple[str, ...]], np.ndarray]:
    first, rows = next(iter(keys.items()))
    runs, all_items = list(dict.fromkeys(rows)), list(dict.fromkeys(items))
    run_number, item_number = ({name: i for i, name in enumerate(names)} for names in (runs, all_items))
    cube = np.full((len(runs), len(all_items), values.shape[1]), np.nan)
    there = np.zeros(cube.shape[:2], dtype=bool)
    for run, item, row in zip(rows, items, values, strict=True):
        at = run_number[run], item_number[item]
        if there[at]:
            raise ConfigError(f"{path}: the item {item} of {first} {run} has two rows; keep one")
        cube[at], there[at] = row, True
    if not there.all():
        lacking = np.argwhere(~there)[0].tolist()
        raise ConfigError(
            f"{path}: {first} {runs[lacking[0]]} has no row for item {all_items[lacking[1]]}, which other runs have; add "
            f"it, with an empty value if the run failed there"
        )
    counted = ~np.isnan(cube).all(axis=0)  # [items, columns]
    sums = np.where(counted, cube, 0.0).sum(axis=1)
    with np.errstate(invalid="ignore"):
        means = sums / counted.sum(axis=0)
    start = {run: rows.index(run) for run in runs}
    for name, cells in keys.items():
        for run, cell in zip(rows, cells, strict=True):
            if cell != cells[start[run]]:
                raise ConfigError(
                    f"{path}: {first} {run} has rows with {name} {cells[start[run]]!r} and {cell!r}; a run has one {name}: "
                    "correct its rows"
                )
    return {name: tuple(cells[start[run]] for run in runs) for name, cells in keys.items()}, means
