"""Stages of other packages: entry points of the group `gristmill.stages`, which a corpus file names as PACKAGE:STAGE."""

import re
import sys
from collections.abc import Mapping
from importlib import metadata
from typing import Any

from gristmill.config import near_match
from gristmill.errors import ConfigError
from pipelines.contracts.stage import CorpusStage, PartStage
from pipelines.stages import STAGES

GROUP = "gristmill.stages"
StageClass = type[PartStage] | type[CorpusStage]


def stage_class(name: str, own: Mapping[str, StageClass]) -> StageClass:
    """Return the class of the stage that a corpus file calls `name`: one of ours, of `own`, or of an installed package.

    Raises ConfigError("message without a place") for an unknown name, and for a package whose entry point is no stage.
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
    installed = installed_stages()
    if name not in installed:
        known = near_match(name, list(installed)) or "; no installed package has stages"
        raise ConfigError(f"no installed package has this stage{known}")
    points = installed[name]
    if len(points) > 1:
        raise ConfigError(
            f"has {len(points)} owners: {' and '.join(sorted(map(_shown, points)))}; uninstall all but one"
        )
    try:
        loaded = points[0].load()
    except Exception as error:  # whatever the import of another package raises
        raise ConfigError(f"cannot be imported ({type(error).__name__}: {error})") from None
    _refuse_two_owners(points[0].module.partition(".")[0])
    return _checked(loaded)


def installed_stages() -> dict[str, list[metadata.EntryPoint]]:
    """Return the entry points of stages by PACKAGE:STAGE; more than one if a name has several owners."""
    found: dict[str, list[metadata.EntryPoint]] = {}
    for point in metadata.entry_points(group=GROUP):
        if point.dist is not None:
            found.setdefault(f"{_normal(point.dist.name)}:{point.name}", []).append(point)
    return found


def _shown(point: metadata.EntryPoint) -> str:
    assert point.dist is not None
    return f"{point.value} of {point.dist.name} {point.dist.version}"


def _refuse_two_owners(module: str) -> None:
    """Raise ConfigError if several distributions have installed files of a module, so that its code is a mixture. A
    namespace package, which distributions share, has no file of its own.
    """
    owners = sorted(set(metadata.packages_distributions().get(module, [])))
    if len(owners) > 1 and getattr(sys.modules.get(module), "__file__", None) is not None:
        raise ConfigError(f"the module {module} belongs to {' and '.join(owners)}; uninstall all but one")


def _normal(distribution: str) -> str:
    """Normalise the name of a distribution (PEP 503), with underscores."""
    return re.sub(r"[-_.]+", "_", distribution).lower()


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
