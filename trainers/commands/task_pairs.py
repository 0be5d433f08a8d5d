"""`pairs`: write a task's training examples as pairs of texts, which a corpus can read as a source."""

import argparse

from gristmill.errors import ConfigError
from gristmill.storage.paths import local_path
from trainers.commands.settings import split_settings


def add_commands(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command `pairs`."""
    pairs = commands.add_parser("pairs", help="write the training examples of a task as pairs of texts, for a corpus")
    pairs.add_argument("task", metavar="TASK", help="a shipped task, or the path of a task's YAML file")
    pairs.add_argument("output", metavar="FILE.jsonl", type=local_path)
    pairs.add_argument("overrides", metavar="data=DIR", nargs="*", help="the directory of the tasks' files")
    pairs.set_defaults(handler=_pairs)


def _pairs(options: argparse.Namespace) -> int:
    from trainers.tasks.load_task import load_task
    from trainers.tasks.pair_file import write_pair_file
    from trainers.tasks.task_files import data_directory

    named, others = split_settings(options.overrides, ("data",))
    if others:
        raise ConfigError(f"{others[0]!r}: expected data=DIR")
    if options.output.suffix != ".jsonl":
        raise ConfigError(f"FILE.jsonl: got {options.output}, expected a name that ends in .jsonl")
    task = load_task(options.task)
    written = write_pair_file(task, data_directory(named.get("data")), options.output)
    print(f"{options.output}  {written:,} pairs; in the corpus file:")
    file = f"root: {options.output.parent}, include: [{options.output.name}], format: jsonl"
    print(f"  sources:\n  - {{name: {task.name}, {file}, text: {{fields: [input], target: target}}}}")
    print("  steps:\n  - shards: {tokenizer: learn_tokenizer, target: true}")
    return 0
