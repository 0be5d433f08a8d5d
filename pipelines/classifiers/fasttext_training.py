"""Train and score fastText models for `classifier train`, including models with one source left out.

If the classes come from different sources, a classifier can learn to recognise the source (a template, a
date, a domain name) instead of the class. Held-out documents of the sources it was trained on do not reveal
this; documents of a source left out of training do.
"""

import itertools
import re
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
MIN_DOCUMENTS = 10
"""Minimum number of documents per class for training and for measuring; with fewer, metrics are
meaningless."""
MAX_RATIO = 10
"""Without `balance`, training warns if the larger class is at least this many times as large as the smaller one."""
_ATTEMPTS = 5
# A label as fastText parses it. Its white space is that of ASCII, and NUL.
_LABEL = re.compile(r"(?:(?<=[ \t\v\f\r\n\0])|^)__label__[^ \t\v\f\r\n\0]*")


@dataclass(frozen=True)
class FastTextKnobs:
    """Arguments of fastText's `train_supervised`; the defaults are the library's, except those of word_ngrams
    and thread.
    """

    dim: int = 100
    """Dimension of the vectors."""
    epoch: int = 5
    """Passes over the training text."""
    lr: float = 0.1
    """Initial learning rate; it decays to 0."""
    word_ngrams: int = 2
    """Longest word n-gram used as a feature."""
    min_count: int = 1
    """Words that occur less often are not used as features."""
    bucket: int = 2_000_000
    """Number of buckets that n-grams are hashed into; each takes dim * 4 bytes of the model."""
    minn: int = 0
    """Shortest character n-gram used as a feature."""
    maxn: int = 0
    """Longest character n-gram used as a feature; 0 for none."""
    loss: Literal["softmax", "hs", "ova"] = "softmax"
    """Loss function."""
    thread: int = 11
    """Number of threads. With fewer than 11, the library leaves part of the input matrix uninitialised, and
    training fails or diverges.
    """

    def check(self) -> None:
        """Raise ValueError for a knob out of range."""
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
    """A sampled document, with its text as the line that fastText reads."""

    order: int  # hash of its id, which decides the sampling
    split: int  # hash of its text, which decides the held-out split
    line: str  # its text as one line
    source: int  # index of its source among those of its class


Examples = Mapping[str, Sequence[Example]]
Balance = Literal["none", "downsample", "repeat", "sources"]


def balance_classes(examples: Examples, balance: Balance) -> dict[str, list[Example]]:
    """Return the training documents of each class, balanced by the method `balance`.

    `none` changes nothing. `downsample` reduces all classes to the size of the smallest. `repeat` repeats the
    documents of the smaller classes up to the size of the largest. `sources` repeats documents until all
    sources of a class have the same size, and the classes have the same size except for rounding.
    """
    if balance == "none":
        return {label: list(documents) for label, documents in examples.items()}
    ordered = {label: sorted(documents, key=lambda e: (e.order, e.split)) for label, documents in examples.items()}
    if balance == "sources":
        groups = {label: _by_source(documents) for label, documents in ordered.items()}
        size = max(len(sources) * max(map(len, sources)) for sources in groups.values())
        return {
            label: [e for source in sources for e in itertools.islice(itertools.cycle(source), size // len(sources))]
            for label, sources in groups.items()
        }
    sizes = [len(documents) for documents in examples.values()]
    size = min(sizes) if balance == "downsample" else max(sizes)
    return {label: list(itertools.islice(itertools.cycle(documents), size)) for label, documents in ordered.items()}


def _by_source(documents: Sequence[Example]) -> list[list[Example]]:
    groups: dict[int, list[Example]] = {}
    for example in documents:
        groups.setdefault(example.source, []).append(example)
    return [groups[number] for number in sorted(groups)]


def to_fasttext_line(text: str) -> str:
    """Return a text as one line of a fastText training file, without the label and the line feed. Words that
    fastText would read as labels are removed. The line ends before the first word `</s>`, which fastText
    reads as the end of a line.
    """
    text = _LABEL.sub("", text).replace("\n", " ")
    return re.split(r"(?:(?<=[ \t\v\f\r\0])|^)</s>(?=[ \t\v\f\r\0]|$)", text, maxsplit=1)[0]


def fit(knobs: FastTextKnobs, examples: Examples, path: Path) -> None:
    """Train a model on the examples and save it at `path`, with the training text next to it in `train.txt`.
    Raises UserError if training fails five times.
    """
    import fasttext

    lines = [(e.order, f"__label__{label} {e.line}\n") for label, found in examples.items() for e in found]
    lines.sort()  # by hash, which mixes the classes: training reads the file in order
    text = path.with_name("train.txt")
    with text.open("w", encoding="utf-8", newline="\n") as sink:
        sink.writelines(line for _, line in lines)
    values = asdict(knobs)
    renamed = {"wordNgrams": values.pop("word_ngrams"), "minCount": values.pop("min_count")}
    failure = ""
    # If the text is short, the other threads may finish before the one that reports the loss and divides by
    # 0.
    for _ in range(_ATTEMPTS):
        try:
            model = fasttext.train_supervised(str(text), verbose=0, **values, **renamed)
        except RuntimeError as error:
            failure = str(error)
            continue
        model.save_model(str(path))
        return
    raise UserError(f"fasttext: training failed {_ATTEMPTS} times ({failure}); lower `lr`, or give it more text")


def score(path: Path, checksum: str, examples: Examples) -> tuple[np.ndarray, np.ndarray]:
    """Score all examples with the model in the file `path`, whose checksum is `checksum`, as the stage
    `classifier` would. Return the scores, float64 [n], and whether each example is positive, bool [n].
    """
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
    scratch: Path,
) -> list[dict[str, Any]]:
    """For every class with several sources, leave out each source in turn, train a model on the rest, and
    return an entry that says how well the model separates the documents of that source from the other class.

    `names` maps each class to its sources. Each model is saved at the path `scratch`, over the one before. An
    entry has `class`, `source`, `held_out` (the number of held-out documents of the source) and `roc_auc`,
    measured on the held-out documents of the source and of the other class. If the source has fewer than
    MIN_DOCUMENTS held-out documents, or the other sources of its class have fewer training documents than
    that, no model is trained and `roc_auc` is None.
    """
    entries: list[dict[str, Any]] = []
    for label, sources in names.items():
        other = LABELS[1 - LABELS.index(label)]
        for number, source in enumerate(sources) if len(sources) > 1 else ():
            rest = [e for e in train[label] if e.source != number]
            measured = {label: [e for e in held_out[label] if e.source == number], other: held_out[other]}
            entry = {"class": label, "source": source, "held_out": len(measured[label]), "roc_auc": None}
            if min(len(rest), len(measured[label])) >= MIN_DOCUMENTS:
                fit(knobs, balance_classes({label: rest, other: train[other]}, balance), scratch)
                entry["roc_auc"] = roc_auc(*score(scratch, file_checksum(scratch), measured))
            entries.append(entry)
    return entries


def verdict(roc_auc_held_out: float, left_out: Sequence[Mapping[str, Any]]) -> str:
    """Return what the classifier learned: `unknown`, `nothing`, `source` or `class`.

    It is `unknown` if no source could be measured, and `nothing` if `roc_auc_held_out` is not above 0.5, the
    ROC-AUC of chance. It is `source` if the mean ROC-AUC of `left_out`, weighted by the number of held-out
    documents, exceeds 0.5 by less than half as much as `roc_auc_held_out` does, and `class` otherwise.
    """
    measured = [entry for entry in left_out if entry["roc_auc"] is not None]
    if not measured:
        return "unknown"
    if roc_auc_held_out <= 0.5:
        return "nothing"
    weights = [entry["held_out"] for entry in measured]
    mean = float(np.average([entry["roc_auc"] for entry in measured], weights=weights))
    return "source" if mean - 0.5 < (roc_auc_held_out - 0.5) / 2 else "class"
