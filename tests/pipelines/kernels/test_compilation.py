"""Kernel cache: numba checks one file at a time, so a kernel that calls into another file could run stale
code.
"""

import importlib
import pkgutil
from pathlib import Path

from numba.core.registry import CPUDispatcher

import pipelines.kernels


def kernels():
    for module_info in pkgutil.walk_packages(pipelines.kernels.__path__, "pipelines.kernels."):
        module = importlib.import_module(module_info.name)
        yield from ((module, value) for value in vars(module).values() if isinstance(value, CPUDispatcher))


def test_kernels_call_only_kernels_of_their_own_file():
    assert list(kernels())
    assert [kernel for module, kernel in kernels() if kernel.py_func.__module__ != module.__name__] == []


def test_machine_code_is_cached_outside_the_tracked_tree():
    found = list(kernels())
    assert found
    for module, kernel in found:
        cache, folder = Path(kernel.stats.cache_path), Path(module.__file__).parent
        assert cache == folder / "__pycache__" or folder not in cache.parents
