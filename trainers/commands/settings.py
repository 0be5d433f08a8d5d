"""Parse the `name=value` settings that several commands take."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from gristmill.errors import ConfigError
from gristmill.storage.parsing import parse_local, parse_location

if TYPE_CHECKING:
    from trainers.config.pretraining import Data


def split_settings(settings: Sequence[str], names: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Return the settings whose names are in `names`, as a mapping from name to value, and the list of all
    other settings.
    """
    named = {key: value for key, _, value in (s.partition("=") for s in settings) if key in names}
    return named, [setting for setting in settings if setting.partition("=")[0] not in names]


def corpora_of(named: Mapping[str, str]) -> tuple[str, ...]:
    """Return the directories or URLs in `corpus=A,B`. Raises ConfigError for an invalid path or URL."""
    corpora = tuple(filter(None, named.get("corpus", "").split(",")))
    for name in corpora:
        parse_location(name)
    return corpora


def read_weights(data: "Data") -> "Data":
    """Return `data` with weights read from files. If the weights of `data` or of one of its stages are the
    path of a YAML file, they are replaced with the mapping `weights` in this file. Raises ConfigError if a
    file has no valid mapping `weights`.
    """
    stages = tuple(
        replace(stage, weights=_read(stage.weights, f"data.stages[{i}].weights")) for i, stage in enumerate(data.stages)
    )
    return replace(data, weights=_read(data.weights, "data.weights"), stages=stages)


def _read(weights: str | dict[str, float], field: str) -> str | dict[str, float]:
    from gristmill.config import load_yaml, parse
    from trainers.config.pretraining import Data

    if not isinstance(weights, str) or not weights.endswith((".yaml", ".yml")):
        return weights
    found = load_yaml(parse_local(weights, field)).get("weights")
    if not isinstance(found, dict):
        raise ConfigError(f"{field}: {weights} has no mapping `weights`; give the proposal.yaml of a study")
    return parse(Data, {"weights": found}, weights).weights
