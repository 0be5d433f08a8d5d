"""Find the class of a stage by its name in a corpus file. Installed packages declare their stages as entry
points of the group `gristmill.stages`, and a corpus file names these as PACKAGE:STAGE.
"""

from collections.abc import Mapping
from typing import Any

from gristmill.config import near_match
from gristmill.errors import ConfigError
from gristmill.plugins import installed, load_installed
from pipelines.contracts.stage import CorpusStage, PartStage
from pipelines.stages import STAGES

GROUP = "gristmill.stages"
StageClass = type[PartStage] | type[CorpusStage]


def stage_class(name: str, own: Mapping[str, StageClass]) -> StageClass:
    """Return the class of the stage that a corpus file calls `name`. `own` maps names to the caller's stages.

    Raises ConfigError for an unknown name, for a name in `own` that contains a colon or already belongs to a
    gristmill stage, and for a class that is not a dataclass derived from PartStage or CorpusStage.
    """
    if name in own:
        if ":" in name:
            raise ConfigError(f"a name of an installed package's stage has a colon; give {own[name].__name__} another")
        if name in STAGES:
            raise ConfigError(f"this is the name of one of gristmill's stages; give {own[name].__name__} another")
        return _checked(own[name])
    if name in STAGES:
        return STAGES[name]
    if ":" not in name:
        raise ConfigError(f"no such stage{near_match(name, [*STAGES, *own])}")
    return _checked(load_installed(GROUP, name, "stage"))


def installed_stages() -> list[str]:
    """Return the names, PACKAGE:STAGE, of the stages in installed packages, sorted."""
    return sorted(installed(GROUP))


def _checked(loaded: Any) -> StageClass:
    if (
        isinstance(loaded, type)
        and issubclass(loaded, PartStage | CorpusStage)
        and "__dataclass_fields__" in vars(loaded)
    ):
        return loaded
    raise ConfigError(f"is {loaded!r}, expected a frozen dataclass on PartStage or CorpusStage")


def step_name(stage: str) -> str:
    """Return the default name of a step: the name of its stage without the package."""
    return stage.rpartition(":")[2]
