"""Content hash of a document's text, for finding exact copies."""

import itertools
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa

from pipelines.contracts.reads_text import MeasuresText
from pipelines.contracts.stage import PartStage

TEXT_HASH = pa.schema([("text_hash", pa.binary(16))])


@dataclass(frozen=True)
class TextHash(MeasuresText, PartStage):
    """Write `text_hash`: the xxh3_128 hash (seed 0, big-endian digest) of the normalised text in UTF-8. It is
    never null; all empty texts have the same hash.
    """

    normalisation: Literal["none", "plain"] = "plain"
    """none: the bytes unchanged. plain: exactly Python's `" ".join(text.lower().split())`, which lower-cases
    the text, replaces every run of white space with one space, and removes white space at the ends;
    punctuation stays.
    """

    def writes(self) -> pa.Schema:
        return self.named(TEXT_HASH)

    def never_null(self) -> tuple[str, ...]:
        return tuple(self.writes().names)

    def depends(self) -> dict[str, str]:
        if self.normalisation == "none":
            return {}
        from pipelines.kernels.text.tables import unicode_version

        return unicode_version()

    def annotate(self, docs: pa.Table) -> pa.Table:
        from xxhash import xxh3_128_digest

        from pipelines.kernels.text.buffers import blocks, text_buffers

        digests = []
        for _, _, offsets, data in blocks(*text_buffers(docs[self.text])):
            if self.normalisation == "plain":
                from pipelines.kernels.text.characters import lower_runs
                from pipelines.kernels.text.tables import IN_TOKEN

                data, offsets, _, _ = lower_runs(offsets, data, IN_TOKEN)
            bounds, view = offsets.tolist(), memoryview(data.data)
            digests += [xxh3_128_digest(view[begin:end]) for begin, end in itertools.pairwise(bounds)]
        return pa.table([pa.array(digests, pa.binary(16))], schema=self.writes())
