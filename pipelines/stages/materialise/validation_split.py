"""Assign each document to a split. If a source has a configured `split`, its documents keep the splits that
it gives them. In other sources, a share of the `split_by` groups (such as files or hosts), chosen by hash, is
held out for validation.
"""

from dataclasses import dataclass
from urllib.parse import urlsplit

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from pipelines.contracts.document import ids_as_integers
from pipelines.contracts.given_split import SPLITS
from pipelines.contracts.parts import Part
from pipelines.contracts.reads import EDITED_TEXT, Column, TableInput


@dataclass(frozen=True)
class ValidationSplit:
    """The split settings of a `shards` step: the fields `split_by`, `validation_share` and `seed` of its
    YAML. `is_hashed` is true if all parts without a given split have the column `text_hash`; texts are then
    compared by that column.
    """

    split_by: str
    validation_share: float
    seed: int
    is_hashed: bool = False

    def assign(self, docs: pa.Table, given: pa.Array | None) -> np.ndarray:
        """Return each document's split as an index into SPLITS, int8 [n]. `given` holds the name of each
        document's split if the source assigns it. If `given` is None, a document is held out for validation
        if the hash of the seed and its `split_by` group, scaled to [0, 1), is below `validation_share`.
        """
        if given is None:
            return self._drawn(docs).astype(np.int8)
        return pc.index_in(given, value_set=pa.array(SPLITS)).to_numpy().astype(np.int8)

    def _drawn(self, docs: pa.Table) -> np.ndarray:
        if not docs.num_rows or not self.validation_share:
            return np.zeros(docs.num_rows, bool)
        keys = _group_keys(self.split_by, docs)
        salt = self.seed.to_bytes(8, "big", signed=True)
        hashes = np.fromiter((xxhash.xxh3_64_intdigest(salt + key) for key in keys), np.uint64, len(keys))
        return hashes / 2.0**64 < self.validation_share

    def columns(self, part: Part) -> tuple[TableInput, ...]:
        """Return the columns of a part that `assign` uses."""
        if part.given is not None or not self.validation_share:
            return ()
        if self.split_by in ("file", "host"):
            return (Column("id"), Column("url")) if self.split_by == "host" else (Column("id"),)
        clusters = ("exact_cluster", "minhash_cluster") if self.split_by == "cluster" else ()
        text = Column("text_hash") if self.is_hashed else EDITED_TEXT
        return (text, *(Column(name, optional=True) for name in clusters))


def _group_keys(split_by: str, docs: pa.Table) -> list[bytes]:
    """Return the key of each document's `split_by` group. A document outside any cluster is grouped by
    content, a document without a host by file.
    """
    if split_by == "file":
        return [int(key).to_bytes(8, "big") for key in ids_as_integers(docs["id"].combine_chunks())["key"]]
    if split_by == "host":
        files = _group_keys("file", docs)
        hosts = (_host(url) for url in docs["url"].to_pylist())
        return [host.encode() if host else file for host, file in zip(hosts, files, strict=True)]
    if "text_hash" in docs.column_names:
        keys = [key or b"" for key in docs["text_hash"].to_pylist()]
    else:
        keys = [xxhash.xxh3_128_digest(text.as_buffer()) for text in docs["edited_text"]]
    for column in ("exact_cluster", "minhash_cluster"):
        if split_by == "cluster" and column in docs.column_names:
            keys = [cluster or key for cluster, key in zip(docs[column].to_pylist(), keys, strict=True)]
    return keys


def _host(url: str | None) -> str | None:
    try:
        return urlsplit(url or "").hostname
    except ValueError:
        return None
