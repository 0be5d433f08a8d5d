"""List the builds of a corpus for `diff`: the published build and the earlier builds that are kept."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from gristmill.console import Page
from gristmill.errors import UserError
from gristmill.storage.location import Location
from pipelines.building.earlier_builds import earlier_builds
from pipelines.contracts.lineage import open_corpus
from pipelines.contracts.manifest import CorpusManifest, load_corpus

_DIGITS = 12  # of a fingerprint; six are enough to name a build


@dataclass(frozen=True)
class BuildRecord:
    """One build of a corpus. `file` is its manifest. `replaced` is the time at which the next build replaced
    it, or None for the published build. `changed` lists the steps whose fingerprints the previous record of
    `builds_of` does not have; it is None for the first record. `is_whole` says whether all steps of the build
    still exist.
    """

    fingerprint: str
    file: Location
    replaced: datetime | None
    documents: int
    changed: list[str] | None
    is_whole: bool


def builds_of(directory: Location) -> Iterator[BuildRecord]:
    """Yield the earlier builds that a corpus keeps, oldest first, and then the published build. Earlier
    builds with the fingerprint of the published build are skipped. `directory` is the directory of the corpus
    or one of its manifests. Raises UserError if no corpus is published in the directory.
    """
    directory = directory.parent if directory.suffix == ".json" else directory
    published = load_corpus(directory)
    before: CorpusManifest | None = None
    for build in earlier_builds(directory):
        manifest = load_corpus(build.file)
        if manifest.fingerprint == published.fingerprint:
            continue  # kept by a build that did not come to publish another
        replaced = datetime.fromtimestamp(build.file.stat().st_mtime_ns / 1e9, UTC)
        yield _record(manifest, build.file, replaced, before)
        before = manifest
    yield _record(published, directory / "manifest.json", None, before)


def show_builds(directory: Location) -> None:
    """Print the builds of a corpus as `builds_of` yields them. Raises UserError if no corpus is published in
    the directory.
    """
    page = Page()
    for build in builds_of(directory):
        when = "the published build" if build.replaced is None else f"until {build.replaced:%Y-%m-%d %H:%M} UTC"
        page.line(f"{build.fingerprint[:_DIGITS]}  {when}", "bold")
        page.field("documents kept", f"{build.documents:,}")
        if build.changed is not None:
            page.field("other steps than before", ", ".join(build.changed) or "none")
        page.field("manifest", build.file.name)
        if not build.is_whole:
            page.line("  steps of it have been removed, so it cannot be compared", "bold red")


def _record(
    manifest: CorpusManifest, file: Location, replaced: datetime | None, before: CorpusManifest | None
) -> BuildRecord:
    known = None if before is None else {step["fingerprint"] for step in before.steps}
    changed = None if known is None else [step["step"] for step in manifest.steps if step["fingerprint"] not in known]
    last = {row["source"]: row["documents_out"] for row in manifest.funnel}
    documents = sum(last.get(name, facts["kept"]) for name, facts in manifest.sources.items())
    try:
        open_corpus(file)
    except UserError:
        is_whole = False
    else:
        is_whole = True
    return BuildRecord(manifest.fingerprint, file, replaced, documents, changed, is_whole)
