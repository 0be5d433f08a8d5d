"""Find the licences that apply to each file of a source. In a checkout, they come from the nearest licence
files above the file. In an archive or git repository, they come from the licence files inside it. If there
are none inside, the licences that apply to the archive or repository itself are used.
"""

from collections.abc import Mapping
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
    """Finds the licences that apply to the entries of files, by directory, and caches them."""

    source: Source
    _read_files: dict[str, list[str]] = field(default_factory=dict)  # by the location of a licence file
    _archive: str = ""  # the location of the archive that was looked through last
    _in_it: dict[str, str] = field(default_factory=dict)

    def __call__(self, file: SourceFile, path: str) -> dict[str, str]:
        """Return the SPDX expressions of the licences that may apply to the entry `path` of `file`, keyed by
        directory; empty if no licence is recognised.

        For a member of an archive or git repository, the keys are the directories inside it, as
        `directory_of` writes them, that have a licence file with a recognised licence. The archive or
        repository is read one extra time to find them. For any other file, or if no licence is recognised
        inside, the only key is "", and its licences are those in `file.licences`.

        Raises UserError or StorageError if the archive or a licence file cannot be opened.
        """
        if path != file.path:
            if self._archive != file.location:
                self._archive, self._in_it = file.location, self._in_archive(file)
            if self._in_it:
                return self._in_it
        return _expressions({"": [name for licence in file.licences for name in self._beside(licence)]})

    def _in_archive(self, file: SourceFile) -> dict[str, str]:
        found: dict[str, list[str]] = {}
        for entry in open_entries(file, replace(self.source, members=_MEMBERS)):
            name = entry.member
            if name is not None and is_licence_name(name) and len(found) < _MOST_LICENCES:
                found.setdefault(directory_of(name), []).extend(_licences(entry))
        return _expressions(found)

    def _beside(self, file: SourceFile) -> list[str]:
        if file.location not in self._read_files:
            budget = DecodeBudget(_LICENCE_BYTES)
            chunks = decompress(file.path, file_chunks(file), budget)[1]
            self._read_files[file.location] = _licences(Entry(file.path, chunks))
        return self._read_files[file.location]


def _expressions(found: Mapping[str, list[str]]) -> dict[str, str]:
    return {directory: named for directory, names in found.items() if (named := together(sorted(names)))}


def _licences(entry: Entry) -> list[str]:
    try:
        data = entry.read(_LICENCE_BYTES)
    except BrokenInput:
        data = None
    return licences_in(data.decode("utf-8", "replace")) if data else []
