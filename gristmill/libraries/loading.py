"""Import large libraries without collecting garbage meanwhile."""

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager


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
        yield
    finally:
        gc.freeze()
        gc.enable()
