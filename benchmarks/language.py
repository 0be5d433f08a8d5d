"""Benchmark language identification on one core: speed against a loop over each library's own call, and
accuracy.

    python -m benchmarks.language [FILE.jsonl.gz ...] [--megabytes 8] [--model lid.176.ftz]

FILEs are gzipped JSON lines with a `text`; the default is prose of $GRISTMILL_DATA. The model defaults to
$GRISTMILL_DATA/models/lid.176.ftz; without it fastText is left out. The libraries get what the stage reads,
the first 65,536 bytes. Labels are compared before any speed is printed. Times are CPU seconds of this
process, the better of two alternating runs. Accuracy is measured on $GRISTMILL_DATA/lid, 75 languages with
1,000 sentences each, as documents of 1, 5 and 20 consecutive sentences; `-` marks languages that the model
does not know.
"""

import argparse
import gzip
import json
import os
import platform
import tarfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import pyarrow as pa

from pipelines.stages.measure.language import Language

DEFAULT = ("forum_20news", "wiki_en", "wiki_zh", "textbooks")
LENGTHS = (1, 5, 20)
SAME = {"nb": "no"}  # the models write Bokmål as Norwegian


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
    stages = {"resiliparse": Language()}
    if model and model.exists():
        stages["fastText"] = Language(model=str(model))
    for path in options.files or [Path(str(root)) / "prose" / f"{name}.jsonl.gz" for name in DEFAULT]:
        texts = read(path, options.megabytes * 1e6)
        print(f"{path.name}: {size(texts):.1f} MB, {len(texts):,} documents")
        for name, stage in stages.items():
            compare(name, stage, resiliparse if name == "resiliparse" else fasttext_by(str(model)), texts)
    if root is not None:
        accuracy(Path(root) / "lid" / "lingua_testdata.tar.gz", stages)
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
    same = all(ours in ("und", theirs) for ours, theirs in zip(labels, peer(heads), strict=True))
    if not same:
        raise SystemExit(f"error: the stage and {name} disagree; speeds of different results are not compared")
    times = [(once(lambda: stage.annotate(docs)), once(lambda: peer(heads))) for _ in range(2)]
    ours, theirs = (min(column) for column in zip(*times, strict=True))
    none = labels.count("und")
    print(f"  {name:12s} labels equal but for {none:,} und; stage {size(texts) / ours:7.1f} MB/s, library ", end="")
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


def accuracy(archive: Path, stages: dict[str, Language]) -> None:
    """A Markdown table: per cent of documents with the correct label, by model, number of sentences and
    language.
    """
    known = {name: known_labels(stage) for name, stage in stages.items()}
    columns = [(name, length) for name in stages for length in LENGTHS]
    print("\n| language |" + "".join(f" {name}, {length} |" for name, length in columns))
    print("|---|" + "---|" * len(columns))
    rows: dict[str, list[float | None]] = {}
    for language, sentences in sorted(test_sentences(archive).items()):
        wanted = SAME.get(language, language)
        rows[language] = [
            right(stages[name], sentences, length, wanted) if wanted in known[name] else None
            for name, length in columns
        ]
    common = [row for row in rows.values() if None not in row]
    for language, row in rows.items():
        print(f"| {language} |" + "".join(" - |" if cell is None else f" {cell:.1f} |" for cell in row))
    means = [sum(cells) / len(common) for cells in zip(*common, strict=True)]
    print(f"| mean of the {len(common)} known to all |" + "".join(f" {mean:.1f} |" for mean in means) + "\n")


def known_labels(stage: Language) -> set[str]:
    from resiliparse.parse.lang import supported_langs

    return set(supported_langs()) if stage.model == "resiliparse" else set(stage._fasttext.labels)


def right(stage: Language, sentences: list[str], length: int, wanted: str) -> float:
    """Per cent of the documents of that many sentences that get this label."""
    texts = [" ".join(sentences[first : first + length]) for first in range(0, len(sentences) - length + 1, length)]
    found = stage.annotate(pa.table({"text": pa.array(texts, pa.large_string())}))["language"].to_pylist()
    return 100 * found.count(wanted) / len(found)


def test_sentences(archive: Path) -> dict[str, list[str]]:
    with tarfile.open(archive) as members:
        files = {Path(member.name).stem: members.extractfile(member) for member in members if member.isfile()}
        return {name: file.read().decode().splitlines() for name, file in files.items() if file and len(name) == 2}


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
