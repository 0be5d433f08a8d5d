"""What the command lines of all packages share: trailing settings, exit codes, one line per error, and a quiet end where the
reader of the output has closed the pipe, as `head` does.
"""

import argparse
import os
import sys
from collections.abc import Callable, Sequence

from gristmill.errors import StorageError, UserError, reason_of
from gristmill.terminal import printable

_SIGPIPE = 141  # what a shell reports for a program that wrote to a pipe without a reader: 128 and the signal's number


def run_command(
    top: argparse.ArgumentParser,
    arguments: Sequence[str] | None,
    resumes: str,
    user_errors: tuple[type[Exception], ...] = (UserError,),
) -> int:
    """Parse `arguments` and call the command's `handler`. Returns its status; 2 and one line for an error that the user can
    act on, 130 when interrupted, 141 where the reader of the standard output has left.

    `resumes` says what the same command does when it is run again. Words like `a.b=value` may come after options: they are
    added to `overrides` of a command that has them.
    """
    options, rest = top.parse_known_args(arguments)
    # argparse takes no positional arguments after an option that follows one, and a=b belongs at the end of a command line.
    if rest and (not hasattr(options, "overrides") or any(word.startswith("-") for word in rest)):
        top.error(f"unrecognized arguments: {' '.join(rest)}")
    if rest:
        options.overrides += rest
    try:
        return run(lambda: int(options.handler(options)))
    except user_errors as error:
        print(f"error: {printable(str(error))}", file=sys.stderr)
    except StorageError as error:
        print(f"error: {printable(str(error))}; run the same command again, which {resumes}", file=sys.stderr)
    except OSError as error:
        print(f"error: {printable(reason_of(error))}; fix that and run the same command again", file=sys.stderr)
    except KeyboardInterrupt:
        print(f"interrupted; the same command {resumes}", file=sys.stderr)
        return 130
    return 2


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
