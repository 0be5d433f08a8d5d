"""Benchmark clustering of MinHash signatures: time and memory, and how they grow with the number of
documents.

    python -m benchmarks.clustering [--documents 500000] [--workers 2]     sizes x 1, 2, 4, 8 and the fitted exponent
    python -m benchmarks.clustering --documents 10000000 --once            10 million documents, 100 million band entries

Signatures are synthetic: 20 values, cut into 10 bands of 2, so each document has 10 band entries. Three
documents in ten are in planted clusters, whose sizes follow a power law from 2 documents to a thousandth of
all. A member copies three random bands of an earlier member of its cluster, twice, so clusters are chains and
trees, not stars. A band has 63 random bits, so no other bands are expected to collide.

The whole step runs, from reading columns to writing them, and its result is compared with the planted
clusters. The growth exponent is fitted to processor time, which is less affected by other load than
wall-clock time. Workers are spawned processes that share no memory with the driver. The peak is the largest
resident memory of any worker or of the driver, including libraries (and, in the driver, the planted
clusters).
"""

import argparse
import resource
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from multiprocessing import get_context
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.signals import machine
from gristmill.storage.disk import LocalPath
from pipelines.contracts.document import DOCUMENT, ID, document_id
from pipelines.contracts.manifest import StepOutput, read_table, schema_facts, write_table
from pipelines.contracts.parts import Annotation, Part
from pipelines.stages.dedup.dedup_minhash import DedupMinhash

BANDS, ROWS, PART_ROWS = 10, 2, 250_000
NOTES = pa.schema([("minhash", pa.list_(pa.uint32(), BANDS * ROWS))])


def resident() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


def measured(function: Callable[[Any], Any], item: Any) -> tuple[Any, float, float]:
    begin = time.process_time()
    return function(item), resident(), time.process_time() - begin


@dataclass
class Processes:
    """A cluster of local processes that records their peak memory and processor time."""

    workers: int
    peak: float = 0.0
    seconds: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._pool = ProcessPoolExecutor(self.workers, mp_context=get_context("spawn"))

    def map(self, function: Callable, items: Sequence[Any], label: Callable) -> Iterator[tuple[int, Any]]:
        name = function.__name__
        running = {self._pool.submit(measured, function, item): i for i, item in enumerate(items)}
        for done in as_completed(running):
            result, peak, seconds = done.result()
            self.peak = max(self.peak, peak)
            self.seconds[name] = self.seconds.get(name, 0.0) + seconds
            yield running[done], result


def planted(documents: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return (signatures uint64 [documents, BANDS], cluster of each document), with clusters scattered over
    all documents.
    """
    rng = np.random.default_rng(seed)
    values = rng.integers(0, 1 << 63, (documents, BANDS), dtype=np.uint64)
    sizes = np.minimum(2 + rng.pareto(1.5, documents), max(2, documents // 1000)).astype(np.int64)
    sizes = sizes[: np.searchsorted(np.cumsum(sizes), 3 * documents // 10)]
    starts = np.cumsum(sizes) - sizes
    cluster = np.arange(documents)
    places = rng.permutation(documents)
    for member in range(1, int(sizes.max(initial=1))):
        some = np.flatnonzero(sizes > member)
        mine = places[starts[some] + member]
        for _ in range(2):
            other = places[starts[some] + rng.integers(0, member, len(some))]
            bands = np.argsort(rng.random((len(some), BANDS)), axis=1)[:, :3]
            values[mine[:, None], bands] = values[other[:, None], bands]
        cluster[mine] = places[starts[some]]
    return values, cluster


def prepare(root: LocalPath, documents: int) -> tuple[list[Part], np.ndarray]:
    """Write parts with planted clusters; return the parts and the cluster of each document.

    This runs in a process whose memory is not measured.
    """
    values, cluster = planted(documents, seed=documents)
    parts = []
    for number, start in enumerate(range(0, len(values), PART_ROWS)):
        some = values[start : start + PART_ROWS]
        ids = np.zeros((len(some), 2), ">u8")
        ids[:, 0], ids[:, 1] = 1, np.arange(start, start + len(some))
        identifiers = pa.FixedSizeBinaryArray.from_buffers(ID, len(some), [None, pa.py_buffer(ids)])
        empty = [pa.array([""] * len(some), pa.large_string()), pa.array(["s"] * len(some)).dictionary_encode()]
        nothing = pa.nulls(len(some), pa.string())
        documents = pa.Table.from_arrays([identifiers, *empty, nothing, nothing], schema=DOCUMENT)
        flat = pa.array(np.ascontiguousarray(some).view(np.uint32).ravel())
        notes = pa.Table.from_arrays([pa.FixedSizeListArray.from_arrays(flat, type=NOTES.types[0])], schema=NOTES)
        for name, table in ((f"{number}.docs", documents), (f"{number}.notes", notes)):
            (root / name).write_atomic(write_table(table))
        note = Annotation("signed", root, root.record(f"{number}.notes"), schema_facts(NOTES))
        record = root.record(f"{number}.docs")
        parts.append(Part("s", number, len(some), 0, root, record, schema_facts(DOCUMENT), NOTES, ("signed",), (note,)))
    return parts, cluster


def check(stage: DedupMinhash, out: StepOutput, parts: Sequence[Part], cluster: np.ndarray) -> None:
    """Assert that each document in a planted cluster is assigned the lowest id of that cluster, and every
    other document none.
    """
    lowest = np.full(len(cluster), len(cluster))
    np.minimum.at(lowest, cluster, np.arange(len(cluster)))
    company = np.bincount(cluster, minlength=len(cluster)) > 1
    for part in parts:
        receipt = out.receipt(f"{part.source}-{part.index:05d}")
        assert receipt is not None
        table = read_table(out.directory, receipt.files[0], ["minhash_cluster"], schema_facts(stage.writes()))
        rows = np.arange(part.index * PART_ROWS, part.index * PART_ROWS + part.rows)
        expected = [document_id(1, int(lowest[c])) if company[c] else None for c in cluster[rows]]
        assert table["minhash_cluster"].to_pylist() == expected, "the clusters are not the planted ones"


def run(documents: int, workers: int, details: bool) -> float:
    root = LocalPath(tempfile.mkdtemp(prefix="clustering-"))
    try:
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as once:
            parts, cluster = once.submit(prepare, root, documents).result()
        stage, out, pool = DedupMinhash(BANDS, ROWS), StepOutput(root, "step"), Processes(workers)
        list(pool.map(resident_of, range(workers), str))  # start them, imports included
        pool.seconds.clear()
        begin = time.perf_counter()
        facts = stage.run(parts, out, pool)
        seconds = time.perf_counter() - begin
        pool.peak = max(pool.peak, resident())
        check(stage, out, parts, cluster)
        shuffled = sum(path.stat().st_size for path in (out.directory / "work").iterdir())
        print(
            f"{documents:>12,} {documents * BANDS:>13,} {seconds:9.1f} {sum(pool.seconds.values()):9.1f} {pool.peak:9,.0f} "
            f"{shuffled / documents:9.0f} {facts['clusters']:10,} {facts['dropped']:10,}",
            flush=True,
        )
        if details:
            for name, spent in pool.seconds.items():
                print(f"    {name:<20} {spent:8.1f} s")
        return sum(pool.seconds.values())
    finally:
        shutil.rmtree(root)


def resident_of(_: int) -> float:
    return resident()


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--documents", type=int, default=500_000)
    arguments.add_argument("--workers", type=int, default=2)
    arguments.add_argument("--once", action="store_true", help="only this size, with the seconds of every phase")
    options = arguments.parse_args()
    print(machine())
    print(f"{options.workers} worker processes; clusters checked against the planted ones")
    print("   documents  band entries   seconds     cpu s   peak MB bytes/doc   clusters    dropped")
    sizes = [options.documents] if options.once else [options.documents * k for k in (1, 2, 4, 8)]
    seconds = [run(size, options.workers, options.once) for size in sizes]
    if len(sizes) > 1:
        exponent = np.polyfit(np.log(sizes), np.log(seconds), 1)[0]
        print(f"processor time grows with the number of documents to the power {exponent:.2f}")


if __name__ == "__main__":
    main()
