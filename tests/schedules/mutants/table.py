"""Mutants: each patch in `patches/` removes one safeguard from the product.

The first line of a patch names the scenario in which the bug shows. The rest is a diff hunk without line
numbers, whose lines must occur exactly once in the module.
"""

from dataclasses import dataclass
from pathlib import Path

_PATCHES = Path(__file__).with_name("patches")


@dataclass(frozen=True)
class Mutant:
    """One mutant: a name that describes what is removed, the module and commands concerned, and the lines to
    replace with their replacement.
    """

    name: str
    module: str
    agents: str
    old: str
    new: str

    def apply(self, source: str) -> str:
        count = source.count(self.old)
        assert count == 1, f"{self.name}: its lines occur {count} times in {self.module}, expected once"
        return source.replace(self.old, self.new)


def _parse(path: Path) -> Mutant:
    agents, file, _, _, *lines = path.read_text().splitlines(keepends=True)
    module = file.strip().removeprefix("--- a/").removesuffix(".py").replace("/", ".")
    old = "".join(line[1:] for line in lines if line[0] in " -")
    new = "".join(line[1:] for line in lines if line[0] in " +")
    return Mutant(path.stem.replace("-", " "), module, agents.removeprefix("agents:").strip(), old, new)


MUTANTS = tuple(_parse(path) for path in sorted(_PATCHES.glob("*.patch")))
