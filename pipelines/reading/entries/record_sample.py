"""The records of a source that are read if it is read in part: chosen by hash of their ids."""

from dataclasses import dataclass

import xxhash

from pipelines.contracts.document import document_id

_PURPOSE = b"read"  # the stage `sample` hashes another, so that it chooses independently


@dataclass(frozen=True)
class RecordSample:
    """A share of all records. Each is chosen by itself, so files, parts and workers change nothing, and a smaller sample is
    part of a larger one.
    """

    share: float

    def has(self, key: int, record: int) -> bool:
        """Whether record number `record` of the file with that key is in the sample."""
        return xxhash.xxh3_64_intdigest(document_id(key, record) + _PURPOSE) < self.share * 2.0**64
