"""Write the report of a published corpus next to its manifest, unless a current report is already there."""

from collections.abc import Mapping
from typing import Any

from gristmill.config import plain
from gristmill.errors import CorruptFileError
from gristmill.storage.location import Check, Location
from gristmill.storage.store import digest, read_json, write_json
from pipelines.contracts.lineage import open_corpus
from pipelines.contracts.manifest import CorpusManifest, StepManifest
from pipelines.planning.plan import Plan
from pipelines.planning.source_fit import published_notices
from pipelines.report.corpus_page import render
from pipelines.report.corpus_topics import topics_of
from pipelines.report.numbers import FORMAT, collect
from pipelines.report.samples import read_samples

HTML, JSON = "report.html", "report.json"


def write_report(
    plan: Plan, published: Mapping[str, StepManifest], manifest: CorpusManifest, root: Location, check: Check
) -> bool:
    """Write `report.html` and `report.json` into `root`, where `manifest` has been saved, and return True. If
    they already exist for this manifest, write nothing and return False.

    Because the report shows samples, `check` must raise an error if documents have been forgotten since the
    build began.
    """
    if _is_current(root, digest(plain(manifest))):
        return False
    corpus = open_corpus(root)
    report = collect(plan, published, manifest, corpus)
    report["warnings"] = published_notices(plan, root)
    if topics := topics_of(corpus):
        report["topics"] = topics
    report["samples"] = read_samples(corpus, published["funnel"].facts["samples"])
    (root / HTML).write_atomic(render(report, _runs(root, manifest)).encode(), check)
    write_json(root / JSON, report, check)  # written last, because it shows that both files exist
    return True


def _is_current(root: Location, manifest: str) -> bool:
    try:
        report = read_json(root / JSON)
    except (FileNotFoundError, CorruptFileError):
        return False
    return (root / HTML).exists() and (report.get("format"), report.get("manifest")) == (FORMAT, manifest)


def _runs(root: Location, manifest: CorpusManifest) -> dict[str, dict[str, Any]]:
    runs = {}
    for step in manifest.steps:
        try:
            runs[step["step"]] = read_json(root / step["directory"] / "run.json")
        except (FileNotFoundError, CorruptFileError):
            continue
    return runs
