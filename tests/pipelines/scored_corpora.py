"""Small corpora whose documents have numeric fields, for tests of scores and of models over columns."""

import json
from pathlib import Path

import numpy as np

from pipelines.building.build import build
from pipelines.cluster.local import LocalCluster
from pipelines.contracts.lineage import open_corpus
from pipelines.planning.corpus import load_corpus_config
from pipelines.planning.inventory import take_inventory
from pipelines.planning.plan import make_plan

NAMES = ("good", "bad", "noise")


def write_records(file: Path, shift: float, count: int = 120, seed: int = 0) -> None:
    """Write documents with three numeric fields. `shift` raises `good` and lowers `bad`; some values are
    missing and many are equal.
    """
    random = np.random.default_rng(seed)
    rows = []
    for number in range(count):
        record = {
            "good": round(float(random.normal(shift, 1)), 1), "bad": round(float(random.normal(-shift, 1)), 1),
            "noise": float(random.integers(0, 5)),
        }  # fmt: skip
        for name in NAMES:
            if random.random() < 0.1:
                del record[name]
        rows.append({"text": f"document {number} of {file.stem}", **record})
    rows.append({"text": f"nothing known of {file.stem}"})
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def fields(names=NAMES) -> str:
    return f"record_fields: {{columns: {json.dumps({name: {'field': name, 'type': 'float'} for name in names})}}}"


def plan_corpus(folder: Path, name: str, steps, sources=("ref", "web"), part_bytes=1600):
    """Return the plan of a corpus with the given steps, whose sources are the files `FOLDER/SOURCE.jsonl`."""
    entries = "".join(
        f"  - {{name: {s}, root: {folder}/{s}.jsonl, format: jsonl, part_bytes: {part_bytes}}}\n" for s in sources
    )
    path = folder / f"{name}.yaml"
    listed = "".join(f"  - {step}\n" for step in steps)
    path.write_text(f"name: scored\noutput: {folder}/{name}\nsources:\n{entries}steps:\n{listed}")
    config = load_corpus_config(path)
    return make_plan(config, take_inventory(config.sources, folder / name))


def build_corpus(plan, cluster=None):
    build(plan, cluster or LocalCluster(), lambda line: None)
    return open_corpus(plan.config.place)


def rows_of(corpus, columns):
    found = {}
    for part in corpus.parts():
        table = part.table(columns).to_pylist()
        found.update(zip(corpus.printed_ids(part), table, strict=True))
    return found
