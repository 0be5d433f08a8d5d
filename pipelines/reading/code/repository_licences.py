"""The licences of directories: of a checkout from the licence files beside and above a file, of an archive from those in it."""

from dataclasses import dataclass, field, replace

from pipelines.reading.code.licence_text import licences_in, together
from pipelines.reading.entries.archives import Entry, open_entries
from pipelines.reading.entries.decompress import DecodeBudget, decompress
from pipelines.reading.entries.files import SourceFile, file_chunks
from pipelines.reading.entries.licence_names import directory_of, is_licence_name
from pipelines.reading.entries.reasons import BrokenInput
from pipelines.reading.sources.source import Source

_LICENCE_BYTES = 1 << 20  # of a licence file; longer ones are not read
_MOST_LICENCES = 100_000  # of an archive
_MEMBERS = (
    "**/*[Ll][Ii][Cc][Ee][Nn][CcSs][Ee]*",
    "**/*[Cc][Oo][Pp][Yy][Ii][Nn][Gg]*",
    "**/[Cc][Oo][Pp][Yy][Rr][Ii][Gg][Hh][Tt]*",
)


@dataclass
class RepositoryLicences:
    """Looks up which licence each directory has for the files of one task."""

    source: Source
    _known: dict[str, list[str]] = field(default_factory=dict)  # by the location of a licence file

    def __call__(self, file: SourceFile) -> dict[str, str]:
        """Return SPDX expressions by directory, as `nearest` finds them. Of an archive it is every directory in it with a
        licence file, for which the archive is read once more; otherwise it is the root alone, for the licence that applies to
        the file.

        Raises SourceError and StorageError if a licence file beside it cannot be opened. Damage is left to the reader.
        """
        found: dict[str, list[str]] = {}
        for entry in open_entries(file, replace(self.source, members=_MEMBERS)):
            if "!" not in entry.path:
                break  # no archive
            if is_licence_name(entry.path) and len(found) < _MOST_LICENCES:
                found.setdefault(directory_of(entry.path), []).extend(_licences(entry))
        for licence in () if found else file.licences:
            found.setdefault("", []).extend(self._read(licence))
        return {directory: named for directory, names in found.items() if (named := together(sorted(names)))}

    def _read(self, file: SourceFile) -> list[str]:
        if file.location not in self._known:
            budget = DecodeBudget(_LICENCE_BYTES)
            chunks = decompress(file.path, file_chunks(file), budget)[1]
            self._known[file.location] = _licences(Entry(file.path, chunks))
        return self._known[file.location]


def _licences(entry: Entry) -> list[str]:
    try:
        data = entry.read(_LICENCE_BYTES)
    except BrokenInput:
        data = None
    return licences_in(data.decode("utf-8", "replace")) if data else []
