"""Choose, by a hash of their ids, which records to read if the user wants only a sample of a source."""

from dataclasses import dataclass

import xxhash

from pipelines.contracts.document import document_id

_PURPOSE = b"read"  # the stage `sample` hashes another, so that it chooses independently


@dataclass(frozen=True)
class RecordSample:
    """A random sample of about `share` of all records. Whether a record is chosen depends only on a hash of
    its id. The sample is therefore the same for any division into parts and any number of workers, and a
    smaller sample is a subset of a larger one.
    """

    share: float

    def has(self, key: int, record: int) -> bool:
        """Return whether record number `record` of the file with the key `key` is in the sample."""
        return xxhash.xxh3_64_intdigest(document_id(key, record) + _PURPOSE) < self.share * 2.0**64
