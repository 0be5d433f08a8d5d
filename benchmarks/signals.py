"""Benchmark quality signals, peer signals and the verdicts of datatrove's four rule sets, on one core,
against peers in the same process.

    python -m benchmarks.signals [FILE.jsonl.gz ...]      default: $GRISTMILL_DATA/prose/wiki_en.jsonl.gz

The peers are datatrove's four filters (Gopher quality, Gopher repetition, C4, FineWeb) on the first documents
of the same file, if datatrove is importable, and Gopher quality alone in plain Python over `str.split` and
`splitlines`, as dolma and NeMo Curator compute it. The first call is shown separately, because it compiles
the kernels or loads them from disk.
"""

import gzip
import importlib.util
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa

PEER_BYTES, DATATROVE_BYTES = 2_000_000, 500_000
RULE_SETS = ("gopher_quality@datatrove", "gopher_repetition@datatrove", "c4@datatrove", "fineweb@datatrove")
INSTALL = "pip install --target DIRECTORY datatrove spacy nltk regex; PYTHONPATH=DIRECTORY python -m benchmarks.signals"


def load(arguments: list[str], most: int = 60_000_000) -> tuple[list[str], list[str]]:
    """Return (names of the files, texts) for the first `most` bytes of text in JSON-lines files with a field `text`."""
    paths = [Path(argument) for argument in arguments]
    if not paths:
        if "GRISTMILL_DATA" not in os.environ:
            raise SystemExit("give a .jsonl.gz file with a field `text`, or set GRISTMILL_DATA")
        paths = [Path(os.environ["GRISTMILL_DATA"]) / "prose" / "wiki_en.jsonl.gz"]
    texts: list[str] = []
    size = 0
    for path in paths:
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            for line in lines:
                text = json.loads(line)["text"]
                size += len(text.encode())
                if size > most:
                    return [path.name for path in paths], texts
                texts.append(text)
    return [path.name for path in paths], texts


def machine() -> str:
    """Describe the conditions of a measurement: processor, cores, load, Python, date."""
    cpu = platform.processor() or platform.machine()
    if Path("/proc/cpuinfo").exists():
        names = [line.split(":")[1] for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line]
        cpu = names[0].strip() if names else cpu
    load_average = os.getloadavg()[0]
    date = time.strftime("%Y-%m-%d")
    return f"{cpu}, {os.cpu_count()} cores, load {load_average:.1f}, Python {platform.python_version()}, {date}"


def rate(work: Callable[[], object], size: int, repeat: int = 3) -> float:
    """Return MB/s of processor time, the best of `repeat` runs.

    Other load affects processor time less than wall-clock time.
    """
    seconds = []
    for _ in range(repeat):
        begin = time.process_time()
        work()
        seconds.append(time.process_time() - begin)
    return size / 1e6 / min(seconds)


def first_call(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def head(texts: Iterable[str], most: int) -> tuple[list[str], int]:
    """Return the first texts, up to about `most` bytes, and their size in bytes."""
    taken: list[str] = []
    size = 0
    for text in texts:
        taken.append(text)
        size += len(text.encode())
        if size >= most:
            break
    return taken, size


STOP_WORDS = {"the", "be", "to", "of", "and", "that", "have", "with"}


def plain_python(text: str) -> bool:
    """Return whether Gopher quality keeps the document, computed as dolma and NeMo Curator do."""
    words = text.split()
    lines = text.splitlines()
    if not 50 <= len(words) <= 100_000 or not 3 <= sum(map(len, words)) / len(words) <= 10:
        return False
    if text.count("#") / len(words) > 0.1 or (text.count("...") + text.count("…")) / len(words) > 0.1:
        return False
    if sum(line.lstrip().startswith(("•", "-")) for line in lines) / len(lines) > 0.9:
        return False
    if sum(line.rstrip().endswith(("...", "…")) for line in lines) / len(lines) > 0.3:
        return False
    if sum(any(character.isalpha() for character in word) for word in words) / len(words) < 0.8:
        return False
    return len(STOP_WORDS & set(words)) >= 2


def by_datatrove(texts: list[str]) -> dict[str, Callable[[], object]]:
    """Return a call of each datatrove filter over the texts, by name; empty if datatrove is not installed.

    Every filter reads all documents, even those that other filters drop, as our signals do.
    """
    if importlib.util.find_spec("datatrove") is None:
        return {}
    from datatrove.data import Document
    from datatrove.pipeline import filters

    chosen = (
        filters.GopherQualityFilter(),
        filters.GopherRepetitionFilter(),
        filters.C4QualityFilter(),
        filters.FineWebQualityFilter(),
    )

    def through(one: Any) -> Callable[[], object]:
        return lambda: [one.filter(Document(text=text, id="")) for text in texts]

    return {type(one).__name__: through(one) for one in chosen}


def main() -> None:
    from pipelines.stages.decide.filter import Filter
    from pipelines.stages.decide.rules import Rule
    from pipelines.stages.measure.peer_signals import PeerSignals
    from pipelines.stages.measure.quality_signals import QualitySignals

    names, texts = load(sys.argv[1:])
    docs = pa.table({"text": pa.array(texts, pa.large_string())})
    size = sum(len(text.encode()) for text in texts)
    signals, peer_signals = QualitySignals(), PeerSignals()
    decide = Filter(tuple(Rule(rules=name) for name in RULE_SETS))

    def measure(docs: pa.Table) -> pa.Table:
        ours, peers = signals.annotate(docs), peer_signals.annotate(docs)
        return pa.table([*ours.columns, *peers.columns], names=[*ours.column_names, *peers.column_names])

    print(machine())
    print(f"{', '.join(names)}: {len(texts):,} documents, {size / 1e6:.1f} MB; MB/s of one core's processor time")
    seconds = first_call(lambda: decide.annotate(measure(docs[:1])))
    print(f"first call (kernels compiled or loaded, Unicode tables built): {seconds:.2f} s")
    alone = rate(lambda: signals.annotate(docs), size)
    print(f"quality_signals, {len(signals.writes())} columns{'':<6} {alone:8.2f} MB/s")
    peers_alone = rate(lambda: peer_signals.annotate(docs), size)
    print(f"peer_signals, {len(peer_signals.writes())} columns{'':<9} {peers_alone:8.2f} MB/s")
    ours = rate(lambda: decide.annotate(measure(docs)), size)
    print(f"both and verdicts of {len(RULE_SETS)} sets{'':<6} {ours:8.2f} MB/s")
    sample, sample_size = head(texts, DATATROVE_BYTES)
    print(f"peers, on the first {len(sample)} documents, {sample_size / 1e6:.1f} MB:")
    plain = rate(lambda: [plain_python(text) for text in sample], sample_size, repeat=1)
    print(f"Gopher quality in plain Python    {plain:8.2f} MB/s   we are {ours / plain:.1f} x")
    seconds_of_all = 0.0
    for name, work in by_datatrove(sample).items():
        first_call(work)  # loads its tokenizer
        peer = rate(work, sample_size, repeat=1)
        seconds_of_all += sample_size / 1e6 / peer
        print(f"datatrove {name:<23} {peer:8.2f} MB/s   we are {ours / peer:.1f} x")
    if seconds_of_all:
        peer = sample_size / 1e6 / seconds_of_all
        print(f"datatrove, the four together      {peer:8.2f} MB/s   we are {ours / peer:.1f} x")
    else:
        print(f"datatrove is not installed: {INSTALL}")


if __name__ == "__main__":
    main()
