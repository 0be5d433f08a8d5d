"""Benchmark reading gzipped JSON lines into document parts, on one core, against peers in the same process.

    python -m benchmarks.read [FILE.jsonl.gz ...]      default: four files of $GRISTMILL_DATA/prose

The peers are a loop of `gzip.open` and `json.loads`, which only parses, and datatrove's JsonlReader if it is
installed. Our reader also normalises, makes ids, and writes the text into Arrow.
"""

import gzip
import importlib.util
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

from benchmarks.signals import machine, rate
from pipelines.reading.documents import read_documents
from pipelines.reading.entries.listing import list_files
from pipelines.reading.sources.source import Source

FILES = ("wiki_en", "wiki_zh", "forum_20news", "dialogue")


def ours(path: Path) -> Callable[[], object]:
    source = Source(name="benchmark", root=str(path), format="jsonl")
    return lambda: sum(
        part.documents.num_rows for part in read_documents(source, list_files(source), source.part_bytes)
    )


def bare(path: Path) -> Callable[[], object]:
    def loop() -> int:
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            return sum(len(json.loads(line)["text"]) for line in lines)

    return loop


def datatrove(path: Path) -> Callable[[], object]:
    from datatrove.pipeline.readers import JsonlReader

    return lambda: sum(len(document.text) for document in JsonlReader(str(path.parent), glob_pattern=path.name)())


def main(arguments: list[str]) -> None:
    paths = [Path(argument) for argument in arguments]
    if not paths:
        if "GRISTMILL_DATA" not in os.environ:
            raise SystemExit("give a .jsonl.gz file with a field `text`, or set GRISTMILL_DATA")
        paths = [Path(os.environ["GRISTMILL_DATA"]) / "prose" / f"{name}.jsonl.gz" for name in FILES]
    readers = {"ours": ours, "gzip + json": bare} | (
        {"datatrove": datatrove} if importlib.util.find_spec("datatrove") else {}
    )
    print(machine())
    print(
        f"{'MB/s of decoded JSON lines per core':36}"
        + "".join(f"{name:>14}" for name in readers)
        + f"{'ours / bare':>14}"
    )
    for path in paths:
        with gzip.open(path) as lines:
            sizes = [len(line) for line in lines]
        rates = {name: rate(make(path), sum(sizes)) for name, make in readers.items()}
        label = f"{path.name.partition('.')[0]}, {sum(sizes) // len(sizes):,} bytes a line"
        columns = "".join(f"{value:14.1f}" for value in rates.values())
        print(f"{label:36}{columns}{rates['ours'] / rates['gzip + json']:14.2f}")


if __name__ == "__main__":
    main(sys.argv[1:])
