"""Importing large libraries: the garbage collector waits, once."""

import gc
import sys

import pytest

from gristmill.libraries.loading import loading


@pytest.fixture
def frozen(monkeypatch):
    """The calls of `gc.freeze`, which has no effect."""
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
