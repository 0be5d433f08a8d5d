"""Calls to object stores and web servers, with timeouts, retries and our own errors.

The libraries wait as long as any bytes arrive, however slowly. Here, each call has a time limit, which grows
with the number of bytes that it transfers.
"""

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from gristmill.errors import RemoteError, UserError
from gristmill.host import TimedOut, host

Result = TypeVar("Result")
LISTING_SECONDS = 3600.0  # timeout of calls with many requests; listing ten million files takes less
_SECONDS = 120.0  # timeout of a response without a body; the libraries retry within it
_LEAST_RATE = 1 << 16  # bytes per second
_PAUSES = (0.5, 2.0)  # seconds before the second and the third try
_OF_THIS_MACHINE = (
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EFBIG,
)  # errors of the local disk, never of a store


def ask(
    place: str,
    call: Callable[[], Result],
    *,
    size: int = 0,
    seconds: float | None = None,
    secret: bool = False,
    missing: bool = False,
    tries: int = 3,
) -> Result:
    """Run `call`, which transfers about `size` bytes, and return its result. If the store fails, the call is
    retried, up to `tries` attempts in all (at most 3). A timeout is not retried.

    Raises RemoteError if the store fails in every attempt, or if an attempt takes longer than `seconds`
    (default: two minutes) plus a second for each 64 KiB of `size`. Raises UserError if access is denied or
    the file is missing; with `missing`, a missing file raises FileNotFoundError instead. If the local disk is
    full, its OSError is raised unchanged.

    The messages of RemoteError and UserError contain no text from the library's error. With `secret`, that
    error is not kept as the cause of a RemoteError either.
    """
    limit = (_SECONDS if seconds is None else seconds) + size / _LEAST_RATE
    for pause in _PAUSES[: tries - 1]:
        try:
            with _errors(place, secret, missing):
                return host().within(limit, call)
        except RemoteError as error:
            if isinstance(error.__cause__, TimedOut):
                raise
            host().sleep(pause)
    with _errors(place, secret, missing):
        return host().within(limit, call)


@contextmanager
def _errors(place: str, secret: bool, missing: bool) -> Iterator[None]:
    try:
        yield
    except (UserError, RemoteError):
        raise
    except TimedOut as error:
        raise RemoteError(f"{place}: {error}") from error
    except Exception as error:
        if isinstance(error, OSError) and error.errno in _OF_THIS_MACHINE:
            raise
        status = _status(error)
        if isinstance(error, PermissionError) or status in (401, 403):
            raise UserError(f"{place}: access is denied; check your credentials for it") from None
        if isinstance(error, FileNotFoundError) and not hides_failure(error):
            if missing:
                raise
            raise UserError(f"{place}: no such file or bucket; check the URL") from None
        # Most of botocore's many exceptions are transient: the task is retried.
        kind = error.__cause__ if isinstance(error, FileNotFoundError) else error
        reason = f"answered HTTP {status}" if status else type(kind).__name__
        raise RemoteError(f"{place}: {reason}") from (None if secret else error)


def hides_failure(error: FileNotFoundError) -> bool:
    """Return whether a FileNotFoundError from fsspec was caused by something other than a missing file, such
    as a server error.
    """
    cause = error.__cause__
    failed = isinstance(cause, OSError) and not isinstance(cause, FileNotFoundError)
    return failed or getattr(cause, "status", 404) not in (404, 410)


def _status(error: BaseException) -> int | None:
    """Return the status of the HTTP error response that caused an error, or None if there was none."""
    for found in (error, error.__cause__):
        response: Any = getattr(found, "response", None)
        facts = response.get("ResponseMetadata", {}) if isinstance(response, dict) else {}
        status = facts.get("HTTPStatusCode", getattr(found, "status", None))
        if isinstance(status, int) and status >= 400:
            return status
    return None
