"""Benchmark `diff` of two builds of a corpus against a join by Arrow, and `export` against Arrow's own
writer.

    python -m benchmarks.corpus_output [--documents 1000000] [--megabytes 100]        # prose: $GRISTMILL_DATA

The corpus of the diff has short documents with a number each. One build keeps numbers from 100 on, and the
next keeps those from 200 on. `diff` reads the ids and verdicts of both builds and groups the differences by
reason. The peer uses Arrow to join two Parquet files of ids and verdicts, written beforehand, and to count by
the same reasons. Both counts are compared. `export` writes prose as Parquet (zstd, page checksums) with a
dataset card, and the peer writes the same table with Arrow. Ratios are of processor times.
"""

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pyarrow.compute as pc
import pyarrow.parquet as pq

from benchmarks.search_index import FILES, texts_of
from benchmarks.signals import machine
from gristmill.storage.disk import LocalPath
from pipelines.api import OpenCorpus, diff
from pipelines.building.build import build
from pipelines.cluster.local import LocalCluster
from pipelines.contracts.lineage import open_corpus
from pipelines.export.text_export import export_corpus
from pipelines.planning.corpus import CorpusConfig, StepConfig
from pipelines.planning.inventory import take_inventory
from pipelines.planning.plan import make_plan
from pipelines.reading.sources.record_field import RecordField
from pipelines.reading.sources.source import Source
from pipelines.stages.decide.filter import Filter
from pipelines.stages.decide.rules import Rule
from pipelines.stages.measure.record_fields import RecordFields

Result = TypeVar("Result")
FIELDS = {"score": RecordField("score", "int")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, default=1_000_000)
    parser.add_argument("--megabytes", type=int, default=100)
    options = parser.parse_args()
    print(machine())
    with tempfile.TemporaryDirectory() as scratch:
        if options.documents:
            compare_builds(Path(scratch), options.documents)
        if options.megabytes:
            compare_exports(Path(scratch), options.megabytes)


def timed(run: Callable[[], Result]) -> tuple[Result, float, float]:
    wall, own = time.perf_counter(), time.process_time()
    result = run()
    return result, time.process_time() - own, time.perf_counter() - wall


def built(folder: Path, source: Source, steps: tuple[StepConfig, ...]) -> OpenCorpus:
    config = CorpusConfig("measured", str(folder / f"out-{source.name}"), (source,), steps)
    build(make_plan(config, take_inventory(config.sources, config.place)), LocalCluster(), lambda line: None)
    return OpenCorpus(open_corpus(config.place))


def compare_builds(folder: Path, documents: int) -> None:
    (folder / "short").mkdir()
    with (folder / "short/a.jsonl").open("w") as lines:
        for number in range(documents):
            lines.write(
                json.dumps({"text": f"Document {number} of the corpus is short.", "score": number % 1000}) + "\n"
            )
    source = Source("short", str(folder / "short"), "jsonl")
    verdicts = []
    for least in (100, 200):
        rule = Rule(signal="score", at_least=least)
        steps = (
            StepConfig("record_fields", RecordFields(FIELDS), "record_fields"),
            StepConfig("filter", Filter((rule,)), "filter"),
        )
        corpus = built(folder, source, steps)
        pq.write_table(corpus.verdicts().read_all().select(["id", "drop"]), folder / f"{least}.parquet")
        verdicts.append(folder / f"{least}.parquet")
    change, own, wall = timed(lambda: diff("previous", folder / "out-short"))
    counts = change.sources["short"].went_out

    def join() -> dict[str, int]:
        old, new = (pq.read_table(path) for path in verdicts)
        both = old.join(new, keys="id", join_type="full outer", left_suffix="_old", right_suffix="_new")
        out = both.filter(pc.and_(pc.is_null(both["drop_old"]), pc.is_valid(both["drop_new"])))
        return {each["values"]: each["counts"] for each in pc.value_counts(out["drop_new"]).to_pylist()}

    joined, peer, peer_wall = timed(join)
    assert joined == counts, (joined, counts)
    print(
        f"diff of 2 x {documents:,} documents: {own:.1f} s of processor time, {wall:.1f} s wall; {sum(counts.values()):,} out"
    )
    print(f"  join of Parquet files by Arrow: {peer:.1f} s, {peer_wall:.1f} s wall; ratio {peer / own:.2f}")


def compare_exports(folder: Path, megabytes: int) -> None:
    data = Path(os.environ["GRISTMILL_DATA"])
    (folder / "prose").mkdir()
    size = 0
    for name, share in FILES.items():
        with (folder / f"prose/{name}.jsonl").open("w") as lines:
            for text in texts_of(data, name, int(megabytes * share * 1e6)):
                size += len(text.encode())
                lines.write(json.dumps({"text": text, "name": name}) + "\n")
    corpus = built(folder, Source("prose", str(folder / "prose"), "jsonl"), ())
    place = LocalPath(folder / "out-prose")
    _, own, wall = timed(lambda: export_corpus(place, LocalPath(folder / "export"), "parquet", None))
    table, reading, _ = timed(lambda: corpus.documents().read_all())
    options = {"compression": "zstd", "write_page_checksum": True, "row_group_size": 1 << 16}
    _, peer, _ = timed(lambda: pq.write_table(table, folder / "peer.parquet", **options))
    print(
        f"export of {size / 1e6:.0f} MB as Parquet: {own:.2f} s of processor time, {size / own / 1e6:.0f} MB/s; {wall:.2f} s wall"
    )
    print(
        f"  reading the documents alone: {reading:.2f} s; Arrow, which writes the table: {peer:.2f} s; ratio {peer / own:.2f}"
    )


if __name__ == "__main__":
    main()
