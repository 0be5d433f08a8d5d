"""URL rules: measure properties of a document's URL.

The rules follow Penedo et al. 2023, "The RefinedWeb Dataset for Falcon LLM" (arXiv 2306.01116), appendix G.1:
a block-list of domains and URLs, and three word lists. Strict words count anywhere, hard and soft words only
as whole words. The user supplies the lists.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc

from gristmill.errors import UserError
from pipelines.contracts.reads import Column, Input
from pipelines.contracts.stage import PartStage, library_versions
from pipelines.stages.lists.url_lists import (
    BlockList,
    check_lists,
    checksums,
    load_block_lists,
    load_words,
    split_words,
)
from pipelines.stages.lists.url_normal import Url, normalise_url

if TYPE_CHECKING:
    import numpy as np

URL_SIGNALS = pa.schema(
    [
        ("url_host", pa.string()),
        ("url_domain", pa.string()),
        ("url_normal", pa.string()),
        ("url_blocked", pa.bool_()),
        ("url_strict_words", pa.int32()),
        ("url_hard_words", pa.int32()),
        ("url_soft_words", pa.int32()),
    ]
)
_LISTS = ("block", "strict_words", "hard_words", "soft_words")
_BATCH = 65_536  # URLs per batch: bounds the keys in memory
_PATTERN_WORDS = 2_000  # words per regular expression: RE2 refuses patterns that compile to more than 8 MB
_HOSTS = 65_536  # hosts whose domains are cached


@dataclass(frozen=True)
class UrlRules(PartStage):
    """Measure every URL; decide nothing. All columns are null if a document has no URL.

    | column | definition |
    |---|---|
    | url_host | host in lower case, ASCII (IDNA 2003); null where the URL has none |
    | url_domain | registered domain, `example.co.uk`, by the suffix list that tldextract ships; null if it has none |
    | url_normal | the URL in normal form (see stages/lists/url_normal.py), by which `dedup_url` finds copies |
    | url_blocked | whether an entry of `block` covers it |
    | url_strict_words | how many strict words occur anywhere, even across separators: `ba.d-word` contains `badword` |
    | url_hard_words | how many different hard words occur as whole words |
    | url_soft_words | how many different soft words occur as whole words |

    Words are maximal runs of letters and digits of the percent-decoded URL in lower case. A list that is not
    given matches nothing. The rule set `refinedweb_url@paper` drops documents whose URL is blocked, or
    contains a strict word, a hard word or two soft words.
    """

    block: tuple[str, ...] = ()
    """Files with one domain or URL per line, or directories with files `domains` and `urls` in them, such as
    UT1's. A domain covers its subdomains. A URL covers everything below its path or, if it has a query, only URLs
    with that path and query. In URLs, `www.`, case, scheme and port do not count."""
    strict_words: tuple[str, ...] = ()
    """Files with one word per line."""
    hard_words: tuple[str, ...] = ()
    """Files with one word per line."""
    soft_words: tuple[str, ...] = ()
    """Files with one word per line."""

    version: ClassVar[int] = 2
    paths: ClassVar[tuple[str, ...]] = _LISTS

    def reads(self) -> tuple[Input, ...]:
        return (Column("url"),)

    def writes(self) -> pa.Schema:
        return URL_SIGNALS

    def check(self) -> None:
        check_lists("block", self.block, directories=True)
        for knob in _LISTS[1:]:
            check_lists(knob, getattr(self, knob), directories=False)

    def depends(self) -> dict[str, str]:
        from pipelines.kernels.text.tables import unicode_version

        return library_versions("tldextract") | unicode_version() | self._checksums

    def setup(self) -> None:
        """Load the lists. Raises UserError if one has changed since the build was planned or has an invalid
        line.
        """
        if self._read_checksums() != self._checksums:
            raise UserError(
                "url_rules: a list changed after the build was planned; restore it, or run the command again"
            )
        _ = self._blocked, self._words

    @cached_property
    def _checksums(self) -> dict[str, str]:
        return self._read_checksums()

    def _read_checksums(self) -> dict[str, str]:
        return {name: value for knob in _LISTS for name, value in checksums(knob, getattr(self, knob)).items()}

    @cached_property
    def _blocked(self) -> BlockList:
        return load_block_lists(self.block)

    @cached_property
    def _words(self) -> tuple[frozenset[str], frozenset[str], frozenset[str]]:
        return load_words(self.strict_words, squash=True), load_words(self.hard_words), load_words(self.soft_words)

    def annotate(self, docs: pa.Table) -> pa.Table:
        batches = [self._measure(batch["url"].to_pylist()) for batch in docs.select(["url"]).to_batches(_BATCH)]
        return pa.Table.from_batches(batches, schema=URL_SIGNALS)

    def _measure(self, texts: Sequence[str | None]) -> pa.RecordBatch:
        import numpy as np

        urls = [None if text is None else normalise_url(text) for text in texts]
        words = [[] if text is None else split_words(unquote(text)) for text in texts]
        strict, hard, soft = self._words
        missing = np.array([url is None for url in urls], bool)
        counts = [
            _contained(strict, words),
            np.array([len(hard.intersection(url_words)) for url_words in words], np.int32),
            np.array([len(soft.intersection(url_words)) for url_words in words], np.int32),
        ]
        columns = [
            pa.array([None if url is None else url.host for url in urls], pa.string()),
            pa.array([self._registered(url) for url in urls], pa.string()),
            pa.array([None if url is None else str(url) for url in urls], pa.string()),
            pa.array(self._blocked.blocks(urls), mask=missing),
            *(pa.array(count, mask=missing) for count in counts),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=URL_SIGNALS)

    def _registered(self, url: Url | None) -> str | None:
        return None if url is None or url.host is None else _registered_domain(url.host)


@lru_cache(_HOSTS)
def _registered_domain(host: str) -> str | None:
    return _extractor().extract_str(host).top_domain_under_public_suffix or None


@cache  # building the tree of the suffix list takes 20 ms
def _extractor() -> Any:
    import tldextract

    return tldextract.TLDExtract(cache_dir=None, suffix_list_urls=())


def _contained(strict: frozenset[str], words: Sequence[Sequence[str]]) -> "np.ndarray":
    """Return how many strict words occur in each URL when its words are joined without separators, int32 [n]."""
    import numpy as np

    squashed = pa.array(["".join(url_words) for url_words in words], pa.large_string())
    counts, ordered = np.zeros(len(words), np.int32), sorted(strict)
    for first in range(0, len(ordered), _PATTERN_WORDS):
        some = ordered[first : first + _PATTERN_WORDS]
        hits = pc.indices_nonzero(pc.match_substring_regex(squashed, "|".join(some)))
        for row in hits.to_pylist():
            text = squashed[row].as_py()
            counts[row] += sum(word in text for word in some)
    return counts
