"""Tokenizer training: byte-level BPE (Sennrich et al. 2016; Radford et al. 2019) on a sample of what was kept.

Each source fills its part of `sample_bytes` by its `tokenizer_share`; a source that has less gives all it has. Whole documents
are chosen by the hash of their id, so the sample depends on neither parts nor workers.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.contracts.annotations import Part
from pipelines.contracts.document import ids_as_integers
from pipelines.contracts.errors import UserError
from pipelines.contracts.manifest import StepOutput, records_of
from pipelines.contracts.stage import DROP, Cluster, CorpusStage, in_order, library_versions
from pipelines.contracts.store import FileRecord
from pipelines.shuffle import gathered, scattered


@dataclass(frozen=True)
class LearnTokenizer(CorpusStage):
    """Train a tokenizer; its file is `tokenizer.json` in the step's directory."""

    kind: Literal["byte_bpe"] = "byte_bpe"
    """byte_bpe: byte-level BPE with Llama 3's pre-tokenizer."""
    vocab_size: int = 32768
    """Entries of the vocabulary, the 128 reserved ones included."""
    sample_bytes: int = 1 << 30
    """UTF-8 bytes of text to train on."""
    seed: int = 0
    """Chooses another sample of documents."""

    version: ClassVar[int] = 1

    def check(self) -> None:
        """Ranges."""
        if self.vocab_size < 384:
            raise ValueError(
                f"vocab_size: got {self.vocab_size}, expected at least 384: 256 bytes and 128 reserved tokens"
            )
        if self.sample_bytes < 1:
            raise ValueError(f"sample_bytes: got {self.sample_bytes}, expected a positive number of bytes")

    def reads(self) -> tuple[str, ...]:
        """Kept text and the sources' shares."""
        return ("edited_text", DROP, "tokenizer_share")

    def depends(self) -> dict[str, str]:
        """The library that trains."""
        return library_versions("tokenizers")

    def run(self, parts: Sequence[Part], out: StepOutput, cluster: Cluster) -> dict[str, Any]:
        """Measure, sample, train."""
        sizes = in_order(
            cluster.map(Part.kept_text_bytes, parts, lambda part: f"learn_tokenizer: part {part.name}"), len(parts)
        )
        kept: dict[str, int] = {}
        for part, size in zip(parts, sizes, strict=True):
            kept[part.source] = kept.get(part.source, 0) + size
        quotas = allot(self.sample_bytes, {part.source: part.tokenizer_share for part in parts}, kept)
        if not sum(quotas.values()):
            raise UserError(
                "learn_tokenizer: no text is left to train on: every document was dropped or every tokenizer_share is 0"
            )
        tasks = [
            _SampleTask(out, part, quotas[part.source] / kept[part.source] if kept[part.source] else 0.0, self.seed)
            for part in parts
        ]
        samples = in_order(
            cluster.map(sample_documents, tasks, lambda task: f"learn_tokenizer: part {task.part.name}"), len(tasks)
        )
        training = _TrainTask(out, tuple(samples), self.vocab_size)
        record = next(iter(cluster.map(train_tokenizer, [training], lambda _: "learn_tokenizer: training")))[1]
        return {"files": [asdict(record)], "sample_bytes_wanted": quotas, "kind": self.kind}


def allot(total: int, shares: dict[str, float], available: dict[str, int]) -> dict[str, int]:
    """Split `total` bytes over sources in proportion to their shares; what a source cannot give goes to the others."""
    quotas = dict.fromkeys(shares, 0)
    open_sources = [name for name in shares if shares[name] > 0 and available[name] > 0]
    while open_sources and total > 0:
        weight = sum(shares[name] for name in open_sources)
        full = [name for name in open_sources if available[name] <= total * shares[name] / weight]
        if not full:
            for name in open_sources:
                quotas[name] = int(total * shares[name] / weight)
            break
        for name in full:
            quotas[name] = available[name]
            total -= available[name]
            open_sources.remove(name)
    return quotas


@dataclass(frozen=True)
class _SampleTask:
    out: StepOutput
    part: Part
    share: float
    seed: int


def chosen(ids: pa.Array, share: float, seed: int) -> np.ndarray:
    """Which documents a sample of `share` takes, bool [n]: a hash of the id and the seed (splitmix64) below the share."""
    integers = ids_as_integers(ids)
    key = (
        integers["key"]
        ^ (integers["record"] * np.uint64(0x9E3779B97F4A7C15))
        ^ np.uint64(seed * 0xD1342543DE82EF95 & (1 << 64) - 1)
    )
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        key = (key ^ (key >> np.uint64(shift))) * np.uint64(factor)
    return (key ^ (key >> np.uint64(31))) / 2.0**64 < share


def sample_documents(task: _SampleTask) -> FileRecord:
    """Commit the sampled texts of a part."""
    unit = f"sample-{task.part.source}-{task.part.index:05d}"
    receipt = task.out.receipt(unit)
    if receipt is None:
        table = task.part.table(("id", "edited_text", DROP))
        kept = pc.is_null(table[DROP]).to_numpy()
        wanted = kept & chosen(table["id"].combine_chunks(), task.share, task.seed) if table.num_rows else kept
        texts = table.select(["edited_text"]).filter(pa.array(wanted)).combine_chunks()
        receipt = task.out.commit(
            unit, {f"work/{unit}.arrow": scattered(texts, np.zeros(texts.num_rows, np.int64), 1)}, {}
        )
    return records_of(receipt)[0]


@dataclass(frozen=True)
class _TrainTask:
    out: StepOutput
    samples: tuple[FileRecord, ...]
    vocab_size: int


def train_tokenizer(task: _TrainTask) -> FileRecord:
    """Train on all samples and commit `tokenizer.json`."""
    receipt = task.out.receipt("tokenizer")
    if receipt is None:
        from tokenizer.train import train_byte_bpe

        try:
            content = train_byte_bpe(_texts(task), task.vocab_size)
        except ValueError as error:
            raise UserError(f"learn_tokenizer: {error}") from None
        receipt = task.out.commit("tokenizer", {"tokenizer.json": content}, {})
    return records_of(receipt)[0]


def _texts(task: _TrainTask) -> Iterator[str]:
    for record in task.samples:
        column = gathered(task.out.directory, [record], 0)["edited_text"]
        for text in column:
            yield text.as_py()
