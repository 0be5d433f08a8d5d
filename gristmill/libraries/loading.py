"""Import large libraries faster, with garbage collection paused and transformers' model directories read only
once.
"""

import functools
import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def loading(module: str) -> Iterator[None]:
    """Pause garbage collection during the block, which imports `module`, and make transformers read its model
    directories only once. Afterwards, exempt all objects made so far from later collections.

    Has no effect if garbage collection is disabled, or if the module is already loaded.
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
    """During the block, make transformers read the files of each model directory only once. The library's own
    cache is too small for them.
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
