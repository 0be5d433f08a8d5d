"""Errors that do not indicate a defect in gristmill, and helpers for operating-system errors.

The command lines print a UserError, a StorageError or an OSError as one line. Other exceptions are defects
and show a traceback.
"""

import os
import re
from typing import Any

_ERRNO = re.compile(r"\[errno (\d+)\]")


class UserError(Exception):
    """Base of all errors that a user can act on. The message says where the error is, what was found, what is
    allowed and what to do.

    It is not a ValueError, because the readers of sources treat a ValueError as damaged data.
    """


class ConfigError(UserError):
    """A configuration is missing or incomplete, or names a field, type or value that is not allowed."""


class SourceError(UserError):
    """A source cannot be read as declared: for example, its root or a column is missing, or its glob matches
    no file.
    """


class CorruptFileError(UserError):
    """A file that was written earlier is missing or damaged, has another format version, or does not match
    its record.
    """


class AccountingError(UserError):
    """Document counts do not add up, so the step or export is not published."""


class ConflictError(UserError):
    """A directory or file cannot be used, because it holds something else, exists already, or is used or was
    changed by another process.
    """


class ChangedSourceError(SourceError):
    """Files of a source were changed after the build was planned. `locations` are their paths or URLs."""

    def __init__(self, message: str, locations: tuple[str, ...]) -> None:
        super().__init__(message, locations)  # pickle calls the constructor with these
        self.locations = locations

    def __str__(self) -> str:
        return str(self.args[0])


class PoisonError(UserError):
    """A step fails on one document. The message contains the document's id and the kind of failure, never the
    document's text.
    """

    def __init__(self, message: str, step: str, source: str, document: str, reason: str) -> None:
        super().__init__(message, step, source, document, reason)  # pickle passes these
        self.step, self.source, self.document, self.reason = step, source, document, reason

    def __str__(self) -> str:
        return str(self.args[0])


class BrokenTaskError(UserError):
    """A task failed in every attempt. `reason` says how the last attempt ended: `memory` if it ran out of
    memory, `death` if its process died. `position` is the index of the task. `memory` is the memory limit of
    the last attempt in bytes, or None if it had no limit.
    """

    def __init__(self, message: str, position: int, memory: int | None, reason: str) -> None:
        super().__init__(message, position, memory, reason)  # pickle passes these
        self.position, self.memory, self.reason = position, memory, reason

    def __str__(self) -> str:
        return str(self.args[0])


class TaskMemoryError(MemoryError):
    """A task ran out of memory. `place` says where, as a line of code or a record; it never contains the text
    of a document.
    """

    def __init__(self, place: str) -> None:
        super().__init__(place)
        self.place = place


class StorageError(Exception):
    """A disk, a remote store or a subprocess that reads a source failed, so the task is retried. It is not an
    OSError, because readers treat an OSError as a damaged file.
    """


class RemoteError(StorageError):
    """An object store or a web server failed in a way that the user cannot fix."""


def reason_of(error: OSError) -> str:
    """Return the operating system's message for an error, or the error's own text if it has no errno. The
    file name, if known, comes first.
    """
    message = os.strerror(error.errno) if error.errno is not None else str(error)
    return f"{error.filename}: {message}" if error.filename else message


class attach_filename:
    """Context manager that adds the file name `path` to an OSError that has none."""

    __slots__ = ("_path",)

    def __init__(self, path: Any) -> None:
        self._path = path

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        if isinstance(error, OSError) and error.filename is None and (number := errno_of(error)) is not None:
            raise OSError(number, os.strerror(number), str(self._path)) from error


def errno_of(error: BaseException) -> int | None:
    """Return the errno of an operating-system error, even if Arrow put it only in the message. None if the
    error has no errno.
    """
    in_message = _ERRNO.search(str(error)) if isinstance(error, OSError) and error.errno is None else None
    return int(in_message[1]) if in_message else getattr(error, "errno", None)
