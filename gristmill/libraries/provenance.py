"""Identify the code of a user's class or function by the versions of its distributions and a digest of its
source, and check that a worker has the same code.
"""

import inspect
import sys
from collections.abc import Mapping
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from types import FunctionType

import xxhash

from gristmill.errors import UserError
from gristmill.plugins import distributions_of

_OURS = ("gristmill", "tokenizer", "pipelines", "trainers")
SCRIPT = "__main__"


def provenance(thing: object) -> dict[str, str]:
    """Identify the code of a function, or of the class of an object. The result maps each distribution that
    contains the code to its version, and `source` to a digest of the whole top-level package or module; it is
    empty for code of this project. Raises UserError if the source is not in a file.
    """
    owner = _owner(thing)
    return dict(_provenance(owner.__module__, owner.__qualname__))


def _owner(thing: object) -> FunctionType | type:
    return thing if isinstance(thing, FunctionType) else type(thing)


def check_code(step: str, thing: object, code: Mapping[str, str]) -> None:
    """Raise UserError if the code of a function, or of the class of an object, differs from `code`, which was
    recorded when the build was planned. Code defined in a script is not checked.
    """
    module = _owner(thing).__module__
    if module == SCRIPT:
        return
    here = provenance(thing)
    if here != dict(code):
        raise UserError(
            f"{step}: a worker has other code than the process that planned the build ({show_code(here)}, planned with "
            f"{show_code(code)}); install the same version of {module.partition('.')[0]} everywhere"
        )


def show_code(code: Mapping[str, str]) -> str:
    """Format the result of `provenance` for a message, as in `shouting 1.0, source 0123456789ab`. An empty
    result becomes `its own`.
    """
    versions = [f"{name} {version}" for name, version in code.items() if name != "source"]
    return ", ".join([*versions, f"source {code['source'][:12]}"]) if code else "its own"


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
    return (*((each, metadata.version(each)) for each in distributions_of(top)), ("source", digest.hexdigest()))
