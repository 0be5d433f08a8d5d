"""`recipes` and `objectives`: what `pretrain` can name."""

import argparse

from gristmill.console import first_sentence, print_pairs


def add_commands(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the commands that list names."""
    recipes = commands.add_parser("recipes", help="the recipes that `pretrain` takes, and what they are")
    recipes.set_defaults(handler=_recipes)
    objectives = commands.add_parser("objectives", help="the objectives of pretraining, and the families they train")
    objectives.set_defaults(handler=_objectives)


def _recipes(options: argparse.Namespace) -> int:
    from trainers.recipes import RECIPES

    print_pairs({name: first_sentence(recipe) for name, recipe in RECIPES.items()})
    return 0


def _objectives(options: argparse.Namespace) -> int:
    from trainers.objectives import OBJECTIVES

    print_pairs({name: first_sentence(kind) for name, kind in OBJECTIVES.items()})
    return 0
