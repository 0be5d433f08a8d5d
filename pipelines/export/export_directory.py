"""The directory of an export: taken over only from an unfinished run of the same export, and whole once it has an
`export.json`.
"""

from dataclasses import dataclass
from fnmatch import fnmatch
from typing import Any

from gristmill.errors import ConflictError
from gristmill.storage.location import Location
from gristmill.storage.store import read_json, write_json
from pipelines.contracts.lineage import Corpus
from pipelines.contracts.manifest import load_corpus
from pipelines.contracts.tombstone import read_tombstone

FORMAT = "gristmill-export/2"
UNFINISHED = "unfinished.json"


@dataclass(frozen=True)
class ExportedFile:
    """A file of an export: its record, its SHA-256 in hex, the source and the split of its documents, their number and
    their UTF-8 bytes of text.
    """

    path: str
    bytes: int
    xxh3_128: str
    sha256: str
    source: str
    split: str
    documents: int
    text_bytes: int


def prepare_output(output: Location, corpus: Corpus, request: dict[str, Any]) -> None:
    """Create the directory of an export, or take over an unfinished run of the same export."""
    if output.is_file():
        raise ConflictError(f"{output}: is a file, expected a directory")
    if output.is_within(corpus.directory):
        raise ConflictError(f"{output}: lies inside the corpus; name a directory outside it")
    marker = output / UNFINISHED
    if marker.exists():
        begun = {name: value for name, value in read_json(marker).items() if name != "checksum"}
        if begun != request:
            raise ConflictError(f"{output}: holds another export, unfinished; remove it, or name another directory")
    elif output.is_dir() and any(not fnmatch(path.name, f".{UNFINISHED}.*.tmp") for path in output.iterdir()):
        raise ConflictError(f"{output}: is not empty; name a directory that is empty or does not exist")
    output.remove_temporaries()  # left by an export that was killed
    write_json(marker, request)


def check_unchanged(corpus: Corpus, output: Location) -> None:
    """Raise ConflictError if the corpus is not the one that was opened, or `forget` is changing it."""
    directory = corpus.directory
    if load_corpus(directory).fingerprint != corpus.manifest.fingerprint or read_tombstone(directory)["pending"]:
        raise ConflictError(
            f"{directory}: a build or forget changed the corpus while it was exported; remove {output} and export again"
        )


def markdown_cell(value: str) -> str:
    """Escape a text of the corpus file for a Markdown table."""
    for old, new in (("&", "&amp;"), ("<", "&lt;"), ("|", "&#124;"), ("\r", " "), ("\n", " ")):
        value = value.replace(old, new)
    return value


def finish_output(output: Location) -> None:
    """Remove the mark of an unfinished export, after `export.json` has been written."""
    (output / UNFINISHED).unlink()
    output.fsync()
