"""Benchmark extraction from web pages: quality against the bare extractors, speed against FastWARC with
resiliparse.

    python -m benchmarks.extraction [--pages 300] [--pairs 3] [--extractors resiliparse,trafilatura,best] [--markup text,markdown]
          data: $GRISTMILL_DATA/raw_web

Quality is measured as trafilatura reports it: each page has snippets that must be in the text ("with") and
snippets that must not ("without"). Precision = found with / (found with + found without), recall = found with
/ all with, and F is their harmonic mean. "reader" is format warc; "bare" is the extractor's own call on the
same payload with the same options, except that trafilatura decodes the bytes itself. The share of equal texts
shows whether the reader loses anything. `best` was fitted to these pages, so only its cost is meaningful
here; benchmarks.line_choice measures its cross-validated quality. With `markup: markdown`, snippets are
searched for in the text as it is and, in rows "without marks", in the text without backticks and escapes of
pipes.

For Markdown, the script also prints on how many pages each kind of structure occurs;
`benchmarks.page_structure` compares our Markdown with trafilatura's.

Speed is MB/s of decoded WARC over all pages. The peer reads payloads with FastWARC, detects the encoding,
decodes and extracts. The reader also accounts for every record, counts replaced bytes, limits nodes and
depth, isolates the parser in a process, normalises, and writes documents into Arrow. CPU time is that of this
process and its children; in wall-clock time the reader's two processes overlap. Figures are medians over
pairs of consecutive runs.
"""

import argparse
import itertools
import json
import os
import re
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TypeVar

from benchmarks.signals import machine
from pipelines.reading.documents import read_documents, read_records
from pipelines.reading.entries.archives import open_entries
from pipelines.reading.entries.listing import list_files
from pipelines.reading.entries.records import RawRecord, TextRecord
from pipelines.reading.sources.source import Source
from pipelines.reading.web.extraction import extract_with_resiliparse, extract_with_trafilatura
from pipelines.reading.web.page_markdown import extract_markdown
from pipelines.reading.web.page_process import Extractor

_COPIES = 3  # of the file, so that starting the child (0.2 s) weighs as little as with a crawl's larger files
Snippets = list[tuple[list[str], list[str]]]
Result = TypeVar("Result")
STRUCTURE = {
    "headings": re.compile(r"^#{1,6} \S", re.MULTILINE),
    "lists": re.compile(r"^ *(-|\d+\.) \S", re.MULTILINE),
    "tables": re.compile(r"^\|(---\|)+", re.MULTILINE),
    "code": re.compile(r"^```", re.MULTILINE),
    "formulas": re.compile(r"\$[^$\s][^$\n]*\$"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pages", type=int, default=300, help="pages for the comparison of quality; 990 are all")
    parser.add_argument(
        "--pairs", type=int, default=3, help="pairs of timed runs; 0 leaves the comparison of speed out"
    )
    parser.add_argument("--extractors", default="resiliparse,trafilatura,best", help="names, divided by commas")
    parser.add_argument("--markup", default="text,markdown", help="names, divided by commas")
    options = parser.parse_args()
    if "GRISTMILL_DATA" not in os.environ:
        raise SystemExit("error: set GRISTMILL_DATA to the folder of shared data")
    root = Path(os.environ["GRISTMILL_DATA"]) / "raw_web"
    path = root / "trafilatura_pages.warc.gz"
    judged = json.loads((root / "trafilatura_evaldata.json").read_text())
    snippets = [(page["with"], page["without"]) for page in judged.values()][: options.pages]
    print(machine())
    print(f"{len(snippets)} pages of {path.name}   precision  recall      F    texts equal to bare")
    bare_calls: dict[tuple[str, str], Callable[[bytes], str] | None] = {
        ("resiliparse", "text"): bare_resiliparse,
        ("trafilatura", "text"): extract_with_trafilatura,
        ("resiliparse", "markdown"): bare_markdown,
        ("trafilatura", "markdown"): partial(extract_with_trafilatura, markup="markdown"),
        ("best", "text"): None,  # a rule of ours, so there is no call of a library beside it
        ("best", "markdown"): None,
    }
    for (extract, markup), call in bare_calls.items():
        if extract not in options.extractors.split(",") or markup not in options.markup.split(","):
            continue
        reader, spent = timed(lambda: list(itertools.islice(by_reader(path, extract, markup), options.pages)))  # noqa: B023
        name = f"{extract:12s} {markup:9s}"
        cost = f"{spent / len(reader) * 1e3:.1f} ms a page"
        if call is None:
            print(f"{name} reader       {score(reader, snippets)}    {cost}")
        else:
            bare = [call(payload) or "" for payload in itertools.islice(payloads(path), options.pages)]
            same = sum(ours == theirs for ours, theirs in zip(reader, bare, strict=True))
            print(f"{name} reader       {score(reader, snippets)}    {same / len(bare):.1%}  {cost}")
            print(f"{name} bare         {score(bare, snippets)}")
        if markup == "markdown":
            unmarked = [re.sub(r"`|\\(?=\|)", "", text) for text in reader]
            print(f"{name} without marks {score(unmarked, snippets)}")
            pages = {kind: sum(1 for text in reader if pattern.search(text)) for kind, pattern in STRUCTURE.items()}
            print(f"{name} pages with " + ", ".join(f"{kind} {count}" for kind, count in pages.items()))
    if options.pairs:
        compare_speed(path, options.pairs)


def by_reader(path: Path, extract: str, markup: str) -> Iterator[str]:
    """Yield the text of every page as format warc extracts it, before normalisation, and "" for pages that
    are set aside.
    """
    source = Source(name="benchmark", root=str(path), format="warc", extract=extract, markup=markup)
    (file,) = list_files(source)
    with Extractor(source) as extractor:
        for entry in open_entries(file, source):
            pages = (record for record in read_records(entry, source) if isinstance(record, RawRecord))
            for record in extractor.extract(entry.path, 0, pages):
                yield record.text if isinstance(record, TextRecord) else ""


def payloads(path: Path) -> Iterator[bytes]:
    """Yield the payloads of the responses, in the order in which the evaluation data lists the pages."""
    from fastwarc.warc import ArchiveIterator, WarcRecordType

    for record in ArchiveIterator(str(path), record_types=WarcRecordType.response, auto_decode="all"):
        yield record.reader.read()


def bare_resiliparse(payload: bytes) -> str:
    from resiliparse.parse.encoding import bytes_to_str, detect_encoding

    return extract_with_resiliparse(bytes_to_str(payload, detect_encoding(payload, from_html_meta=True)))


def bare_markdown(payload: bytes) -> str:
    from resiliparse.parse.encoding import bytes_to_str, detect_encoding
    from resiliparse.parse.html import HTMLTree

    html = bytes_to_str(payload, detect_encoding(payload, from_html_meta=True))
    return extract_markdown(HTMLTree.parse(html), main_content=True)


def score(texts: list[str], snippets: Snippets) -> str:
    good = sum(snippet in text for text, (wanted, _) in zip(texts, snippets, strict=True) for snippet in wanted)
    bad = sum(snippet in text for text, (_, unwanted) in zip(texts, snippets, strict=True) for snippet in unwanted)
    precision, recall = good / (good + bad), good / sum(len(wanted) for wanted, _ in snippets)
    return f"{precision:9.3f} {recall:7.3f} {2 * precision * recall / (precision + recall):6.3f}"


def compare_speed(path: Path, pairs: int) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        for copy in range(_COPIES):
            (Path(scratch) / f"{copy}.warc.gz").symlink_to(path)
        _compare_speed(Path(scratch), pairs)


def _compare_speed(root: Path, pairs: int) -> None:
    source = Source(name="benchmark", root=str(root), format="warc")
    files = list_files(source)
    size = sum(
        row["decoded_bytes"] for part in read_documents(source, files, 1 << 27) for row in part.files.to_pylist()
    )

    def reader() -> int:
        return sum(part.documents.num_rows for part in read_documents(source, files, source.part_bytes))

    def bare() -> int:
        return sum(1 for file in files for payload in payloads(Path(file.location)) if bare_resiliparse(payload))

    times = [(both_clocks(reader), both_clocks(bare)) for _ in range(pairs)]
    print(
        f"{size / 1e6:.0f} MB of WARC to text, resiliparse     reader    bare   time, reader / bare (median of {pairs} pairs)"
    )
    for name, clock in (("CPU", 0), ("wall", 1)):
        ours, theirs = (statistics.median(pair[side][clock] for pair in times) for side in (0, 1))
        ratio = statistics.median(pair[0][clock] / pair[1][clock] for pair in times)
        print(f"MB/s by {name:4s} time {size / ours / 1e6:26.1f} {size / theirs / 1e6:7.1f} {ratio:8.2f}")


def timed(run: Callable[[], Result]) -> tuple[Result, float]:
    usage = cpu_seconds()
    result = run()
    return result, cpu_seconds() - usage


def both_clocks(run: Callable[[], int]) -> tuple[float, float]:
    usage, begin = cpu_seconds(), time.perf_counter()
    run()
    return cpu_seconds() - usage, time.perf_counter() - begin


def cpu_seconds() -> float:
    both = (resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in both)


if __name__ == "__main__":
    main()
