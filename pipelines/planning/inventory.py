"""The inventory of a source: its files with their sizes and checksums, from which planning detects changes.
Also defines the step that reads a source (`Read`).
"""

import os
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from gristmill.config import plain
from gristmill.errors import CorruptFileError, SourceError
from gristmill.storage.location import Location
from gristmill.storage.store import digest, read_json, write_json
from pipelines.contracts.stage import Stage
from pipelines.reading import documents as read
from pipelines.reading.entries.files import SourceFile, checksum_of, read_error, read_units
from pipelines.reading.entries.licence_names import VERSION as LICENCES_VERSION
from pipelines.reading.entries.listing import list_files
from pipelines.reading.entries.normalise import TWEETS_VERSION
from pipelines.reading.sources.registry import format_code, format_of
from pipelines.reading.sources.source import Source
from pipelines.reading.web import page_process
from pipelines.reading.web.choice.best_extraction import rule_version
from pipelines.reading.web.page_fields import VERSION as FIELDS_VERSION
from pipelines.reading.web.page_markdown import VERSION as MARKDOWN_VERSION
from pipelines.reading.web.page_measures import VERSION as MEASURES_VERSION
from pipelines.reading.web.page_reservations import VERSION as RESERVATIONS_VERSION

# Fields that do not affect which documents are read from the same files.
_NOT_IDENTITY = (
    "root", "remote", "identity", "include", "exclude", "files", "tokenizer_share", "licence", "origin", "page_cpu_seconds",
    "page_memory_bytes", "max_quarantined", "allow_empty", "split", "revision",
)  # fmt: skip
_CHECKSUMS = ".checksums.json"


@dataclass(frozen=True)
class Inventory:
    """The files of a source in order, each with its checksum: the commit for a repository, a digest of size
    and listed version with `identity: listing`, and otherwise the file's xxh3_128.
    """

    files: tuple[SourceFile, ...]
    checksums: tuple[str, ...]

    @property
    def bytes(self) -> int:
        """The total size of the files in bytes, as stored."""
        return sum(file.size for file in self.files)

    @property
    def digest(self) -> str:
        """A digest of the files' relative paths, sizes and checksums."""
        return digest([[f.path, f.size, c] for f, c in zip(self.files, self.checksums, strict=True)])

    def units(self, unit_bytes: int) -> list[list[int]]:
        """Group the files into read tasks, each a list of indices into `files`. The files of a task have at
        most `unit_bytes` bytes in total; a larger file is a task by itself.
        """
        positions = {file.path: position for position, file in enumerate(self.files)}
        return [[positions[file.path] for file in unit] for unit in read_units(self.files, unit_bytes)]


@dataclass(frozen=True)
class Read(Stage):
    """The first step of every source, which turns files into document parts.

    `poison` names the records, as `path#record`, that are set aside because they crash their parser.
    """

    source: Source
    poison: tuple[str, ...] = ()
    version: ClassVar[int] = read.VERSION

    def depends(self) -> dict[str, str]:
        source = self.source
        found = {"reservations": RESERVATIONS_VERSION} if page_process.holds_pages(source) else {}
        found |= {"licences": LICENCES_VERSION} if format_of(source.format).shared else {}
        found |= {"page_fields": FIELDS_VERSION} if source.page_fields else {}
        found |= {"best": rule_version()} if page_process.holds_pages(source) and source.extract == "best" else {}
        found |= {"page_measures": MEASURES_VERSION} if source.page_measures else {}
        found |= {"tweets": TWEETS_VERSION} if source.normalisation == "tweets" else {}
        found |= {"markdown": MARKDOWN_VERSION} if source.markup == "markdown" else {}
        return read.depends() | page_process.libraries(source) | found | format_code(source.format)

    def knobs(self) -> dict[str, Any]:
        """Return the fields of the source that the documents depend on."""
        return {name: value for name, value in plain(self.source).items() if name not in _NOT_IDENTITY}


def take_inventory(sources: Sequence[Source], output: Location) -> dict[str, Inventory]:
    """List the files of every source, and return the inventories by source name. Checksums are cached under
    `output` if it exists.
    """
    cache_path = output / _CHECKSUMS
    cache = _load_cache(cache_path)
    fresh: dict[str, list[Any]] = {}
    inventories = {}
    with ThreadPoolExecutor(4) as pool:
        for source in sources:
            files = list_files(source)
            found = list(pool.map(partial(_cached_checksum, source=source, cache=cache), files))
            fresh.update({digest(file.location): entry for file, entry in zip(files, found, strict=True)})
            inventories[source.name] = Inventory(tuple(files), tuple(entry[2] for entry in found))
    if fresh != cache and output.exists():
        write_json(cache_path, {"files": fresh})
    return inventories


def _cached_checksum(file: SourceFile, source: Source, cache: dict[str, list[Any]]) -> list[Any]:
    """Return [size, version, checksum] of a file. If the file has a commit, or if its source sets `identity:
    listing`, the commit or the listed version takes the place of the file's content. Otherwise, the file is
    read unless the cache has a checksum for its size and version.
    """
    if file.commit is not None:
        return [file.size, file.commit, file.commit]
    if source.identity == "listing":
        if file.version is None:
            raise SourceError(
                f"source {source.name!r}: identity: the listing of {file.path} has no field that changes with its "
                f"content; leave `identity` out"
            )
        # Not the version alone: with `identity: content`, the cache must not take this for a checksum of the content.
        return [file.size, f"listing {file.version}", digest([file.size, file.version])]
    try:
        version = file.version if file.remote else _times(file.location)
    except OSError as error:
        raise read_error(file.location, error) from None
    known = cache.get(digest(file.location))  # digested, because a name need not be valid Unicode
    if known and version is not None and known[:2] == [file.size, version]:
        return known
    return [file.size, version, checksum_of(file)]


def _times(location: str) -> str:
    status = os.stat(location)
    return f"{status.st_mtime_ns} {status.st_ctime_ns}"


def forget_checksums(output: Location, locations: Collection[str]) -> None:
    """Make the next inventory read the files at these locations again, even if their sizes and times are
    unchanged.
    """
    cache = _load_cache(output / _CHECKSUMS)
    gone = {digest(location) for location in locations}
    write_json(output / _CHECKSUMS, {"files": {name: entry for name, entry in cache.items() if name not in gone}})


def _load_cache(path: Location) -> dict[str, list[Any]]:
    try:
        return dict(read_json(path)["files"])
    except (OSError, CorruptFileError):
        return {}
