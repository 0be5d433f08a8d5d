"""Estimate from samples of a corpus's sources what the whole corpus would contain: its documents, bytes and
tokens, and how much each step would drop.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gristmill.terminal import human_count, quantity
from pipelines.contracts.document import NOT_SAMPLED
from pipelines.contracts.lineage import Corpus
from pipelines.contracts.manifest import CorpusManifest, StepManifest
from pipelines.contracts.shard_set import open_shard
from pipelines.planning.plan import Plan
from pipelines.report.intervals import (
    LEVEL,
    SampleEstimate,
    add_intervals,
    estimate_count,
    estimate_pairs,
    estimate_ratio,
    estimate_sum,
    skewness,
)
from pipelines.stages.materialise.funnel import READ

ESTIMATE, AT_MOST, UNKNOWN = "estimate", "at_most", "unknown"
_MEANINGS = (ESTIMATE, AT_MOST, UNKNOWN)
_NO_FIGURES: dict[str, Any] = {"documents": None, "bytes": None, "removed": None, "dropped": {}}
_PER_SQUARED_SKEWNESS = 25
"""A mean is nearly normally distributed, and its interval correct, if the number of records is at least this
number times the squared skewness (Cochran 1977, section 2.15).
"""
_FEW = 200  # of fewer records, the skewness itself is not known: it comes from the longest documents


def estimate_whole(
    plan: Plan, published: Mapping[str, StepManifest], manifest: CorpusManifest, corpus: Corpus
) -> dict[str, Any]:
    """Return the estimates as JSON data. `sources` has an entry for each source, with `rows`: one for reading
    and one for each step that drops or edits documents, or none if fewer than two records of the source were
    sampled. `totals` sums over all sources the documents and bytes read, the documents and bytes kept, and
    the tokens. `duplicates` gives bounds for each deduplication step. `not_estimated` names the steps whose
    effect on the whole cannot be estimated from a sample. `own_tokenizer` says whether the corpus learns its
    tokenizer.

    Each estimate is [value, low, high], with a 95 % interval (`intervals.py`). The `meaning` of a row is
    `estimate` before the first step that removes duplicates. From that step on, it is `at_most`: a sample has
    a smaller share of duplicates, so fewer documents and bytes of the whole remain than estimated. It becomes
    `unknown` at the first step with any other effect that a sample does not show; from there on, rows have no
    figures. A row's `more` says whether the step would remove more of the whole than estimated.
    """
    meanings = _step_meanings(plan)
    moments = published["funnel"].facts["moments"]
    sources = [
        _estimate_source(name, manifest, published, moments.get(name, {}), meanings, corpus)
        for name in manifest.sources
    ]
    return {
        "level": LEVEL,
        "sources": sources,
        "totals": _totals(sources),
        "duplicates": [
            _duplicates(plan, label, step, manifest)
            for label, step in published.items()
            if "cluster_sizes" in step.facts
        ],
        "not_estimated": [name for name, meaning in meanings.items() if meaning == UNKNOWN],
        "own_tokenizer": any(step.identity["stage"] == "learn_tokenizer" for step in published.values()),
    }


def _step_meanings(plan: Plan) -> dict[str, str]:
    """Map each configured step to what its estimates mean for the whole corpus: ESTIMATE, AT_MOST or UNKNOWN
    (see `estimate_whole`).

    A step is at least as uncertain as the steps whose columns it reads. Deduplication is the exception: it
    neither takes over nor passes on uncertainty.
    """
    meanings: dict[str, str] = {}
    for step in plan.steps:
        own = ESTIMATE if step.stage.extrapolates else AT_MOST if step.stage.elects else UNKNOWN
        if not step.stage.elects:  # which reads earlier drops, too, but only drops more
            read = [plan.step(label) for labels in step.visible.values() for label in labels]
            values = [meanings[each.name] for each in read if not each.stage.elects and each.name in meanings]
            own = max([own, *values], key=_MEANINGS.index)
        meanings[step.name] = max(own, meanings.get(step.name, own), key=_MEANINGS.index)
    entries = {entry.name for entry in plan.config.steps}
    return {name: meaning for name, meaning in meanings.items() if name in entries}


def _estimate_source(
    name: str,
    manifest: CorpusManifest,
    published: Mapping[str, StepManifest],
    moments: Mapping[str, Sequence[float]],
    meanings: Mapping[str, str],
    corpus: Corpus,
) -> dict[str, Any]:
    facts = manifest.sources[name]
    records = facts["in"]
    sampled = records - facts["quarantined"].get(NOT_SAMPLED, 0)
    source: dict[str, Any] = {"source": name, "records": records, "sampled": sampled, "rows": []}
    if sampled < 2:  # no variance
        return source

    def count(number: int) -> SampleEstimate:
        return estimate_count(number, sampled, records)

    text_bytes = sum(part.text_bytes for part in published[f"read.{name}"].parts)
    aside = {reason: count(number) for reason, number in facts["quarantined"].items() if reason != NOT_SAMPLED}
    stored = moments.get(READ, (0.0,))[0]
    source["rows"].append(
        {
            "step": READ, "meaning": ESTIMATE, "documents": count(facts["kept"]),
            "bytes": estimate_sum(text_bytes, stored, sampled, records), "removed": None, "dropped": aside, "more": False,
        }
    )  # fmt: skip
    meaning = ESTIMATE
    rows = [row for row in manifest.funnel if row["source"] == name]
    for row in rows:
        step = row["step"]
        meaning = max(meaning, meanings[step], key=_MEANINGS.index)
        figures = {"step": step, "meaning": meaning, "more": meanings[step] == AT_MOST} | _NO_FIGURES
        if meaning != UNKNOWN:
            figures["documents"] = count(row["documents_out"])
            figures["bytes"] = estimate_sum(row["bytes_out"], moments[step][1], sampled, records)
            figures["dropped"] = {rule: count(number) for rule, number in row["dropped"].items()}
            if row["bytes_in"]:
                removed = row["bytes_in"] - row["bytes_out"]
                figures["removed"] = estimate_ratio(removed, row["bytes_in"], moments[step][:3], sampled, records)
        source["rows"].append(figures)
    source["skewness"] = max(
        skewness(total, sums[1], sums[3], sampled)
        for total, sums in [
            (text_bytes, moments.get(READ, (0.0,) * 4)),
            *((r["bytes_out"], moments[r["step"]]) for r in rows),
        ]
    )
    source["tokens"] = {
        each: None if meaning == UNKNOWN else _estimate_tokens(corpus, each, name, sampled, records)
        for each in manifest.shard_sets
    }
    source["meaning"] = meaning
    return source


def _estimate_tokens(corpus: Corpus, shard_set: str, source: str, sampled: int, records: int) -> SampleEstimate:
    total = squares = 0.0
    for record in corpus.manifest.shard_sets[shard_set].shards:
        if record.source == source and record.documents:
            lengths = np.diff(open_shard(corpus.directory, record.file).offsets).astype(float)
            total, squares = total + lengths.sum(), squares + np.dot(lengths, lengths)
    return estimate_sum(float(total), float(squares), sampled, records)


def _totals(sources: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the estimates summed over all sources. A sum is null if any source has no estimate."""

    def add(intervals: Sequence[SampleEstimate | None]) -> SampleEstimate | None:
        known = [each for each in intervals if each is not None]
        return add_intervals(known) if len(known) == len(sources) else None

    rows = {"read": [s["rows"][0] for s in sources if s["rows"]], "kept": [s["rows"][-1] for s in sources if s["rows"]]}
    totals: dict[str, Any] = {
        when: {figure: add([row[figure] for row in found]) for figure in ("documents", "bytes")}
        for when, found in rows.items()
    }
    sets = dict.fromkeys(name for source in sources for name in source.get("tokens", {}))
    totals["tokens"] = {name: add([s["tokens"][name] for s in sources if "tokens" in s]) for name in sets}
    totals["meaning"] = max((s.get("meaning", ESTIMATE) for s in sources), key=_MEANINGS.index)
    return totals


def _duplicates(plan: Plan, label: str, step: StepManifest, manifest: CorpusManifest) -> dict[str, Any]:
    """Return bounds on the documents that a deduplication step would drop from the whole. `at_least`, a lower
    bound on their share, is the share of documents that the step dropped in the sample, or None if no sampled
    document reached the step. `pairs`, an upper bound on their number, estimates the pairs of duplicates in
    the whole. `share` is the smallest share that was sampled from any of the step's sources.
    """
    share = min(source.sample for source in plan.config.sources if source.name in plan.step(label).sources)
    sizes = {int(size): count for size, count in step.facts["cluster_sizes"].items()}
    arrived = sum(row["documents_in"] for row in manifest.funnel if row["step"] == label)
    return {
        "step": label,
        "share": share,
        "clusters": step.facts["clusters"],
        "at_least": step.facts["dropped"] / arrived if arrived else None,
        "pairs": estimate_pairs(sizes, share),
    }


def estimate_notes(estimates: Mapping[str, Any]) -> list[str]:
    """Return notes for users on the limits of the estimates."""
    notes = []
    for step in estimates["duplicates"]:
        _, _, most = step["pairs"]
        arrived = "of the documents that reach it" if step["at_least"] is not None else "of the documents"
        least = f"at least {100 * (step['at_least'] or 0):.3g} % {arrived}"
        notes.append(
            f"{step['step']}: drops {least}. More cannot be told: two copies are both in the sample with probability "
            f"{step['share']:g}², so that most duplicates lie outside it. From {quantity(step['clusters'], 'cluster')} in the "
            f"sample, the whole has at most {human_count(most)} pairs of duplicates, and it drops at most as many documents"
        )
    for name in estimates["not_estimated"]:
        notes.append(
            f"{name}: what it does depends on how many other documents there are, so the sample says nothing of its effect on "
            "the whole"
        )
    if estimates["own_tokenizer"]:
        notes.append("tokens are those of a tokenizer learned from the sample; one learned from the whole needs fewer")
    for source in estimates["sources"]:
        needed = max(_FEW, math.ceil(_PER_SQUARED_SKEWNESS * source.get("skewness", 0) ** 2))
        if source["sampled"] < needed:
            notes.append(
                f"{source['source']}: its {quantity(source['sampled'], 'record')} in the sample are too few for lengths as "
                f"skewed as these, so that the intervals of text and tokens are too narrow; sample about {human_count(needed)} "
                "records, with a larger share"
            )
    return notes
