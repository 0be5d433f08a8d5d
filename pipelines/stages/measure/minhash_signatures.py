"""MinHash signatures for finding near-copies, over n-grams of words or characters (Broder 1997). They are
bit-identical to datasketch's.
"""

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import pyarrow as pa

from pipelines.contracts.reads_text import MeasuresText
from pipelines.contracts.stage import PartStage, library_versions

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True)
class MinhashSignatures(MeasuresText, PartStage):
    """Write the column `minhash` (fixed_size_list<uint32>[num_perm]): the MinHash signature of each
    document's set of shingles.

    A document is reduced to its words, as `normalisation` defines them, joined by single spaces. A shingle is
    `ngram` neighbouring words, or characters, of the result. In scripts without spaces between words
    (Chinese, Japanese, Thai, Lao, Khmer, Burmese and others), each letter with its marks counts as a word
    with a weight of five sixths: 6 letters make a shingle where 5 words do. So one step measures texts in any
    mix of scripts. A document shorter than a shingle is a single shingle. A document without words has a null
    signature: it resembles no other document, and `text_hash` finds exact copies of it. Values equal those of
    `datasketch.MinHash(num_perm, seed, scheme="affine32", hashfunc=xxhash.xxh32_intdigest)` updated with the
    UTF-8 bytes of every shingle.
    """

    num_perm: int = 112
    """Values per signature: bands x rows of `dedup_minhash`, 14 x 8 by default."""
    ngram: int = 5
    """Words, or characters, per shingle."""
    seed: int = 1
    """Seed of the permutations; signatures with different seeds cannot be compared."""
    unit: Literal["word", "character"] = "word"
    """What a shingle consists of: words and letters as described above, or single characters in every script."""
    normalisation: Literal["plain", "fineweb"] = "plain"
    """plain: words are the matches of `re.findall(r"\\w+", text.lower())`, extended by the marks and joiners
    that follow them. So Hindi words stay whole, although `\\w+` would cut them at every vowel sign. fineweb: words
    of the text as FineWeb compares it (Penedo et al. 2024, arXiv 2406.17557), separated by spaces. The text is
    lower-cased and accents are stripped; each number, with its fraction, is replaced with 0; punctuation, symbols
    and control characters are replaced with spaces.
    """

    version: ClassVar[int] = 2

    def writes(self) -> pa.Schema:
        return self.named(pa.schema([("minhash", pa.list_(pa.uint32(), self.num_perm))]))

    def depends(self) -> dict[str, str]:
        from pipelines.kernels.text.tables import unicode_version

        return {**library_versions("datasketch"), **unicode_version()}

    def check(self) -> None:
        super().check()
        for knob, maximum in (("num_perm", 4096), ("ngram", 1000)):
            value = getattr(self, knob)
            if not 1 <= value <= maximum:
                raise ValueError(f"{knob}: got {value}, expected 1 to {maximum}")
        if not 0 <= self.seed < 1 << 32:
            raise ValueError(f"seed: got {self.seed}, expected 0 to {(1 << 32) - 1}")

    def annotate(self, docs: pa.Table) -> pa.Table:
        import numpy as np

        from pipelines.kernels.search.minhash import signatures
        from pipelines.kernels.text.buffers import text_buffers

        buffers = text_buffers(self._normal(docs[self.text]))
        values, shingles = signatures(*buffers, self._permutations, self.ngram, self.unit, self._kept)
        wordless = pa.array(shingles == 0)
        kind = self.writes().field(0).type
        column = pa.FixedSizeListArray.from_arrays(pa.array(np.ravel(values)), type=kind, mask=wordless)
        return pa.table([column], schema=self.writes())

    def shingle_sets(self, text: pa.Array) -> pa.LargeListArray:
        """Return, for each text, the distinct 32-bit hashes of its shingles in ascending order."""
        from pipelines.kernels.search.minhash import shingle_sets
        from pipelines.kernels.text.buffers import text_buffers

        offsets, hashes = shingle_sets(*text_buffers(self._normal(text)), self.ngram, self.unit, self._kept)
        return pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(hashes))

    def _normal(self, text: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
        if self.normalisation == "plain":
            return text
        from pipelines.kernels.text.normal_form import fineweb_forms

        return fineweb_forms(text)

    @property
    def _kept(self) -> int:
        """The bit mask of the character classes that words consist of."""
        from pipelines.kernels.text.tables import CONTINUES, IN_TOKEN, IN_WORD, UNSPACED

        kept = IN_WORD | CONTINUES if self.normalisation == "plain" else IN_TOKEN
        return kept | UNSPACED if self.unit == "word" else kept

    @functools.cached_property
    def _permutations(self) -> "np.ndarray":
        from datasketch import MinHash

        return MinHash(self.num_perm, seed=self.seed, scheme="affine32").permutations
