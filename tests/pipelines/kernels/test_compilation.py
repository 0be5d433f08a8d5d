"""The digest of a kernel covers everything that it is compiled from; the cache itself is tested in
tests/gristmill/test_compilation.py.
"""

import dis
import importlib
import math
import subprocess
from pathlib import Path

import numpy as np
import pytest
from numba.core.dispatcher import Dispatcher
from numba.extending import _Intrinsic

ROOT = Path(__file__).parents[3]
FILES = subprocess.run(
    ["grep", "-rlE", "--include=*.py", "^ *@kernel", "pipelines", "trainers", "tokenizer"],
    cwd=ROOT, capture_output=True, text=True, check=True,
).stdout.split()  # fmt: skip
BY_VALUE = (Dispatcher, np.ndarray, bool, int, float, str, bytes, np.generic, type)


def is_covered(value, path):
    if isinstance(value, tuple):
        return all(isinstance(each, bool | int | float | str | bytes) for each in value)
    if isinstance(value, _Intrinsic):  # by the digest of its file
        return value._defn.__code__.co_filename == path
    return isinstance(value, BY_VALUE) or value in (np, math)


@pytest.mark.parametrize("file", FILES)
def test_the_digest_of_a_kernel_covers_what_it_uses(file):
    module = importlib.import_module(file.removesuffix(".py").replace("/", "."))
    kernels = [value.py_func for value in vars(module).values() if isinstance(value, Dispatcher)]
    own = [function for function in kernels if function.__module__ == module.__name__]
    assert own
    for function in own:
        assert function.__closure__ is None
        for step in dis.get_instructions(function):
            if step.opname == "LOAD_GLOBAL" and step.argval in function.__globals__:
                value = function.__globals__[step.argval]
                assert is_covered(value, function.__code__.co_filename), f"{function.__name__} uses {step.argval}"
