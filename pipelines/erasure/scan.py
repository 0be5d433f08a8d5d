"""Scan the files under a corpus directory for excerpts of texts and for document ids."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from gristmill.errors import CorruptFileError
from pipelines.contracts.document import ID
from pipelines.contracts.manifest import open_table

_PROBE_BYTES = 48  # long enough that a match is not a coincidence
_PROBES = 16
_LEAST_BYTES, _LEAST_DIFFERENT = 16, 8  # shorter or more monotonous probes occur in manifests too
_TOKENIZER = "tokenizer.json"  # learned from many documents, and remains; a token may be the whole text of a document


def make_probes(texts: Sequence[str]) -> list[bytes]:
    """Cut up to 16 excerpts of 48 bytes from each text, spread evenly over it; a shorter text is used whole.
    Excerpts with fewer than 16 bytes, or fewer than 8 distinct bytes, are left out.
    """
    probes = []
    for text in texts:
        data = text.encode()
        step = max((len(data) - _PROBE_BYTES) // (_PROBES - 1), 1)
        probes += [data[at : at + _PROBE_BYTES] for at in range(0, max(len(data) - _PROBE_BYTES, 0) + 1, step)][
            :_PROBES
        ]
    return [probe for probe in probes if len(probe) >= _LEAST_BYTES and len(set(probe)) >= _LEAST_DIFFERENT]


@dataclass(frozen=True)
class Hit:
    """A file in which `scan` found an excerpt or an id. `path` is relative to the scanned directory. `ids`
    holds the document ids (16 bytes each) of the matching rows, and is empty if the file has no id column.
    `probes` holds the excerpts found.
    """

    path: str
    ids: tuple[bytes, ...]
    probes: frozenset[bytes]


def scan(directory: Path, probes: Sequence[bytes], ids: Sequence[bytes]) -> tuple[list[Hit], int, int]:
    """Search all files below `directory`, except those named tokenizer.json, and return (hits, number of
    files read, number of bytes read). A file is a hit if it contains one of the excerpts `probes`. An Arrow
    file is also a hit if it has a row of a document in `ids`; its excerpts are searched for only in string
    columns. Raises CorruptFileError for an unreadable file.
    """
    hits, files, size = [], 0, 0
    wanted = pa.array(ids, ID)
    for path in sorted(path for path in directory.rglob("*") if path.name != _TOKENIZER and path.is_file()):
        try:
            length = path.stat().st_size
            is_table = path.suffix == ".arrow"
            matching, found = _match_rows(path, probes, wanted) if is_table else ([], _match_bytes(path, probes))
        except FileNotFoundError:
            continue
        except (pa.ArrowException, OSError) as error:
            raise CorruptFileError(f"{path}: cannot be read, and may hold them: {error}") from error
        files += 1
        size += length
        if matching or found:
            hits.append(Hit(path.relative_to(directory).as_posix(), tuple(matching), frozenset(found)))
    return hits, files, size


def _match_bytes(path: Path, probes: Sequence[bytes]) -> set[bytes]:
    """Return the probes that the file contains. The file is not searched for ids."""
    data = path.read_bytes()
    return {probe for probe in probes if probe in data}


def _match_rows(path: Path, probes: Sequence[bytes], wanted: pa.Array) -> tuple[list[bytes], set[bytes]]:
    """Return (ids, probes found) for an Arrow file. A row matches if its document id is in `wanted` or a
    string in it contains a probe. `ids` are the document ids of the matching rows; there are none if the file
    has no column of ids.
    """
    ids: list[bytes] = []
    found: set[bytes] = set()
    with open_table(path) as source:
        reader = pa.ipc.open_file(source)
        for number in range(reader.num_record_batches):
            batch = reader.get_batch(number)
            mask = pa.array([False] * batch.num_rows, pa.bool_())
            identifiers = None
            for name, column in zip(batch.schema.names, batch.columns, strict=True):
                if name in ("id", "doc_id") and column.type == ID:
                    identifiers = column
                    mask = pc.or_(mask, pc.is_in(column, value_set=wanted))
                elif pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
                    for probe in probes:
                        holding = pc.fill_null(pc.match_substring(column, probe), False)
                        if pc.any(holding).as_py():
                            found.add(probe)
                            mask = pc.or_(mask, holding)
            ids += identifiers.filter(mask).to_pylist() if identifiers is not None else []
    return ids, found
