"""Functions of tables, cached although they read from disk: later calls repeat the reads and reuse the
result.

A function whose result depends only on its arguments and on the tables returned by `read_table` runs once,
and its reads are recorded. Later calls repeat these reads, operation by operation, and reuse the result if
every table is the same object as before.
"""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any

import greenlet
import pyarrow as pa

from gristmill.storage.location import FileRecord
from pipelines.contracts import manifest
from pipelines.contracts.parts import Part

_LIMIT = 5000  # entries of each memory: a long search goes through more tables than fit
_read_table = manifest.read_table
_listening: dict[Any, list[list]] = defaultdict(list)  # by greenlet: the calls that write down what it reads
_field_names: dict[type, tuple[str, ...]] = {}


def read_and_tell(directory, record, columns, expected):
    """`read_table`, with each read recorded for the cached calls in progress."""
    wanted = tuple(columns)
    table = _read_table(directory, record, wanted, expected)
    for heard in _listening.get(greenlet.getcurrent(), ()):
        heard.append(((directory, record, wanted, expected), table))
    return table


def once(function: Callable, key: Callable) -> Callable:
    """Return `function`, cached by `key(*arguments)`.

    A key may contain ids of objects, since an entry keeps its arguments alive.
    """
    memory: dict[Any, tuple] = {}

    def remembering(*arguments):
        name = key(*arguments)
        known = memory.get(name)
        if known is not None and all(read_and_tell(*asked) is table for asked, table in known[1]):
            return known[2]
        mine = greenlet.getcurrent()
        heard: list = []
        _listening[mine].append(heard)
        try:
            result = function(*arguments)
        finally:
            _listening[mine] = [each for each in _listening[mine] if each is not heard]
            if not _listening[mine]:
                del _listening[mine]
        if len(memory) >= _LIMIT:
            memory.clear()
        memory[name] = (arguments, heard, result)
        return result

    return remembering


def part_key(part: Part) -> tuple:
    """Return a key for the data read from a part. Directory names are sufficient because they encode how
    their contents were made.
    """
    annotations = tuple((each.step, str(each.directory), each.file, id(each.table)) for each in part.annotations)
    return (part.source, part.index, str(part.directory), part.documents, part.order, annotations, id(part.loaded))


def plain_dictionary(value: Any) -> Any:
    """Like `dataclasses.asdict`, for dataclasses made of dataclasses, mappings, sequences and immutable
    values.
    """
    kind = type(value)
    if kind in (str, int, float, bool, type(None)):
        return value
    if kind is FileRecord:
        return {"path": value.path, "bytes": value.bytes, "xxh3_128": value.xxh3_128}
    if kind is dict:
        return {name: plain_dictionary(each) for name, each in value.items()}
    if kind in (list, tuple):
        return kind([plain_dictionary(each) for each in value])
    if is_dataclass(kind):
        if kind not in _field_names:
            _field_names[kind] = tuple(each.name for each in fields(kind))
        return {name: plain_dictionary(getattr(value, name)) for name in _field_names[kind]}
    raise TypeError(f"{kind}: not what manifests and receipts hold")


_written: dict[int, tuple[pa.Table, bytes]] = {}


def write_plain(table: pa.Table) -> Callable:
    """`write_table` without compression, because setting up the compressor would take longer than everything
    else. Each table is serialised once.
    """

    def write(sink):
        known = _written.get(id(table))
        if known is None:
            if len(_written) >= _LIMIT:
                _written.clear()
            buffer = pa.BufferOutputStream()
            with pa.ipc.new_file(buffer, table.schema) as writer:
                writer.write_table(table)
            known = _written[id(table)] = (table, buffer.getvalue().to_pybytes())
        sink.write(known[1])

    return write
