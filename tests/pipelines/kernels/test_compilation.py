"""Where machine code is cached. That it is fresh is tested in tests/gristmill/test_compilation.py."""

import importlib
import pkgutil
from pathlib import Path

from numba.core.registry import CPUDispatcher

import pipelines.kernels


def kernels():
    for module_info in pkgutil.walk_packages(pipelines.kernels.__path__, "pipelines.kernels."):
        module = importlib.import_module(module_info.name)
        yield from ((module, value) for value in vars(module).values() if isinstance(value, CPUDispatcher))


def test_machine_code_is_cached_outside_the_tracked_tree():
    found = list(kernels())
    assert found
    for module, kernel in found:
        cache, folder = Path(kernel.stats.cache_path), Path(kernel.py_func.__code__.co_filename).parent
        assert cache == folder / "__pycache__" or folder not in cache.parents, module
