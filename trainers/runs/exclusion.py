"""Exclude documents from the loss of a run. They keep their places in the rows, but no other document attends
to them and their loss weight is 0.
"""

import pyarrow as pa
import pyarrow.compute as pc

from gristmill.errors import UserError
from gristmill.storage.disk import LocalPath
from gristmill.storage.store import read_json, write_json
from pipelines.contracts.document import ID, document_id, file_key, parse_id
from trainers.data.packed_corpus import TrainingCorpus

FORMAT, FILE = "gristmill-excluded/1", "excluded.json"


def read_excluded(run: LocalPath) -> frozenset[bytes]:
    """Read the 16-byte ids of the documents that are excluded from a run."""
    path = run / FILE
    if not path.exists():
        return frozenset()
    mend = "remove it, and name all excluded documents again with --exclude-documents"
    return frozenset(bytes.fromhex(entry) for entry in read_json(path, mend)["documents"])


def exclude(run: LocalPath, file: LocalPath, corpus: TrainingCorpus) -> int:
    """Exclude the documents named in `file` from the loss of `run`, and record this in the run's directory.
    Returns the number of excluded documents, earlier ones included.

    Each line of `file` is the id of a document, written as `source/path#record` or as 32 hex digits. Raises
    UserError if `file` is malformed or a document is in no training shard of the corpus.
    """
    wanted: dict[bytes, str] = {}
    try:
        # Not `splitlines`: paths may hold other characters that end a line, such as U+2028.
        lines = file.read_text(encoding="utf-8-sig").split("\n")
    except UnicodeDecodeError:
        raise UserError(f"{file}: is not UTF-8 text; expected one document id per line") from None
    for number, line in enumerate(lines, 1):
        name = line.strip()
        if name:
            wanted[_identifier(name, f"{file}, line {number}")] = name
    missing = set(wanted) - _in_shards(corpus, wanted)
    if missing:
        names = sorted(wanted[identifier] for identifier in missing)
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        raise UserError(
            f"{file}: {names[0]!r}{more}: in no training shard of the corpus; `trainers blame` prints "
            "the ids of documents that were read"
        )
    ids = sorted(identifier.hex() for identifier in read_excluded(run) | set(wanted))
    write_json(run / FILE, {"format": FORMAT, "documents": ids})
    return len(ids)


def _identifier(name: str, where: str) -> bytes:
    if len(name) == 32 and all(digit in "0123456789abcdefABCDEF" for digit in name):
        return bytes.fromhex(name)
    try:
        source, path, record = parse_id(name)
    except UserError as error:
        raise UserError(f"{where}: {error}") from None
    if record >= 1 << 64:
        raise UserError(f"{where}: record numbers have at most 64 bits")
    return document_id(file_key(source, path), record)


def _in_shards(corpus: TrainingCorpus, wanted: dict[bytes, str]) -> set[bytes]:
    ids, present = pa.array(list(wanted), ID), set()
    for source in corpus.train.values():
        for number in range(len(source.shards)):
            held = source.shard(number).doc_ids
            present.update(held.filter(pc.is_in(held, value_set=ids)).to_pylist())
    return present
