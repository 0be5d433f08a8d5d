"""Recognise licence files by their names, and find those that apply to a file: those in the nearest directory
above it that has any.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import PurePosixPath
from typing import TypeVar

from pipelines.reading.entries.files import SourceFile

VERSION = "5"
"""Increase when a change gives files different licences, or sets different files aside as licences."""
_NAME = re.compile(
    r"(?:un)?licen[cs]e|(?:(?:licen[cs]es?|copying|copyright)(?:[-_.][\w.+-]*)?|[\w.+-]*[-_.]licen[cs]e)(?:\.(?:txt|md|rst|html))?",
    re.IGNORECASE,
)
_OTHER = re.compile(  # code, compiled code, data and images
    r".*\.(?:pyi?|c|cc|cpp|h|hpp|jsx?|tsx?|go|rs|java|rb|php|cs|swift|kt|scala|lua|r|sh|json|ya?ml|toml|xml|csv|css|"
    r"py[co]|class|jar|o|so|dll|exe|png|jpe?g|gif|svg|ico|pdf)",
    re.IGNORECASE,
)
Value = TypeVar("Value")


def is_licence_name(path: str) -> bool:
    """Return whether the last component of a path is a name that licence files have, such as `LICENCE-MIT`."""
    name = PurePosixPath(path).name
    return _NAME.fullmatch(name) is not None and not _OTHER.fullmatch(name)


def nearest(path: str, by_directory: Mapping[str, Value]) -> Value | None:
    """Return the value of the nearest directory above the file `path` that is a key of `by_directory`, or
    None if there is none. The keys have the form that `directory_of` returns.
    """
    directory = PurePosixPath(path).parent
    for each in (directory, *directory.parents):
        name = "" if str(each) == "." else str(each)
        if name in by_directory:
            return by_directory[name]
    return None


def directory_of(path: str) -> str:
    """Return the directory of a file in the form that `nearest` looks up: `a/b` for `a/b/c`, and an empty
    string for a file at the root.
    """
    parent = str(PurePosixPath(path).parent)
    return "" if parent == "." else parent


def with_licences(files: Iterable[SourceFile]) -> list[SourceFile]:
    """Return the files, each with `licences` set to the licence files in the nearest directory above it that
    has any.
    """
    listed = list(files)
    by_directory: dict[str, tuple[SourceFile, ...]] = {}
    for file in listed:
        if is_licence_name(file.path):
            directory = directory_of(file.path)
            by_directory[directory] = (*by_directory.get(directory, ()), file)
    if not by_directory:
        return listed
    return [replace(file, licences=nearest(file.path, by_directory) or ()) for file in listed]
