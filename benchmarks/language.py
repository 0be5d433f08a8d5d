"""Language identification, one core: the stage beside a plain loop over each library's own call, in one run.

    python -m benchmarks.language [FILE.jsonl.gz ...] [--megabytes 8] [--model lid.176.ftz]

FILEs are gzipped JSON lines with a `text`; without any, prose of $GRISTMILL_DATA. The model defaults to
$GRISTMILL_DATA/models/lid.176.ftz, and fastText is left out where there is none. The peers read what the stage reads:
the first 65,536 bytes. Labels are compared before any speed is printed. Times are CPU seconds of this process.
"""

import argparse
import gzip
import json
import os
import platform
import time
from collections.abc import Callable
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import pyarrow as pa

from pipelines.stages.language import Language

DEFAULT = ("forum_20news", "wiki_en", "wiki_zh", "textbooks")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE")
    parser.add_argument("--megabytes", type=float, default=8)
    parser.add_argument("--model", type=Path)
    options = parser.parse_args()
    root = os.environ.get("GRISTMILL_DATA")
    if not options.files and root is None:
        raise SystemExit("error: name FILEs, or set GRISTMILL_DATA to the folder of shared data")
    model = options.model or (Path(root) / "models" / "lid.176.ftz" if root else None)
    for path in options.files or [Path(str(root)) / "prose" / f"{name}.jsonl.gz" for name in DEFAULT]:
        texts = read(path, options.megabytes * 1e6)
        print(f"{path.name}: {size(texts):.1f} MB, {len(texts):,} documents")
        compare("resiliparse", Language(), resiliparse, texts)
        if model and model.exists():
            compare("fastText", Language(model=str(model)), fasttext_by(str(model)), texts)
    print(f"resiliparse {version('resiliparse')}, fasttext-numpy2 {version('fasttext-numpy2')}")
    print(
        f"Python {platform.python_version()}, {os.cpu_count()} cores, {platform.machine()}, "
        f"load {os.getloadavg()[0]:.1f}, {datetime.now(UTC):%Y-%m-%d}"
    )


def compare(name: str, stage: Language, peer: Callable[[list[str]], list[str]], texts: list[str]) -> None:
    stage.setup()
    docs = pa.table({"text": pa.array(texts, pa.large_string())})
    heads = [text.encode()[: stage.max_bytes].decode("utf-8", "ignore") for text in texts]
    labels = stage.annotate(docs)["language"].to_pylist()
    same = all(ours in (None, theirs) for ours, theirs in zip(labels, peer(heads), strict=True))
    if not same:
        raise SystemExit(f"error: the stage and {name} disagree; speeds of different results are not compared")
    ours, theirs = once(lambda: stage.annotate(docs)), once(lambda: peer(heads))
    null = labels.count(None)
    print(f"  {name:12s} labels equal but for {null:,} null; stage {size(texts) / ours:7.1f} MB/s, library ", end="")
    print(f"{size(texts) / theirs:7.1f} MB/s, {theirs / ours:5.2f} x")


def resiliparse(texts: list[str]) -> list[str]:
    from resiliparse.parse.lang import detect_fast

    return [detect_fast(text)[0] for text in texts]


def fasttext_by(path: str) -> Callable[[list[str]], list[str]]:
    import fasttext

    model = fasttext.load_model(path)

    def predict(texts: list[str]) -> list[str]:
        return [model.predict(text.replace("\n", " "))[0][0].removeprefix("__label__") for text in texts]

    return predict


def once(run: Callable[[], object]) -> float:
    start = time.process_time()
    run()
    return time.process_time() - start


def size(texts: list[str]) -> float:
    return sum(len(text.encode()) for text in texts) / 1e6


def read(path: Path, limit: float) -> list[str]:
    texts: list[str] = []
    read_bytes = 0
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            texts.append(json.loads(line)["text"])
            read_bytes += len(texts[-1].encode())
            if read_bytes >= limit:
                break
    return texts


if __name__ == "__main__":
    main()
