"""Which distributions own a module."""

from importlib import metadata

import pytest

from gristmill.plugins import distributions_of


@pytest.mark.long
def test_the_owners_of_a_module_are_those_that_the_standard_library_finds():
    owners = metadata.packages_distributions()
    shared = [module for module, names in owners.items() if len(set(names)) > 1]
    for module in [*shared, *sorted(owners)[::20], "gristmill", "yaml", "numpy", "unheard_of"]:
        assert distributions_of(module) == sorted(set(owners.get(module, [])))
