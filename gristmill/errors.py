"""Errors that a user can act on. The command lines print them as one line; anything else is a defect and shows a traceback."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_ERRNO = re.compile(r"\[errno (\d+)\]")


class UserError(Exception):
    """Base of all errors for users: the message says where, what was found, what is allowed and what to do.

    No ValueError, which readers take for damage: an archive is not corrupt because access to it was withdrawn.
    """


class ConfigError(UserError):
    """A configuration names a field, type or value that is not allowed."""


class SourceError(UserError):
    """A source cannot be read as declared: a missing root, an empty glob, a missing column."""


class CorruptFileError(UserError):
    """A file's bytes are not those that its manifest recorded."""


class AccountingError(UserError):
    """A step's counts do not add up: some document is unaccounted for, so the step is not published."""


class ConflictError(UserError):
    """A directory belongs to another corpus or run."""


class ChangedSourceError(SourceError):
    """Files of a source are not what they were when the build was planned."""

    def __init__(self, message: str, locations: tuple[str, ...]) -> None:
        super().__init__(message, locations)  # both, so that it can be pickled
        self.locations = locations

    def __str__(self) -> str:
        return str(self.args[0])


class PoisonError(UserError):
    """A document stops a step. The message holds its id and the kind of failure, never its text."""

    def __init__(self, message: str, step: str, source: str, document: str, reason: str) -> None:
        super().__init__(message, step, source, document, reason)  # all of them, so that it can be pickled
        self.step, self.source, self.document, self.reason = step, source, document, reason

    def __str__(self) -> str:
        return str(self.args[0])


class BrokenTaskError(UserError):
    """The task at `position` ran out of memory (reason `memory`), or lost its process (`death`), as often as it was tried;
    the last time with `memory` bytes, None where it had no ceiling.
    """

    def __init__(self, message: str, position: int, memory: int | None, reason: str) -> None:
        super().__init__(message, position, memory, reason)  # all of them, so that it can be pickled
        self.position, self.memory, self.reason = position, memory, reason

    def __str__(self) -> str:
        return str(self.args[0])


class TaskMemoryError(MemoryError):
    """A task needs more memory than it may have. `place` says where it was, without the text that it worked on."""

    def __init__(self, place: str) -> None:
        super().__init__(place)
        self.place = place


class StorageError(Exception):
    """A disk failed at reading. No OSError, which readers would take for damage to a file: the task is tried again."""


class RemoteError(StorageError):
    """An object store or a web server failed. Not the user's to mend: the task is tried again."""


def reason_of(error: OSError) -> str:
    """What the system says of a file, with the file's name where the error has one: `/data/x: No space left on device`."""
    said = os.strerror(error.errno) if error.errno is not None else str(error)
    return f"{error.filename}: {said}" if error.filename else said


@contextmanager
def attach_filename(path: Any) -> Iterator[None]:
    """Attach a file name to operating-system errors that carry none, as those of read, write and fsync do."""
    try:
        yield
    except OSError as error:
        number = errno_of(error)
        if number is None or error.filename is not None:
            raise
        raise OSError(number, os.strerror(number), str(path)) from error


def errno_of(error: BaseException) -> int | None:
    """The errno of an operating-system error, which Arrow sometimes leaves in the message only; None for errors of libraries."""
    in_message = _ERRNO.search(str(error)) if isinstance(error, OSError) and error.errno is None else None
    return int(in_message[1]) if in_message else getattr(error, "errno", None)
