"""Retry transient I/O errors (EIO, ESTALE, ETIMEDOUT), and attach the file name."""

import errno
import time
from collections.abc import Callable
from typing import Any, TypeVar

from gristmill.errors import attach_filename

Result = TypeVar("Result")
_ATTEMPTS = 3
_PAUSE_SECONDS = 0.5
_PASSING = (
    errno.EIO,
    errno.ESTALE,
    errno.ETIMEDOUT,
)  # of a disk or a file system of the network; a full disk stays full


def retry(place: Any, call: Callable[[], Result]) -> Result:
    """The result of a call that begins from the start each time: up to three tries, with growing pauses.

    After a failed fsync the kernel may take what it could not write for written, so the file is never fsynced again: it is
    written again, under another name.
    """
    for attempt in range(1, _ATTEMPTS):
        try:
            with attach_filename(place):
                return call()
        except OSError as error:
            if error.errno not in _PASSING:
                raise
            time.sleep(_PAUSE_SECONDS * attempt)
    with attach_filename(place):
        return call()
