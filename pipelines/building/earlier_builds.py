"""Earlier builds of a corpus: manifests that later builds replaced. With them, `diff` compares a corpus with
an earlier state of itself.

A replaced manifest is kept next to the manifest of the corpus. Its name, such as
`earlier-0007-1a2b3c4d5e6f.json`, contains a running number and the first 12 digits of its fingerprint. The
steps of an earlier build stay in place until `gc` removes them. `gc` keeps the last earlier build, or as many
as the user asks for, and removes the manifests of the others. `forget` removes all earlier builds, because it
rewrites only the steps of the published corpus.
"""

import re
from dataclasses import dataclass
from typing import Generic, TypeVar

from gristmill.errors import CorruptFileError, UserError
from gristmill.storage.location import Check, Location
from pipelines.contracts.manifest import EARLIER, CorpusManifest, load_corpus, load_step, save_corpus

PREVIOUS = "previous"
"""The name by which a user refers to the last earlier build with another fingerprint."""
KEPT = 1
"""The number of earlier builds that `gc` keeps by default."""
_FILE = re.compile(rf"{EARLIER}(\d{{4,}})-([0-9a-f]{{12}})\.json")
_FINGERPRINT = re.compile(r"[0-9a-f]{6,64}")
_DIGITS = 12
Place = TypeVar("Place", bound=Location)


@dataclass(frozen=True)
class EarlierBuild(Generic[Place]):
    """An earlier build of a corpus, whose manifest is kept in `file`. `number` is the running number in the
    file's name, from 1, and `fingerprint` is the first 12 hexadecimal digits of the manifest's fingerprint.
    """

    number: int
    fingerprint: str
    file: Place


def earlier_builds(directory: Place) -> list[EarlierBuild[Place]]:
    """Return the earlier builds kept in a corpus directory, oldest first."""
    names = (path.name for path in directory.glob(f"{EARLIER}*.json"))
    matches = sorted((int(match[1]), match[2], match[0]) for match in map(_FILE.fullmatch, names) if match)
    return [EarlierBuild(number, fingerprint, directory / name) for number, fingerprint, name in matches]


def surplus_builds(directory: Place, keep: int) -> list[EarlierBuild[Place]]:
    """Return the earlier builds that `gc` removes, oldest first. It keeps the newest `keep` builds whose
    fingerprint differs from that of the published build. Raises CorruptFileError if the published manifest is
    damaged.
    """
    builds = earlier_builds(directory)
    own = load_corpus(directory).fingerprint[:_DIGITS] if builds and (directory / "manifest.json").exists() else ""
    # A killed build may have left a copy of the published manifest.
    others = [build for build in builds if build.fingerprint != own]
    kept = others[max(0, len(others) - keep) :]
    return [build for build in builds if build not in kept]


def is_build_name(text: str) -> bool:
    """Return whether a text has the form of a name of an earlier build: `previous`, or the beginning of a
    fingerprint (6 to 64 lower-case hexadecimal digits).
    """
    return text == PREVIOUS or _FINGERPRINT.fullmatch(text) is not None


def find_earlier(corpus: Location, name: str) -> Location:
    """Return the manifest file of an earlier build of a corpus. `corpus` is the directory of the corpus or
    one of its manifests; if that is the manifest of an earlier build, only builds before it are considered.

    `name` is `previous`, for the last earlier build, or the first digits of a fingerprint. Builds with the
    same fingerprint as `corpus` are skipped. Raises UserError unless exactly one build matches.
    """
    directory = corpus.parent if corpus.suffix == ".json" else corpus
    own = load_corpus(corpus).fingerprint
    builds = earlier_builds(directory)
    if match := _FILE.fullmatch(corpus.name):
        builds = [each for each in builds if each.number < int(match[1])]
    others = [each for each in builds if each.fingerprint != own[:_DIGITS]]
    if not others:
        raise UserError(
            f"{corpus}: no earlier build of it is kept; a build keeps the manifest that it replaces, `gc` removes all but the "
            f"last {KEPT} (`--keep`), and `forget` all"
        )
    chosen = (
        others[-1:] if name == PREVIOUS else [each for each in others if each.fingerprint.startswith(name[:_DIGITS])]
    )
    if len(chosen) != 1:
        have = ", ".join(each.fingerprint for each in others)
        raise UserError(
            f"{corpus}: {len(chosen) or 'no'} earlier builds have a fingerprint that begins with {name!r}, expected one; there "
            f"are: {have} (a directory of this name is ./{name})"
        )
    return chosen[0].file


def keep_replaced(root: Location, manifest: CorpusManifest, check: Check) -> Location | None:
    """Keep a copy of the published manifest that `manifest` is about to replace, and return the location of
    the copy.

    Return None, and keep nothing, if no intact manifest is published, if both manifests have the same steps,
    or if a step of the published one is gone.
    """
    try:
        before = load_corpus(root)
    except UserError:  # there is none, or it is damaged
        return None
    if _steps(before) == _steps(manifest):
        return None
    builds = earlier_builds(root)
    # A build that was killed before it published may have kept it.
    if builds and builds[-1].fingerprint == before.fingerprint[:_DIGITS]:
        return builds[-1].file
    number = builds[-1].number + 1 if builds else 1
    name = f"{EARLIER}{number:04d}-{before.fingerprint[:_DIGITS]}.json"

    def check_whole() -> None:
        check()
        for step in before.steps:
            if load_step(root, step["directory"]) is None:
                raise _IncompleteError

    try:
        save_corpus(root, before, check_whole, name)
    except (_IncompleteError, CorruptFileError):
        return None
    for build in builds:
        if build.fingerprint == before.fingerprint[:_DIGITS]:  # the same build again: only its last time counts
            build.file.unlink(missing_ok=True)
    return root / name


def _steps(manifest: CorpusManifest) -> list[str]:
    return [step["fingerprint"] for step in manifest.steps]


class _IncompleteError(Exception):
    """A step of the build to keep is missing."""
