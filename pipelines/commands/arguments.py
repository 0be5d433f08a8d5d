"""The command-line arguments that several commands share: a corpus file, and changes to its fields."""

import argparse

from gristmill.storage.paths import local_path

_OVERRIDES = (
    "fields of the corpus file to change, as a.b=value; steps.language.models=[...] selects the step by key or name"
)


def add_config(command: argparse.ArgumentParser) -> None:
    """Add the arguments for a corpus file and for overrides of its fields."""
    command.add_argument("config", type=local_path, help="a corpus YAML, for example corpora_configs/demo.yaml")
    command.add_argument("overrides", nargs="*", default=[], metavar="a.b=value", help=_OVERRIDES)
