"""The numbers of the report as one JSON value. It depends only on the published corpus, not on when or where
it was built.
"""

import re
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from gristmill.config import plain
from gristmill.storage.store import digest
from pipelines.contracts.document import NOT_SAMPLED
from pipelines.contracts.given_split import SPLITS, TEST
from pipelines.contracts.lineage import Corpus
from pipelines.contracts.manifest import CorpusManifest, StepManifest, bytes_per_token, without_validation
from pipelines.contracts.shard_set import ShardRecord, ShardSet
from pipelines.planning.plan import Plan
from pipelines.report.estimates import estimate_whole
from pipelines.stages.decide.filter import Filter
from pipelines.stages.pii.display_redaction import redact_texts

FORMAT = "gristmill-report/3"
_MAY_BE_PERSONAL = re.compile(r"[\d@.:]")  # all that a pattern finds has one of these; loading the patterns takes 3 s
_CONDITIONS = ("at_least", "at_most", "at_least_quantile", "at_most_quantile", "one_of", "none_of", "per", "when")
_PLACES = 3  # places named per source and reason of quarantined records


def collect(
    plan: Plan, published: Mapping[str, StepManifest], manifest: CorpusManifest, corpus: Corpus
) -> dict[str, Any]:
    """Return the content of the report, except its warnings, topics and samples."""
    facts = published["funnel"].facts
    sources = [_source(name, manifest, published, corpus) for name in manifest.sources]
    shard_sets = [_shard_set(name, published, manifest) for name in manifest.shard_sets]
    return {
        "format": FORMAT,
        "corpus": manifest.corpus,
        "fingerprint": manifest.fingerprint,
        "manifest": digest(plain(manifest)),
        "totals": _totals(sources, shard_sets),
        "sources": sources,
        "funnel": _funnel(manifest),
        "thresholds": thresholds(plan),
        "distributions": facts["distributions"],
        "values": {source: _redacted(corpus, source, columns) for source, columns in facts["values"].items()},
        "duplicates": [
            {"step": label, **{name: step.facts[name] for name in ("clusters", "dropped", "cluster_sizes")}}
            for label, step in published.items()
            if "cluster_sizes" in step.facts
        ],
        "evaluation_sets": [
            {"step": label, "set": name, **facts}
            for label, step in published.items()
            if step.identity["stage"] == "decontaminate"
            for name, facts in step.facts.get("sets", {}).items()
        ],
        "exclusion_lists": [
            {"step": label, "list": name, **facts}
            for label, step in published.items()
            if step.identity["stage"] == "exclude"
            for name, facts in step.facts.get("lists", {}).items()
        ],
        **({"estimates": estimate_whole(plan, published, manifest, corpus)} if plan.config.is_sampled else {}),
        "shard_sets": shard_sets,
        "without_validation": without_validation(manifest),
        "mixtures": manifest.mixtures,
        "steps": [{**step, "parts": len(published[step["step"]].parts)} for step in manifest.steps],
        "config": manifest.config,
    }


def _source(
    name: str, manifest: CorpusManifest, published: Mapping[str, StepManifest], corpus: Corpus
) -> dict[str, Any]:
    """Return the facts of one source. If only a sample was read, `records` counts the sample, but
    `decoded_bytes` counts the whole files.
    """
    facts, rows = manifest.sources[name], [row for row in manifest.funnel if row["source"] == name]
    read_bytes = sum(part.text_bytes for part in published[f"read.{name}"].parts)
    config = next(source for source in manifest.config["sources"] if source["name"] == name)
    return {
        "source": name,
        "licence": facts["licence"],
        "origin": facts["origin"],
        "format": config["format"],
        "files": facts["files"],
        "decoded_bytes": facts["decoded_bytes"],
        "control_characters": facts["control_characters"],
        **({"replaced": facts["replaced"]} if "replaced" in facts else {}),
        "records": facts["in"] - facts["quarantined"].get(NOT_SAMPLED, 0),
        "documents": facts["kept"],
        "text_bytes": read_bytes,
        "quarantined": {r: number for r, number in sorted(facts["quarantined"].items()) if r != NOT_SAMPLED},
        "quarantined_places": _places(name, corpus) if facts["quarantined"] else {},
        **({"splits": facts["splits"]} if "splits" in facts else {}),
        "documents_kept": rows[-1]["documents_out"] if rows else facts["kept"],
        "text_bytes_kept": rows[-1]["bytes_out"] if rows else read_bytes,
    }


def _redacted(
    corpus: Corpus, source: str, columns: Mapping[str, list[list[Any]] | None]
) -> dict[str, list[list[Any]] | None]:
    """Return the tables of values of a source's columns, with the strings redacted by `redact_texts`. No NER
    model is used, because the values are not sentences. Values that become equal share one row, and their
    counts are added.
    """
    values = list(
        dict.fromkeys(
            value
            for table in columns.values()
            for value, *_ in table or ()
            if isinstance(value, str) and _MAY_BE_PERSONAL.search(value)
        )
    )
    part = next(corpus.parts(source), None)
    shown = values if part is None else redact_texts(corpus, part, values, names=False)
    names = {value: other for value, other in zip(values, shown, strict=True) if value != other}
    if not names:
        return dict(columns)
    redacted: dict[str, list[list[Any]] | None] = {}
    for column, table in columns.items():
        counts: dict[str, list[int]] = {}
        for value, every, kept in table or ():
            name = names.get(value, value)
            before = counts.get(name, [0, 0])
            counts[name] = [before[0] + every, before[1] + kept]
        ranked = sorted(counts.items(), key=lambda entry: -entry[1][0])
        redacted[column] = None if table is None else [[value, *both] for value, both in ranked]
    return redacted


def _places(source: str, corpus: Corpus) -> dict[str, list[str]]:
    places: dict[str, list[str]] = {}
    for record in corpus.quarantined(source):
        printed = places.setdefault(record.reason, [])
        if len(printed) < _PLACES:
            printed.append(record.printed)
    return dict(sorted(places.items()))


def _funnel(manifest: CorpusManifest) -> list[dict[str, Any]]:
    """Return the rows of the manifest's funnel, with token counts estimated from each source's bytes per
    token.
    """
    density = bytes_per_token(manifest)
    rows = []
    for row in manifest.funnel:
        ratio = density.get(row["source"])
        tokens = {
            f"tokens_{side}_estimated": round(row[f"bytes_{side}"] / ratio) if ratio else None for side in ("in", "out")
        }
        rows.append({**row, **tokens})
    return rows


def thresholds(plan: Plan) -> list[dict[str, Any]]:
    """Return every test of every filter step, in order, with the sources to which it applies."""
    tests = []
    for entry in plan.config.steps:
        if isinstance(entry.stage, Filter):
            sources = list(entry.sources or [source.name for source in plan.config.sources])
            for test in entry.stage.tests():
                own = [source for source in sources if source in test.when.get("source", sources)]
                entry_of = {"step": entry.name, "rule": test.reason(), "signal": test.signal, "sources": own}
                conditions = {name: plain(getattr(test, name)) for name in _CONDITIONS}
                tests.append({**entry_of, **conditions, "null": "drop" if test.drops_null() else "keep"})
    return tests


def _shard_set(name: str, published: Mapping[str, StepManifest], manifest: CorpusManifest) -> dict[str, Any]:
    shard_set, facts, knobs = manifest.shard_sets[name], published[name].facts, published[name].identity["knobs"]
    reason = facts["overlap"].get("not_measured")
    measured = not isinstance(reason, str)
    tokenizer = {key: value for key, value in asdict(shard_set.tokenizer).items() if key != "bytes"}
    text_bytes, tokens = (sum(getattr(shard, name) for shard in shard_set.shards) for name in ("text_bytes", "tokens"))
    return {
        "name": name,
        "tokenizer": {
            **tokenizer,
            "encoder": facts["encoder"],
            "documents_compared": facts["documents_compared"],
            "bytes_per_token": _ratio(text_bytes, tokens),
        },
        "dtype": shard_set.dtype,
        "columns": list(shard_set.columns),
        "split_by": knobs["split_by"],
        "validation_share": knobs["validation_share"],
        "tokens": [
            _split([s for s in shard_set.shards if (s.source, s.split) == (source, split)], source, split)
            for source in manifest.sources
            for split in _splits_of(shard_set)
        ],
        "overlap_not_measured": None if measured else reason,
        "overlap": [{"source": source, **counts} for source, counts in facts["overlap"].items()] if measured else [],
        **({"groups": facts["groups"], "domains": _domains(shard_set)} if "groups" in facts else {}),
    }


def _domains(shard_set: ShardSet) -> list[dict[str, Any]]:
    shards: dict[tuple[str, str], list[ShardRecord]] = {}
    for shard in shard_set.shards:
        shards.setdefault((shard.domain, shard.split), []).append(shard)
    return [
        {"domain": domain, **_split(shards[domain, split], shards[domain, split][0].source, split)}
        for domain, split in sorted(shards, key=lambda share: (share[0], SPLITS.index(share[1])))
    ]


def _splits_of(shard_set: ShardSet) -> tuple[str, ...]:
    return SPLITS if any(shard.split == TEST for shard in shard_set.shards) else SPLITS[:-1]


def _split(shards: list[ShardRecord], source: str, split: str) -> dict[str, Any]:
    sizes = {name: sum(getattr(s, name) for s in shards) for name in ("documents", "tokens", "text_bytes")}
    return {"source": source, "split": split, **sizes, "bytes_per_token": _ratio(sizes["text_bytes"], sizes["tokens"])}


def _totals(sources: list[dict[str, Any]], shard_sets: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the report's totals over all sources. Tokens are those of the first shard set."""
    names = ("files", "decoded_bytes", "records", "documents", "text_bytes", "documents_kept", "text_bytes_kept")
    totals: dict[str, Any] = {name: sum(source[name] for source in sources) for name in names}
    totals["quarantined"] = totals["records"] - totals["documents"]
    totals["dropped"] = totals["documents"] - totals["documents_kept"]
    splits = shard_sets[0]["tokens"] if shard_sets else []
    for name in SPLITS[:-1]:
        totals[f"{name}_tokens"] = sum(s["tokens"] for s in splits if s["split"] == name) if shard_sets else None
    if test := sum(s["tokens"] for s in splits if s["split"] == TEST):
        totals["test_tokens"] = test
    return totals


def _ratio(numerator: int, denominator: int) -> float | None:
    return round(numerator / denominator, 4) if denominator else None
