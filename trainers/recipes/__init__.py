"""Recipes: functions that return the configuration of a pretraining run. `RECIPES` maps the name of each
recipe to its function.

To add a recipe, write a function in one of the files in `_FILES`: every public function there is a recipe.
"""

import inspect
from collections.abc import Callable

from trainers.config.pretraining import Pretraining
from trainers.recipes import decoders, encoder_decoders, encoders, languages, nanogpt, recurrent, tiny_encoders
from trainers.recipes.decoders import demo_decoder, gpt2_small, llama_tiny

__all__ = ["RECIPES", "demo_decoder", "gpt2_small", "llama_tiny"]

_FILES = (decoders, nanogpt, recurrent, encoders, tiny_encoders, encoder_decoders, languages)
RECIPES: dict[str, Callable[[], Pretraining]] = {
    name: recipe
    for file in _FILES
    for name, recipe in vars(file).items()
    if inspect.isfunction(recipe) and recipe.__module__ == file.__name__ and not name.startswith("_")
}
