"""Benchmark substring deduplication, including shuffles and files.

    python -m benchmarks.substrings [FILE.jsonl.gz ...]      default: three files of $GRISTMILL_DATA/prose

Everything runs in one process on one core, separately for each file. The documents are in eight parts, and
the rate is by processor time, the better of two runs. For comparison, deduplication of windows of 3 sentences
runs over the same parts.
"""

import os
import sys
import tempfile
from pathlib import Path

from benchmarks.signals import load, machine
from benchmarks.spans import parts_of, seconds
from gristmill.storage.disk import LocalPath
from pipelines.stages.dedup.dedup_spans import DedupSpans
from pipelines.stages.dedup.dedup_substrings import DedupSubstrings

DEFAULT = ("wiki_en", "forum_20news", "legal_dc_acts_laws")


def files() -> list[str]:
    if sys.argv[1:]:
        return sys.argv[1:]
    if "GRISTMILL_DATA" not in os.environ:
        raise SystemExit("error: name FILEs, or set GRISTMILL_DATA to the folder of shared data")
    return [str(Path(os.environ["GRISTMILL_DATA"]) / "prose" / f"{name}.jsonl.gz") for name in DEFAULT]


def main() -> None:
    print(machine())
    print("| text | MB | bytes cut | dedup_substrings, MB/s | sentences in windows of 3, MB/s |")
    print("|---|---|---|---|---|")
    for number, file in enumerate(files()):
        (name,), texts = load([file])
        size = sum(len(text.encode()) for text in texts)
        with tempfile.TemporaryDirectory() as place:
            root = LocalPath(place)
            stages = (DedupSubstrings(), DedupSpans("sentence", window=3, min_left_words=0))
            if number == 0:
                small = parts_of(root / "warm", texts[:100])
                for which, stage in enumerate(stages):
                    seconds(stage, small, root / f"warm{which}")
            parts = parts_of(root, texts)
            runs = [
                [seconds(stage, parts, root / f"{which}-{turn}") for which, stage in enumerate(stages)]
                for turn in (0, 1)
            ]
            ours, other = (min(run[which][0] for run in runs) for which in (0, 1))
            share = runs[0][0][1]["bytes"] / size
            print(f"| {name} | {size / 1e6:.1f} | {share:.1%} | {size / 1e6 / ours:.1f} | {size / 1e6 / other:.1f} |")


if __name__ == "__main__":
    main()
