"""`recipes`, `objectives` and `schema`: list the recipes and the objectives, and print the JSON Schema of
training, task or study files.
"""

import argparse
import json
from typing import Any, Union

from gristmill.console import first_sentence, print_pairs
from gristmill.json_schema import schema_of


def add_commands(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the commands `recipes`, `objectives` and `schema`."""
    recipes = commands.add_parser("recipes", help="the recipes that `pretrain` takes, and what they are")
    recipes.set_defaults(handler=_recipes)
    objectives = commands.add_parser("objectives", help="the objectives of pretraining, and what they do")
    objectives.set_defaults(handler=_objectives)
    schema = commands.add_parser("schema", help="print the JSON Schema of a kind of file, for editors")
    schema.add_argument("file", choices=("training", "task", "study"))
    schema.set_defaults(handler=_schema)


def _recipes(options: argparse.Namespace) -> int:
    from trainers.recipes import RECIPES

    print_pairs({name: first_sentence(recipe) for name, recipe in RECIPES.items()})
    return 0


def _objectives(options: argparse.Namespace) -> int:
    from trainers.objectives import OBJECTIVES

    print_pairs({name: first_sentence(kind) for name, kind in OBJECTIVES.items()})
    return 0


def _schema(options: argparse.Namespace) -> int:
    from trainers.config.job_kinds import JOBS
    from trainers.studies.schema.study_file import Study
    from trainers.tasks.schema.task import Task

    kinds: dict[str, Any] = {"training": Union[tuple(JOBS.values())], "task": Task, "study": Study}  # noqa: UP007
    print(json.dumps(schema_of(f"gristmill {options.file} file", kinds[options.file]), indent=1))
    return 0
