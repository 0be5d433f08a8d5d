"""Benchmark near-duplicate removal on real text: recall and precision against exact Jaccard and datasketch's
MinHashLSH.

    GRISTMILL_DATA=... python -m benchmarks.minhash_accuracy [DOMAIN ...]

The reference ($GRISTMILL_DATA/dedup) holds every pair of documents with a Jaccard similarity of at least 0.5
over word 5-grams. Recall of the bands is the share of pairs with similarity s or more that share a band (14 x
8 of 112 values). It is compared with the expected value for these pairs, the mean of 1 - (1 - s^8)^14, and
with datasketch's MinHashLSH with the same parameters on the same signatures.

For each `verify` at a threshold of 0.8, precision is the share of pairs (dropped document, document it was
dropped for) with a Jaccard similarity of at least 0.8, computed from sets in Python. Recall is the share of
pairs at or above 0.8 of which at least one document is dropped; `left` counts pairs within one cluster of
which neither is dropped. Each of the three values of `verify` is a whole build; the builds of a domain share
the text and signatures.
"""

import gzip
import json
import os
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import xxhash
from datasketch import MinHash, MinHashLSH

from benchmarks.minhash import shingles
from benchmarks.signals import machine
from gristmill.storage.disk import LocalPath
from pipelines.building.build import build
from pipelines.cluster.local import LocalCluster
from pipelines.contracts.document import split_id
from pipelines.contracts.lineage import open_corpus
from pipelines.planning.corpus import CorpusConfig, StepConfig
from pipelines.planning.inventory import take_inventory
from pipelines.planning.plan import make_plan
from pipelines.reading.sources.source import Source
from pipelines.stages.dedup.dedup_minhash import DedupMinhash
from pipelines.stages.dedup.lsh import band_keys, link_probability, signatures_of
from pipelines.stages.measure.minhash_signatures import MinhashSignatures

DOMAINS = ("news_bbc", "legal_dc_acts_laws", "forum_20news", "dialogue", "wiki_en")
THRESHOLD = 0.8


Build = tuple[list[str], np.ndarray, list[tuple[int, int]], dict, dict[int, bytes]]


def read(data: Path, domain: str) -> list[dict]:
    with gzip.open(data / "prose" / f"{domain}.jsonl.gz", "rt") as lines:
        return [json.loads(line) for line in lines]


def clusters(data: Path, domain: str, names: list[str], root: LocalPath, verify: str) -> Build:
    """Build with `verify`. Return the ids, the signatures, (dropped, kept) pairs of record numbers, the facts
    of the step, and the cluster of each record number.
    """
    source = Source(domain, str(data / "prose" / f"{domain}.jsonl.gz"), "jsonl")
    knobs = {} if verify == "none" else {"threshold": THRESHOLD, "verify": verify}
    steps = (
        StepConfig("minhash_signatures", MinhashSignatures(), "minhash_signatures"),
        StepConfig("dedup_minhash", DedupMinhash(bands=14, rows=8, **knobs), "dedup_minhash"),
    )
    config = CorpusConfig("accuracy", str(root), (source,), steps)
    build(make_plan(config, take_inventory(config.sources, root)), LocalCluster(), lambda line: None)
    corpus = open_corpus(root)
    ids, signed, pairs, together = [], [], [], {}
    winner = "minhash_cluster" if verify == "none" else "minhash_winner"
    for part in corpus.parts():
        table = part.table(dict.fromkeys(("id", "minhash", "minhash_cluster", winner, "drop")))
        rows = [split_id(i)[1] for i in table["id"].to_pylist()]
        ids += [names[row] for row in rows]
        signed.append(signatures_of(table["minhash"].combine_chunks().fill_null([0xFFFFFFFF] * 112)))
        winners = table[winner].to_pylist()
        together |= dict(zip(rows, table["minhash_cluster"].to_pylist(), strict=True))
        pairs += [
            (row, split_id(winner)[1])
            for row, winner, rule in zip(rows, winners, table["drop"].to_pylist(), strict=True)
            if rule is not None
        ]
    facts = next(step for step in corpus.steps if step.stage == "dedup_minhash").manifest.facts
    return ids, np.concatenate(signed), pairs, facts, together


def linked_by_datasketch(signatures: np.ndarray, pairs: np.ndarray) -> np.ndarray:
    index = MinHashLSH(num_perm=112, params=(14, 8))
    made = [
        MinHash(112, hashvalues=row, scheme="affine32", hashfunc=xxhash.xxh32_intdigest) for row in signatures
    ]  # fmt: skip
    for number, minhash in enumerate(made):
        index.insert(number, minhash)
    found = {a: set(index.query(made[a])) for a in np.unique(pairs[:, 0]).tolist()}
    return np.array([b in found[a] for a, b in pairs.tolist()])


def jaccard(a: str, b: str) -> float:
    one, other = set(shingles(a, 5)), set(shingles(b, 5))
    return len(one & other) / len(one | other)


def measure(data: Path, domain: str) -> None:
    begin, records = time.perf_counter(), read(data, domain)
    with tempfile.TemporaryDirectory() as directory:
        names = [record["id"] for record in records]
        done = {v: clusters(data, domain, names, LocalPath(directory), v) for v in ("none", "signature", "jaccard")}
    ids, signatures, *_ = done["none"]
    place = {name: row for row, name in enumerate(ids)}
    with gzip.open(data / "dedup" / f"{domain}.tsv.gz", "rt") as lines:
        next(lines)
        oracle = [line.rstrip("\n").split("\t")[:3] for line in lines]
    pairs = np.array([(place[a], place[b]) for a, b, _ in oracle if a in place and b in place])
    similarity = np.array([float(s) for a, b, s in oracle if a in place and b in place])
    keys = band_keys(signatures, 14, 8)
    ours = (keys[pairs[:, 0]] == keys[pairs[:, 1]]).any(axis=1)
    theirs = linked_by_datasketch(signatures, pairs)
    print(f"\n{domain}: {len(ids):,} documents, {len(pairs):,} pairs with Jaccard >= 0.5")
    print("  pairs at or above    number   ours  promised  datasketch")
    for least in (0.7, 0.8, 0.9):
        some = similarity >= least
        promised = link_probability(similarity[some], 14, 8).mean()
        print(f"  {least:17} {some.sum():9,} {ours[some].mean():6.3f} {promised:9.3f} {theirs[some].mean():11.3f}")
    print(f"  the same pairs as datasketch: {(ours == theirs).sum():,} of {len(pairs):,}")
    print("  verify      dropped  precision (J >= 0.8)  least J   spared  recall (J >= 0.8)     left")
    true = pairs[similarity >= THRESHOLD]
    for verify, (_, _, dropped, facts, together) in done.items():
        found = np.array([jaccard(records[a]["text"], records[b]["text"]) for a, b in dropped])
        right = (found >= THRESHOLD).mean()
        gone = np.isin(true, [place[records[a]["id"]] for a, _ in dropped]).any(axis=1)
        clusters_of = {place[records[row]["id"]]: cluster for row, cluster in together.items()}
        left = sum(clusters_of[a] is not None and clusters_of[a] == clusters_of[b] for a, b in true[~gone].tolist())
        spared = facts.get("spared", 0)
        print(
            f"  {verify:<10} {len(dropped):8,} {right:21.3f} {found.min():8.2f} {spared:8,} {gone.mean():18.3f} {left:8,}"
        )
    print(f"  ({time.perf_counter() - begin:.0f} s)", flush=True)


def main() -> None:
    if "GRISTMILL_DATA" not in os.environ:
        raise SystemExit("set GRISTMILL_DATA to the directory of the development data")
    print(machine())
    for domain in sys.argv[1:] or DOMAINS:
        measure(Path(os.environ["GRISTMILL_DATA"]), domain)


if __name__ == "__main__":
    main()
