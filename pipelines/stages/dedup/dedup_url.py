"""Deduplication by URL: keep one document per address, or up to `keep_up_to`. The winners are elected in the
same way as for exact copies.

Penedo et al. 2023 (RefinedWeb, arXiv 2306.01116), section 3.3, remove from each part of the crawl the URLs
that they kept from earlier parts.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import pyarrow as pa
import pyarrow.compute as pc

from pipelines.stages.dedup.dedup_exact import DedupExact
from pipelines.stages.dedup.keep_rule import KeepKey


@dataclass(frozen=True)
class DedupUrl(DedupExact):
    """Among documents fetched from the same address, keep the `keep_up_to` that `keep` prefers, and drop the
    others. Two addresses are the same if their `url_normal` values are equal apart from a leading `http://`
    or `https://` and `www.`. Crawl indexes ignore these prefixes too, because sites move from one form to the
    other and serve the same pages under both.

    Documents that an earlier step dropped do not compete, nor do documents of this corpus that their source
    assigns to validation or test. A document without a URL is kept. Text is not compared: if a page changed
    between two visits, its versions still compete.
    """

    keep: tuple[KeepKey, ...] = ()
    """Preferred documents: keys `{sources: [...]}` or `{column: ..., order: highest | lowest}`, most important first. Ties
    go to the earlier source, then to the lowest id."""
    keep_up_to: int = 1
    """How many documents per address are kept."""
    scope: Literal["across_sources", "within_source"] = "across_sources"
    """Whether documents of different sources are compared."""
    against: tuple[str, ...] = ()
    """Output directories or URLs of finished corpora: documents with the address of a document that competed there are
    dropped. Their columns are read, not their text. URLs are opened as on a command line, with AWS_ENDPOINT_URL for a store
    other than AWS."""

    version: ClassVar[int] = 3
    rule: ClassVar[str] = "dedup_url"
    compared: ClassVar[str] = "url_normal"
    cluster: ClassVar[str] = "url_cluster"

    def hashes(self, values: pa.Array) -> pa.FixedSizeBinaryArray:
        from xxhash import xxh3_128_digest

        bare = pc.replace_substring_regex(values, "^https?://(www\\.)?", "")
        return pa.array([xxh3_128_digest(url.encode()) for url in bare.to_pylist()], pa.binary(16))
