"""Failures of storage: which file they are about, and those that may pass, which are met with another try."""

import errno
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

Result = TypeVar("Result")
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
        if error.errno is not None and error.filename is None:
            error.filename = str(place)
        raise


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
