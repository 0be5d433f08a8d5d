"""Determine where a class of a user comes from: the version and the source code that its results depend
on.
"""

import inspect
import sys
from functools import lru_cache
from importlib import metadata
from pathlib import Path

import xxhash

from gristmill.errors import UserError

_OURS = ("gristmill", "tokenizer", "pipelines", "trainers")
SCRIPT = "__main__"


def provenance(thing: object) -> dict[str, str]:
    """Return the version of the distribution that contains the class of an object, and under `source` a
    digest of all Python files of its package, or of its module if it is not in a package. Empty for our own
    classes.

    Raises UserError for a class whose source is not in a file.
    """
    return dict(_provenance(type(thing).__module__, type(thing).__qualname__))


@lru_cache(maxsize=256)
def _provenance(module: str, name: str) -> tuple[tuple[str, str], ...]:
    top = module.partition(".")[0]
    if top in _OURS:
        return ()
    places = getattr(sys.modules[top], "__path__", None)
    digest = xxhash.xxh3_128()
    if places:
        for root in map(Path, places):
            for file in sorted(root.rglob("*.py")):
                content = file.read_bytes()
                digest.update(f"{file.relative_to(root)}\0{len(content)}\0".encode())
                digest.update(content)
    else:
        try:
            digest.update(Path(inspect.getsourcefile(sys.modules[module]) or "").read_bytes())
        except (OSError, TypeError):
            raise UserError(
                f"the class {name}: its source is not in a file; define it in a script or a package"
            ) from None
    distributions = sorted(set(metadata.packages_distributions().get(top, [])))
    return (*((each, metadata.version(each)) for each in distributions), ("source", digest.hexdigest()))
