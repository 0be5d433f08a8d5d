"""Linear models over embeddings: functions from the vector of a document to the log-odds of the positive
class, or to the score that a judge would give.

`python -m pipelines classifier train` writes them with `kind: embeddings`. A model file is in safetensors
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
from gristmill.storage.store import canonical_json, file_checksum
from pipelines.stages.score.column_model import ModelColumn, probability

FORMAT = "gristmill-embedding-model/1"
_HEAD = "gristmill"
_VECTORS = ("center", "weights", "axis")
_BLOCK = 4096  # vectors in double precision at a time
LinearMethod = Literal["logistic", "ridge"]


@dataclass(frozen=True)
class EmbeddingModel:
    """A trained linear model over embeddings. Its `arrays` are float64. `center` [width] is the weighted mean
    of the training vectors. `weights` [width] are the coefficients. `intercept` [1] is the value at the
    centre. `axis` [width] is the unit vector from the mean of the negative training documents towards the
    mean of the positive ones.
    """

    method: LinearMethod
    column: ModelColumn
    arrays: Mapping[str, np.ndarray]

    @property
    def width(self) -> int:
        """The number of dimensions of the embeddings that the model reads."""
        return len(self.arrays["weights"])

    def evaluate(self, vectors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the model's value for each vector, float64 [n], and two contributions to it, float64 [n, 2].

        The value is the log-odds of the positive class (logistic) or the predicted score (ridge). It equals
        the intercept plus both contributions: the first from the direction of `axis`, the second from all
        other directions.
        """
        contributions = np.zeros((len(vectors), 2))
        weights, axis = self.arrays["weights"], self.arrays["axis"]
        along = float(weights @ axis)
        for start in range(0, len(vectors), _BLOCK):
            rows = slice(start, start + _BLOCK)
            offsets = vectors[rows].astype(np.float64) - self.arrays["center"]
            # Not a product of a matrix and a vector, whose order of additions depends on the number of rows.
            contributions[rows, 0] = along * (offsets * axis).sum(1)
            contributions[rows, 1] = (offsets * weights).sum(1) - contributions[rows, 0]
        return self.arrays["intercept"][0] + contributions.sum(1), contributions

    def score(self, vectors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the score of each vector, float64 [n], and the contributions from `evaluate`. For a logistic
        model, the score is the probability of the positive class.
        """
        values, contributions = self.evaluate(vectors)
        return (probability(values) if self.method == "logistic" else values), contributions


def save_embedding_model(model: EmbeddingModel, path: Path) -> None:
    """Write a model to a file. Equal models give equal bytes."""
    from safetensors.numpy import save_file

    head = {
        "format": FORMAT, "method": model.method, "column": model.column.name,
        "definitions": list(model.column.definitions),
    }  # fmt: skip
    save_file(dict(model.arrays), str(path), {_HEAD: canonical_json(head).decode()})


@lru_cache(maxsize=4)
def load_embedding_model(path: Path, checksum: str) -> EmbeddingModel:
    """Return a model, cached within the process. Raises UserError for a file that is not a model or whose
    xxh3_128 is not `checksum`.
    """
    if (now := file_checksum(path)) != checksum:
        raise UserError(
            f"embedding_classifier: {path}: its xxh3_128 is {now}, but the build was planned with {checksum}; restore the "
            "planned file, or run the command again"
        )
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(path), framework="np") as file:
            head: Any = json.loads((file.metadata() or {})[_HEAD])
            # Not a mapping: it has no iterator.
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        if head["format"] != FORMAT:
            raise UserError(
                f"embedding_classifier: {path}: has the format {head['format']!r}, expected {FORMAT!r}; train it with "
                "`kind: embeddings`"
            )
        model = EmbeddingModel(head["method"], ModelColumn(head["column"], tuple(head["definitions"])), arrays)
        sound = _is_sound(model)
    except (SafetensorError, KeyError, TypeError, ValueError):
        sound = False
    if not sound:
        raise UserError(
            f"embedding_classifier: {path}: is not a model of embeddings; `python -m pipelines classifier train` writes one with "
            "`kind: embeddings`"
        )
    return model


def _is_sound(model: EmbeddingModel) -> bool:
    arrays = model.arrays
    if model.method not in ("logistic", "ridge") or set(arrays) != {"intercept", *_VECTORS}:
        return False
    if any(a.dtype != np.float64 or a.ndim != 1 or not np.isfinite(a).all() for a in arrays.values()):
        return False
    return len(arrays["intercept"]) == 1 and {len(arrays[name]) for name in _VECTORS} == {model.width}
