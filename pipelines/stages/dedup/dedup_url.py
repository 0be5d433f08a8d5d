"""Deduplication by URL: of documents that were fetched from the same place one stays, elected as exact copies are.

Penedo et al. 2023 (RefinedWeb, arXiv 2306.01116), section 3.3, drop URLs that other parts of the crawl have visited already.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import pyarrow as pa
import pyarrow.compute as pc

from pipelines.stages.dedup.dedup_exact import DedupExact
from pipelines.stages.dedup.keep_rule import KeepKey


@dataclass(frozen=True)
class DedupUrl(DedupExact):
    """Drop documents that were fetched from the same place, by `url_normal` without `http://` or `https://` and `www.`.

    Only documents that no earlier step dropped compete; one without a URL is kept. Every crawl index compares URLs
    without these prefixes, because sites move from one form to the other and serve the same pages under both. Text is
    not looked at: a page that changed between two visits is kept as it was in the preferred document.
    """

    keep: tuple[KeepKey, ...] = ()
    """Who of several stays: keys `{sources: [...]}` or `{column: ..., order: highest | lowest}` in order of weight. What they
    leave open, the order of the sources decides, the first one wins; within a source the lowest id."""
    keep_up_to: int = 1
    """How many documents of one place stay."""
    scope: Literal["across_sources", "within_source"] = "across_sources"
    """Whether documents of different sources may be from the same place."""
    against: tuple[str, ...] = ()
    """Output directories or URLs of finished corpora: documents from places that they hold go. Their columns are read, not
    their text. URLs are opened as on a command line, with AWS_ENDPOINT_URL for a store that is not AWS."""

    version: ClassVar[int] = 3
    rule: ClassVar[str] = "dedup_url"
    compared: ClassVar[str] = "url_normal"
    cluster: ClassVar[str] = "url_cluster"

    def hashes(self, values: pa.Array) -> pa.FixedSizeBinaryArray:
        """xxh3_128 of each URL without the prefixes."""
        from xxhash import xxh3_128_digest

        bare = pc.replace_substring_regex(values, "^https?://(www\\.)?", "")
        return pa.array([xxh3_128_digest(url.encode()) for url in bare.to_pylist()], pa.binary(16))
