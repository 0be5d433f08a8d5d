"""Benchmark PII detection on one core: Presidio's recognizers with our prefilter ("gated") and on the whole
text ("ungated").

    python -m benchmarks.pii [FILE.jsonl.gz ...] [--megabytes 8] [--posts 100] [--regions JP]

FILEs are gzipped JSON lines with a `text`; the default is forum posts and English Wikipedia of
$GRISTMILL_DATA/prose. The ungated recognizers are so slow that they read only about --posts documents, spread
over the file. On these documents, the spans of both are compared before any speed is printed. Times are CPU
seconds of this process. "first" starts with empty caches; "again" reads the same text a second time, which
bounds what repetition in a corpus can save.

Then precision and recall per entity are measured for both, at the default threshold, on the 1,500 labelled
texts of $GRISTMILL_DATA/pii. A detection is correct if it overlaps a label of its entity. A label is found if
a detection of its entity overlaps it.
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

from pipelines.stages.pii.detect import Detection
from pipelines.stages.pii.pii import Pii
from pipelines.stages.pii.recognizers import PATTERN_ENTITIES, PHONE_REGIONS

DEFAULT = ("forum_20news", "wiki_en")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE")
    parser.add_argument("--megabytes", type=float, default=8)
    parser.add_argument("--posts", type=int, default=100)
    parser.add_argument("--regions", nargs="*", default=["JP"], help="phone regions to add to the default")
    options = parser.parse_args()
    for path in options.files or default_files():
        texts = read(path, options.megabytes * 1e6)
        print(f"{path.name}: {megabytes(texts):.1f} MB, {len(texts):,} documents")
        compare(texts, options.posts)
        cost_of_more(texts, options.regions)
    if labelled := labelled_file():
        judge(labelled)
    names = ("presidio-analyzer", "phonenumbers", "tldextract")
    print(", ".join(f"{name} {version(name)}" for name in names) + f", Python {platform.python_version()}")
    print(f"{os.cpu_count()} cores, {platform.machine()}, load {os.getloadavg()[0]:.1f}, {datetime.now(UTC):%Y-%m-%d}")


def compare(texts: list[str], posts: int) -> None:
    stage = ready(Pii())
    sample = texts[:: max(1, len(texts) // posts)]
    alone: list[list[Detection]] = []
    peer = once(lambda: alone.extend(ungated(stage, text) for text in sample))
    docs = table(sample)
    gated: list[list[Detection]] = [[] for _ in sample]
    for row, detection in ready(Pii()).detector.detect(docs["text"], docs["id"]):
        gated[row].append(detection)
    spans = sum(map(len, alone))
    same = gated_equal(gated, alone)
    print(f"  {spans:,} spans in {len(sample):,} documents equal: {'yes' if same else 'NO'}")
    if not same:
        raise SystemExit("error: gated and ungated differ; speeds of different results are not compared")
    rate = megabytes(sample) / peer
    report("Presidio's recognizers, ungated", megabytes(sample), peer, rate)
    report("gated, the same documents", megabytes(sample), timed(ready(Pii()), sample), rate)
    stage = ready(Pii())
    report("gated, first", megabytes(texts), timed(stage, texts), rate)
    report("gated, again", megabytes(texts), timed(stage, texts), rate)


def cost_of_more(texts: list[str], more: list[str]) -> None:
    """Print the time with US phone numbers alone, with further phone regions, added one by one, and with all
    pattern-based entities.
    """
    for regions in (("US",), *((*PHONE_REGIONS, *more[:count]) for count in range(1, len(more) + 1))):
        stage = ready(Pii(phone_regions=regions))
        report(f"gated, first, phones of {' '.join(regions)}", megabytes(texts), timed(stage, texts), None)
    stage = ready(Pii(entities=PATTERN_ENTITIES))
    report(f"gated, first, all {len(PATTERN_ENTITIES)} entities", megabytes(texts), timed(stage, texts), None)


def judge(path: Path) -> None:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        examples = json.load(file)
    texts = [example["full_text"] for example in examples]
    stage = ready(Pii())
    docs = table(texts)
    gated: list[list[Detection]] = [[] for _ in texts]
    for row, detection in stage.detector.detect(docs["text"], docs["id"]):
        gated[row].append(detection)
    alone = [ungated(stage, text) for text in texts]
    print(
        f"{path.name}: {len(texts):,} texts; gated and ungated spans equal: {'yes' if gated_equal(gated, alone) else 'NO'}"
    )
    print(
        f"  {'':14s} {'labels':>6s}  {'gated: precision':>16s} recall    F1  {'ungated: precision':>18s} recall    F1"
    )
    for entity in stage.entities:
        labels = [
            [(span["start_position"], span["end_position"]) for span in e["spans"] if span["entity_type"] == entity]
            for e in examples
        ]
        cells = [quality(labels, spans_of(entity, texts, found)) for found in (gated, alone)]
        numbers = "  ".join(
            f"{p:{width}.3f} {r:6.3f} {f:5.3f}" for width, (p, r, f) in zip((16, 18), cells, strict=True)
        )
        print(f"  {entity:14s} {sum(map(len, labels)):6,}  {numbers}")


def gated_equal(gated: list[list[Detection]], alone: list[list[Detection]]) -> bool:
    return [sorted(found) for found in gated] == alone


def spans_of(entity: str, texts: list[str], found: list[list[Detection]]) -> list[list[tuple[int, int]]]:
    """Return the detections of an entity at the default threshold, in code points, for each text."""
    return [
        [
            (len(text.encode()[: d.start].decode()), len(text.encode()[: d.end].decode()))
            for d in detections
            if d.entity == entity and d.score >= Pii.score_threshold
        ]
        for text, detections in zip(texts, found, strict=True)
    ]


def quality(labels: list[list[tuple[int, int]]], found: list[list[tuple[int, int]]]) -> tuple[float, float, float]:
    """Return precision, recall and F1, where spans match if they overlap."""

    def met(spans: list[list[tuple[int, int]]], others: list[list[tuple[int, int]]]) -> float:
        pairs = zip(spans, others, strict=True)
        hits = [any(s[0] < o[1] and o[0] < s[1] for o in two) for one, two in pairs for s in one]
        return sum(hits) / len(hits) if hits else float("nan")

    precision, recall = met(found, labels), met(labels, found)
    return precision, recall, 2 * precision * recall / (precision + recall)


def ungated(stage: Pii, text: str) -> list[Detection]:
    found = []
    for entity, recognizer in stage.detector.recognizers.items():
        for result in recognizer.analyze(text, [entity]):
            start, end = len(text[: result.start].encode()), len(text[: result.end].encode())
            found.append(Detection(start, end, entity, float(result.score)))
    return sorted(found)


def report(name: str, size: float, seconds: float, rate: float | None) -> None:
    ratio = f"{size / seconds / rate:8.0f} x" if rate else ""
    print(f"  {name:38s} {size:8.2f} MB {seconds:8.2f} s {size / seconds:9.3f} MB/s {ratio}")


def ready(stage: Pii) -> Pii:
    """Set up the stage and annotate a short text, so that Presidio is imported and the kernels are compiled."""
    stage.setup()
    stage.annotate(table(["650-253-0000 a@example.com 1.2.3.4 DE89370400440532013000"]))
    return stage


def timed(stage: Pii, texts: list[str]) -> float:
    docs = table(texts)
    return once(lambda: stage.annotate(docs))


def once(run: Callable[[], object]) -> float:
    start = time.process_time()
    run()
    return time.process_time() - start


def table(texts: list[str]) -> pa.Table:
    ids = pa.array([row.to_bytes(16) for row in range(len(texts))], pa.binary(16))
    return pa.table({"id": ids, "text": pa.array(texts, pa.large_string())})


def megabytes(texts: list[str]) -> float:
    return sum(len(text.encode()) for text in texts) / 1e6


def read(path: Path, limit: float) -> list[str]:
    texts: list[str] = []
    size = 0
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            texts.append(json.loads(line)["text"])
            size += len(texts[-1].encode())
            if size >= limit:
                break
    return texts


def default_files() -> list[Path]:
    root = os.environ.get("GRISTMILL_DATA")
    if root is None:
        raise SystemExit("error: name FILEs, or set GRISTMILL_DATA to the folder of shared data")
    return [Path(root) / "prose" / f"{name}.jsonl.gz" for name in DEFAULT]


def labelled_file() -> Path | None:
    root = os.environ.get("GRISTMILL_DATA")
    return Path(root) / "pii" / "presidio_synth_dataset_v2.json.gz" if root else None


if __name__ == "__main__":
    main()
