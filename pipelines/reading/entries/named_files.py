"""Read the names of a source's files from a list (`files`), instead of listing a directory or a store, and
ask the store for the sizes and versions of remote files.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import PurePosixPath

from gristmill.errors import SourceError, UserError
from gristmill.storage.paths import is_url
from gristmill.storage.remote import Facts, has_query, shown, stat_url
from pipelines.reading.entries.decompress import DecodeBudget, decompress
from pipelines.reading.entries.files import SourceFile, file_chunks, printable_name
from pipelines.reading.entries.reasons import BrokenInput
from pipelines.reading.sources.source import Source

_LARGEST_LIST_BYTES = 64 << 20  # decompressed; a crawl of Common Crawl has 100,000 names, 14 MB
_AT_ONCE = 64  # concurrent requests for sizes


def chosen_patterns(source: Source) -> tuple[str, ...]:
    """Return the `include` patterns; none for a source with a list of files and no `include`, so that hidden
    files in the list are read too.
    """
    everything = source.files is not None and source.include == Source.include
    return () if everything else source.include


def read_names(source: Source, where: str) -> list[str]:
    """Return the names in a source's list of files. The list may be local or at a URL, and may be compressed.
    Raises SourceError if it is missing, broken or empty, or if a name leaves the root, has a query or occurs
    twice.
    """
    assert source.files is not None
    field = f"{where}: files: {shown(source.files)}"
    lines: dict[str, int] = {}
    for number, line in enumerate(_text(source, field).split("\n"), 1):
        name = line.strip().removeprefix("./")  # as `find .` prints them
        if not name:
            continue
        if has_query(f"{source.root}/{name}"):  # which may be a signature, and would be part of ids
            raise SourceError(f"{field}, line {number}: the path has a ? or #; expected one without a query")
        path = PurePosixPath(name)
        if is_url(name) or path.is_absolute() or ".." in path.parts:
            raise SourceError(
                f"{field}, line {number}: got {printable_name(name)!r}, expected a path relative to `root`"
            )
        if not is_url(source.root):
            name = str(path)  # a//x and a/./x are the file a/x; in an object store, they are other keys
        if name in lines:
            raise SourceError(
                f"{field}, line {number}: {printable_name(name)!r} is on line {lines[name]}, too; name it once"
            )
        lines[name] = number
    if not lines:
        raise SourceError(f"{field}: names no file; expected one path per line, relative to `root`")
    return list(lines)


def ask_facts(source: Source, root: str, names: Sequence[str], where: str) -> dict[str, Facts]:
    """Ask the remote store for the size and version of each named file below the URL `root`, and return them
    by name. Raises SourceError if a file does not exist.
    """
    ask = partial(_facts, source, root, where)
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return dict(zip(names, pool.map(ask, names), strict=True))


def _facts(source: Source, root: str, where: str, name: str) -> Facts:
    try:
        facts = stat_url(f"{root}/{name}", source.remote)
    except UserError as error:
        raise SourceError(f"{where}: {error}") from None
    if facts is None:
        assert source.files is not None
        raise SourceError(f"{where}: files: {shown(source.files)} names {name!r}, but there is no file {root}/{name}")
    return facts


def _text(source: Source, field: str) -> str:
    assert source.files is not None
    file = SourceFile(source.files, 0, source.files, remote=source.remote if is_url(source.files) else None)
    try:
        return b"".join(_decoded(file)).decode("utf-8-sig")
    except (SourceError, UserError) as error:
        raise SourceError(f"{field}: {error}") from None
    except BrokenInput as error:
        raise SourceError(f"{field}: cannot be decompressed ({error.reason})") from None
    except UnicodeDecodeError as error:
        raise SourceError(f"{field}: not UTF-8 at byte {error.start}; expected one path per line") from None


def _decoded(file: SourceFile) -> Iterator[bytes]:
    _, chunks, _ = decompress(file.path, file_chunks(file), DecodeBudget(_LARGEST_LIST_BYTES))
    return chunks
