"""Compare rule sets on a built corpus: which documents each set drops, and how far the sets agree. The
comparison is exact, and includes documents that the corpus does not keep.
"""

import heapq
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, islice, product
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from gristmill.config import near_match
from gristmill.errors import UserError
from gristmill.storage.location import Location
from pipelines.contracts.columns import DROP
from pipelines.contracts.lineage import Corpus, open_corpus
from pipelines.contracts.parts import DOCUMENT_COLUMNS, Part
from pipelines.planning.column_writers import writers
from pipelines.stages.decide.filter import Filter
from pipelines.stages.decide.rules import RULE_SETS, Rule

Sampled = list[tuple[int, bytes, str]]  # (rank, id, reason), the lowest ranks


@dataclass
class Tally:
    """How many documents of one source the rule sets drop, alone and together, with samples of these
    documents. `sets` are the k rule sets whose columns the source has.
    """

    sets: tuple[str, ...]
    documents: int
    both: np.ndarray
    """int64 [k, k]: documents dropped by both sets. The diagonal counts all documents that each set drops."""
    dropped_by: np.ndarray
    """int64 [k + 1]: at index j, the number of documents that exactly j sets drop; all 0 if there are no sets."""
    alone: np.ndarray
    """int64 [k]: documents dropped by this set and no other."""
    reasons: dict[str, Counter[str]]
    """By rule set and rule: the number of documents that the rule was the first of its set to drop."""
    samples: dict[str, Sampled]
    """By rule set: a sample of the documents that only this set drops. The key "" has a sample of the
    documents that all k sets drop, which is empty if k is below 2.
    """


@dataclass(frozen=True)
class Pair:
    """How many documents two rule sets drop: `both` counts those that both sets drop, `only_one` those that
    only `one` drops, and `only_other` those that only `other` drops. Sources that lack a column of either set
    are not counted.
    """

    one: str
    other: str
    both: int
    only_one: int
    only_other: int

    @property
    def jaccard(self) -> float | None:
        """The number of documents that both sets drop, divided by the number that either drops; None if
        neither drops any.
        """
        either = self.both + self.only_one + self.only_other
        return self.both / either if either else None


@dataclass(frozen=True)
class Comparison:
    """A comparison of the rule sets `names` on a corpus. `tallies` maps each source to its counts."""

    corpus: Corpus
    names: tuple[str, ...]
    tallies: dict[str, Tally]
    missing: dict[str, dict[str, tuple[str, ...]]]
    """By rule set and source: the columns that the rule set reads and the source lacks."""

    @property
    def compared(self) -> tuple[str, ...]:
        """The rule sets whose columns exist in at least one source."""
        return tuple(name for name in self.names if any(name in tally.sets for tally in self.tallies.values()))

    def documents(self, name: str) -> int:
        """Return the number of documents to which a rule set was applied."""
        return sum(tally.documents for tally in self.tallies.values() if name in tally.sets)

    def dropped(self, name: str) -> int:
        """Return the number of documents that a rule set drops."""
        return sum(sum(tally.reasons[name].values()) for tally in self.tallies.values() if name in tally.sets)

    def alone(self, name: str) -> int:
        """Return the number of documents that only this rule set drops."""
        return sum(int(t.alone[t.sets.index(name)]) for t in self.tallies.values() if name in t.sets)

    def reasons(self, name: str) -> Counter[str]:
        """Return how many documents each rule of a set drops. A document that several of its rules drop is
        counted only for the first of them.
        """
        return sum((tally.reasons[name] for tally in self.tallies.values() if name in tally.sets), Counter())

    @property
    def dropped_by(self) -> Counter[int]:
        """The number of documents dropped by exactly k rule sets, for each k. Documents of sources to which
        no rule set could be applied are not counted.
        """
        counts: Counter[int] = Counter()
        for tally in self.tallies.values():
            counts.update(dict(enumerate(tally.dropped_by.tolist())))
        return counts

    @cached_property
    def pairs(self) -> tuple[Pair, ...]:
        """All pairs of rule sets that were applied to at least one common source, ordered by descending
        Jaccard index.
        """
        pairs = []
        for one, other in combinations(self.compared, 2):
            counts = [_pair(t, one, other) for t in self.tallies.values() if one in t.sets and other in t.sets]
            if counts:
                pairs.append(Pair(one, other, *map(sum, zip(*counts, strict=True))))
        return tuple(sorted(pairs, key=lambda pair: -(pair.jaccard or 0)))

    def samples(self, name: str, count: int) -> list[tuple[str, str]]:
        """Return (printed id, reason) for up to `count` documents that only the rule set `name` drops. If
        `name` is empty, return documents that all compared sets drop, with the reason that the first set
        gives. Each source contributes at most as many as the argument `samples` of `compare_rules`.
        """
        tallies = [t for t in self.tallies.values() if name or len(t.sets) == len(self.compared)]
        chosen = heapq.nsmallest(count, (entry for t in tallies for entry in t.samples.get(name, ())))
        return [(self.corpus.printed_id(identifier), reason) for _, identifier, reason in chosen]


def _pair(tally: Tally, one: str, other: str) -> tuple[int, int, int]:
    a, b = tally.sets.index(one), tally.sets.index(other)
    both = int(tally.both[a, b])
    return both, int(tally.both[a, a]) - both, int(tally.both[b, b]) - both


def compare_rules(directory: Location, names: Sequence[str] = (), samples: int = 0) -> Comparison:
    """Apply each of the rule sets `names` (default: all) to every document of the sources that have its
    columns. `samples` limits the size of each sample in `Tally.samples`. Raises UserError for an invalid
    argument, if no source has the columns of a set in `names`, or if no set can be applied.
    """
    for name in names:
        if name not in RULE_SETS:
            raise UserError(f"compare-rules: no rule set named {name!r}{near_match(name, list(RULE_SETS))}")
    if samples < 0:
        raise UserError(f"--samples: got {samples}, expected 0 or more")
    corpus = open_corpus(directory)
    chosen = tuple(dict.fromkeys(names)) or tuple(RULE_SETS)
    missing: dict[str, dict[str, tuple[str, ...]]] = {}
    tallies = {}
    for source in corpus.manifest.sources:
        sets = []
        for part, name in product(
            islice(corpus.parts(source), 1), chosen
        ):  # one part is enough, since all parts of a source have the same columns
            lacking = tuple(c for c in _columns([name]) if c not in DOCUMENT_COLUMNS and not part.has(c))
            if lacking:
                missing.setdefault(name, {})[source] = lacking
            else:
                sets.append(name)
        tallies[source] = _tally(corpus, source, tuple(sets), samples)
    result = Comparison(corpus, chosen, tallies, missing)
    refused = [name for name in (names or chosen) if name not in result.compared]
    if refused and (names or not result.compared):
        lines = [
            f"{name} reads {'; '.join(describe_missing_columns(result, name, 10))}"
            for name in refused
            if name in missing
        ]
        raise UserError(
            f"compare-rules: the corpus {corpus.manifest.corpus!r} lacks columns: {'; '.join(lines) or 'it has no documents'}"
        )
    return result


def _columns(names: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(column.name for name in names for column in _filter(name).read_columns()))


def _filter(name: str) -> Filter:
    return Filter((Rule(rules=name),))


def _tally(corpus: Corpus, source: str, sets: tuple[str, ...], samples: int) -> Tally:
    k = len(sets)
    tally = Tally(
        sets, 0, np.zeros((k, k), np.int64), np.zeros(k + 1, np.int64), np.zeros(k, np.int64),
        {name: Counter() for name in sets}, {name: [] for name in (*sets, "")},
    )  # fmt: skip
    for part in corpus.parts(source):
        tally.documents += part.rows
        if sets:
            _count_part(tally, part, samples)
    return tally


def _count_part(tally: Tally, part: Part, samples: int) -> None:
    table = part.table(("id", *_columns(tally.sets)))
    drops = [_filter(name).annotate(table)[DROP].combine_chunks() for name in tally.sets]
    dropped = np.stack([pc.is_valid(drop).to_numpy(zero_copy_only=False) for drop in drops])
    counts = dropped.astype(np.int64)
    times = counts.sum(axis=0)
    tally.both += counts @ counts.T
    tally.dropped_by += np.bincount(times, minlength=len(drops) + 1)
    for number, (name, drop) in enumerate(zip(tally.sets, drops, strict=True)):
        alone = dropped[number] & (times == 1)
        tally.alone[number] += alone.sum()
        tally.reasons[name].update({e["values"]: e["counts"] for e in pc.value_counts(drop.drop_null()).to_pylist()})
        _sample(tally.samples[name], table["id"], drop, alone, samples)
    if len(drops) > 1:
        _sample(tally.samples[""], table["id"], drops[0], times == len(drops), samples)


def _sample(into: Sampled, ids: pa.ChunkedArray, reasons: pa.Array, rows: np.ndarray, count: int) -> None:
    if count:
        at = pa.array(np.flatnonzero(rows))
        documents = zip(ids.take(at).to_pylist(), reasons.take(at).to_pylist(), strict=True)
        ranked = ((xxhash.xxh3_64_intdigest(identifier), identifier, reason) for identifier, reason in documents)
        into[:] = heapq.nsmallest(count, (*into, *ranked))


def describe_missing_columns(comparison: Comparison, name: str, most: int) -> list[str]:
    """Describe the columns of a rule set that at least one source lacks, in one text for each stage that
    writes such columns. Each text lists up to `most` names, for example `a, b and 3 more (of STAGE)`.
    """
    by_stage: dict[str, dict[str, None]] = {}
    for column in (column for lacking in comparison.missing[name].values() for column in lacking):
        by_stage.setdefault(writers().get(column, ""), {})[column] = None
    texts = []
    for stage, columns in by_stage.items():
        more = f" and {len(columns) - most} more" if len(columns) > most else ""
        texts.append(", ".join(list(columns)[:most]) + more + (f" (of {stage})" if stage else ""))
    return texts


def comparison_data(comparison: Comparison, samples: int) -> dict[str, Any]:
    """Return the comparison as data for JSON, with at most `samples` documents in each sample."""
    sets = {}
    for name in comparison.compared:
        sources = {}
        for source, tally in comparison.tallies.items():
            if name in tally.sets:
                at = tally.sets.index(name)
                facts = {
                    "documents": tally.documents,
                    "dropped": int(tally.both[at, at]),
                    "alone": int(tally.alone[at]),
                }
                sources[source] = facts | {"reasons": dict(sorted(tally.reasons[name].items()))}
        sets[name] = {"sources": sources, "samples_alone": _plain_samples(comparison, name, samples)}
    return {
        "corpus": comparison.corpus.manifest.corpus,
        "fingerprint": comparison.corpus.manifest.fingerprint,
        "rule_sets": sets,
        "sources": {
            source: {
                "documents": tally.documents, "rule_sets": list(tally.sets),
                "dropped_by_exactly": tally.dropped_by.tolist(),
            }
            for source, tally in comparison.tallies.items()
        },
        "samples_all": _plain_samples(comparison, "", samples),
        "pairs": [{**vars(pair), "jaccard": pair.jaccard} for pair in comparison.pairs],
        "missing_columns": {
            name: {source: list(columns) for source, columns in sources.items()}
            for name, sources in comparison.missing.items()
        },
    }  # fmt: skip


def _plain_samples(comparison: Comparison, name: str, count: int) -> list[dict[str, str]]:
    return [{"id": identifier, "reason": reason} for identifier, reason in comparison.samples(name, count)]
