"""Importing large libraries: garbage collection is suspended once, and transformers lists its models once."""

import functools
import gc
import subprocess
import sys

import pytest

from gristmill.libraries.loading import loading


@pytest.fixture
def frozen(monkeypatch):
    """Replace `gc.freeze` by a function without effect, and yield a list that records for each call whether
    garbage collection was enabled.
    """
    calls = []
    monkeypatch.setattr(gc, "freeze", lambda: calls.append(gc.isenabled()))
    yield calls
    gc.enable()


def test_no_garbage_is_collected_while_a_library_is_imported(frozen):
    with loading("a_library"):
        assert not gc.isenabled()
    assert frozen == [False]
    assert gc.isenabled()


def test_a_library_that_fails_to_load_leaves_the_collector_on(frozen):
    with pytest.raises(ImportError), loading("a_library"):
        raise ImportError
    assert gc.isenabled()


def test_nothing_changes_when_the_library_is_there_or_the_collector_is_off(frozen, monkeypatch):
    monkeypatch.setitem(sys.modules, "a_library", sys)
    with loading("a_library"):
        assert gc.isenabled()
    gc.disable()
    with loading("another_library"):
        pass
    assert not gc.isenabled()
    assert frozen == []


def test_commands_with_a_model_keep_what_they_import_and_list_the_models_of_transformers_once():
    """The test runs in a separate process, because imported objects stay exempt from garbage collection.
    Listing the models reads the files of a directory, so it must happen only once.
    """
    code = """
import gc
from pathlib import Path
import trainers.inference.model_export
import transformers
print(gc.get_freeze_count())
from transformers.utils.import_utils import create_import_structure_from_path
print(len(list(Path(transformers.models.__file__).parent.glob("*/__init__.py"))))
print(create_import_structure_from_path.cache_info().misses)
"""
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    kept, models, listed = map(int, printed.split())
    assert kept > 100_000
    assert models > 300
    assert listed < 1.1 * models


def test_other_caches_are_bounded_as_ever(frozen):
    with loading("a_library"):

        @functools.lru_cache
        def bare(number):
            return number

        @functools.lru_cache(maxsize=2)
        def small(number):
            return number

    assert (bare.cache_parameters()["maxsize"], small.cache_parameters()["maxsize"]) == (128, 2)
    assert functools.lru_cache.__module__ == "functools"
