"""Training and scoring of `classifier train`: fastText on chosen documents, and once more without each source.

A classifier of two classes that come from different sources can learn the source instead of the class: a template, a date, a
domain's name. Held-out documents of the same sources do not show it. A model that was trained without a source does, by the
held-out documents of that source.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from gristmill.errors import UserError
from gristmill.storage.store import file_checksum
from pipelines.classifiers.classifier_metrics import roc_auc
from pipelines.stages.score.fasttext_model import load_fasttext

LABELS = ("positive", "negative")
LEAST = 10
"""Documents of each class, to train and held out: with fewer, the measures say nothing."""
SKEW = 10
"""Documents of the larger class for one of the smaller from which training warns."""
_TRAININGS = 5  # that may fail before training is given up


@dataclass(frozen=True)
class FastTextKnobs:
    """Arguments of fastText's `train_supervised`; the defaults are the library's, but for word_ngrams."""

    dim: int = 100
    """Length of the vectors."""
    epoch: int = 5
    """Passes over the training text."""
    lr: float = 0.1
    """Learning rate at the start; it falls to 0."""
    word_ngrams: int = 2
    """Longest n-gram of words that is a feature."""
    min_count: int = 1
    """Words that occur less often are no features."""
    bucket: int = 2_000_000
    """Buckets that n-grams are hashed into; each costs dim * 4 bytes of the model."""
    minn: int = 0
    """Shortest n-gram of characters that is a feature."""
    maxn: int = 0
    """Longest; 0 for none."""
    loss: Literal["softmax", "hs", "ova"] = "softmax"
    """Loss function."""
    thread: int = 11
    """Threads. Below 11 this library leaves part of the input matrix uninitialised, and training fails or goes astray."""

    def check(self) -> None:
        """Ranges."""
        for name in ("dim", "epoch", "word_ngrams", "min_count", "bucket"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: got {getattr(self, name)}, expected 1 or more")
        if self.lr <= 0:
            raise ValueError(f"lr: got {self.lr}, expected a number above 0")
        if not 0 <= self.minn <= self.maxn:
            raise ValueError(f"minn: got {self.minn}, expected 0 to maxn = {self.maxn}")
        if self.thread < 11:
            raise ValueError(f"thread: got {self.thread}, expected 11 or more: with fewer, this library leaves part "
                             "of its matrix uninitialised")  # fmt: skip


@dataclass(frozen=True)
class Example:
    """A document that was chosen: the hash that orders it, its place in the split, its text as one line, and the number of
    its source among those of its class."""

    order: int
    split: int
    line: str
    source: int


Examples = Mapping[str, Sequence[Example]]
Balance = Literal["none", "downsample", "repeat"]


def balanced(examples: Examples, balance: Balance) -> dict[str, list[Example]]:
    """Training documents by class. `downsample` takes as many of the larger class as the smaller one has, those that come
    first by hash; `repeat` takes those of the smaller class again, in the same order, until both are as many.
    """
    sizes = [len(found) for found in examples.values()]
    if balance == "none":
        return {label: list(found) for label, found in examples.items()}
    size = min(sizes) if balance == "downsample" else max(sizes)
    ordered = {label: sorted(found, key=lambda e: (e.order, e.split)) for label, found in examples.items()}
    return {label: list(itertools.islice(itertools.cycle(found), size)) for label, found in ordered.items()}


def fit(knobs: FastTextKnobs, examples: Examples, path: Path) -> None:
    """Train a model and save it."""
    import fasttext

    lines = [(e.order, f"__label__{label} {e.line}\n") for label, found in examples.items() for e in found]
    lines.sort()  # by hash: training goes through the file, and classes must not follow one another
    text = path.with_name("train.txt")
    with text.open("w", encoding="utf-8", newline="\n") as sink:
        sink.writelines(line for _, line in lines)
    values = asdict(knobs)
    renamed = {"wordNgrams": values.pop("word_ngrams"), "minCount": values.pop("min_count")}
    failure = ""
    # The thread that reports the loss may find that others have used up a short text; then it divides by nothing and fails.
    for _ in range(_TRAININGS):
        try:
            model = fasttext.train_supervised(str(text), verbose=0, **values, **renamed)
        except RuntimeError as error:
            failure = str(error)
            continue
        model.save_model(str(path))
        return
    raise UserError(f"fasttext: training failed {_TRAININGS} times ({failure}); lower `lr`, or give it more text")


def score(path: Path, checksum: str, examples: Examples) -> tuple[np.ndarray, np.ndarray]:
    """(scores, whether positive) of documents, as the stage `classifier` would score them."""
    model = load_fasttext(path, checksum, "classifier")
    texts = [(label, example.line.encode()) for label, found in examples.items() for example in found]
    bounds = np.cumsum([0, *(len(text) for _, text in texts)], dtype=np.int64)
    data = np.frombuffer(b"".join(text for _, text in texts), np.uint8)
    scores = model.score(data, bounds[:-1], bounds[1:], "positive").astype(np.float64)
    return scores, np.array([label == "positive" for label, _ in texts])


def leave_one_source_out(
    knobs: FastTextKnobs,
    balance: Balance,
    train: Examples,
    held_out: Examples,
    names: Mapping[str, Sequence[str]],
    place: Path,
) -> list[dict[str, Any]]:
    """For each source of a class with several: the ROC-AUC of a model trained without it, on its held-out documents against
    those of the other class.

    `names` are the sources of each class. An entry has `class`, `source`, `held_out` and `roc_auc`; the last is None where
    fewer than LEAST documents would train or measure.
    """
    found: list[dict[str, Any]] = []
    for label, sources in names.items():
        other = LABELS[1 - LABELS.index(label)]
        for number, source in enumerate(sources) if len(sources) > 1 else ():
            rest = [e for e in train[label] if e.source != number]
            measured = {label: [e for e in held_out[label] if e.source == number], other: held_out[other]}
            entry = {"class": label, "source": source, "held_out": len(measured[label]), "roc_auc": None}
            if min(len(rest), len(measured[label])) >= LEAST:
                fit(knobs, balanced({label: rest, other: train[other]}, balance), place)
                entry["roc_auc"] = roc_auc(*score(place, file_checksum(place), measured))
            found.append(entry)
    return found


def verdict(roc_auc_held_out: float, left_out: Sequence[Mapping[str, Any]]) -> str:
    """What leaving sources out says: `unknown`, `class` or `source`.

    `source` where, over the sources left out, weighted by held-out documents, less than half of what the model tells above
    chance (ROC-AUC - 0.5) is left.
    """
    measured = [entry for entry in left_out if entry["roc_auc"] is not None]
    if not measured:
        return "unknown"
    weights = [entry["held_out"] for entry in measured]
    mean = float(np.average([entry["roc_auc"] for entry in measured], weights=weights))
    return "source" if mean - 0.5 < (roc_auc_held_out - 0.5) / 2 else "class"
