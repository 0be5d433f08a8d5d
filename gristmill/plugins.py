"""Plugins from installed packages: entry points that a configuration names as PACKAGE:NAME. They are imported
only when named.
"""

import re
import sys
from importlib import metadata
from typing import Any

from gristmill.config import near_match
from gristmill.errors import ConfigError


def installed(group: str) -> dict[str, list[metadata.EntryPoint]]:
    """Return the entry points of a group, keyed by PACKAGE:NAME. PACKAGE is in lower case, with underscores
    for hyphens and dots. A key has more than one entry point if a package declares the name twice.
    """
    found: dict[str, list[metadata.EntryPoint]] = {}
    for point in metadata.entry_points(group=group):
        if point.dist is not None:
            found.setdefault(f"{_normal(point.dist.name)}:{point.name}", []).append(point)
    return found


def load_installed(group: str, name: str, what: str) -> Any:
    """Import and return the plugin of an entry-point group whose `name` is PACKAGE:NAME. `what` is the kind
    of plugin, such as `stage`, for error messages.

    Raises ConfigError if the plugin is unknown, is declared twice or cannot be imported, or if several
    packages have installed its module. The caller must add the plugin's name to the message.
    """
    known = installed(group)
    if name not in known:
        others = near_match(name, list(known)) or f"; no installed package has {what}s"
        raise ConfigError(f"no installed package has this {what}{others}")
    points = known[name]
    if len(points) > 1:
        owner = points[0].dist
        assert owner is not None
        raise ConfigError(
            f"{owner.name} {owner.version} declares this {what} {len(points)} times: "
            f"{' and '.join(sorted(point.value for point in points))}; give each a name of its own in that package"
        )
    try:
        loaded = points[0].load()
    except Exception as error:  # whatever the import of another package raises
        raise ConfigError(f"cannot be imported ({type(error).__name__}: {error})") from None
    _refuse_two_owners(points[0].module.partition(".")[0])
    return loaded


def _normal(distribution: str) -> str:
    """Normalise the name of a distribution as in PEP 503, but with underscores instead of hyphens."""
    return re.sub(r"[-_.]+", "_", distribution).lower()


def _refuse_two_owners(module: str) -> None:
    """Raise ConfigError if several distributions have installed files of an imported top-level module,
    because its code may then be a mixture of theirs. Namespace packages are exempt.
    """
    owners = distributions_of(module)
    if len(owners) > 1 and getattr(sys.modules.get(module), "__file__", None) is not None:
        raise ConfigError(f"the module {module} belongs to {' and '.join(owners)}; uninstall all but one")


def distributions_of(module: str) -> list[str]:
    """Return the sorted names of the distributions that have installed a top-level module."""
    return sorted({each.metadata["Name"] for each in metadata.distributions() if _has_installed(each, module)})


def _has_installed(distribution: metadata.Distribution, module: str) -> bool:
    if declared := (distribution.read_text("top_level.txt") or "").split():
        return module in declared
    if module not in (distribution.read_text("RECORD") or module):  # without a RECORD, `files` reads another list
        return False
    files = (file for file in distribution.files or () if file.suffix == ".py")
    return any(module == (file.parts[0] if len(file.parts) > 1 else file.stem) for file in files)
