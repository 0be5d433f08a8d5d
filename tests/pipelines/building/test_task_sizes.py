"""The driver's cost per task hardly grows with the number of parts: the size of messages, the parts searched,
and the manifests parsed.
"""

import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from gristmill.storage.location import FileRecord
from gristmill.storage.store import read_json
from pipelines.building.build import part_of
from pipelines.building.build_metrics import BuildMetrics
from pipelines.building.state import Build
from pipelines.cluster.local import LocalCluster
from pipelines.contracts.document import DOCUMENT, document_id, file_key
from pipelines.contracts.manifest import PartRecord, StepManifest, StepOutput, load_step, schema_facts, write_table
from pipelines.contracts.parts import Annotation, Part
from pipelines.planning.corpus import load_corpus_config
from pipelines.planning.inventory import take_inventory
from pipelines.planning.plan import make_plan
from pipelines.stages.dedup.dedup_exact import DedupExact
from pipelines.stages.dedup.dedup_minhash import DedupMinhash
from pipelines.stages.dedup.dedup_spans import DedupSpans
from pipelines.stages.dedup.dedup_substrings import DedupSubstrings

BESIDES = 12  # annotations of a part that the step does not read, as many as a build of the demo has
KIND = pa.list_(pa.uint32(), 112)


class Weighing(LocalCluster):
    """Records the largest size in bytes of each phase's pickled tasks, from a sample of them.

    Only the first task of a phase runs, and none if `results` of an earlier run has the phase.
    """

    def __init__(self, results=None):
        super().__init__()
        self.known, self.results, self.largest, self.total = results or {}, {}, {}, 0

    def map(self, function, items, label):
        name = function.__name__
        sizes = [len(pickle.dumps((function, item))) for item in (items[0], *items[99::100], items[-1])]
        self.largest[name] = max(sizes)
        self.total += len(items) * max(sizes)
        result = self.known[name] if name in self.known else next(super().map(function, items[:1], label))[1]
        self.results[name] = result
        return iter([(position, result) for position in range(len(items))])


def parts_of(root: Path, count: int) -> list[Part]:
    """Return `count` parts with different indices that share the same two files."""
    rng = np.random.default_rng(0)
    pages = np.repeat(rng.integers(0, 1 << 32, (10, 112), dtype=np.uint32), 2, axis=0)
    rows = len(pages)
    documents = pa.table(
        [
            [document_id(file_key("web", "0.txt"), row) for row in range(rows)],
            [f"text {row // 2}" for row in range(rows)],
            pa.array(["web"] * rows).dictionary_encode(),
            pa.nulls(rows, pa.string()),
            pa.nulls(rows, pa.string()),
        ],
        schema=DOCUMENT,
    )
    notes = pa.table(
        {
            "minhash": pa.array(pages.tolist(), KIND),
            "text_hash": pa.array([bytes([row // 2]) * 16 for row in range(rows)], pa.binary(16)),
            "drop": pa.nulls(rows, pa.string()),
        }
    )
    for name, table in (("docs", documents), ("notes", notes)):
        (root / name).write_atomic(write_table(table))
    record, facts = root.record("notes"), schema_facts(notes.schema)
    besides = {f"signal_{number}": "double" for number in range(8)}
    annotations = [Annotation("measured", root, record, facts)]
    annotations += [Annotation(f"step_{n}", root / f"step_{n}", record, besides) for n in range(BESIDES)]
    part = Part(
        "web", 0, rows, 1000, root, root.record("docs"), schema_facts(DOCUMENT), notes.schema, ("measured",),
        tuple(annotations),
    )  # fmt: skip
    return [replace(part, index=index) for index in range(count)]


STAGES = [
    DedupMinhash(threshold=0.8, verify="signature"),
    DedupExact(),
    DedupSpans("line", min_left_words=0),
    DedupSubstrings(10),
]


@pytest.mark.long
@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: type(stage).__name__)
def test_a_task_carries_no_records_of_other_parts(tmp_path, monkeypatch, stage):
    monkeypatch.setattr("pipelines.cluster.shuffle.partitions_for.__defaults__", (400,))
    few, many = Weighing(), None
    stage.run(parts_of(tmp_path, 20), StepOutput(tmp_path, "few"), few)
    many = Weighing(few.results)
    stage.run(parts_of(tmp_path, 2_000), StepOutput(tmp_path, "many"), many)
    assert few.largest.keys() == many.largest.keys()
    grown = {name: many.largest[name] - few.largest[name] for name in few.largest}
    assert max(grown.values()) <= 20, grown  # the digits of larger numbers
    assert many.total / 2_000 * 34_000 < 1e9  # 4.5 TB in parts of 128 MiB


class Counting(tuple):
    """A tuple of parts that counts how many are iterated over, in all instances together."""

    looks = 0

    def __iter__(self):
        for part in super().__iter__():
            Counting.looks += 1
            yield part


def test_finding_the_annotations_of_all_parts_is_linear(corpus_file):
    config = load_corpus_config(corpus_file)
    plan = make_plan(config, take_inventory(config.sources, config.place))
    source, looks = config.sources[0].name, []
    labels = [step.label for step in plan.steps if step.source in (None, source)]
    for count in (100, 200):
        Counting.looks = 0
        records = Counting(
            PartRecord(source, index, 1, 1, FileRecord(f"parts/{index}", 1, "")) for index in range(count)
        )
        published = {label: StepManifest(label, source, "", {}, {}, records) for label in labels}
        state = Build(plan, config.place, LocalCluster(), print, published, BuildMetrics("c"), {})
        parts = [part_of(state, source, record, labels) for record in tuple.__iter__(records)]
        assert all(a.file.path == f"parts/{part.index}" for part in parts for a in part.annotations)
        looks.append(Counting.looks)
    assert looks == [100 * len(labels), 200 * len(labels)]


def test_a_manifest_is_parsed_once_and_again_where_it_changed(tmp_path, monkeypatch):
    import pipelines.contracts.manifest as manifests

    read = []
    monkeypatch.setattr(manifests, "read_json", lambda path: read.append(path) or read_json(path))
    identity = {"stage": "t"}
    assert load_step(tmp_path, "t") is None
    for facts in ({"n": 1}, {"n": 2}):
        manifest = StepManifest("t", None, manifests.digest(identity), identity, {}, facts=facts)
        manifests.publish(tmp_path, "t", manifest, lambda: None)
        assert [load_step(tmp_path, "t").facts for _ in range(3)] == [facts] * 3
    assert len(read) == 2
    (tmp_path / "t" / "manifest.json").unlink()
    assert load_step(tmp_path, "t") is None
