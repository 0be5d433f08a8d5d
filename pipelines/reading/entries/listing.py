"""List the files of a source below a directory or a URL."""

import os
import stat
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from gristmill.errors import SourceError, UserError
from gristmill.storage.paths import is_url
from gristmill.storage.remote import file_name, has_query, list_urls, shown
from pipelines.reading.entries.files import SourceFile, printable_name, read_error
from pipelines.reading.entries.git_entries import describe_repository, is_repository
from pipelines.reading.entries.hf_dataset import select_saved_files
from pipelines.reading.entries.licence_names import is_licence_name, with_licences
from pipelines.reading.entries.named_files import ask_facts, chosen_patterns, read_names
from pipelines.reading.sources.globs import covers, matches, may_contain
from pipelines.reading.sources.registry import format_of
from pipelines.reading.sources.source import Source

_Listing = tuple[Iterable[str], Callable[[str], SourceFile | None]]


def list_files(source: Source) -> list[SourceFile]:
    """List the files under the source's root that match `include` and not `exclude`, sorted by relative path.

    The root may be a directory, a symbolic link to one, a single file (its relative path is its name), or the
    URL of a prefix or of one file. Links to files and directories are followed. If the source sets `files`,
    the names come from that list.

    In a format that reads git repositories, each repository is listed as one file. In a format that uses
    licences, licence files are listed even if `include` does not match them. In the format `hf_dataset`, only
    the files with the rows of the dataset are listed.

    Raises SourceError if the root is missing or cannot be read, an `include` pattern matches nothing, two
    files have the same printable path, or no file is left.
    """
    where = f"source {source.name!r}"
    names, describe = _list_remote(source, where) if is_url(source.root) else _list_local(source, where)
    found: dict[str, SourceFile] = {}
    patterns = chosen_patterns(source)
    kind = format_of(source.format)
    unmatched = set(patterns)
    for raw in names:
        hits = [pattern for pattern in patterns if matches(raw, (pattern,))]
        unmatched.difference_update(hits)
        wanted = hits or not patterns or (kind.licences and is_licence_name(raw))
        file = describe(raw) if wanted and not matches(raw, source.exclude) else None
        if file is None:
            continue
        if file.path in found:
            raise SourceError(
                f"{where}: two files under {shown(source.root)!r} have the printed name {file.path!r}; rename one"
            )
        found[file.path] = file
    if unmatched:
        pattern = next(p for p in patterns if p in unmatched)
        raise SourceError(
            f"{where}: include {pattern!r} matches no file under {shown(source.root)!r}; globs are relative to the root, "
            "* stays within a name, ** crosses directories, and a leading dot must be spelled"
        )
    if not found and kind.repositories:
        raise SourceError(
            f"{where}: there is no git repository under {shown(source.root)!r} that `exclude` leaves: neither a bare one nor a "
            "directory with `.git` (which is a file in submodules and linked work trees)"
        )
    if not found:
        raise SourceError(
            f"{where}: exclude {list(source.exclude)} leaves no file under {shown(source.root)!r}; narrow it"
        )
    files = [found[path] for path in sorted(found)]
    if kind.licences:
        return with_licences(files)
    return select_saved_files(files, source) if source.format == "hf_dataset" else files


def _list_local(source: Source, where: str) -> _Listing:
    """Return the names of local files, and a function from a name to its SourceFile, or to None if the name
    is to be skipped.
    """
    root = Path(source.root)
    if not root.exists():
        raise SourceError(
            f"{where}: root {source.root!r} does not exist (looked for {root.absolute()}); "
            "fetch the data there, or correct `root`, which is relative to the working directory"
        )
    repositories = format_of(source.format).repositories
    base, directory = root.absolute(), root.is_dir() and not (repositories and is_repository(source.root))

    def describe(raw: str) -> SourceFile | None:
        location = str(base / raw if directory else base)
        if repositories:
            repository = describe_repository(source, raw, location, where)
            if repository is None and source.files is not None:
                raise SourceError(
                    f"{where}: files: {shown(source.files)} names {printable_name(raw)!r}, which is no repository"
                )
            return repository
        status = _stat(location, where)
        if stat.S_ISREG(status.st_mode):
            return SourceFile(printable_name(raw), status.st_size, location)
        if source.files is not None:
            raise SourceError(
                f"{where}: files: {shown(source.files)} names {printable_name(raw)!r}, which is a directory or no regular "
                "file; name the files themselves"
            )
        return None

    if source.files is not None:
        if not directory:
            raise SourceError(
                f"{where}: files: root {source.root!r} is a file; expected a directory, to which paths are relative"
            )
        return read_names(source, where), describe
    if not directory:
        return [base.parent.name if repositories and base.name == ".git" else base.name], describe
    status = root.stat()
    return _walk(source, source.root, "", ((status.st_dev, status.st_ino),), where), describe


def _list_remote(source: Source, where: str) -> _Listing:
    root = source.root if has_query(source.root) else source.root.rstrip("/")
    if source.files is not None:
        patterns = chosen_patterns(source)
        names = [name for name in read_names(source, where) if not patterns or matches(name, patterns)]
        wanted = [name for name in names if not matches(name, source.exclude)]
        known = ask_facts(source, root, wanted, where)
        return names, lambda name: SourceFile(
            name, known[name].size, f"{root}/{name}", known[name].version, source.remote
        )
    try:
        facts = list_urls(root, source.remote)
    except UserError as error:
        raise SourceError(f"{where}: {error}") from None
    if not facts:
        raise SourceError(f"{where}: there is no file at {shown(source.root)!r}; correct `root`")
    alone = "" in facts
    if alone:  # the root is a file; other keys that merely begin with its URL do not belong to it
        facts = {file_name(root): facts[""]}

    def describe(raw: str) -> SourceFile:
        location = root if alone else f"{root}/{raw}"
        return SourceFile(raw, facts[raw].size, location, facts[raw].version, source.remote)

    return list(facts), describe


def _walk(
    source: Source, directory: str, prefix: str, ancestors: tuple[tuple[int, int], ...], where: str
) -> Iterator[str]:
    try:
        entries = list(os.scandir(directory))
    except OSError as error:
        raise SourceError(f"{where}: {read_error(directory, error)}") from None
    for entry in entries:
        relative = prefix + entry.name
        if not entry.is_dir() or (format_of(source.format).repositories and is_repository(entry.path)):
            yield relative
        elif may_contain(relative, source.include) and not covers(relative, source.include, source.exclude):
            status = _stat(entry.path, where)
            identity = (status.st_dev, status.st_ino)
            if identity not in ancestors:
                yield from _walk(source, entry.path, relative + "/", (*ancestors, identity), where)


def _stat(location: str, where: str) -> os.stat_result:
    try:
        return os.stat(location)
    except OSError as error:
        raise SourceError(f"{where}: {read_error(location, error)}") from None
