"""Print what `pii` would replace in unlabelled texts: counts, and a sample in context for a person to judge.

    python -m benchmarks.pii_finds [FILE.jsonl.gz ...] [--level contact] [--sample 200] [--megabytes 100] [--ner-model MODEL]

FILEs are gzipped JSON lines with a `text`; the default is English Wikipedia, textbooks and technical
documentation of $GRISTMILL_DATA/prose. For each file, the script prints the number of finds by type, and all
finds per 100 kB. Then it prints a sample, drawn uniformly from all finds with a fixed seed: number, file,
type, and the find in double brackets with up to 60 characters of context on either side. The rate of false
finds in a file is its number of finds per 100 kB times the share of its sample that a reader rejects.
"""

import argparse
import os
import random
from collections import Counter
from pathlib import Path

from benchmarks.pii import megabytes, read, ready, table
from benchmarks.signals import machine
from pipelines.contracts.columns import EDITS_COLUMN
from pipelines.stages.pii.pii import Pii

DEFAULT = ("wiki_en", "textbooks", "tech_docs")
_CONTEXT = 60  # characters on either side of a find
_BATCH = 500  # texts at a time


def default_files() -> list[Path]:
    root = os.environ.get("GRISTMILL_DATA")
    if root is None:
        raise SystemExit("error: name FILEs, or set GRISTMILL_DATA to the folder of the development data")
    return [Path(root) / "prose" / f"{name}.jsonl.gz" for name in DEFAULT]


def finds(stage: Pii, texts: list[str]) -> list[tuple[str, str]]:
    """Return (type, span in context) for each span that the stage replaces."""
    found = []
    for first in range(0, len(texts), _BATCH):
        some = texts[first : first + _BATCH]
        for text, edits in zip(some, stage.annotate(table(some))[EDITS_COLUMN].to_pylist(), strict=True):
            data = text.encode()
            for edit in edits:
                before, inner, after = (
                    part.decode()
                    for part in (data[: edit["start"]], data[edit["start"] : edit["end"]], data[edit["end"] :])
                )
                shown = f"{before[-_CONTEXT:]}[[{inner}]]{after[:_CONTEXT]}"
                found.append((edit["rule"], " ".join(shown.split())))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE")
    parser.add_argument("--level", default="contact")
    parser.add_argument("--sample", type=int, default=200)
    parser.add_argument("--megabytes", type=float, default=100, help="of each file")
    parser.add_argument("--ner-model", default="")
    options = parser.parse_args()
    print(machine())
    stage = ready(Pii(level=options.level, ner_model=options.ner_model))
    everything = []
    for path in options.files or default_files():
        texts = read(path, options.megabytes * 1e6)
        found = finds(stage, texts)
        everything += [(path.name.partition(".")[0], *find) for find in found]
        kinds = ", ".join(f"{kind} {count:,}" for kind, count in Counter(kind for kind, _ in found).most_common())
        rate = len(found) / megabytes(texts) / 10
        print(
            f"{path.name}: {megabytes(texts):.1f} MB, {len(found):,} finds, {rate:.3f} per 100 kB: {kinds}", flush=True
        )
    drawn = random.Random(0).sample(range(len(everything)), min(options.sample, len(everything)))
    for number, place in enumerate(sorted(drawn), 1):
        print(f"{number:4} {everything[place][0]:10} {everything[place][1]:14} {everything[place][2]}")


if __name__ == "__main__":
    main()
