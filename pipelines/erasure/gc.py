"""Garbage collection: find and remove step directories and search indexes that nothing uses any more."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from gristmill.errors import ConflictError, UserError
from gristmill.storage.disk import LocalPath
from pipelines.building.earlier_builds import earlier_builds
from pipelines.contracts.manifest import load_corpus, variants_in
from pipelines.contracts.search_index.index_units import INDEX_FOLDER, current_units
from pipelines.planning.corpus import CorpusConfig
from pipelines.planning.inventory import take_inventory
from pipelines.planning.plan import FINGERPRINT_DIGITS, make_plan
from pipelines.planning.poison import load_poison
from pipelines.planning.published import add_published_files


@dataclass(frozen=True)
class UnreachedStep:
    """A step directory, or a directory of a search index, that nothing uses. `published` says whether it was
    finished.
    """

    path: LocalPath
    bytes: int
    published: bool


def find_unreached(
    configs: Sequence[CorpusConfig], output: LocalPath, surplus: Collection[LocalPath] = ()
) -> list[UnreachedStep]:
    """Return the unused steps and stale search indexes in `output`, the output of all `configs`. A step is
    used if it is in the plan of a configuration, or belongs to the published corpus, to a variant, or to an
    earlier build whose manifest is not in `surplus`. Raises UserError if the configurations have different
    outputs.
    """
    outputs = {config.output for config in configs}
    if len(outputs) != 1:
        raise UserError(
            f"gc: the files have different outputs ({', '.join(sorted(outputs))}); name files of one corpus"
        )
    reached: set[str] = set()
    for config in configs:
        plan = add_published_files(make_plan(config, take_inventory(config.sources, output), load_poison(output)))
        reached.update(step.directory for step in plan.steps)
    return [*list_unreached(output, reached | _used(output, surplus)), *list_stale_indexes(output)]


def remove_steps(steps: Sequence[UnreachedStep], check: Callable[[], None]) -> None:
    """Remove the directories of steps or search indexes. `check` is called before each removal, and must
    raise an error if this process may no longer remove anything. Raises ConflictError if a corpus, a variant
    or an earlier build uses one of the steps.
    """
    for step in steps:
        check()
        output, aside = step.path.parent, step.path.set_aside()
        for manifest in output.glob(".*.json.*.tmp"):
            manifest.unlink(missing_ok=True)  # of a build that has checked that the step exists: it must check again
        if step.path.name in _used(output):
            aside.rename_if_possible(step.path)
            raise ConflictError(f"{step.path}: a corpus published meanwhile uses it; run the command again")
        aside.remove_tree()
        output.fsync()


def _used(output: LocalPath, surplus: Collection[LocalPath] = ()) -> set[str]:
    earlier = [build.file for build in earlier_builds(output) if build.file not in surplus]
    published = [path for path in (output / "manifest.json", *variants_in(output), *earlier) if path.exists()]
    return {str(step["directory"]) for path in published for step in load_corpus(path).steps}


def list_unreached(output: LocalPath, reached: Collection[str]) -> list[UnreachedStep]:
    """Return the step directories in `output` whose names are not in `reached`."""
    steps = []
    for path in sorted(output.iterdir()) if output.is_dir() else ():
        if path.is_dir() and _is_step(path) and path.name not in reached:
            steps.append(UnreachedStep(path, path.bytes_below(), (path / "manifest.json").exists()))
    return steps


def list_stale_indexes(output: LocalPath) -> list[UnreachedStep]:
    """Return the search indexes in an output whose names match no part of the published corpus or of its
    variants.
    """
    folder = output / INDEX_FOLDER
    return list_unreached(folder, current_units(output)) if folder.is_dir() else []


def _is_step(path: LocalPath) -> bool:
    digits = path.name.rpartition("-")[2]
    return len(digits) == FINGERPRINT_DIGITS and set(digits) <= set("0123456789abcdef")
