"""Benchmark the search index: building it, its size, and queries against `grep` and a search that reads the
texts.

    GRISTMILL_DATA=... python -m benchmarks.search_index [--megabytes 100] [--rounds 7]

The corpus is prose of $GRISTMILL_DATA in English and Chinese. Times are processor times, unless they are
called wall; for queries, they are medians. The table shows a query with the index open, a search that reads
the texts, and `grep -c` with `-F` or `-E` over a file with one line per document (LC_ALL=C). The script also
prints the time of the first query, which opens the index, and of a whole search command and its `--help`.
"""

import argparse
import gzip
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.signals import machine
from gristmill.storage.disk import LocalPath
from pipelines.building.build import build
from pipelines.cluster.local import LocalCluster
from pipelines.contracts.lineage import open_corpus
from pipelines.contracts.search_index.index_units import INDEX_FOLDER
from pipelines.explore.searching.index_corpus import index_corpus
from pipelines.explore.searching.query import Query
from pipelines.explore.searching.search_corpus import CorpusSearch
from pipelines.planning.corpus import CorpusConfig
from pipelines.planning.inventory import take_inventory
from pipelines.planning.plan import make_plan
from pipelines.reading.sources.source import Source

FILES = {"wiki_en": 0.45, "forum_stackexchange": 0.15, "legal_dc_acts_laws": 0.15, "textbooks": 0.15, "wiki_zh": 0.1}
QUERIES = {
    "rare phrase": Query("wherefore art thou"),
    "phrase": Query("the United States of America"),
    "common phrase": Query("of the"),
    "phrase in Chinese": Query("中华人民共和国"),
    "absent phrase": Query("no such phrase is anywhere in it"),
    "one letter": Query("e"),
    "n-gram of words": Query("in spite of", words=True),
    "common n-gram of words": Query("of the", words=True),
    "regex with a literal": Query(r"licen[cs]e agreements?\b", regex=True),
    "regex without": Query(r"\d{4}-\d{2}-\d{2}", regex=True),
    "phrase, any case": Query("united states", ignore_case=True),
}
GREP = {  # arguments of grep for queries that it can run
    "regex with a literal": ["-E", r"licen[cs]e agreements?\b"],
    "regex without": ["-E", "[0-9]{4}-[0-9]{2}-[0-9]{2}"],
    "phrase, any case": ["-i", "-F", "united states"],
}


def texts_of(data: Path, name: str, most: int) -> Iterator[str]:
    with gzip.open(data / "prose" / f"{name}.jsonl.gz", "rt", encoding="utf-8") as lines:
        for line in lines:
            text = json.loads(line)["text"]
            most -= len(text.encode())
            if most < 0:
                return
            yield text


def built(folder: Path, data: Path, megabytes: int) -> tuple[LocalPath, Path, int]:
    """Build the corpus; return its location, a file with one line per document, and the number of bytes of
    text.
    """
    size = 0
    with (folder / "lines.txt").open("w", encoding="utf-8") as lines:
        for name, share in FILES.items():
            (folder / name).mkdir()
            with (folder / name / "a.jsonl").open("w", encoding="utf-8") as records:
                for text in texts_of(data, name, int(share * megabytes * 1e6)):
                    records.write(json.dumps({"text": text}) + "\n")
                    lines.write(" ".join(text.splitlines()) + "\n")
                    size += len(text.encode())
    sources = tuple(Source(name, str(folder / name), "jsonl") for name in FILES)
    config = CorpusConfig("prose", str(folder / "corpus"), sources, ())
    build(make_plan(config, take_inventory(sources, config.place)), LocalCluster(), lambda line: None)
    return config.place, folder / "lines.txt", size


def seconds(work: Callable[[], object]) -> float:
    """Return the processor seconds that `work` takes in this process and in children that have ended."""

    def used() -> float:
        both = (resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN))
        return sum(usage.ru_utime + usage.ru_stime for usage in both)

    begun = used()
    work()
    return used() - begun


def run(arguments: list[str]) -> None:
    subprocess.run(arguments, capture_output=True, env=os.environ | {"LC_ALL": "C"}, check=False)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--megabytes", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    if "GRISTMILL_DATA" not in os.environ:
        raise SystemExit("set GRISTMILL_DATA to the directory of the development data")
    print(machine(), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        place, lines, size = built(Path(folder), Path(os.environ["GRISTMILL_DATA"]), options.megabytes)
        reading = CorpusSearch(open_corpus(place))
        reading.search(QUERIES["phrase"])
        median = statistics.median
        without = {
            name: median(seconds(lambda q=q: reading.search(q)) for _ in range(3)) for name, q in QUERIES.items()
        }
        index_corpus(place, ["textbooks"])  # compiles, or loads, the kernels
        (place / INDEX_FOLDER).remove_tree()
        spent = seconds(lambda: index_corpus(place))
        index_bytes = (place / INDEX_FOLDER).bytes_below()
        print(f"{size / 1e6:.1f} MB of text indexed at {size / 1e6 / spent:.1f} MB/s of processor time")
        print(f"the index has {index_bytes / 1e6:.0f} MB, {index_bytes / size:.2f} of the text")
        command = [sys.executable, "-m", "pipelines", "search", str(place), QUERIES["rare phrase"].text]
        print(
            f"the command: {seconds(lambda: run(command)):.2f} s; "
            f"`--help` of it: {seconds(lambda: run([*command[:4], '--help'])):.2f} s"
        )
        opened = CorpusSearch(open_corpus(place))
        print(
            f"the first query, which opens the index: {seconds(lambda: opened.search(QUERIES['phrase'])) * 1e3:.0f} ms\n"
        )
        print("| query | documents | hits | ms, index | wall ms, index | ms, reading | ms, grep -c |")
        print("|---|---|---|---|---|---|---|")
        for name, query in QUERIES.items():
            result, walls, times = opened.search(query), [], []
            for _ in range(options.rounds):
                begun = time.perf_counter()
                times.append(seconds(lambda q=query: opened.search(q)))
                walls.append(time.perf_counter() - begun)
            grep = ["grep", "-c", *GREP.get(name, ["-F", query.text]), str(lines)]
            beside = "" if query.words else f"{median(seconds(lambda g=grep: run(g)) for _ in range(3)) * 1e3:.0f}"
            print(
                f"| {name} | {result.documents:,} | {result.hits:,} | {median(times) * 1e3:.1f} | {median(walls) * 1e3:.1f} | "
                f"{without[name] * 1e3:.0f} | {beside} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
