"""Import large libraries faster: without collecting garbage meanwhile, and with the files of transformers read once."""

import functools
import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def loading(module: str) -> Iterator[None]:
    """Collect no garbage within the block, which imports `module` and what that needs, and never look through what it has made.

    Importing torch and transformers makes a million objects that all stay. Collections took a seventh of the time. If the module
    is loaded, nothing changes: what would be kept might be garbage by now.
    """
    if module in sys.modules or not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        with _models_listed_once():
            yield
    finally:
        gc.freeze()
        gc.enable()


@contextmanager
def _models_listed_once() -> Iterator[None]:
    """Within the block, transformers reads the files of a directory of its models once.

    It lists them all for itself and again for its `models`, 0.3 s each time. Both ask the same cached function, but its cache
    holds 128 of the 549 directories (transformers 5.23).
    """
    bounded = functools.lru_cache

    def lru_cache(maxsize: Any = 128, typed: bool = False) -> Any:
        # Without options, what a decorator gets is the function.
        if getattr(maxsize, "__name__", None) == "create_import_structure_from_path":
            return functools.cache(maxsize)
        return bounded(maxsize, typed)

    functools.lru_cache = lru_cache
    try:
        yield
    finally:
        functools.lru_cache = bounded
