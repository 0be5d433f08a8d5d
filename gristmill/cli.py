"""Exit codes of the command lines, and a quiet end where the reader of the output has closed the pipe, as `head` does."""

import os
import sys
from collections.abc import Callable

_SIGPIPE = 141  # what a shell reports for a program that wrote to a pipe without a reader: 128 and the signal's number


def run(command: Callable[[], int]) -> int:
    """The status of a command; 141, and not a word, where what reads its standard output has left."""
    try:
        status = command()
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        if not _has_no_reader():
            raise
    except SystemExit as end:
        if not isinstance(end.__context__, BrokenPipeError):  # which rich turns into SystemExit(1)
            raise
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the interpreter flushes once more at its end
    return _SIGPIPE


def _has_no_reader() -> bool:
    """Whether the broken pipe is the standard output, and not that of a process that died."""
    import select

    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))
