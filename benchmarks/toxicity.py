"""Measure what a toxicity classifier trained here and a word list find, by class, and what they find in
harmless texts.

    GRISTMILL_DATA=... python -m benchmarks.toxicity [--documents 1000]

`classifier train` runs on four fifths of the tweets of Davidson et al. 2017 (by a hash of the text), with
hate and offensive as the positive classes: first with only the class neither as negatives, then also with
comments that annotators called healthy and lines of news. Tests are on the remaining fifth, on held-out
comments, and on documents of sources that were not used for training, both unchanged and with one toxic tweet
as a line in the middle. All tweets were collected because they contain a word of a list of slurs (Hatebase),
so those of the class neither are harmless uses of such words. The script prints the shares of texts with a
score of 0.5 or more, or with a word of the list.
"""

import argparse
import csv
import gzip
import html
import json
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import xxhash
import yaml

from benchmarks.language import read
from benchmarks.signals import machine
from gristmill.storage.disk import LocalPath
from pipelines.__main__ import main as pipelines
from pipelines.classifiers.classifier_metrics import evaluate
from pipelines.classifiers.train_classifier import load_classifier_config, train
from pipelines.contracts.stage import PartStage
from pipelines.stages.measure.word_list import WordList
from pipelines.stages.score.classifier import Classifier

CLASSES = ("hate", "offensive", "neither")
PROSE = ("wiki_en", "textbooks", "tech_docs", "forum_20news")
NEWS_LINES, LONGEST = 10_000, 20_000  # lines of news for training; characters of a document
KNOBS = {"dim": 16, "epoch": 10, "lr": 0.2, "minn": 2, "maxn": 5, "bucket": 200_000}
TRAINED = {
    "tweets": ("neither",),
    "tweets, comments, news": ("neither", "healthy", "news"),
}  # the negatives of each model
Texts = Mapping[str, list[str]]
Unit = Literal["document", "line", "sentence"]
UNITS: tuple[Unit, ...] = ("document", "line", "sentence")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, default=1000, help="documents of each prose source (default 1000)")
    options = parser.parse_args()
    if "GRISTMILL_DATA" not in os.environ:
        raise SystemExit("error: set GRISTMILL_DATA to the folder of shared data")
    data = Path(os.environ["GRISTMILL_DATA"])
    print(machine())
    texts = {**tweets(data / "toxicity"), **comments(data / "toxicity")}
    news = [
        line for text in read(data / "prose" / "news_bbc.jsonl.gz", 1e9) for line in text.splitlines() if line.strip()
    ]
    learned = {name: [text for text in found if not held_out(text)] for name, found in texts.items()}
    learned["news"] = news[:NEWS_LINES]
    tested = {name: [text for text in found if held_out(text)] for name, found in texts.items()}
    prose = {name: read(data / "prose" / f"{name}.jsonl.gz", 2e7)[: options.documents] for name in PROSE}
    prose = {name: [text[:LONGEST] for text in found] for name, found in prose.items()}
    with tempfile.TemporaryDirectory() as place:
        build(Path(place), learned)
        words = WordList((str(data / "toxicity" / "ldnoobw" / "en"),))
        measured: dict[str, Callable[[Unit], PartStage]] = {"word list": lambda _: words}
        for name, negatives in TRAINED.items():
            measured[name] = scorer(teach(Path(place), negatives))
        report(measured, tested, prose)


def held_out(text: str) -> bool:
    return xxhash.xxh3_64_intdigest(text.encode()) % 5 == 0


def tweets(folder: Path) -> dict[str, list[str]]:
    with gzip.open(folder / "davidson_labeled_data.csv.gz", "rt", encoding="utf-8", newline="") as file:
        rows = [(CLASSES[int(row["class"])], html.unescape(row["tweet"])) for row in csv.DictReader(file)]
    return {label: [text for name, text in rows if name == label] for label in CLASSES}


def comments(folder: Path) -> dict[str, list[str]]:
    with gzip.open(folder / "unhealthy_comments_val.csv.gz", "rt", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return {
        "healthy": [row["comment"] for row in rows if row["healthy"] == "1" and row["hostile"] == "0"],
        "hostile": [row["comment"] for row in rows if row["hostile"] == "1"],
    }


def build(place: Path, texts: Texts) -> None:
    for name, found in texts.items():
        (place / f"{name}.jsonl").write_text("".join(f"{json.dumps({'text': text})}\n" for text in found))
    sources = [
        {"name": name, "root": str(place / f"{name}.jsonl"), "include": ["**"], "format": "jsonl"} for name in texts
    ]
    config = {"name": "toxicity", "output": str(place / "corpus"), "sources": sources, "steps": [{"text_hash": {}}]}
    (place / "corpus.yaml").write_text(yaml.safe_dump(config))
    if pipelines(["build", str(place / "corpus.yaml"), "--in-process"]):
        raise SystemExit("error: the corpus was not built")


def teach(place: Path, negatives: tuple[str, ...]) -> str:
    name = "_".join(negatives)
    config = {
        "output": str(place / name),
        "positive": [f"{place}/corpus:{label}" for label in CLASSES[:2]],
        "negative": [f"{place}/corpus:{label}" for label in negatives],
        "balance": "repeat",
        "fasttext": KNOBS,
    }
    (place / f"{name}.yaml").write_text(yaml.safe_dump(config))
    train(load_classifier_config(LocalPath(place / f"{name}.yaml"), []), overwrite=False)
    return str(place / name)


def scorer(model: str) -> Callable[[Unit], PartStage]:
    return lambda unit: Classifier(model, unit=unit)


def found(stage: PartStage, texts: list[str]) -> np.ndarray:
    """Return the scores of texts, limited to 1; for a word list, 1 for a text with a listed word and 0 for
    others.
    """
    column = stage.annotate(pa.table({"text": pa.array(texts, pa.large_string())})).column(0)
    return np.minimum(column.fill_null(0).to_numpy().astype(np.float64), 1)


def planted(texts: list[str], toxic: list[str]) -> list[str]:
    """Return the documents of more than ten lines, each with a toxic text inserted as a line in the middle."""
    pairs = zip((text.splitlines() for text in texts if text.count("\n") >= 10), toxic, strict=False)
    return ["\n".join([*lines[: len(lines) // 2], line, *lines[len(lines) // 2 :]]) for lines, line in pairs]


def print_calibration(name: str, metrics: Mapping[str, Any]) -> None:
    """Print how well scores separate toxic tweets from others, and the share of toxic tweets by range of
    scores.
    """
    error = metrics["expected_calibration_error"]
    print(f"\n{name}: ROC-AUC {metrics['roc_auc']:.3f}, expected calibration error {error:.3f}")
    print("| score | tweets | mean score | toxic |\n|---|---|---|---|")
    for row in metrics["calibration"]:
        shares = f"{row['mean_score']:.2f} | {row['share_positive']:.2f}"
        print(f"| {row['from']:.1f} to {row['to']:.1f} | {row['documents']:,} | {shares} |")


def report(measured: dict[str, Callable[[Unit], PartStage]], tested: Texts, prose: Texts) -> None:
    print(f"\n| text | texts | {' | '.join(measured)} |\n|---|---|{'---|' * len(measured)}")
    for name, texts in tested.items():
        shares = [np.mean(found(make("document"), texts) >= 0.5) for make in measured.values()]
        print(f"| {name} | {len(texts):,} | {' | '.join(f'{share:.1%}' for share in shares)} |")
    toxic = [text for label in CLASSES[:2] for text in tested[label]]
    truth = np.arange(len(toxic) + len(tested["neither"])) < len(toxic)
    for name, make in measured.items():
        if name in TRAINED:
            print_calibration(name, evaluate(found(make("document"), [*toxic, *tested["neither"]]), truth))
    sets = dict(prose) | {f"{name}, planted": planted(texts, toxic[::7]) for name, texts in prose.items()}
    models = [(n, make, unit) for n, make in measured.items() for unit in (UNITS if n in TRAINED else UNITS[:1])]
    titles = " | ".join(f"{name}, {unit}" for name, _, unit in models)
    print(f"\n| text | texts | {titles} |\n|---|---|{'---|' * len(models)}")
    for name, texts in sets.items():
        shares = [np.mean(found(make(unit), texts) >= 0.5) for _, make, unit in models]
        print(f"| {name} | {len(texts):,} | {' | '.join(f'{share:.1%}' for share in shares)} |")


if __name__ == "__main__":
    main()
