"""Retry transient I/O errors (EIO, ESTALE, ETIMEDOUT) and attach the file name to errors."""

import errno
from collections.abc import Callable
from typing import Any, TypeVar

from gristmill.errors import attach_filename
from gristmill.host import host

Result = TypeVar("Result")
_ATTEMPTS = 3
_PAUSE_SECONDS = 0.5
# Transient errors of disks and network file systems. A full disk is not one.
_TRANSIENT = (errno.EIO, errno.ESTALE, errno.ETIMEDOUT)


def retry(place: Any, call: Callable[[], Result]) -> Result:
    """Call a function and return its result. After a transient I/O error, call it again, up to three times in
    all, with growing pauses. Each call must start from scratch. An error that names no file is given the file
    name `place`.

    After a failed fsync, the kernel may regard unwritten pages as clean. A function that writes must
    therefore use a new file in each call.
    """
    for attempt in range(1, _ATTEMPTS):
        try:
            with attach_filename(place):
                return call()
        except OSError as error:
            if error.errno not in _TRANSIENT:
                raise
            host().sleep(_PAUSE_SECONDS * attempt)
    with attach_filename(place):
        return call()
