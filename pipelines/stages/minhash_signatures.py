"""MinHash signatures over word n-grams (Broder 1997), bit-identical to datasketch's, from which near-copies are
found."""

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import pyarrow as pa

from pipelines.contracts.stage import PartStage, library_versions

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True)
class MinhashSignatures(PartStage):
    """`minhash`: the signature of the set of a document's shingles, fixed_size_list<uint32>[num_perm].

    Words are exactly Python's `re.findall(r"\\w+", text.lower())`; a shingle is `ngram` neighbouring ones joined by one
    space. A document of fewer words is one shingle of all of them. A document without words has a null signature: it
    resembles nothing, and exact copies of it are the business of `text_hash`. Values equal those of
    `datasketch.MinHash(num_perm, seed, scheme="affine32", hashfunc=xxhash.xxh32_intdigest)` updated with every
    shingle's UTF-8.
    """

    num_perm: int = 112
    """Values per signature: bands x rows of `dedup_minhash`, 14 x 8 by default."""
    ngram: int = 5
    """Words per shingle."""
    seed: int = 1
    """Seed of the permutations; signatures of different seeds cannot be compared."""
    unit: Literal["word"] = "word"
    """What a shingle is made of."""

    def reads(self) -> tuple[str, ...]:
        """The stored text."""
        return ("text",)

    def writes(self) -> pa.Schema:
        """`minhash`; its values lie in one buffer, so `column.values.to_numpy().reshape(-1, num_perm)` copies
        nothing."""
        return pa.schema([("minhash", pa.list_(pa.uint32(), self.num_perm))])

    def depends(self) -> dict[str, str]:
        """datasketch draws the permutations; the Unicode version decides what a word is."""
        from pipelines.kernels.tables import unicode_version

        return {**library_versions("datasketch"), **unicode_version()}

    def check(self) -> None:
        """Ranges."""
        for knob, most in (("num_perm", 4096), ("ngram", 1000)):
            value = getattr(self, knob)
            if not 1 <= value <= most:
                raise ValueError(f"{knob}: got {value}, expected 1 to {most}")
        if not 0 <= self.seed < 1 << 32:
            raise ValueError(f"seed: got {self.seed}, expected 0 to {(1 << 32) - 1}")

    def annotate(self, docs: pa.Table) -> pa.Table:
        """The signature of each document."""
        import numpy as np

        from pipelines.kernels.buffers import text_buffers
        from pipelines.kernels.minhash import signatures

        found, shingles = signatures(*text_buffers(docs["text"]), self._permutations, self.ngram)
        wordless = pa.array(shingles == 0)
        kind = self.writes().field("minhash").type
        column = pa.FixedSizeListArray.from_arrays(pa.array(np.ravel(found)), type=kind, mask=wordless)
        return pa.table([column], schema=self.writes())

    @functools.cached_property
    def _permutations(self) -> "np.ndarray":
        from datasketch import MinHash

        return MinHash(self.num_perm, seed=self.seed, scheme="affine32").permutations
