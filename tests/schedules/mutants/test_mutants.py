"""Mutants apply to the code as it is; `python -m tests.schedules.mutants` finds them all, by many schedules."""

from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.schedules.mutants.table import MUTANTS


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_changes_its_module(mutant):
    source = Path(find_spec(mutant.module).origin).read_text()
    compile(mutant.apply(source), mutant.module, "exec")


def test_names_are_unique():
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
