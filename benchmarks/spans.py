"""Benchmark deduplication of documents, lines, paragraphs and sentences, including shuffles and files.

    python -m benchmarks.spans [FILE.jsonl.gz ...]      default: $GRISTMILL_DATA/prose/wiki_en.jsonl.gz

Everything runs in one process on one core. All stages get the same documents in eight parts, and their rates
are by processor time. `quality_signals`, the most expensive stage of an ordinary annotate pass, is measured
before and after, to show whether the machine's speed changed.
"""

import sys
import tempfile
import time
from dataclasses import replace

import numpy as np
import pyarrow as pa

from benchmarks.decontamination import part_of
from benchmarks.signals import load, machine, rate
from gristmill.storage.disk import LocalPath
from pipelines.cluster.local import LocalCluster
from pipelines.contracts.manifest import StepOutput
from pipelines.contracts.parts import Annotation, Part
from pipelines.contracts.stage import CorpusStage
from pipelines.stages.dedup.dedup_exact import DedupExact
from pipelines.stages.dedup.dedup_spans import DedupSpans
from pipelines.stages.measure.quality_signals import QualitySignals
from pipelines.stages.measure.text_hash import TextHash

PARTS = 8
SPANS = (DedupSpans("line"), DedupSpans("paragraph"), DedupSpans("sentence"), DedupSpans("sentence", window=3))


def parts_of(root: LocalPath, texts: list[str]) -> list[Part]:
    size = -(-len(texts) // PARTS)
    return [
        replace(part_of(root / f"{k}", texts[k * size : (k + 1) * size]), index=k)
        for k in range(PARTS)
        if texts[k * size :]
    ]


def hashed(part: Part) -> Part:
    """Return the part with its `text_hash`, which `DedupExact` needs."""
    table = TextHash().annotate(part.table(("text",)))
    return replace(part, annotations=(Annotation("text_hash", part.directory, None, {"text_hash": ""}, table),))


def seconds(stage: CorpusStage, parts: list[Part], place: LocalPath) -> tuple[float, dict[str, int]]:
    """Return the processor seconds of a stage over all parts, and its facts. Exact deduplication includes
    `text_hash`.
    """
    begin = time.process_time()
    if isinstance(stage, DedupExact):
        parts = [hashed(part) for part in parts]
    facts = stage.run(parts, StepOutput(place.parent, place.name), LocalCluster())
    return time.process_time() - begin, facts


def grow(texts: list[str], root: LocalPath) -> str:
    """Return a line with the times of deduplicating windows of 3 sentences, for several numbers of documents."""
    sizes = [len(texts) // 8, len(texts) // 4, len(texts) // 2, len(texts)]
    spent = []
    for size in sizes:
        parts = parts_of(root / f"first{size}", texts[:: len(texts) // size][:size])
        spent.append(min(seconds(SPANS[-1], parts, root / f"first{size}" / f"{k}")[0] for k in range(2)))
    exponent = np.polyfit(np.log(sizes), np.log(spent), 1)[0]
    return f"windows of 3 sentences of documents x 1, 2, 4, 8: {', '.join(f'{s:.2f}' for s in spent)} s, exponent {exponent:.2f}"


def main() -> None:
    names, texts = load(sys.argv[1:])
    size = sum(len(text.encode()) for text in texts)
    docs = pa.table({"text": pa.array(texts, pa.large_string())})
    signals = QualitySignals()
    print(machine())
    print(f"{', '.join(names)}: {len(texts):,} documents, {size / 1e6:.1f} MB; MB/s of one core's processor time")
    with tempfile.TemporaryDirectory() as place:
        root = LocalPath(place)
        small = parts_of(root / "warm", texts[:100])
        signals.annotate(docs[:1])
        for number, stage in enumerate((DedupExact(), *SPANS)):
            seconds(stage, small, root / f"warm{number}")
        parts = parts_of(root, texts)
        before = rate(lambda: signals.annotate(docs), size, 1)
        rows = []
        for number, stage in enumerate((DedupExact(), *SPANS)):
            spent, facts = seconds(stage, parts, root / f"{number}")
            name = f"{stage.unit}s, windows of {stage.window}" if isinstance(stage, DedupSpans) else "documents, exact"
            cut = f"{facts['removed']:,} of {facts['units']:,} units cut, " if "units" in facts else ""
            found = f"{cut}{facts['dropped']:,} documents dropped"
            rows.append((name, size / 1e6 / spent, found))
        growth = grow(texts, root)
        after = rate(lambda: signals.annotate(docs), size, 1)
    print(f"quality_signals: {before:.1f} before, {after:.1f} after")
    for name, speed, found in rows:
        print(f"{name:<24}{speed:8.1f} MB/s, {2 * speed / (before + after):5.2f} x quality_signals; {found}")
    print(growth)


if __name__ == "__main__":
    main()
