"""Tokenizer training on a sample of the kept text.

Whole documents are chosen by the hash of their id, so the sample does not depend on the division into parts
or on the number of workers. Training WordPiece or Unigram twice on the same sample can give different files.
The other kinds, such as byte-level BPE (Sennrich et al. 2016; Radford et al. 2019), always give the same
file.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from gristmill.config import ADDED
from gristmill.errors import UserError
from gristmill.storage.location import FileRecord
from gristmill.storage.store import file_checksum
from pipelines.cluster.shuffle import gather_rows, scatter_rows
from pipelines.contracts.columns import DROP
from pipelines.contracts.document import TARGET_MARK, ids_as_integers
from pipelines.contracts.manifest import StepOutput
from pipelines.contracts.parts import Part
from pipelines.contracts.reads import EDITED_TEXT, Column, Drop, GivenSplits, Input, TokenizerShares
from pipelines.contracts.stage import Cluster, CorpusStage, gather, library_versions
from tokenizer.kinds.learned import LARGEST_VOCABULARY

_BYTES_VOCABULARY = 384
_DEFAULT_VOCABULARY = 32768


class SampleCell(NamedTuple):
    """The documents of one source that belong to one group. The group is the source itself, or a value of the
    column `language` ("" for null).
    """

    group: str
    source: str


@dataclass(frozen=True)
class LearnTokenizer(CorpusStage):
    """Train a tokenizer. Its file is `tokenizer.json` in the step's directory, or, for wordpiece and unigram,
    in a subdirectory named after a hash of the file. Ids 0 to 127 are reserved in every kind, unless `grow`
    is given.

    The sample is about `sample_bytes` of kept text, without documents that their source assigns to validation
    or test. Each source fills a share of the sample in proportion to its `tokenizer_share`, regardless of its
    size. With a `temperature` T, the proportion is its `tokenizer_share` times its kept bytes to the power
    1/T. T = 1 gives the natural proportions; a larger T favours small sources. Published values: T = 3.33
    (exponent 0.3) in XLM-R (Conneau et al. 2020, section 3.1) and mT5 (Xue et al. 2021, section 3.2), 2 for
    the BPE of XLM (Lample and Conneau 2019, section 3.1), 1.43 (0.7) in multilingual BERT.

    With `per: language`, all languages that the step `language` found have the same weight, across all
    sources. With a temperature, a language's weight is its kept bytes to the power 1/T. The weight is divided
    among the sources in proportion to their kept bytes in the language, and each source's part is multiplied
    by its `tokenizer_share`. Documents without a language are a separate group. If a group has too little
    text, the others fill the gap.

    WordPiece and Unigram training is not reproducible: the file is published once, and the steps that read it
    depend on its checksum. If the file is lost, a new tokenizer is trained, and everything derived from the
    lost file is built again.
    """

    kind: Literal["byte_bpe", "bpe", "wordpiece", "unigram", "bytes", "characters"] = "byte_bpe"
    """byte_bpe: over bytes, with Llama 3's pre-tokenizer. bpe: over the characters of words, with an
    end-of-word mark (GPT). wordpiece: as in BERT. unigram: as in T5 and SentencePiece. bytes: one token for
    each byte (ByT5), so nothing is trained. characters: one token for each distinct character of the sample.
    """
    vocab_size: int = _DEFAULT_VOCABULARY
    """Entries of the vocabulary, including the 128 reserved ones. `bytes` always has 384; for `characters`,
    the text determines the number.
    """
    lowercase: bool = False
    """Convert to lower case before learning and encoding (bpe, unigram); wordpiece also strips accents, as BERT uncased does."""
    coverage: float = 0.9995
    """Share of the sample's characters that the vocabulary covers (bpe, wordpiece, unigram); the rarest become `<unk>`."""
    sample_bytes: int = 1 << 30
    """Approximate UTF-8 bytes of text to train on."""
    temperature: float | None = None
    """The T described above. Without it, the sizes of the groups do not affect their shares."""
    per: Literal["source", "language"] = "source"
    """The groups that share the sample."""
    seed: int = 0
    """Changes the sample of documents."""
    unknown: Literal["unk", "error"] = field(default="unk", metadata=ADDED)
    """What happens to a character outside a vocabulary of `characters`: it becomes `<unk>`, or encoding stops."""
    grow: str | None = field(default=None, metadata=ADDED)
    """Path of a byte-level BPE tokenizer to extend, a tokenizer.json or its directory. Its tokens keep their
    ids. Reserved tokens that it lacks are added, then tokens learned from the sample, up to `vocab_size`. A
    text is then encoded as before, except that some neighbouring tokens are merged. A model with the original
    tokenizer can be trained further with `init.vocabulary=transfer`.
    """

    version: ClassVar[int] = 2
    paths: ClassVar[tuple[str, ...]] = ("grow",)

    def check(self) -> None:
        if self.grow is not None and self.kind != "byte_bpe":
            raise ValueError(f"grow: got {self.grow!r}, but only byte_bpe grows; remove kind")
        minimum = 384 if self.kind == "byte_bpe" else 129
        if self.kind == "characters" and self.vocab_size != _DEFAULT_VOCABULARY:
            raise ValueError(f"vocab_size: got {self.vocab_size}, but characters takes that of the text; remove it")
        if self.unknown != "unk" and self.kind != "characters":
            raise ValueError(f"unknown: got {self.unknown!r}, which is for characters; {self.kind} has its own rule")
        if self.kind == "bytes" and self.vocab_size not in (_DEFAULT_VOCABULARY, _BYTES_VOCABULARY):
            raise ValueError(f"vocab_size: got {self.vocab_size}, but bytes always has 384; remove it")
        if self.vocab_size < minimum:
            extra = "256 bytes and 128 reserved tokens" if self.kind == "byte_bpe" else "128 are reserved"
            raise ValueError(f"vocab_size: got {self.vocab_size}, expected at least {minimum}: {extra}")
        if self.vocab_size > LARGEST_VOCABULARY:
            raise ValueError(f"vocab_size: got {self.vocab_size}, expected at most {LARGEST_VOCABULARY:,}")
        if self.lowercase and self.kind in ("byte_bpe", "bytes", "characters"):
            raise ValueError(
                f"lowercase: got true, which {self.kind} does not support; set it to false, or choose bpe, unigram or wordpiece"
            )
        if not 0 < self.coverage <= 1:
            raise ValueError(f"coverage: got {self.coverage}, expected above 0 to 1")
        if self.sample_bytes < 1:
            raise ValueError(f"sample_bytes: got {self.sample_bytes}, expected a positive number of bytes")
        if self.temperature is not None and not self.temperature >= 1:
            raise ValueError(
                f"temperature: got {self.temperature}, expected 1 (the sizes themselves) or more (more even); it is 1 / alpha"
            )

    @property
    def reproducible(self) -> bool:
        return self.kind not in ("wordpiece", "unigram")

    def reads(self) -> tuple[Input, ...]:
        if self.kind == "bytes":
            return ()
        language = (Column("language"),) if self.per == "language" else ()
        return (EDITED_TEXT, Drop(), TokenizerShares(), GivenSplits(), *language)

    def notice(self) -> str:
        from tokenizer.kinds.train import NOTICES

        return NOTICES.get(self.kind, "")

    def depends(self) -> dict[str, str]:
        versions = library_versions("tokenizers")
        if self.grow is not None:
            versions["grow"] = self._base_checksum
        return versions

    @property
    def base_file(self) -> Path:
        """The file of the tokenizer to grow. `grow` must be set."""
        path = Path(self.grow or "")
        return path if path.suffix == ".json" else path / "tokenizer.json"

    @cached_property
    def _base_checksum(self) -> str:
        if not self.base_file.is_file():
            raise UserError(f"learn_tokenizer: grow: no file {self.base_file}; give a tokenizer.json or its directory")
        return file_checksum(self.base_file)

    def run(self, parts: Sequence[Part], out: StepOutput, cluster: Cluster) -> dict[str, Any]:
        samples: list[FileRecord] = []
        quotas: dict[SampleCell, int] = {}
        if self.kind != "bytes":
            quotas, samples = self._sample(parts, out, cluster)
        training = _TrainTask(self, out, tuple(samples), None if self.grow is None else self._base_checksum)
        record = next(iter(cluster.map(train_tokenizer, [training], lambda _: "learn_tokenizer: training")))[1]
        by_name = {"/".join(dict.fromkeys(cell)): quota for cell, quota in quotas.items()}
        return {"files": [asdict(record)], "sample_bytes_wanted": by_name, "kind": self.kind}

    def _sample(
        self, parts: Sequence[Part], out: StepOutput, cluster: Cluster
    ) -> tuple[dict[SampleCell, int], list[FileRecord]]:
        measured = gather(
            cluster,
            measure_text,
            [(part, self.per) for part in parts],
            lambda task: f"learn_tokenizer: part {task[0].name}",
        )
        kept: dict[SampleCell, int] = {}
        for sizes in measured:
            for cell, size in sizes.items():
                kept[cell] = kept.get(cell, 0) + size
        shares = {part.source: part.tokenizer_share for part in parts}
        quotas = allot(self.sample_bytes, weigh(kept, shares, self.temperature), kept)
        if not sum(quotas.values()):
            raise UserError(
                f"{out.name}: no text is left to train on: every document was dropped or every tokenizer_share is 0"
            )
        chances = {cell: quotas[cell] / kept[cell] if kept[cell] else 0.0 for cell in kept}
        tasks = [_SampleTask(self, out, part, chances) for part in parts]
        return quotas, gather(cluster, sample_documents, tasks, lambda task: f"learn_tokenizer: part {task.part.name}")


def weigh(
    kept: Mapping[SampleCell, int], shares: Mapping[str, float], temperature: float | None = None
) -> dict[SampleCell, float]:
    """Return the weight of each cell. `kept` maps each cell to its bytes of kept text, and `shares` maps each
    source to its `tokenizer_share`.

    A group of K bytes has the weight K ** (1 / temperature), or 1 without a temperature. This weight is
    divided among the group's cells in proportion to their bytes. Each cell's weight is then multiplied by the
    share of its source.
    """
    totals: dict[str, int] = {}
    for cell, size in kept.items():
        totals[cell.group] = totals.get(cell.group, 0) + size
    exponent = 0.0 if temperature is None else 1.0 / temperature
    return {
        cell: shares[cell.source] * size / totals[cell.group] * totals[cell.group] ** exponent if size else 0.0
        for cell, size in kept.items()
    }


def allot(
    total: int, weights: Mapping[SampleCell, float], available: Mapping[SampleCell, int]
) -> dict[SampleCell, int]:
    """Return the number of bytes to take from each cell: `total`, divided in proportion to the weights. No
    cell gives more than its `available` bytes; the other cells fill the gap if they can.
    """
    quotas = dict.fromkeys(weights, 0)
    open_cells = [cell for cell in weights if weights[cell] > 0 and available[cell] > 0]
    while open_cells and total > 0:
        weight = sum(weights[cell] for cell in open_cells)
        full = [cell for cell in open_cells if available[cell] <= total * weights[cell] / weight]
        if not full:
            for cell in open_cells:
                quotas[cell] = int(total * weights[cell] / weight)
            break
        for cell in full:
            quotas[cell] = available[cell]
            total -= available[cell]
            open_cells.remove(cell)
    return quotas


def measure_text(task: tuple[Part, str]) -> dict[SampleCell, int]:
    """Return the number of UTF-8 bytes of edited text in each cell of a part, not counting dropped and
    held-out documents. The task is a part and the value of `LearnTokenizer.per`.
    """
    part, per = task
    if per == "source":
        return {SampleCell(part.source, part.source): part.kept_text_bytes(training=True)}
    rows = pa.array(np.flatnonzero(_trained_on(part, part.table((DROP,)))))
    kept = part.table((EDITED_TEXT, "language"), rows)
    sized = pa.table({"language": _languages(kept), "size": pc.binary_length(kept["edited_text"])})
    sums = sized.group_by("language", use_threads=False).aggregate([("size", "sum")]).sort_by("language")
    return {SampleCell(row["language"], part.source): row["size_sum"] for row in sums.to_pylist()}


def _trained_on(part: Part, table: pa.Table) -> np.ndarray:
    """Return whether each document is kept and not in a validation or test split given by its source, bool
    [rows].
    """
    kept: np.ndarray = pc.is_null(table[DROP]).to_numpy() & ~part.held_out()
    return kept


def _languages(table: pa.Table) -> pa.ChunkedArray:
    return pc.fill_null(table["language"].cast(pa.string()), "")


@dataclass(frozen=True)
class _SampleTask:
    stage: LearnTokenizer
    out: StepOutput
    part: Part
    chances: dict[SampleCell, float]


def is_sampled(ids: pa.Array, share: float | np.ndarray, seed: int) -> np.ndarray:
    """Return whether each document is sampled, bool [n]: whether the splitmix64 hash of its id and `seed`,
    scaled to [0, 1), is below `share`. `share` is one number for all documents or an array with one number
    per document.
    """
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
    """Commit the sampled texts of a part, and return the record of their file."""
    source = task.part.source
    unit = f"sample-{source}-{task.part.index:05d}"
    receipt = task.out.receipt(unit)
    if receipt is None:
        by_language = task.stage.per == "language"
        table = task.part.table(("id", DROP, *(("language",) if by_language else ())))
        groups = _languages(table).to_pylist() if by_language else [source] * table.num_rows
        chances = np.array([task.chances.get(SampleCell(group, source), 0.0) for group in groups])
        kept = _trained_on(task.part, table)
        sampled = kept & is_sampled(table["id"].combine_chunks(), chances, task.stage.seed) if table.num_rows else kept
        texts = task.part.table((EDITED_TEXT,), pa.array(np.flatnonzero(sampled)))
        receipt = task.out.commit(
            unit, {f"work/{unit}.arrow": scatter_rows(texts, np.zeros(texts.num_rows, np.int64), 1)}, {}
        )
    return receipt.files[0]


@dataclass(frozen=True)
class _TrainTask:
    """The task of training a tokenizer; iterating over it yields the texts of all samples. `base` is the
    checksum of the tokenizer to grow, or None.
    """

    stage: LearnTokenizer
    out: StepOutput
    samples: tuple[FileRecord, ...]
    base: str | None = None

    def __iter__(self) -> Iterator[str]:
        for record in self.samples:
            for text in gather_rows(self.out.directory, [record], 0)["edited_text"]:
                yield text.as_py().replace(TARGET_MARK, "")


def train_tokenizer(task: _TrainTask) -> FileRecord:
    """Train or grow a tokenizer on all samples. Commit the tokenizer's file and return its record."""
    receipt = task.out.receipt("tokenizer")
    if receipt is None:
        try:
            content = _trained(task) if task.base is None else _grown(task)
        except ValueError as error:
            raise UserError(f"{task.out.name}: {error}") from None
        # A file that is not reproducible gets a unique name, so that concurrent builds do not overwrite each
        # other's.
        directory = "" if task.stage.reproducible else f"{xxhash.xxh3_128_hexdigest(content)[:12]}/"
        receipt = task.out.commit("tokenizer", {f"{directory}tokenizer.json": content}, {})
    return receipt.files[0]


def _trained(task: _TrainTask) -> bytes:
    from tokenizer.kinds.train import WITHOUT_SIZE, train

    stage = task.stage
    size = None if stage.kind in WITHOUT_SIZE else stage.vocab_size
    unknown = stage.unknown if stage.kind == "characters" else None
    return train(stage.kind, task, size, lowercase=stage.lowercase, coverage=stage.coverage, unknown=unknown)


def _grown(task: _TrainTask) -> bytes:
    from tokenizer.kinds.grown_bpe import grow_byte_bpe
    from tokenizer.vocabulary.definition import read_definition

    path = task.stage.base_file
    definition = read_definition(str(path))
    if file_checksum(path) != task.base:
        raise ValueError(
            f"grow: {path} changed since the build was planned, or differs between machines; run the command again"
        )
    return grow_byte_bpe(task, definition, task.stage.vocab_size)
