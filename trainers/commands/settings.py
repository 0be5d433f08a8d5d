"""Parse the `name=value` settings that several commands take."""

from collections.abc import Mapping, Sequence
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
    """Return `data` with its weights read from a file if `data.weights` is the name of a YAML file. Raises
    ConfigError if the file has no mapping `weights`.
    """
    from gristmill.config import load_yaml, parse, plain
    from trainers.config.pretraining import Data

    if not isinstance(data.weights, str) or not data.weights.endswith((".yaml", ".yml")):
        return data
    weights = load_yaml(parse_local(data.weights, "data.weights")).get("weights")
    if not isinstance(weights, dict):
        raise ConfigError(f"data.weights: {data.weights} has no mapping `weights`; give the proposal.yaml of a study")
    return parse(Data, plain(data) | {"weights": weights}, data.weights)
