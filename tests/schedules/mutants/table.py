"""Mutants: each patch in `patches/` removes one protection of the product.

Its first line says which commands must meet for the harm to show. The rest is a hunk of a diff without line numbers: it applies
where its lines are found.
"""

from dataclasses import dataclass
from pathlib import Path

_PATCHES = Path(__file__).with_name("patches")


@dataclass(frozen=True)
class Mutant:
    """What is removed, in words; the module; the lines there that are replaced, and those that replace them."""

    name: str
    module: str
    agents: str
    old: str
    new: str

    def apply(self, source: str) -> str:
        """The text of the module without the protection."""
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
