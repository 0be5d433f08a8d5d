"""Benchmark scoring with a fastText classifier on one core: our stage against the library's `predict` on a
list.

    python -m benchmarks.classifier [--megabytes 8] [--dim 100] [--word-ngrams 2]

The model is trained here on parts of two prose files of $GRISTMILL_DATA (textbooks against Usenet posts) and
scores documents of both. The library gets the texts as a list with line ends replaced, as it requires. Making
the list is not timed. Scores are compared before any speed is printed. Times are CPU seconds of this process,
the best of three alternating runs.
"""

import argparse
import os
import platform
import tempfile
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import pyarrow as pa

from benchmarks.language import once, read, size
from pipelines.stages.score.classifier import Classifier


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, default=8)
    parser.add_argument("--dim", type=int, default=100)
    parser.add_argument("--word-ngrams", type=int, default=2)
    options = parser.parse_args()
    if "GRISTMILL_DATA" not in os.environ:
        raise SystemExit("error: set GRISTMILL_DATA to the folder of shared data")
    prose = Path(os.environ["GRISTMILL_DATA"]) / "prose"
    classes = {
        label: read(prose / f"{name}.jsonl.gz", options.megabytes * 5e5)
        for label, name in (("positive", "textbooks"), ("negative", "forum_20news"))
    }
    with tempfile.TemporaryDirectory() as place:
        compare(classes, Path(place), options.dim, options.word_ngrams)
    print(
        f"fasttext-numpy2 {version('fasttext-numpy2')}, Python {platform.python_version()}, {os.cpu_count()} cores, ",
        end="",
    )
    print(f"{platform.machine()}, load {os.getloadavg()[0]:.1f}, {datetime.now(UTC):%Y-%m-%d}")


def compare(classes: dict[str, list[str]], place: Path, dim: int, word_ngrams: int) -> None:
    import fasttext

    lines = [f"__label__{label} {' '.join(text.split())}\n" for label, texts in classes.items() for text in texts[:200]]
    (place / "train.txt").write_text("".join(lines))
    model = fasttext.train_supervised(
        str(place / "train.txt"), dim=dim, wordNgrams=word_ngrams, epoch=2, bucket=2_000_000, thread=11, verbose=0
    )
    model.save_model(str(place / "model.bin"))
    stage = Classifier(model=str(place / "model.bin"))
    stage.setup()
    texts = [text for group in classes.values() for text in group]
    docs = pa.table({"text": pa.array(texts, pa.large_string())})
    flat = [text.replace("\n", " ") for text in texts]

    def predict() -> list[float]:
        labels, probabilities = model.predict(flat, k=2)
        return [
            float(p[list(names).index("__label__positive")]) for names, p in zip(labels, probabilities, strict=True)
        ]

    ours, theirs = stage.annotate(docs)["classifier_score"].to_pylist(), predict()
    if max(abs(a - min(1, b)) for a, b in zip(ours, theirs, strict=True)) > 1e-6:
        raise SystemExit("error: the stage and the library disagree; speeds of different results are not compared")
    times = [(once(lambda: stage.annotate(docs)), once(lambda: model.predict(flat, k=2))) for _ in range(3)]
    mine, peer = (min(column) for column in zip(*times, strict=True))
    print(f"dim {dim}, word n-grams to {word_ngrams}, {len(texts):,} documents, {size(texts):.1f} MB: scores equal")
    print(f"stage {size(texts) / mine:.1f} MB/s, list predict {size(texts) / peer:.1f} MB/s, {peer / mine:.2f} x")


if __name__ == "__main__":
    main()
