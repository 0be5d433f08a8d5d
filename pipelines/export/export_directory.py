"""Create the directory of an export, record its finished files so that an interrupted export can continue,
and complete it. A complete export has an `export.json`.
"""

import platform
import zlib
from dataclasses import asdict, dataclass, fields
from fnmatch import fnmatch
from typing import Any, TypeVar

from gristmill.errors import ConflictError, CorruptFileError
from gristmill.storage.location import FileRecord, Location
from gristmill.storage.store import read_json, write_json
from pipelines.contracts.lineage import Corpus
from pipelines.contracts.manifest import load_corpus
from pipelines.contracts.stage import library_versions
from pipelines.contracts.tombstone import read_tombstone

FORMAT = "gristmill-export/2"
UNFINISHED = "unfinished.json"


@dataclass(frozen=True)
class ExportedFile:
    """The record of one file of an export. `text_bytes` is the size in UTF-8 of the texts of its documents."""

    path: str
    bytes: int
    xxh3_128: str
    sha256: str
    source: str
    split: str
    documents: int
    text_bytes: int


Written = TypeVar("Written", ExportedFile, FileRecord)


class UnfinishedExport:
    """The file `unfinished.json` of an export. It contains the request (what is exported, and how) and a
    receipt for each file of documents or tokens written so far: the record of the file and a digest of its
    inputs.
    """

    def __init__(self, output: Location, request: dict[str, Any], receipts: dict[str, Any]) -> None:
        self._output, self._request, self._receipts = output, request, receipts

    def finished(self, path: str, inputs: str, kind: type[Written]) -> Written | None:
        """Return the record of the file at `path`, an instance of `kind`, if an earlier run wrote the file
        from inputs with the digest `inputs` and the file still matches its record; otherwise return None.
        """
        receipt = self._receipts.get(path)
        if receipt is None or receipt["inputs"] != inputs:
            return None
        file = kind(**{field.name: receipt["file"][field.name] for field in fields(kind)})
        try:
            # From an object store, `verify` may return the copy in the cache although the object is gone.
            if (self._output / file.path).stat().st_size != file.bytes:
                return None
            self._output.verify(FileRecord(file.path, file.bytes, file.xxh3_128))
        except (CorruptFileError, FileNotFoundError):
            return None
        return file

    def add(self, path: str, inputs: str, file: ExportedFile | FileRecord) -> None:
        """Add a receipt for `file`, written at `path` from inputs with the digest `inputs`, and save it."""
        self._receipts[path] = {"inputs": inputs, "file": asdict(file)}
        self.save()

    def save(self) -> None:
        """Write `unfinished.json`."""
        write_json(self._output / UNFINISHED, {**self._request, "written_by": _versions(), "finished": self._receipts})


def _versions() -> dict[str, str]:
    """Return the versions of the software on which the bytes of exported files depend."""
    return {
        "python": platform.python_version(),
        "zlib": zlib.ZLIB_RUNTIME_VERSION,
        **library_versions("gristmill", "pyarrow"),
    }


def prepare_output(output: Location, corpus: Corpus, request: dict[str, Any]) -> UnfinishedExport:
    """Create the directory of an export, or continue an unfinished run of the same export. Files written with
    another version of gristmill, Python, PyArrow or zlib will be written again. Raises ConflictError if
    `output` is a file, lies inside the corpus, or is a non-empty directory without an unfinished run of this
    export.
    """
    if output.is_file():
        raise ConflictError(f"{output}: is a file, expected a directory")
    if output.is_within(corpus.directory):
        raise ConflictError(f"{output}: lies inside the corpus; name a directory outside it")
    marker = output / UNFINISHED
    receipts: dict[str, Any] = {}
    if marker.exists():
        begun = read_json(marker)
        receipts = begun.pop("finished", {}) if begun.pop("written_by", None) == _versions() else {}
        if {name: value for name, value in begun.items() if name not in ("checksum", "finished")} != request:
            raise ConflictError(f"{output}: holds another export, unfinished; remove it, or name another directory")
    elif output.is_dir() and any(not fnmatch(path.name, f".{UNFINISHED}.*.tmp") for path in output.iterdir()):
        raise ConflictError(f"{output}: is not empty; name a directory that is empty or does not exist")
    output.remove_temporaries()  # left by an export that was killed
    unfinished = UnfinishedExport(output, request, receipts)
    unfinished.save()
    return unfinished


def check_unchanged(place: Location, corpus: Corpus, output: Location) -> None:
    """Raise ConflictError if the corpus at `place` is no longer the opened corpus, or if a `forget` on it is
    unfinished.
    """
    if load_corpus(place).fingerprint != corpus.manifest.fingerprint or read_tombstone(corpus.directory)["pending"]:
        raise ConflictError(
            f"{place}: a build or forget changed the corpus while it was exported; remove {output} and export again"
        )


def markdown_cell(value: str) -> str:
    """Escape text for a cell of a Markdown table."""
    for old, new in (("&", "&amp;"), ("<", "&lt;"), ("|", "&#124;"), ("\r", " "), ("\n", " ")):
        value = value.replace(old, new)
    return value


def finish_output(output: Location) -> None:
    """Remove `unfinished.json`. Call this only after `export.json` has been written."""
    (output / UNFINISHED).unlink(missing_ok=True)  # another process may have finished the same export
    output.fsync()
