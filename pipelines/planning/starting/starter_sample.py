"""Examine the first documents of a source before its first build: which languages they are in, and what share
of them the rule sets would drop.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from gristmill.errors import StorageError, UserError
from pipelines.reading.documents import read_documents
from pipelines.reading.entries.listing import list_files
from pipelines.reading.sources.source import Source
from pipelines.stages.decide.filter import fails
from pipelines.stages.decide.rules import Rule, values_of
from pipelines.stages.measure.language import UNDETERMINED, Language
from pipelines.stages.measure.quality_signals import QualitySignals

_FILES = 16  # spread over the source
_FILE_BYTES = 256 << 20  # of all files together, or one larger file: all of it is read if it holds little text
_BYTES = 4_000_000  # of text; reading and measuring them takes a second or two, extracting them from pages some more


class RuleShare(NamedTuple):
    """The name of a rule or rule set, and the share of the sampled documents that it alone would drop."""

    name: str
    share: float


@dataclass(frozen=True)
class StarterSample:
    """Statistics of a source's first documents: their languages, and the shares of them that rule sets would
    drop.

    `documents` is the number of documents. `languages` are pairs (ISO 639 code, share of the documents),
    largest share first. `dropped` maps the name of each rule set to a list of shares: first that of the whole
    set, then those of its rules that drop at least one document, largest first. `dropped_by_any` is the share
    that all the rule sets together would drop. If there are no documents, `reason` says why, and `dropped` is
    None.
    """

    documents: int
    languages: tuple[tuple[str, float], ...] = ()
    dropped: dict[str, tuple[RuleShare, ...]] | None = None
    dropped_by_any: float = 0.0
    reason: str = ""

    @property
    def language(self) -> str:
        """The most frequent detected language; `und` if none was detected."""
        return next((name for name, _ in self.languages if name != UNDETERMINED), UNDETERMINED)


def sample_for_start(source: Source, rule_sets: Sequence[str]) -> StarterSample:
    """Examine the first documents of a source: read up to about 4 MB of text from at most 16 of its files,
    detect the languages of the documents, and apply the named rule sets to them. The rules may test only
    columns of `quality_signals`.

    If the source cannot be read, the result has no documents and gives the reason.
    """
    try:
        files = list_files(source)
        chosen = [files[number * len(files) // min(_FILES, len(files))] for number in range(min(_FILES, len(files)))]
        read = list(accumulate(file.size for file in chosen))
        chosen = [file for file, size in zip(chosen, read, strict=True) if size <= max(_FILE_BYTES, read[0])]
        parts = read_documents(replace(source, part_bytes=_BYTES), chosen, _BYTES)
        docs = next(parts).documents.select(["text"])
    except (UserError, StorageError, OSError) as error:
        return StarterSample(0, reason=str(error).partition("; ")[0])
    if not docs.num_rows:
        return StarterSample(0, reason="its first files have no document")
    labels = Counter(Language().annotate(docs)["language"].to_pylist())
    languages = tuple((name, count / docs.num_rows) for name, count in labels.most_common())
    return StarterSample(docs.num_rows, languages, *_dropped(docs, rule_sets))


def _dropped(docs: pa.Table, rule_sets: Sequence[str]) -> tuple[dict[str, tuple[RuleShare, ...]], float]:
    signals = QualitySignals().annotate(docs)
    none = pa.array([False] * docs.num_rows)
    dropped: dict[str, tuple[RuleShare, ...]] = {}
    by_any = none
    for name in rule_sets:
        by_set = none
        shares = []
        for rule in Rule(rules=name).expand():
            bad = fails(rule, values_of(signals[rule.signal]), None)
            by_set = pc.or_(by_set, bad)
            shares.append(RuleShare(rule.reason(), _share(bad)))
        largest = sorted((each for each in shares if each.share), key=lambda each: -each.share)
        dropped[name] = (RuleShare(name, _share(by_set)), *largest)
        by_any = pc.or_(by_any, by_set)
    return dropped, _share(by_any)


def _share(rows: pa.Array) -> float:
    return (pc.sum(rows).as_py() or 0) / len(rows)
