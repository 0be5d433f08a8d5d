"""Column models: classifiers that compute the probability of the positive class from the values of a
document's columns.

`python -m pipelines classifier train` writes them with `kind: columns`. A model file is in safetensors
format, and loading it runs no code.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np

from gristmill.errors import UserError
from gristmill.storage.store import canonical_json, digest, file_checksum

FORMAT = "gristmill-column-model/1"
MODEL_FILE = "model.safetensors"
_HEAD = "gristmill"
_REGRESSION = ("means", "scales", "weights")
TREES = {
    "roots": np.int64, "columns": np.int32, "thresholds": np.float64, "lefts": np.int64, "rights": np.int64,
    "missing_left": np.bool_, "expected": np.float64,
}  # fmt: skip
"""Types of the arrays of boosted trees; `Trees` in kernels/search/tree_ensemble.py says what they hold."""
Method = Literal["regression", "boosted"]


@dataclass(frozen=True)
class ModelColumn:
    """A column that a model reads. `definitions` lists the definitions of the column that the model accepts
    (`definition_of` in contracts/columns.py).
    """

    name: str
    definitions: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True)
class ColumnModel:
    """A model trained on the values of columns. `arrays` contains the `intercept` [1] and, for a regression,
    the `means`, `scales` and `weights` [columns] or, for boosted trees, the arrays listed in TREES.
    """

    method: Method
    columns: tuple[ModelColumn, ...]
    arrays: Mapping[str, np.ndarray]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns."""
        return tuple(column.name for column in self.columns)

    @property
    def fingerprint(self) -> str:
        """32 hex digits that identify the columns and their definitions."""
        return digest([[column.name, list(column.definitions)] for column in self.columns])

    def evaluate(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the log-odds of the positive class for each document, float64 [n], and the contribution of
        each column to them, float64 [n, columns]. The log-odds are a constant plus the sum of the
        contributions. `values` is float64 [n, columns], NaN where a value is missing.
        """
        contributions = np.zeros(values.shape)
        if self.method == "regression":
            standard = (values - self.arrays["means"]) / self.arrays["scales"]
            contributions = np.where(np.isnan(values), 0.0, standard) * self.arrays["weights"]
            return self.arrays["intercept"][0] + contributions.sum(1), contributions
        from pipelines.kernels.search.tree_ensemble import Trees, add_trees

        odds = np.full(len(values), self.arrays["intercept"][0])
        trees = Trees(**{name: self.arrays[name] for name in TREES})
        add_trees(np.ascontiguousarray(values), trees, odds, contributions)
        return odds, contributions


def probability(odds: np.ndarray) -> np.ndarray:
    """Return the logistic function of log-odds, computed without overflow."""
    small = np.exp(-np.abs(odds))
    return np.where(odds >= 0, 1.0, small) / (1.0 + small)


def save_model(model: ColumnModel, path: Path) -> None:
    """Write a model to a file. Equal models give equal bytes."""
    from safetensors.numpy import save_file

    head = {
        "format": FORMAT, "method": model.method, "fingerprint": model.fingerprint,
        "columns": [{"name": column.name, "definitions": list(column.definitions)} for column in model.columns],
    }  # fmt: skip
    # One entry, because the library writes several in an order that changes.
    save_file(dict(model.arrays), str(path), {_HEAD: canonical_json(head).decode()})


def model_file(model: str) -> Path:
    """Return the path of a model file: `model` itself or, if that is a directory, the MODEL_FILE in it."""
    path = Path(model)
    return path / MODEL_FILE if path.is_dir() else path


@lru_cache(maxsize=4)
def load_model(path: Path, checksum: str) -> ColumnModel:
    """Return a model, cached within the process. Raises UserError for a file that is not a model or whose
    xxh3_128 is not `checksum`.
    """
    if (now := file_checksum(path)) != checksum:
        raise UserError(
            f"score: {path}: its xxh3_128 is {now}, but the build was planned with {checksum}; restore the planned file, or run "
            "the command again"
        )
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(path), framework="np") as file:
            head = json.loads((file.metadata() or {})[_HEAD])
            # Not a mapping: it has no iterator.
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        if head["format"] != FORMAT:
            raise UserError(f"score: {path}: has the format {head['format']!r}, expected {FORMAT!r}; train it again")
        columns = tuple(ModelColumn(column["name"], tuple(column["definitions"])) for column in head["columns"])
        model = ColumnModel(head["method"], columns, arrays)
        sound = _is_sound(model) and model.fingerprint == head["fingerprint"]
    except (SafetensorError, KeyError, TypeError, ValueError):
        sound = False
    if not sound:
        raise UserError(
            f"score: {path}: is not a model of columns; `python -m pipelines classifier train` writes one with `kind: columns`"
        )
    return model


def _is_sound(model: ColumnModel) -> bool:
    """Return whether the arrays fit together. They must be checked here, because the kernel for trees does
    not check bounds.
    """
    count, arrays = len(model.columns), model.arrays
    expected = TREES if model.method == "boosted" else dict.fromkeys(_REGRESSION, np.float64)
    if model.method not in ("regression", "boosted") or set(arrays) != {"intercept", *expected}:
        return False
    if arrays["intercept"].shape != (1,) or arrays["intercept"].dtype != np.float64:
        return False
    if any(arrays[name].ndim != 1 or arrays[name].dtype != kind for name, kind in expected.items()):
        return False
    if model.method == "regression":
        return all(len(arrays[name]) == count for name in _REGRESSION)
    nodes = len(arrays["columns"])
    if any(len(arrays[name]) != nodes for name in TREES if name != "roots"):
        return False
    asks = arrays["columns"] >= 0
    here = np.flatnonzero(asks)  # children come after their parents, so no walk goes round in circles
    inside = [np.all((arrays[side][asks] > here) & (arrays[side][asks] < nodes)) for side in ("lefts", "rights")]
    inside += [np.all((arrays["roots"] >= 0) & (arrays["roots"] < nodes)), np.all(arrays["columns"] < count)]
    return all(map(bool, inside))
