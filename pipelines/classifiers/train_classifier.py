"""`classifier train`: a fastText classifier from documents of built corpora, with its measures and a model card.

The directory it writes holds model.bin, metrics.json (configuration, sources, measures, checksum) and MODEL_CARD.md. Training
uses several threads and is not deterministic: the checksum says which model this is, and nothing promises another like it. The
choice of documents and the held-out split are deterministic.
"""

import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from gristmill.config import load_yaml, override, parse, plain
from gristmill.errors import ConflictError, UserError
from gristmill.storage.lease import lock
from gristmill.storage.location import local_of, place_of
from gristmill.storage.store import file_checksum, write_atomic, write_json
from pipelines.classifiers.classifier_card import model_card
from pipelines.classifiers.classifier_metrics import evaluate
from pipelines.classifiers.fasttext_training import (
    LABELS,
    LEAST,
    SKEW,
    Balance,
    Example,
    Examples,
    FastTextKnobs,
    balanced,
    fit,
    leave_one_source_out,
    score,
    verdict,
)
from pipelines.contracts.columns import DROP
from pipelines.contracts.lineage import Corpus, open_corpus
from pipelines.planning.corpus import SOURCE_NAME
from pipelines.stages.score.classifier import METRICS, MODEL

FORMAT = "gristmill-classifier/1"
CARD = "MODEL_CARD.md"
_SOURCE = re.compile(f"(.+):({SOURCE_NAME})")
# What a label looks like to fastText, whose white space is ASCII's and NUL.
_LABEL = re.compile(r"(?:(?<=[ \t\v\f\r\n\0])|^)__label__[^ \t\v\f\r\n\0]*")


@dataclass(frozen=True)
class ClassifierConfig:
    """A classifier's YAML: which documents are positive and negative, and how it is trained."""

    output: str
    """Directory that is written; relative to the working directory."""
    positive: tuple[str, ...]
    """Built corpora, as `DIRECTORY` or `DIRECTORY:SOURCE`: the kept, edited documents are examples of what is wanted."""
    negative: tuple[str, ...]
    """The same, of what is not."""
    documents_per_class: int = 100_000
    """At most so many of each class, chosen by a hash of seed and id. Their text is held in memory."""
    held_out: float = 0.1
    """Share of the documents that measure the model and do not train it, chosen by a hash of the text: copies of a text are
    all on one side."""
    seed: int = 0
    """Another seed chooses other documents and another split."""
    balance: Balance = "none"
    """What evens out the classes for training; the held-out documents stay as they are. none: every chosen document trains once.
    downsample: of the larger class only as many as the smaller has, those that come first by hash. repeat: those of the
    smaller class several times, until both are as many."""
    fasttext: FastTextKnobs = field(default_factory=FastTextKnobs)
    """How the model is trained."""

    def check(self) -> None:
        """Ranges."""
        for name in LABELS:
            if not getattr(self, name):
                raise ValueError(f"{name}: expected at least one corpus")
        if self.documents_per_class < 1:
            raise ValueError(f"documents_per_class: got {self.documents_per_class}, expected 1 or more")
        if not 0 < self.held_out < 1:
            raise ValueError(f"held_out: got {self.held_out}, expected a number between 0 and 1")
        if not 0 <= self.seed < 1 << 64:
            raise ValueError(f"seed: got {self.seed}, expected a whole number from 0, of at most 64 bits")


def load_classifier_config(path: Path, assignments: list[str]) -> ClassifierConfig:
    """Parse a YAML with `a.b=value` overrides. ConfigError names file, path, value and the near match."""
    config: ClassifierConfig = parse(ClassifierConfig, override(load_yaml(path), assignments), path.name)
    return config


def train(config: ClassifierConfig, *, overwrite: bool) -> dict[str, Any]:
    """Train, measure and write a classifier; what metrics.json says.

    ConflictError where the output exists and `overwrite` is not said, or another process trains it; UserError where a class
    has too few documents.
    """
    output = local_of(config.output, "output")
    if output.exists() and not (output.is_dir() and (overwrite or not any(output.iterdir()))):
        raise ConflictError(f"{output}: exists; name another `output`, or say --overwrite to train it again")
    classes = {label: _Class(getattr(config, label), label, config) for label in LABELS}
    _check_classes(classes)
    with lock(output, "training", print, wait=False):
        return _train(config, classes, output)


def _train(config: ClassifierConfig, classes: dict[str, "_Class"], output: Path) -> dict[str, Any]:
    for name in (METRICS, CARD, MODEL):  # what is measured and what is told belong to one model
        (output / name).unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(dir=output) as place:
        trained = Path(place) / MODEL
        train, held_out = ({label: getattr(c, part) for label, c in classes.items()} for part in ("train", "held_out"))
        fit(config.fasttext, balanced(train, config.balance), trained)
        checksum = file_checksum(trained)
        measures = evaluate(*score(trained, checksum, held_out))
        size = trained.stat().st_size
        names = {label: found.names for label, found in classes.items()}
        scratch = trained.with_name("without.bin")
        left_out = leave_one_source_out(config.fasttext, config.balance, train, held_out, names, scratch)
        trained.rename(output / MODEL)
    facts = {
        "format": FORMAT,
        "model": {"path": MODEL, "bytes": size, "xxh3_128": checksum, "labels": list(LABELS)},
        "fasttext-numpy2": version("fasttext-numpy2"),
        "config": plain(config),
        "classes": {label: found.facts() for label, found in classes.items()},
        "in_both_classes": len(classes["positive"].texts & classes["negative"].texts),
        "trained_on": {label: len(found) for label, found in balanced(train, config.balance).items()},
        "held_out": measures,
        "leave_one_source_out": left_out,
        "learned": verdict(measures["roc_auc"], left_out),
        "warnings": _warnings(train, config.balance),
    }
    write_atomic(output / CARD, model_card(output.name, facts).encode())
    write_json(output / METRICS, facts)
    return facts


class _Class:
    """The documents of one class, chosen and split."""

    def __init__(self, corpora: tuple[str, ...], label: str, config: ClassifierConfig) -> None:
        places = [place for name in corpora for place in _open(name, label)]
        orders = [_kept_orders(corpus, source, config.seed) for corpus, source in places]
        self.sources = [_facts(*place, len(found)) for place, found in zip(places, orders, strict=True)]
        every = np.sort(np.concatenate(orders))
        limit = int(every[min(config.documents_per_class, len(every)) - 1]) if len(every) else 0
        examples = sorted(
            (e for number, place in enumerate(places) for e in _examples(*place, limit, config.seed, number)),
            key=lambda example: (example.order, example.split),
        )[: config.documents_per_class]
        threshold = int(config.held_out * (1 << 64))
        self.train = [example for example in examples if example.split >= threshold]
        self.held_out = [example for example in examples if example.split < threshold]
        self.names = [f"{corpus.manifest.corpus}:{source}" for corpus, source in places]
        self.texts = {example.split for example in examples}

    def facts(self) -> dict[str, Any]:
        """For metrics.json."""
        return {"train": len(self.train), "held_out": len(self.held_out), "sources": self.sources}


def _check_classes(classes: dict[str, _Class]) -> None:
    for label, found in classes.items():
        if len(found.held_out) < LEAST or len(found.train) < LEAST:
            raise UserError(
                f"{label}: {len(found.train)} documents to train and {len(found.held_out)} held out, at least {LEAST} of each "
                "are needed; add corpora, or change `held_out`"
            )


def _warnings(train: Examples, balance: Balance) -> list[str]:
    """What is wrong with the classes as they are trained."""
    (large, most), (small, least) = sorted(((label, len(e)) for label, e in train.items()), key=lambda entry: -entry[1])
    if balance != "none" or most < SKEW * least:
        return []
    return [
        f"{most:,} {large} documents train and {least:,} {small} ones, {most / least:.0f} to 1: scores lean towards {large}; "
        "`balance: downsample` or `balance: repeat` trains on as many of each"
    ]


def _open(name: str, label: str) -> list[tuple[Corpus, str]]:
    """The sources of `DIRECTORY` or `DIRECTORY:SOURCE`."""
    match = _SOURCE.fullmatch(name)
    directory, source = match.groups() if match else (name, "")
    corpus = open_corpus(place_of(directory))
    if source:
        corpus.check_source(source, f"{label}: {name}")
    return [(corpus, found) for found in ([source] if source else corpus.manifest.sources)]


def _facts(corpus: Corpus, source: str, kept: int) -> dict[str, Any]:
    facts = corpus.manifest.sources[source]
    origin = {"corpus": corpus.manifest.corpus, "fingerprint": corpus.manifest.fingerprint, "source": source}
    return origin | {"kept": kept, "licence": facts["licence"], "origin": facts["origin"]}


def _kept_orders(corpus: Corpus, source: str, seed: int) -> np.ndarray:
    """The order of every kept document of a source."""
    found = [np.zeros(0, np.uint64)]
    for part in corpus.parts(source):
        docs = part.table((DROP, "id"))
        kept = docs.filter(pc.is_null(docs[DROP]))["id"].to_pylist()
        found.append(np.array([_order(raw, seed) for raw in kept], np.uint64))
    return np.concatenate(found)


def _order(identifier: bytes, seed: int) -> int:
    return xxhash.xxh3_64_intdigest(identifier, seed)


def _examples(corpus: Corpus, source: str, limit: int, seed: int, number: int) -> Iterator[Example]:
    for part in corpus.parts(source):
        docs = part.table((DROP, "id", "edited_text"))
        orders = [_order(raw, seed) for raw in docs["id"].to_pylist()]
        kept = pc.is_null(docs[DROP]).to_pylist()
        rows = [row for row, order in enumerate(orders) if kept[row] and order <= limit]
        texts = docs["edited_text"].take(pa.array(rows, pa.int64())).to_pylist()
        for row, text in zip(rows, texts, strict=True):
            split = xxhash.xxh3_64_intdigest(text.encode(), seed)
            yield Example(orders[row], split, as_line(text), number)


def as_line(text: str) -> str:
    """A text as fastText reads it in a training file: what it would take for a label or an end is left out."""
    text = _LABEL.sub("", text).replace("\n", " ")
    return re.split(r"(?:(?<=[ \t\v\f\r\0])|^)</s>(?=[ \t\v\f\r\0]|$)", text, maxsplit=1)[0]
