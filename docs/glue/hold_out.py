"""Hold out part of the training split of every GLUE task, for choosing settings: python docs/glue/hold_out.py
TASKS OUTPUT

OUTPUT gets a directory `glue` whose training and development files have the same names as in TASKS. In each
task, a fifth of the training rows, at most 2,000, become the development split; the real development split is
left out.
"""

import gzip
import random
import sys
from pathlib import Path

WITHOUT_HEADER = {"CoLA"}

tasks, output = map(Path, sys.argv[1:])
for train in sorted((tasks / "glue").glob("*/train*.gz")):
    folder = train.parent
    (dev,) = (path for path in folder.glob("dev*.gz") if path.suffixes == train.suffixes)
    with gzip.open(train, "rt", encoding="utf-8", newline="\n") as lines:
        rows = list(lines)
    header = [] if train.suffixes[0] == ".jsonl" or folder.name in WITHOUT_HEADER else [rows.pop(0)]
    held = set(random.Random(0).sample(range(len(rows)), min(2000, len(rows) // 5)))
    place = output / "glue" / folder.name
    place.mkdir(parents=True)
    for name, chosen in ((train.name, False), (dev.name, True)):
        with gzip.open(place / name, "wt", encoding="utf-8", newline="\n") as out:
            out.writelines(header + [row for at, row in enumerate(rows) if (at in held) == chosen])
    print(f"{folder.name}: {len(rows) - len(held)} rows to train on, {len(held)} held out")
