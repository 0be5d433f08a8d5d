"""What all command lines share: arguments of the form `a.b=value` may follow options, exit statuses have the
same meanings, an error is printed as one line, and a broken pipe ends the command quietly.
"""

import argparse
import os
import sys
from collections.abc import Callable, Sequence

from gristmill.errors import StorageError, UserError, reason_of
from gristmill.terminal import printable

_SIGPIPE = 141  # the status that a shell reports for a program killed by SIGPIPE: 128 plus the signal's number


def run_command(
    top: argparse.ArgumentParser,
    arguments: Sequence[str] | None,
    resumes: str,
    user_errors: tuple[type[Exception], ...] = (UserError,),
) -> int:
    """Parse `arguments`, call the `handler` of the chosen command and return the exit status: the handler's
    own; 2 after an error (`user_errors`, StorageError or OSError), which is printed as one line; 130 after an
    interrupt; 141 if the reader of standard output has closed the pipe.

    `resumes` completes the hint "the same command ...". Words like `a.b=value` may follow options.
    """
    options, rest = top.parse_known_args(arguments)
    # argparse rejects a positional argument after an option if others came before it, but a=b belongs at the
    # end.
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
    """Run `command` and return its exit status. If the reader of standard output has closed the pipe, print
    nothing more and return 141.
    """
    try:
        status = command()
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        if not _has_no_reader():
            raise
    except SystemExit as end:
        if not isinstance(end.__context__, BrokenPipeError):  # rich turns it into SystemExit(1)
            raise
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the interpreter flushes once more on exit
    return _SIGPIPE


def _has_no_reader() -> bool:
    """Return whether the reader of standard output is gone. A BrokenPipeError may also come from another
    pipe.
    """
    import select

    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))
