"""`classifier train`: train a classifier of texts, columns or embeddings on documents of built corpora, with
metrics and a model card. This module reads the configuration of every kind, writes the output directory, and
itself trains the kind `fasttext`: classifiers of texts with two classes.

For a classifier of texts, the output directory holds model.bin, metrics.json (configuration, sources,
metrics, checksum) and MODEL_CARD.md. The selection of documents and the held-out split are deterministic.
Training uses several threads and is not: the checksum identifies the model, but training again gives a
different one.
"""

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from gristmill.config import load_yaml, near_match, override, parse, plain
from gristmill.errors import ConfigError, ConflictError, UserError
from gristmill.storage.disk import LocalPath
from gristmill.storage.lease import lock
from gristmill.storage.parsing import parse_local
from gristmill.storage.store import file_checksum, write_json
from pipelines.classifiers.class_sources import (
    check_split,
    hash_id,
    highest_hash,
    kept_orders,
    open_sources,
    source_facts,
)
from pipelines.classifiers.classifier_card import model_card
from pipelines.classifiers.classifier_metrics import calibration_by_source, evaluate
from pipelines.classifiers.fasttext_training import (
    LABELS,
    MAX_RATIO,
    MIN_DOCUMENTS,
    Balance,
    Example,
    Examples,
    FastTextKnobs,
    balance_classes,
    fit,
    leave_one_source_out,
    score,
    to_fasttext_line,
    verdict,
)
from pipelines.classifiers.judged_card import judged_card
from pipelines.classifiers.train_columns import ColumnClassifierConfig, gather_examples, train_columns
from pipelines.classifiers.train_embeddings import EmbeddingClassifierConfig, gather_embeddings, train_embeddings
from pipelines.classifiers.train_judged import JudgedClassifierConfig, gather_judged, train_judged
from pipelines.contracts.columns import DROP
from pipelines.contracts.lineage import Corpus
from pipelines.stages.score.classifier import METRICS, MODEL
from pipelines.stages.score.column_model import MODEL_FILE

FORMAT = "gristmill-classifier/1"
CARD = "MODEL_CARD.md"


@dataclass(frozen=True)
class ClassifierConfig:
    """The YAML configuration of a classifier with `kind: fasttext`: its positive and negative documents, and
    how it is trained.
    """

    output: str
    """Output directory, relative to the working directory."""
    positive: tuple[str, ...]
    """Built corpora, as `DIRECTORY` or `DIRECTORY:SOURCE`, whose kept, edited documents are the positive
    examples.
    """
    negative: tuple[str, ...]
    """Built corpora with the negative examples, in the same form."""
    kind: Literal["fasttext"] = "fasttext"
    """Distinguishes the kinds of classifiers; the others are `judged`, `embeddings` and `columns`."""
    documents_per_class: int = 100_000
    """Maximum number of documents per class, sampled by a hash of seed and id. Their text is held in memory."""
    held_out: float = 0.1
    """Share of the documents used for measuring instead of training, chosen by a hash of the text, so that copies of a text
    are all on one side."""
    seed: int = 0
    """Determines the sample and the split."""
    balance: Balance = "none"
    """How classes are balanced for training; held-out documents are not changed. none: use every training
    document once. downsample: reduce the larger class to the size of the smaller one, keeping the documents
    with the lowest hashes. repeat: repeat documents of the smaller class up to the size of the larger one.
    sources: repeat documents until both classes have the same size and, within a class, all sources have the
    same size.
    """
    fasttext: FastTextKnobs = field(default_factory=FastTextKnobs)
    """Arguments of the training."""

    def check(self) -> None:
        """Raise ValueError if a class has no corpus or a value is out of range."""
        for name in LABELS:
            if not getattr(self, name):
                raise ValueError(f"{name}: expected at least one corpus")
        if self.documents_per_class < 1:
            raise ValueError(f"documents_per_class: got {self.documents_per_class}, expected 1 or more")
        check_split(self.held_out, self.seed)


Config = ClassifierConfig | ColumnClassifierConfig | EmbeddingClassifierConfig | JudgedClassifierConfig
_KINDS: dict[str, type[Config]] = {
    "fasttext": ClassifierConfig,
    "judged": JudgedClassifierConfig,
    "embeddings": EmbeddingClassifierConfig,
    "columns": ColumnClassifierConfig,
}


def load_classifier_config(path: LocalPath, assignments: list[str]) -> Config:
    """Load the configuration of a classifier from a YAML file, with `a.b=value` overrides. Raises ConfigError
    for an unknown field and for a wrong value.
    """
    data = override(load_yaml(path), assignments)
    kind = data.get("kind", "fasttext")
    if kind not in _KINDS:
        names = ", ".join(map(repr, _KINDS))
        raise ConfigError(
            f"{path.name}: kind: got {kind!r}, expected one of {names}{near_match(str(kind), list(_KINDS))}"
        )
    return parse(_KINDS[kind], data, path.name)


def train(config: Config, *, overwrite: bool) -> dict[str, Any]:
    """Train, measure and write a classifier. Return the contents of metrics.json.

    With `overwrite`, an earlier model in the output is deleted before training. Raises ConflictError if the
    output is not empty and `overwrite` is not set, or if another process is training the classifier. Raises
    UserError if a class has too few documents.
    """
    output = parse_local(config.output, "output")
    if output.exists() and not (output.is_dir() and (overwrite or not any(output.iterdir()))):
        raise ConflictError(f"{output}: exists; name another `output`, or use --overwrite to train it again")
    if isinstance(config, ColumnClassifierConfig):
        examples = gather_examples(config)
        return _write(output, lambda: train_columns(config, examples, output))
    if isinstance(config, EmbeddingClassifierConfig):
        vectors = gather_embeddings(config)
        return _write(output, lambda: train_embeddings(config, vectors, output))
    if isinstance(config, JudgedClassifierConfig):
        texts = gather_judged(config)
        return _write(output, lambda: train_judged(config, texts, output))
    classes = {label: _Class(getattr(config, label), label, config) for label in LABELS}
    _check_classes(classes)
    return _write(output, lambda: _train(config, classes, output))


def _write(output: LocalPath, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    with lock(output, "training", print, wait=False):
        # In this order, so that no metrics or card of another model remain.
        for name in (METRICS, CARD, MODEL, MODEL_FILE):
            (output / name).unlink(missing_ok=True)
        facts = {"format": FORMAT, **make()}
        card = judged_card if "by_source" in facts else model_card
        (output / CARD).write_atomic(card(output.name, facts).encode())
        write_json(output / METRICS, facts)
    return facts


def _train(config: ClassifierConfig, classes: dict[str, "_Class"], output: LocalPath) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(dir=output) as directory:
        trained = Path(directory) / MODEL
        train, held_out = ({label: getattr(c, part) for label, c in classes.items()} for part in ("train", "held_out"))
        fit(config.fasttext, balance_classes(train, config.balance), trained)
        checksum = file_checksum(trained)
        scores, positive = score(trained, checksum, held_out)
        measures = evaluate(scores, positive)
        size = trained.stat().st_size
        owners = [classes[label].names[e.source] for label, found in held_out.items() for e in found]
        names = {label: documents.names for label, documents in classes.items()}
        scratch = trained.with_name("without.bin")
        left_out = leave_one_source_out(config.fasttext, config.balance, train, held_out, names, scratch)
        trained.rename(output / MODEL)
    return {
        "model": {"path": MODEL, "bytes": size, "xxh3_128": checksum, "labels": list(LABELS)},
        "fasttext-numpy2": version("fasttext-numpy2"),
        "config": plain(config),
        "classes": {label: documents.facts() for label, documents in classes.items()},
        "in_both_classes": len(classes["positive"].texts & classes["negative"].texts),
        "trained_on": {label: len(chosen) for label, chosen in balance_classes(train, config.balance).items()},
        "held_out": measures,
        "calibration_by_source": calibration_by_source(scores, positive, owners),
        "leave_one_source_out": left_out,
        "learned": verdict(measures["roc_auc"], left_out),
        "warnings": _warnings(train, config.balance),
    }


class _Class:
    """The documents of one class, sampled and split."""

    def __init__(self, corpora: tuple[str, ...], label: str, config: ClassifierConfig) -> None:
        sources = open_sources(corpora, label)
        orders = [kept_orders(corpus, source, config.seed) for corpus, source in sources]
        self.sources = [source_facts(*source, len(order)) for source, order in zip(sources, orders, strict=True)]
        limit = highest_hash(orders, config.documents_per_class)
        examples = sorted(
            (e for number, source in enumerate(sources) for e in _examples(*source, limit, config.seed, number)),
            key=lambda example: (example.order, example.split),
        )[: config.documents_per_class]
        threshold = int(config.held_out * (1 << 64))
        self.train = [example for example in examples if example.split >= threshold]
        self.held_out = [example for example in examples if example.split < threshold]
        self.names = [f"{corpus.manifest.corpus}:{source}" for corpus, source in sources]
        self.texts = {example.split for example in examples}

    def facts(self) -> dict[str, Any]:
        return {"train": len(self.train), "held_out": len(self.held_out), "sources": self.sources}


def _check_classes(classes: dict[str, _Class]) -> None:
    for label, chosen in classes.items():
        if len(chosen.held_out) < MIN_DOCUMENTS or len(chosen.train) < MIN_DOCUMENTS:
            raise UserError(
                f"{label}: {len(chosen.train)} documents for training and {len(chosen.held_out)} held out, expected at "
                f"least {MIN_DOCUMENTS} of each; add corpora, or change `held_out`"
            )


def _warnings(train: Examples, balance: Balance) -> list[str]:
    (large, most), (small, least) = sorted(((label, len(e)) for label, e in train.items()), key=lambda entry: -entry[1])
    if balance != "none" or most < MAX_RATIO * least:
        return []
    return [
        f"{most:,} {large} documents train and {least:,} {small} ones, {most / least:.0f} to 1: scores lean towards {large}; "
        "`balance: downsample` or `balance: repeat` trains on as many of each"
    ]


def _examples(corpus: Corpus, source: str, limit: int, seed: int, number: int) -> Iterator[Example]:
    for part in corpus.parts(source):
        docs = part.table((DROP, "id", "edited_text"))
        orders = [hash_id(raw, seed) for raw in docs["id"].to_pylist()]
        kept = pc.is_null(docs[DROP]).to_pylist()
        rows = [row for row, order in enumerate(orders) if kept[row] and order <= limit]
        texts = docs["edited_text"].take(pa.array(rows, pa.int64())).to_pylist()
        for row, text in zip(rows, texts, strict=True):
            split = xxhash.xxh3_64_intdigest(text.encode(), seed)
            yield Example(orders[row], split, to_fasttext_line(text), number)
