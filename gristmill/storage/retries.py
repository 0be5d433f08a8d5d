"""Failures of storage: which file they are about, and those that may pass, which are met with another try."""

import errno
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

Result = TypeVar("Result")
_NUMBER = re.compile(r"\[errno (\d+)\]")
_ATTEMPTS = 3
_PAUSE_SECONDS = 0.5
_PASSING = (
    errno.EIO,
    errno.ESTALE,
    errno.ETIMEDOUT,
)  # of a disk or a file system of the network; a full disk stays full


@contextmanager
def named(place: Any) -> Iterator[None]:
    """Errors of the system in here are about the file `place`: read, write and fsync do not say it themselves."""
    try:
        yield
    except OSError as error:
        number = number_of(error)
        if number is None or error.filename is not None:
            raise
        raise OSError(number, os.strerror(number), str(place)) from error


def number_of(error: BaseException) -> int | None:
    """The number of an error of the system, which Arrow leaves in its message at times; None for what a library found."""
    found = _NUMBER.search(str(error)) if isinstance(error, OSError) and error.errno is None else None
    return int(found[1]) if found else getattr(error, "errno", None)


def patiently(place: Any, call: Callable[[], Result]) -> Result:
    """The result of a call that begins from the start each time: up to three tries, with growing pauses.

    After a failed fsync the kernel may take what it could not write for written, so the file is never fsynced again: it is
    written again, under another name.
    """
    for attempt in range(1, _ATTEMPTS):
        try:
            with named(place):
                return call()
        except OSError as error:
            if error.errno not in _PASSING:
                raise
            time.sleep(_PAUSE_SECONDS * attempt)
    with named(place):
        return call()
