"""Compare two corpora, or two builds of one corpus: which documents came in, went out or have a different
text, and why.

Two documents are the same if they have the same id: source, path and record number. Usually only the columns
`id` and `drop` are read. The texts of documents that both corpora keep are read only if the steps that read
or edit them differ. Comparing n-grams reads the texts of samples. Distributions of columns come from the
histograms that a build publishes.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gristmill.errors import UserError
from gristmill.storage.location import Location
from pipelines.contracts.columns import EDITS_COLUMN
from pipelines.contracts.document import ID
from pipelines.contracts.lineage import Corpus, open_corpus
from pipelines.contracts.parts import Part
from pipelines.explore.comparison.compare_distributions import DistributionChange, compare_distributions
from pipelines.explore.comparison.compare_ngrams import MOST_WORDS, NgramComparison, compare_ngrams
from pipelines.kernels.text.buffers import text_buffers

Kind = Literal["in", "out", "changed"]
ABSENT = "not read"
"""The reason given for a document that the other corpus did not read."""
_QUARANTINE = "quarantine: "

_VERDICTS = pa.schema([("id", ID), ("read", pa.bool_()), ("drop", pa.string())])
CHANGES = pa.schema([("id", ID), ("source", pa.string()), ("kind", pa.string()), ("reason", pa.string())])
"""The documents that differ. `kind` is in, out or changed. `reason` says why the other corpus does not keep
the document: the rule that drops it there, `quarantine: ` and the reason why it is set aside there, or ABSENT. It is
null for changed texts.
"""


@dataclass(frozen=True)
class SourceChange:
    """How one source differs between two corpora. `same` and `changed` count the documents that both corpora
    keep, with equal and with different texts. `went_out` counts the documents that only the old corpus keeps,
    by the reason why the new one does not; `came_in` counts those that only the new corpus keeps, by the
    reason why the old one does not. `tokens` maps each shard set to the source's numbers of tokens in the old
    and the new corpus, None for a corpus without that shard set.
    """

    same: int
    changed: int
    went_out: dict[str, int]
    came_in: dict[str, int]
    tokens: dict[str, tuple[int | None, int | None]]

    @property
    def kept_before(self) -> int:
        """The number of documents that the old corpus keeps."""
        return self.same + self.changed + sum(self.went_out.values())

    @property
    def kept_now(self) -> int:
        """The number of documents that the new corpus keeps."""
        return self.same + self.changed + sum(self.came_in.values())


@dataclass(frozen=True)
class CorpusComparison:
    """A comparison of two corpora. `sources` maps the name of each source to its differences. `documents` is
    a table (CHANGES) of the documents that differ, ordered by source and then by id. `distributions` compares
    columns, those that differ most first. `ngrams` compares n-grams; it is None if they were not compared.
    """

    old: Corpus
    new: Corpus
    sources: dict[str, SourceChange]
    documents: pa.Table
    distributions: list[DistributionChange]
    ngrams: NgramComparison | None

    def samples(self, source: str, kind: Kind, reason: str | None, count: int) -> list[str]:
        """Return the printed ids of up to `count` documents, evenly spaced among those that `documents` lists
        for this source, kind and reason.
        """
        found = self.documents.filter(
            pc.and_(
                pc.equal(self.documents["source"], source),
                pc.and_(
                    pc.equal(self.documents["kind"], kind),
                    pc.equal(pc.fill_null(self.documents["reason"], ""), reason or ""),
                ),
            )
        )
        rows = np.unique(np.linspace(0, len(found) - 1, min(count, len(found)), dtype=np.int64))
        corpus = self.old if kind == "out" else self.new
        return [corpus.printed_id(identifier) for identifier in found["id"].take(rows).to_pylist()]

    def as_json(self) -> dict[str, Any]:
        """Return the comparison as JSON data, without the table of documents."""
        both = {"old": self.old.manifest, "new": self.new.manifest}
        named = {side: {"corpus": each.corpus, "fingerprint": each.fingerprint} for side, each in both.items()}
        sources = {
            name: {**asdict(change), "kept_before": change.kept_before, "kept_now": change.kept_now}
            for name, change in self.sources.items()
        }
        columns = [change.as_json() for change in self.distributions]
        ngrams = {"ngrams": asdict(self.ngrams)} if self.ngrams is not None else {}
        return {**named, "sources": sources, "distributions": columns, **ngrams}


def compare_corpora(old: Location, new: Location, ngrams: int = 0) -> CorpusComparison:
    """Compare two published corpora and, unless `ngrams` is 0, their n-grams of up to `ngrams` words. Raises
    UserError if `ngrams` is not from 0 to 5, or if the corpora have no source in common.
    """
    if not 0 <= ngrams <= MOST_WORDS:
        raise UserError(f"--ngrams: got {ngrams}, expected 0 to {MOST_WORDS} words")
    before, after = open_corpus(old), open_corpus(new)
    names = list(dict.fromkeys((*before.manifest.sources, *after.manifest.sources)))
    if not set(before.manifest.sources) & set(after.manifest.sources):
        raise UserError(
            f"{new}: has no source of {old}, so no document can be in both; expected one of "
            f"{', '.join(before.manifest.sources)}"
        )
    changes, tables = {}, []
    for name in names:
        changes[name], documents = _compare_source(before, after, name)
        tables.append(documents)
    distributions = compare_distributions(before, after)
    compared = compare_ngrams(before, after, ngrams) if ngrams else None
    return CorpusComparison(before, after, changes, pa.concat_tables(tables), distributions, compared)


def _compare_source(old: Corpus, new: Corpus, source: str) -> tuple[SourceChange, pa.Table]:
    both = _verdicts(old, source).join(
        _verdicts(new, source), keys="id", join_type="full outer", left_suffix="_old", right_suffix="_new"
    )
    both = both.sort_by("id").combine_chunks()
    kept_old, kept_new = _kept(both, "old"), _kept(both, "new")
    stays = kept_old & kept_new
    changed = stays.copy()
    changed[stays] = _differ(old, new, source, int(stays.sum()))
    why_out, why_in = _reasons(both, "new"), _reasons(both, "old")
    out, came = kept_old & ~kept_new, kept_new & ~kept_old
    change = SourceChange(
        int((stays & ~changed).sum()), int(changed.sum()), _counts(why_out, out), _counts(why_in, came),
        _tokens(old, new, source),
    )  # fmt: skip
    reasons = pc.if_else(pa.array(out), why_out, pc.if_else(pa.array(came), why_in, pa.scalar(None, pa.string())))
    kinds = pa.array(np.select([out, came, changed], ["out", "in", "changed"], ""), pa.string())
    names = pa.array([source] * len(both), pa.string())
    documents = pa.table([both["id"], names, kinds, reasons], schema=CHANGES)
    return change, documents.filter(pa.array(out | came | changed))


def _verdicts(corpus: Corpus, source: str) -> pa.Table:
    if source not in corpus.manifest.sources:
        return _VERDICTS.empty_table()
    tables = [
        pa.table([part.table(("id",))["id"], pa.array([True] * part.rows), part.drop()], schema=_VERDICTS)
        for part in corpus.parts(source)
    ]
    aside = [(each.id, f"{_QUARANTINE}{each.reason}") for each in corpus.quarantined(source)]
    ids, reasons = zip(*aside, strict=True) if aside else ((), ())
    tables.append(pa.table([pa.array(ids, ID), pa.array([True] * len(ids)), pa.array(reasons)], schema=_VERDICTS))
    return pa.concat_tables(tables)


def _kept(verdicts: pa.Table, side: str) -> np.ndarray:
    kept = pc.and_(pc.is_valid(verdicts[f"read_{side}"]), pc.is_null(verdicts[f"drop_{side}"]))
    return np.asarray(kept, dtype=bool)


def _reasons(verdicts: pa.Table, side: str) -> pa.Array:
    """Return, for each document, the reason why the corpus `side` (`old` or `new`) does not keep it, or null
    if it does: string [n].
    """
    drop = pc.if_else(pc.is_valid(verdicts[f"read_{side}"]), verdicts[f"drop_{side}"], ABSENT)
    return drop.combine_chunks() if isinstance(drop, pa.ChunkedArray) else drop


def _counts(reasons: pa.Array, chosen: np.ndarray) -> dict[str, int]:
    counted = pc.value_counts(reasons.filter(pa.array(chosen))).to_pylist()
    return {
        each["values"]: each["counts"] for each in sorted(counted, key=lambda each: (-each["counts"], each["values"]))
    }


def _tokens(old: Corpus, new: Corpus, source: str) -> dict[str, tuple[int | None, int | None]]:
    def count(corpus: Corpus, name: str) -> int | None:
        shard_set = corpus.manifest.shard_sets.get(name)
        return None if shard_set is None else sum(each.tokens for each in shard_set.shards if each.source == source)

    names = dict.fromkeys((*old.manifest.shard_sets, *new.manifest.shard_sets))
    return {name: (count(old, name), count(new, name)) for name in names}


def _differ(old: Corpus, new: Corpus, source: str, count: int) -> np.ndarray:
    """Return, for each document that both corpora keep, whether its texts differ: bool [count], in the order
    of the ids.
    """
    if not count or _shaping(old, source) == _shaping(new, source):
        return np.zeros(count, bool)
    digests = _digests(old, source).join(
        _digests(new, source), keys="id", join_type="inner", left_suffix="_old", right_suffix="_new"
    )
    digests = digests.sort_by("id")
    assert len(digests) == count
    return np.asarray(pc.not_equal(digests["digest_old"], digests["digest_new"]), dtype=bool)


def _shaping(corpus: Corpus, source: str) -> list[str]:
    return [
        step.manifest.fingerprint
        for step in corpus.steps
        if step.manifest.source in (None, source) and (step.stage == "read" or EDITS_COLUMN in step.manifest.schema)
    ]


def _digests(corpus: Corpus, source: str) -> pa.Table:
    with ThreadPoolExecutor() as pool:
        return pa.concat_tables(pool.map(_part_digests, corpus.parts(source)))


def _part_digests(part: Part) -> pa.Table:
    docs = part.table(("id", "edited_text"), part.kept_rows())
    return pa.table({"id": docs["id"], "digest": pa.array(_digest(docs["edited_text"]), pa.binary(16))})


def _digest(texts: pa.ChunkedArray) -> Iterator[bytes]:
    from xxhash import xxh3_128_digest

    offsets, data = text_buffers(texts)
    view = memoryview(data.data)
    return (xxh3_128_digest(view[begin:end]) for begin, end in pairwise(offsets.tolist()))
