"""docs/glue/hold_out.py: training rows are divided without loss or repetition, and the real development split is not read."""

import gzip
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "docs/glue/hold_out.py"


def write(path, lines):
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wt") as file:
        file.writelines(f"{line}\n" for line in lines)


def read(path):
    with gzip.open(path, "rt") as file:
        return file.read().splitlines()


def test_a_fifth_of_the_training_rows_is_held_out(tmp_path):
    glue = tmp_path / "tasks/glue"
    write(glue / "CoLA/train.tsv.gz", [f"cola {n}" for n in range(50)])  # has no header
    write(glue / "SST-2/train.tsv.gz", ["sentence\tlabel", *(f"sst {n}" for n in range(12_000))])
    write(glue / "MNLI/train_10k.jsonl.gz", [f'{{"n": {n}}}' for n in range(7)])
    for name in ("CoLA/dev.tsv.gz", "SST-2/dev.tsv.gz", "MNLI/dev_matched.jsonl.gz"):
        write(glue / name, ["real"])
    command = [sys.executable, str(SCRIPT), str(tmp_path / "tasks"), str(tmp_path / "held")]
    told = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    assert told == [
        "CoLA: 40 rows to train on, 10 held out",
        "MNLI: 6 rows to train on, 1 held out",
        "SST-2: 10000 rows to train on, 2000 held out",
    ]
    for name, dev, header in (
        ("CoLA/train.tsv.gz", "CoLA/dev.tsv.gz", []),
        ("SST-2/train.tsv.gz", "SST-2/dev.tsv.gz", ["sentence\tlabel"]),
        ("MNLI/train_10k.jsonl.gz", "MNLI/dev_matched.jsonl.gz", []),
    ):
        left, held = read(tmp_path / "held/glue" / name), read(tmp_path / "held/glue" / dev)
        assert left[: len(header)] == held[: len(header)] == header
        rows = [*left[len(header) :], *held[len(header) :]]
        assert sorted(header + rows) == sorted(read(glue / name))
        assert "real" not in rows
