"""Asking an object store or a web server: for how long, how often, and what its failures are called.

The libraries wait as long as bytes come, however few. Here a call gets time for what it moves; one that takes longer is left
to itself, and counts as not answered.
"""

import errno
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from typing import Any, TypeVar

from gristmill.errors import RemoteError, UserError

Result = TypeVar("Result")
LISTING_SECONDS = 3600.0  # for what takes many requests: ten million files are listed in less
_SECONDS = 120.0  # for an answer without a body; the libraries try several times in it
_LEAST_RATE = 1 << 16  # bytes per second
_PAUSES = (0.5, 2.0)  # seconds before the second and the third try
_OF_THIS_MACHINE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # no store's failure has these numbers


class _Unanswered(Exception):
    """The time is up."""


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
    """The answer to a call that moves about `size` bytes, tried again where a failure may pass.

    Raises RemoteError if the store fails each time or takes longer than `seconds` (two minutes where not
    given) and a second for each 64 KiB; UserError if something is missing or forbidden, and with
    `missing` a FileNotFoundError for the former. `place` is what messages name; with `secret` nothing else of
    the library's error is kept.
    """
    limit = (_SECONDS if seconds is None else seconds) + size / _LEAST_RATE
    for pause in _PAUSES[: tries - 1]:
        try:
            with _errors(place, secret, missing):
                return _within(limit, call)
        except RemoteError as error:
            if isinstance(error.__cause__, _Unanswered):
                raise
            time.sleep(pause)
    with _errors(place, secret, missing):
        return _within(limit, call)


def _within(seconds: float, call: Callable[[], Result]) -> Result:
    answer: Future[Result] = Future()

    def work() -> None:
        try:
            answer.set_result(call())
        except BaseException as error:
            answer.set_exception(error)

    threading.Thread(target=work, daemon=True).start()
    wait([answer], seconds)
    if not answer.done():
        raise _Unanswered(f"no answer within {seconds:.0f} s")
    return answer.result()


@contextmanager
def _errors(place: str, secret: bool, missing: bool) -> Iterator[None]:
    try:
        yield
    except (UserError, RemoteError):
        raise
    except _Unanswered as error:
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
        # botocore's exceptions are many, and most of them pass: the task is tried again.
        kind = error.__cause__ if isinstance(error, FileNotFoundError) else error
        said = f"answered HTTP {status}" if status else type(kind).__name__
        raise RemoteError(f"{place}: {said}") from (None if secret else error)


def hides_failure(error: FileNotFoundError) -> bool:
    """Whether a server could not be asked: fsspec calls a file of the web missing whatever happened."""
    cause = error.__cause__
    failed = isinstance(cause, OSError) and not isinstance(cause, FileNotFoundError)
    return failed or getattr(cause, "status", 404) not in (404, 410)


def _status(error: BaseException) -> int | None:
    """The status of an answer of HTTP that an error is about; None where there was no answer."""
    for found in (error, error.__cause__):
        response: Any = getattr(found, "response", None)
        facts = response.get("ResponseMetadata", {}) if isinstance(response, dict) else {}
        status = facts.get("HTTPStatusCode", getattr(found, "status", None))
        if isinstance(status, int) and status >= 400:
            return status
    return None
