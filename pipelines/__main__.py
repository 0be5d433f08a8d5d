"""The command line of the pipelines: `python -m pipelines COMMAND`. --help lists the commands."""

import argparse
import sys
from collections.abc import Sequence

from gristmill.cli import run_command
from pipelines.commands import building, catalogue, diagnosing, erasing, exploring, exporting, learning
from pipelines.commands.submit import submitting

_GROUPS = (building, exploring, catalogue, exporting, learning, diagnosing, erasing, submitting)


def parser() -> argparse.ArgumentParser:
    """Return the parser for all commands and their arguments."""
    top = argparse.ArgumentParser(
        prog="python -m pipelines", description="Turn raw text into a documented corpus of token shards."
    )
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for group in _GROUPS:
        group.add_commands(commands)
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command in `arguments` (default: `sys.argv[1:]`) and return its exit status, as
    `gristmill.cli.run_command` does.
    """
    return run_command(parser(), arguments, "continues where it stopped")


if __name__ == "__main__":
    sys.exit(main())
