"""The command line of the trainers: `python -m trainers COMMAND`. Heavy libraries are imported only by the
commands that need them.
"""

import argparse
import os
import sys
from collections.abc import Sequence

from gristmill.cli import run_command
from trainers.commands import (
    analyse,
    choices,
    evaluations,
    examine,
    finetune,
    harness,
    pretrain,
    study,
    task_pairs,
    use,
)


def parser() -> argparse.ArgumentParser:
    """Return the parser for all commands and their arguments."""
    top = argparse.ArgumentParser(prog="python -m trainers", description="Pretrain and use language models.")
    commands = top.add_subparsers(required=True, metavar="COMMAND")
    for group in (pretrain, finetune, task_pairs, study, examine, evaluations, harness, analyse, use, choices):
        group.add_commands(commands)
    return top


# How often an idle OpenMP thread looks for work before it sleeps, some 10 microseconds in all. With libgomp's
# default of 300,000, waiting threads occupy the cores that other processes need, whose steps then take many
# times as long.
_SPINS = "1000"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command given in `arguments`, and return its exit status. The default is the command line of
    this process.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", _SPINS)
    return run_command(parser(), arguments, "continues from the last checkpoint")


if __name__ == "__main__":
    status = main()
    if "trainers.engine.engine" in sys.modules:
        sys.modules["trainers.engine.engine"].hard_exit(status)
    sys.exit(status)
