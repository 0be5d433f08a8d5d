"""Supervised fastText models, read from the library's file format (version 12, fastText 0.9) into arrays for
kernels/search/fasttext_predict.py. Quantised matrices are unpacked, at 4 bytes per number.
"""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gristmill.errors import UserError

if TYPE_CHECKING:
    import numpy as np

    from pipelines.kernels.search.fasttext_predict import Features, Layers

_MAGIC, _VERSION, _SUPERVISED = 793712314, 12, 3
_LABEL = "__label__"
_CENTROIDS = 256
_BATCH = 1 << 14  # texts per batch of scores of all labels


@dataclass(frozen=True)
class FastTextModel:
    """A supervised fastText model. `labels` are without their prefix, in the order of the model file's
    dictionary. `loss` is HIERARCHICAL, SOFTMAX or INDEPENDENT from kernels/search/fasttext_predict.py.
    """

    labels: tuple[str, ...]
    loss: int
    features: "Features"
    layers: "Layers"

    def predict(
        self, data: "np.ndarray", starts: "np.ndarray", ends: "np.ndarray", k: int
    ) -> tuple["np.ndarray", "np.ndarray"]:
        """Return the k most probable labels of each text data[start:end], best first: indices into `labels`,
        int32 [n, k], and probabilities, float32 [n, k].

        A missing label has the index -1 and the probability 0. Labels are missing if the text has no
        features, if the model has fewer than k labels, or if a hierarchical softmax gives them a probability
        below 1e-5.
        """
        import numpy as np

        from pipelines.kernels.search.fasttext_predict import predict

        indices, scores = np.zeros((len(starts), k), np.int32), np.zeros((len(starts), k), np.float32)
        starts, ends = np.asarray(starts, np.int64), np.asarray(ends, np.int64)
        predict(self.features, self.layers, self.loss, data, starts, ends, indices, scores)
        return indices, scores

    def score(self, data: "np.ndarray", starts: "np.ndarray", ends: "np.ndarray", label: str) -> "np.ndarray":
        """Return the probability of `label`, which must be in `labels`, for each text, float32 [n]. It is 0
        where `predict` does not return the label.
        """
        import numpy as np

        label_index, result = self.labels.index(label), np.zeros(len(starts), np.float32)
        for first in range(0, len(starts), _BATCH):
            some = slice(first, first + _BATCH)
            indices, scores = self.predict(data, starts[some], ends[some], len(self.labels))
            result[some] = np.where(indices == label_index, scores, 0).max(axis=1)
        return result

    @cached_property
    def label_values(self) -> "np.ndarray":
        """The labels as numbers, float64 [labels]. Raises ValueError unless all are finite numbers."""
        import numpy as np

        values: np.ndarray = np.array([float(label) for label in self.labels])
        if not np.isfinite(values).all():
            raise ValueError("a label is no finite number")
        return values

    def expected(self, data: "np.ndarray", starts: "np.ndarray", ends: "np.ndarray") -> "np.ndarray":
        """Return the expected value of the label of each text, float64 [n]: the mean of the labels, read as
        numbers, weighted by their probabilities. It is NaN where `predict` returns no label. Raises
        ValueError if a label is not a finite number.
        """
        import numpy as np

        result = np.full(len(starts), np.nan)
        for first in range(0, len(starts), _BATCH):
            some = slice(first, first + _BATCH)
            indices, scores = self.predict(data, starts[some], ends[some], len(self.labels))
            known = np.flatnonzero(indices[:, 0] >= 0)
            shares = np.where(indices[known] >= 0, scores[known], 0).astype(np.float64)
            values = self.label_values[np.maximum(indices[known], 0)]
            result[first + known] = (shares * values).sum(1) / shares.sum(1)
        return result

    def best(self, data: "np.ndarray", starts: "np.ndarray", ends: "np.ndarray") -> tuple["np.ndarray", "np.ndarray"]:
        """Return the most probable label of each text: its index in `labels`, int32 [n], and its probability,
        float32 [n]; -1 and 0 if `predict` returns no label.
        """
        import numpy as np

        indices, scores = np.full(len(starts), -1, np.int32), np.zeros(len(starts), np.float32)
        for first in range(0, len(starts), _BATCH):
            some = slice(first, first + _BATCH)
            found = self.predict(data, starts[some], ends[some], 1)
            indices[some], scores[some] = found[0][:, 0], found[1][:, 0]
        return indices, scores


def load_fasttext(path: Path, checksum: str, where: str) -> FastTextModel:
    """Read a supervised fastText model from a file. Raises UserError if the file's xxh3_128 is not
    `checksum`, or if the file does not contain such a model.
    """
    import xxhash

    content = path.read_bytes()
    actual = xxhash.xxh3_128_hexdigest(content)
    if actual != checksum:
        raise UserError(
            f"{where}: {path}: its xxh3_128 is {actual}, the build was planned with {checksum}; the file changed, or "
            "differs between machines: restore the planned file, or run the command again"
        )
    try:
        return _parse(content)
    except (ValueError, IndexError, OverflowError) as error:
        raise UserError(f"{where}: {path}: not a supervised fastText model ({error})") from None


def check_fasttext(path: Path, where: str) -> None:
    """Raise ValueError if a file does not begin like a fastText model."""
    with path.open("rb") as file:
        begin = file.read(4)
    if int.from_bytes(begin, "little", signed=True) != _MAGIC:
        raise ValueError(
            f"{where}: {path} does not begin as a fastText model does (.bin or .ftz); other files, such as pickles, are not read"
        )


def _parse(content: bytes) -> FastTextModel:
    import numpy as np

    from pipelines.kernels.search.fasttext_predict import HIERARCHICAL, INDEPENDENT, SOFTMAX, Layers

    file = _File(content)
    if file.numbers(np.int32, 1)[0] != _MAGIC:
        raise ValueError("it does not begin with the magic number")
    version = int(file.numbers(np.int32, 1)[0])
    if version != _VERSION:
        raise ValueError(f"version {version} of the format, only {_VERSION} is supported")
    arguments = file.numbers(np.int32, 12)
    file.numbers(np.float64, 1)
    if arguments[7] != _SUPERVISED:
        raise ValueError("it has word vectors but no labels")
    features, labels, counts = _dictionary(file, arguments)
    quantised = file.flag()
    rows = _matrix(file, quantised)
    output = _matrix(file, file.flag() and quantised)
    shapes = rows.shape[1] == output.shape[1] and len(output) == len(labels) and len(rows) >= _needed_rows(features)
    if file.position != len(content) or not labels or not shapes:
        raise ValueError("its parts do not fit together")
    loss = {1: HIERARCHICAL, 3: SOFTMAX}.get(int(arguments[6]), INDEPENDENT)
    children = _tree(counts) if loss == HIERARCHICAL else np.zeros((0, 2), np.int32)
    return FastTextModel(labels, loss, features, Layers(rows, output, children))


def _needed_rows(features: "Features") -> int:
    words, buckets, _, maxn, ngrams, pruned = features.numbers.tolist()
    if maxn <= 0 and ngrams <= 1:
        return words
    if buckets <= 0:
        raise ValueError("it has n-grams but no buckets")
    return words + (int(features.pruned.max(initial=-1)) + 1 if pruned else buckets)


class _File:
    """A cursor over the content of a model file. Reading past the end raises ValueError."""

    def __init__(self, content: bytes) -> None:
        self.content, self.position = content, 0

    def numbers(self, kind: Any, count: int) -> "np.ndarray":
        import numpy as np

        size = np.dtype(kind).itemsize * int(count)
        if count < 0 or self.position + size > len(self.content):
            raise ValueError("it is truncated")
        numbers = np.frombuffer(self.content, kind, int(count), self.position)
        numbers.setflags(align=False)  # unaligned at any offset, so that kernels are compiled for one type
        self.position += size
        return numbers

    def flag(self) -> bool:
        return bool(self.numbers("u1", 1)[0])

    def word(self) -> bytes:
        end = self.content.index(b"\0", self.position)
        word = self.content[self.position : end]
        self.position = end + 1
        return word


def _dictionary(file: _File, arguments: "np.ndarray") -> tuple["Features", tuple[str, ...], "np.ndarray"]:
    """Return the features, the labels, and the frequency of each label in the training text."""
    import numpy as np

    from pipelines.kernels.search.fasttext_predict import Features, index_words

    size, words, _ = file.numbers(np.int32, 3).tolist()
    _, pruned_size = file.numbers(np.int64, 2).tolist()
    entries, counts = [], []
    for _ in range(size):
        entries.append(file.word())
        counts.append(file.numbers(np.int64, 1)[0])
        file.numbers(np.int8, 1)
    buckets = int(arguments[8])
    pruned: np.ndarray = np.zeros(0, np.int32)
    if pruned_size >= 0:
        pairs = file.numbers(np.int32, 2 * pruned_size).reshape(-1, 2)
        if pairs.size and not (pairs.min() >= 0 and pairs[:, 0].max() < buckets):
            raise ValueError("it lists a bucket that it does not have")
        pruned = np.full(buckets, -1, np.int32)
        pruned[pairs[:, 0]] = pairs[:, 1]
    kept = np.packbits(pruned >= 0, bitorder="little")
    bounds = np.cumsum([0, *(len(entry) for entry in entries)], dtype=np.int64)
    slots = np.full(1 << (2 * size + 1).bit_length(), -1, np.int32)
    joined = np.frombuffer(b"".join(entries), np.uint8)
    index_words(joined, bounds, slots)
    numbers = np.array([words, buckets, *arguments[9:11], arguments[5], pruned_size >= 0], np.int64)
    for array in (bounds, slots, numbers, pruned, kept):
        array.setflags(write=False)
    labels = tuple(entry.decode("utf-8", "replace").removeprefix(_LABEL) for entry in entries[words:])
    return Features(joined, bounds, slots, numbers, pruned, kept), labels, np.array(counts[words:], np.int64)


def _matrix(file: _File, quantised: bool) -> "np.ndarray":
    import numpy as np

    normed = file.flag() if quantised else False
    height, width = file.numbers(np.int64, 2).tolist()
    if not quantised:
        return file.numbers(np.float32, height * width).reshape(height, width)
    codes = file.numbers(np.uint8, file.numbers(np.int32, 1)[0])
    matrix = _unpack(codes.reshape(height, -1), *_centroids(file))
    if normed:
        norms = file.numbers(np.uint8, height)
        matrix *= _unpack(norms.reshape(height, 1), *_centroids(file))
    matrix.setflags(write=False, align=False)
    return matrix


def _centroids(file: _File) -> tuple["np.ndarray", int, int, int]:
    """Read a product quantiser. Return its centroids, the number of sub-vectors in a row, the length of a
    sub-vector, and the length of the last one, which may be shorter.
    """
    import numpy as np

    width, parts, length, last = file.numbers(np.int32, 4).tolist()
    return file.numbers(np.float32, width * _CENTROIDS), parts, length, last


def _unpack(codes: "np.ndarray", centroids: "np.ndarray", parts: int, length: int, last: int) -> "np.ndarray":
    """Decode the rows of a product-quantised matrix (Jégou et al. 2011, "Product Quantization for Nearest
    Neighbor Search").
    """
    import numpy as np

    pieces = []
    for part in range(parts):
        size = last if part == parts - 1 else length
        start = part * _CENTROIDS * length
        pieces.append(centroids[start : start + _CENTROIDS * size].reshape(_CENTROIDS, size)[codes[:, part]])
    return np.ascontiguousarray(np.concatenate(pieces, axis=1))


def _tree(counts: "np.ndarray") -> "np.ndarray":
    """Return fastText's Huffman tree of the labels: the two children of each node, int32 [2 * labels - 1, 2].
    The leaves come first, and their children are -1. `counts` holds the frequencies of the labels, in
    descending order.
    """
    import numpy as np

    labels = len(counts)
    weights = np.full(2 * labels - 1, 10**15, np.int64)
    weights[:labels] = counts
    children = np.full((2 * labels - 1, 2), -1, np.int32)
    leaf, inner = labels - 1, labels
    for node in range(labels, 2 * labels - 1):
        for side in range(2):
            if leaf >= 0 and weights[leaf] < weights[inner]:
                children[node, side], leaf = leaf, leaf - 1
            else:
                children[node, side], inner = inner, inner + 1
        weights[node] = weights[children[node]].sum()
    return children
