"""Publish a corpus: write its manifest, from which training finds all files, and its report."""

from collections.abc import Mapping, Sequence
from typing import Any

from gristmill.budget import spend
from gristmill.storage.store import digest
from pipelines.building.earlier_builds import PREVIOUS, keep_replaced
from pipelines.building.state import Build
from pipelines.contracts.manifest import CorpusManifest, StepManifest, save_corpus, variant_file
from pipelines.contracts.mixtures import proportional, temperature, unimax
from pipelines.contracts.shard_set import ShardSet, shard_set_of
from pipelines.planning.corpus import plain_config
from pipelines.planning.inventory import Inventory
from pipelines.planning.plan import Plan
from pipelines.report.write import write_report


def corpus_manifest(
    plan: Plan, published: Mapping[str, StepManifest], gone: Mapping[str, Sequence[str]]
) -> CorpusManifest:
    """Return the manifest of a corpus whose steps are all published. It depends only on the plan, the steps
    and the forgotten records.
    """
    sets = {step.name: shard_set_of(published[step.label].facts) for step in plan.steps if step.stage.makes_shards}
    steps = [
        {
            "step": step.label,
            "stage": step.identity["stage"],
            "directory": step.directory,
            "fingerprint": step.fingerprint,
        }
        for step in plan.steps
    ]
    given = published["funnel"].facts.get("splits", {})
    sources = {
        source.name: {
            "licence": source.licence,
            "origin": source.origin,
            "files": len(plan.inventories[source.name].files),
            **_commits(plan.inventories[source.name]),
            **published[f"read.{source.name}"].counts[source.name].facts(),
            **({"splits": given[source.name]} if source.name in given else {}),
        }
        for source in plan.config.sources
    }
    return CorpusManifest(
        plan.config.name,
        corpus_fingerprint(steps, gone),
        without_places(plain_config(plan.config)),
        sources,
        sets,
        tuple(steps),
        tuple(published["funnel"].facts["rows"]),
        suggested_mixtures(sets),
    )


def _commits(inventory: Inventory) -> dict[str, dict[str, str]]:
    commits = {file.path: file.commit for file in inventory.files if file.commit is not None}
    return {"commits": commits} if commits else {}


def corpus_fingerprint(steps: Sequence[Mapping[str, str]], gone: Mapping[str, Sequence[str]]) -> str:
    """Return the fingerprint of a corpus: a digest of its steps' fingerprints and its forgotten records."""
    removed = [{source: list(records) for source, records in gone.items()}] if gone else []
    return digest([*(step["fingerprint"] for step in steps), *removed])


def without_places(config: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of a configuration without `root`, `output` and `remote`, also in its sources, so that
    the manifest does not depend on where the corpus is built.
    """
    places = ("root", "output", "remote")
    sources = [{name: value for name, value in source.items() if name not in places} for source in config["sources"]]
    return {name: value for name, value in config.items() if name not in places} | {"sources": sources}


def suggested_mixtures(sets: Mapping[str, ShardSet]) -> dict[str, dict[str, float]]:
    """Return the domain weights that each mixing strategy suggests, by the name of the strategy. They are
    computed from the number of training tokens of each domain in the first shard set.
    """
    if not sets:
        return {}
    tokens: dict[str, int] = {}
    for shard in next(iter(sets.values())).shards:
        tokens[shard.domain] = tokens.get(shard.domain, 0) + (shard.tokens if shard.split == "train" else 0)
    return {
        "proportional": proportional(tokens),
        "temperature": temperature(tokens),
        "unimax": unimax(tokens, sum(tokens.values())),
    }


def publish_corpus(state: Build) -> CorpusManifest:
    """Write the corpus's `manifest.json` and return the manifest. If its steps have changed, keep a copy of
    the manifest that it replaces; if the manifest has changed, write the report. For a variant, write only
    the variant's manifest.

    Raises ConflictError if documents were forgotten, or a step was removed, since the build began.
    """
    manifest = corpus_manifest(state.plan, state.published, state.gone)
    if state.variant is not None:
        save_corpus(state.root, manifest, state.check_steps, variant_file(state.variant))
        return manifest
    kept = keep_replaced(state.root, manifest, state.check_forgotten)
    save_corpus(state.root, manifest, state.check_steps)
    if kept is not None:
        state.say(f"to see what changed since the build before: python -m pipelines diff {PREVIOUS} {state.root}")
    with spend("report"):
        written = write_report(state.plan, state.published, manifest, state.root, state.check_forgotten)
    if written:
        state.say(f"report: {state.root / 'report.html'}")
    return manifest
