"""Find the sources of a classifier's classes in built corpora, and sample their documents by hash."""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow.compute as pc
import xxhash

from gristmill.storage.parsing import parse_location
from pipelines.contracts.columns import DROP
from pipelines.contracts.lineage import Corpus, open_corpus
from pipelines.reading.sources.source import SOURCE_NAME

_SOURCE = re.compile(f"(.+):({SOURCE_NAME})")


def check_split(held_out: float, seed: int) -> None:
    """Raise ValueError unless `held_out` is a share between 0 and 1 (both excluded), and `seed` an unsigned
    64-bit integer.
    """
    if not 0 < held_out < 1:
        raise ValueError(f"held_out: got {held_out}, expected a number between 0 and 1")
    if not 0 <= seed < 1 << 64:
        raise ValueError(f"seed: got {seed}, expected a whole number from 0, of at most 64 bits")


def open_sources(names: Sequence[str], label: str) -> list[tuple[Corpus, str]]:
    """Open the named sources and return (corpus, source) for each of them, without repetitions. A name is
    `DIRECTORY:SOURCE` for one source or `DIRECTORY` for all sources of the corpus. Raises UserError, with
    `label` in its message, if a corpus lacks a named source.
    """
    found: dict[tuple[str, str], tuple[Corpus, str]] = {}
    for name in names:
        match = _SOURCE.fullmatch(name)
        directory, chosen = match.groups() if match else (name, "")
        corpus = open_corpus(parse_location(directory))
        if chosen:
            corpus.check_source(chosen, f"{label}: {name}")
        for source in [chosen] if chosen else corpus.manifest.sources:
            found.setdefault((corpus.manifest.fingerprint, source), (corpus, source))
    return list(found.values())


def source_facts(corpus: Corpus, source: str, count: int) -> dict[str, Any]:
    """Return a source's entry under one class in metrics.json: the corpus, the licence and origin of the
    source, and `count` as `kept`. `count` is the number of the source's kept documents or, if the classes
    come from labels or scores, the number of its documents in that class.
    """
    facts = corpus.manifest.sources[source]
    origin = {"corpus": corpus.manifest.corpus, "fingerprint": corpus.manifest.fingerprint, "source": source}
    return origin | {"kept": count, "licence": facts["licence"], "origin": facts["origin"]}


def kept_orders(corpus: Corpus, source: str, seed: int) -> np.ndarray:
    """Return the `hash_id` of every kept document of a source, uint64 [n]."""
    orders = [np.zeros(0, np.uint64)]
    for part in corpus.parts(source):
        docs = part.table((DROP, "id"))
        kept = docs.filter(pc.is_null(docs[DROP]))["id"].to_pylist()
        orders.append(np.array([hash_id(raw, seed) for raw in kept], np.uint64))
    return np.concatenate(orders)


def highest_hash(orders: Sequence[np.ndarray], count: int) -> int:
    """Return the threshold for sampling `count` documents (at least 1) of some sources: the sample consists
    of the documents whose hash is at most the threshold. `orders` contains one array of document hashes per
    source.
    """
    every = np.sort(np.concatenate(orders))
    return int(every[min(count, len(every)) - 1]) if len(every) else 0


def hash_id(identifier: bytes, seed: int) -> int:
    """Return the 64-bit hash, seeded with `seed`, of a document's id. Documents are sampled by this hash."""
    return xxhash.xxh3_64_intdigest(identifier, seed)
