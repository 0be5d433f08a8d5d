"""Benchmark the stage `score` on one core, against peers in memory: MB per second of the text whose columns
it reads.

    python -m benchmarks.score [FILE.jsonl.gz FILE.jsonl.gz]     default: wiki_en and forum_20news of $GRISTMILL_DATA

The corpus is built in a temporary directory, with the two files as sources and the step `quality_signals`.
Models are trained on eight columns, the first source against the second. Times are processor times of `run`,
from stored columns to stored scores; the best of five runs, each into a new directory. The peers get the
columns as one array and store nothing: scipy's ranks, the formula of the regression in numpy, and
scikit-learn's `predict_proba`. Scores are compared before any speed is printed.
"""

import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.signals import machine
from gristmill.storage.disk import LocalPath
from pipelines.building.build import build
from pipelines.classifiers.column_training import BoostedKnobs, Fit, RegressionKnobs
from pipelines.cluster.local import LocalCluster
from pipelines.contracts.lineage import Corpus, open_corpus
from pipelines.contracts.manifest import StepOutput
from pipelines.contracts.parts import Part
from pipelines.planning.corpus import CorpusConfig, StepConfig
from pipelines.planning.inventory import take_inventory
from pipelines.planning.plan import make_plan
from pipelines.reading.sources.source import Source
from pipelines.stages.measure.quality_signals import QualitySignals
from pipelines.stages.score.column_model import ModelColumn, save_model
from pipelines.stages.score.column_values import column_values
from pipelines.stages.score.score import ColumnScore

COLUMNS = (
    "word_count", "mean_word_length", "alpha_word_ratio", "stop_word_count", "terminal_line_ratio", "symbol_to_word_ratio",
    "top_2gram_char_ratio", "dup_line_char_ratio",
)  # fmt: skip
RUNS = 5


def main() -> None:
    files = [Path(argument) for argument in sys.argv[1:]]
    if not files:
        if "GRISTMILL_DATA" not in os.environ:
            raise SystemExit("give two .jsonl.gz files with a field `text`, or set GRISTMILL_DATA")
        files = [
            Path(os.environ["GRISTMILL_DATA"]) / "prose" / f"{name}.jsonl.gz" for name in ("wiki_en", "forum_20news")
        ]
    with tempfile.TemporaryDirectory() as scratch:
        place = LocalPath(scratch)
        corpus = built(files, place / "corpus")
        parts = list(corpus.parts())
        size = sum(part.text_bytes for part in parts)
        values = np.concatenate([column_values(part, COLUMNS) for part in parts])
        print(f"{len(values):,} documents, {size / 1e6:.1f} MB of text, {len(COLUMNS)} columns; {machine()}")
        weights = {name: (-1.0) ** number for number, name in enumerate(COLUMNS)}
        rank_sum = ColumnScore("rank_sum", columns=weights)
        compare(rank_sum, parts, place, size, lambda: scipy_ranks(values, np.array(list(weights.values()))), 1e-12)
        for method in ("regression", "boosted"):
            model, peer = trained(corpus, place, method, values)
            compare(ColumnScore(method, model=model), parts, place, size, peer, 1e-6)


def built(files: list[Path], output: LocalPath) -> Corpus:
    sources = tuple(Source(f"s{number}", str(file), "jsonl") for number, file in enumerate(files))
    config = CorpusConfig(
        "scored", str(output), sources, (StepConfig("quality_signals", QualitySignals(), "quality_signals"),)
    )
    build(make_plan(config, take_inventory(sources, output)), LocalCluster(), lambda line: None)
    return open_corpus(output)


def trained(corpus: Corpus, place: LocalPath, method: Any, values: np.ndarray) -> tuple[str, Callable[[], np.ndarray]]:
    """Train a model of the first source against the second; return its file and a peer that scores the same
    values.

    The peer is scikit-learn's model or, for a regression, the same formula in numpy.
    """
    first = np.concatenate([np.full(part.rows, part.source == "s0") for part in corpus.parts()])
    columns = tuple(ModelColumn(name, ()) for name in COLUMNS)
    fit = Fit(method, columns, (0,) * len(COLUMNS), RegressionKnobs(), BoostedKnobs(), 0)
    model, file = fit.train(values, first, np.ones(len(first))), place / f"{method}.safetensors"
    save_model(model, file)
    if method == "regression":
        means, scales, weights = (model.arrays[name] for name in ("means", "scales", "weights"))

        def formula() -> np.ndarray:
            odds = model.arrays["intercept"] + np.nan_to_num((values - means) / scales) @ weights
            return 1 / (1 + np.exp(-odds))

        return str(file), formula
    from sklearn.ensemble import HistGradientBoostingClassifier

    peer = HistGradientBoostingClassifier(early_stopping=False, random_state=0).fit(values, first)
    return str(file), lambda: peer.predict_proba(values)[:, 1]


def scipy_ranks(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    from scipy.stats import rankdata

    known = ~np.isnan(values)
    ranks = np.where(known, (rankdata(values, axis=0, nan_policy="omit") - 0.5) / known.sum(0), 0.5)
    return 0.5 + (ranks - 0.5) @ weights / np.abs(weights).sum()


def compare(
    stage: ColumnScore, parts: list[Part], place: LocalPath, size: int, peer: Callable[[], np.ndarray], tolerance: float
) -> None:
    seconds, others = [], []
    for number in range(RUNS):
        out = StepOutput(place, f"{stage.method}-{number}")
        started = time.process_time()
        stage.run(parts, out, LocalCluster())
        seconds.append(time.process_time() - started)
        started = time.process_time()
        expected = peer()
        others.append(time.process_time() - started)
    receipts = [out.receipt(part.unit) for part in parts]
    tables = [
        pa.ipc.open_file(str(out.directory / receipt.files[0].path)).read_all() for receipt in receipts if receipt
    ]
    scores = np.concatenate([table["score"].to_numpy() for table in tables])
    known = ~np.isnan(scores)
    if np.abs(scores[known] - expected[known]).max() > tolerance:
        raise SystemExit(f"error: scores of {stage.method} differ from those of the peer; speeds are not compared")
    ours, theirs = size / 1e6 / min(seconds), size / 1e6 / min(others)
    print(f"{stage.method}: {ours:,.0f} MB/s of text; peer in memory {theirs:,.0f} MB/s, ratio {ours / theirs:.2f}")


if __name__ == "__main__":
    main()
