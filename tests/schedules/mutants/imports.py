"""Import a module of the product with one piece of its text replaced."""

import importlib.machinery
import sys

from tests.schedules.mutants.table import Mutant


class _Loader(importlib.machinery.SourceFileLoader):
    mutant: Mutant

    def get_code(self, fullname):
        return compile(self.mutant.apply(self.get_source(fullname)), self.path, "exec")


class Finder:
    """Import finder that handles the mutated module ahead of all other finders."""

    def __init__(self, mutant: Mutant) -> None:
        self._mutant = mutant

    def find_spec(self, name, path=None, target=None):
        if name != self._mutant.module:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        spec.loader = _Loader(name, spec.origin)
        spec.loader.mutant = self._mutant
        return spec


def import_mutated(mutant: Mutant) -> None:
    """Make this process import the mutated module in place of the original."""
    assert mutant.module not in sys.modules, f"{mutant.module} is imported already"
    sys.meta_path.insert(0, Finder(mutant))
