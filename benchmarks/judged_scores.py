"""Train cheap models on annotators' scores, and measure how far each model agrees with the annotators.

    GRISTMILL_DATA=... python -m benchmarks.judged_scores --model DIRECTORY [--documents 6000] [--work DIRECTORY]

`--model` is a sentence encoder in the layout of Hugging Face. The texts are the first tweets of Davidson et
al. 2017. The score of a tweet, from 0 to 3, is three times the share of annotators who called it hateful or
offensive. Scores of 1.5 or more count as the positive class, which here means toxic. A fifth of the tweets,
chosen by a hash, is held out. Alternate tweets belong to two sources.
"""

import argparse
import csv
import gzip
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.signals import machine
from gristmill.storage.disk import LocalPath
from pipelines.building.build import build
from pipelines.classifiers.train_classifier import load_classifier_config, train
from pipelines.cluster.local import LocalCluster
from pipelines.planning.corpus import load_corpus_config
from pipelines.planning.inventory import take_inventory
from pipelines.planning.plan import make_plan

SOURCES, THRESHOLD = 2, 1.5
FASTTEXT = "{dim: 16, epoch: 10, lr: 0.2, word_ngrams: 1, minn: 2, maxn: 5, bucket: 200000}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="directory of a sentence encoder")
    parser.add_argument("--documents", type=int, default=6000, help="tweets (default 6000)")
    parser.add_argument("--work", help="directory for the corpus (default: a temporary one)")
    options = parser.parse_args()
    if "GRISTMILL_DATA" not in os.environ:
        raise SystemExit("error: set GRISTMILL_DATA to the folder of shared data")
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(options.work or scratch)
        place.mkdir(parents=True, exist_ok=True)
        build_corpus(place, options.model, options.documents)
        measure(place)


def build_corpus(place: Path, model: str, documents: int) -> None:
    with gzip.open(Path(os.environ["GRISTMILL_DATA"]) / "toxicity" / "davidson_labeled_data.csv.gz", "rt") as lines:
        rows = [row for row, _ in zip(csv.DictReader(lines), range(documents), strict=False)]
    scores = []
    for source in range(SOURCES):
        own = rows[source::SOURCES]
        (place / f"tweets{source}.jsonl").write_text("".join(f"{json.dumps({'text': row['tweet']})}\n" for row in own))
        for number, row in enumerate(own):
            score = 3 * (1 - int(row["neither"]) / int(row["count"]))
            scores.append({"id": f"tweets{source}/tweets{source}.jsonl#{number}", "score": round(score, 3)})
    (place / "scores.jsonl").write_text("".join(f"{json.dumps(score)}\n" for score in scores))
    entries = "".join(
        f"  - {{name: tweets{source}, root: {place}/tweets{source}.jsonl, format: jsonl, part_bytes: 100000}}\n"
        for source in range(SOURCES)
    )
    (place / "tweets.yaml").write_text(
        f"name: tweets\noutput: {place}/tweets\nsources:\n{entries}"
        f"steps:\n  - transformer_embeddings: {{model: {model}, max_tokens: 32}}\n"
    )
    config = load_corpus_config(LocalPath(place / "tweets.yaml"))
    build(make_plan(config, take_inventory(config.sources, config.place)), LocalCluster(), lambda line: None)


def measure(place: Path) -> None:
    print(machine())
    print(
        "| model | Spearman | F1 | mean absolute error | calibration error | without the source: Spearman | F1 | seconds |"
    )
    print("|---|---|---|---|---|---|---|---|")
    judged = f"kind: judged\nfasttext: {FASTTEXT}\n"
    configs = {
        "fastText, two classes": judged,
        "fastText, four bins": f"{judged}bins: [0.5, 1.5, 2.5]\n",
        "ridge of embeddings": "kind: embeddings\n",
    }
    for name, kind in configs.items():
        file = place / "classifier.yaml"
        file.write_text(
            f'{kind}output: {place}/model\ncorpora: ["{place}/tweets"]\nscores: ["{place}/scores.jsonl"]\n'
            f"threshold: {THRESHOLD}\nheld_out: 0.2\n"
        )
        config = load_classifier_config(LocalPath(file), [])
        started = time.process_time()
        facts = train(config, overwrite=True)
        print_row(name, facts["held_out"], facts["by_source"], time.process_time() - started)


def print_row(name: str, held: dict[str, Any], by_source: list[dict[str, Any]], seconds: float) -> None:
    error = f"{held['mean_absolute_error']:.3f}" if "mean_absolute_error" in held else ""
    left_out = [
        f"{np.mean([entry[f'{measure}_left_out'] for entry in by_source]):.3f}" if by_source else ""
        for measure in ("spearman", "f1")
    ]
    cells = [f"{held['spearman']:.3f}", f"{held['f1']:.3f}", error, f"{held['calibration_error']:.3f}", *left_out]
    print(f"| {name} | {' | '.join(cells)} | {seconds:.1f} |")


if __name__ == "__main__":
    main()
