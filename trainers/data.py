"""From the shards of a build to batches: memory-mapped reading, packing, and which rows a worker takes.

The stream of a source is cut into sequences once and for all; `trainers.order` says which sequence sample n is, and the
objective makes of it what the model learns from. So a batch depends on the corpus, the seed, the mixture, the sequence
length, the objective and the sample number, and on nothing else.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from pathlib import Path

import numpy as np

from pipelines.contracts.errors import ConfigError, CorruptFileError, UserError
from pipelines.contracts.manifest import ShardRecord, TokenizerRecord, load_corpus
from pipelines.contracts.place import place_of
from pipelines.contracts.shards import Shard, open_shard
from pipelines.contracts.store import digest, verify
from trainers.architecture import DECODER_START, FAMILY
from trainers.batch import Batch, Frame
from trainers.best_fit import Packing, pack_source
from trainers.config import Data, Pretraining
from trainers.documents import silence
from trainers.mixture import Mixture, cap, mixture
from trainers.objectives import Objective
from trainers.objectives.causal import Causal
from trainers.objectives.context import Context
from trainers.objectives.masked import Masking
from trainers.order import Order, Samples, Stream
from trainers.packing import pack, pad

SPLITS = ("train", "validation")


@dataclass(frozen=True)
class Source:
    """One split of a source: its shards in the manifest's order, opened when they are first read, and the `frame` of marks
    around each of its documents. Without `packing` its sequences are cut from its stream one after another.
    """

    name: str
    directory: Path
    shards: tuple[ShardRecord, ...]
    frame: Frame
    packing: Packing | None = None

    @cached_property
    def starts(self) -> list[int]:
        """Stream position at which each shard begins, then the stream's length."""
        marks = self.frame.marks
        return list(accumulate((shard.tokens + marks * shard.documents for shard in self.shards), initial=0))

    @property
    def tokens(self) -> int:
        """Tokens of one epoch, marks included."""
        return self.starts[-1]

    @property
    def text_bytes(self) -> int:
        """UTF-8 bytes of the text."""
        return sum(shard.text_bytes for shard in self.shards)

    @cached_property
    def _opened(self) -> dict[int, Shard]:
        return {}

    def shard(self, number: int) -> Shard:
        """Shard `number`, opened and verified at the first use in this process."""
        if number not in self._opened:
            self._opened[number] = open_shard(self.directory, self.shards[number].file)
        return self._opened[number]

    def fill(
        self, sequences: np.ndarray, rows: np.ndarray, filled: np.ndarray, batch: Batch, marks: Mapping[str, int]
    ) -> None:
        """Write `sequences` into `rows` of `batch`, and how much of each row is written into `filled`."""
        if self.packing is not None:
            numbers = np.searchsorted(self.packing.starts, sequences, side="right") - 1
            for number in np.unique(numbers):
                index, starts, counts = self.packing.pieces(number, sequences[numbers == number])
                self._copy(number, starts, counts, rows[numbers == number][index], filled, batch, marks)
            return
        length = batch.inputs.shape[1]
        starts = sequences * length
        numbers = np.searchsorted(self.starts, starts, side="right") - 1
        inside = starts - np.asarray(self.starts)[numbers]
        while len(rows):
            for number in np.unique(numbers):
                here = numbers == number
                counts = np.full(here.sum(), length)
                self._copy(number, inside[here], counts, rows[here], filled, batch, marks)
            # A row that reaches the end of a shard goes on in the next one.
            going_on = (filled[rows] < length) & (numbers < len(self.shards) - 1)
            rows, numbers = rows[going_on], numbers[going_on] + 1
            inside = np.zeros(len(rows), dtype=np.int64)

    def _copy(
        self,
        number: int,
        starts: np.ndarray,
        counts: np.ndarray,
        rows: np.ndarray,
        filled: np.ndarray,
        batch: Batch,
        marks: Mapping[str, int],
    ) -> None:
        shard, frame = self.shard(number), self.frame
        before, after = (-1 if mark is None else marks[mark] for mark in (frame.before, frame.after))
        following = marks["<eos>"] if before >= 0 and after < 0 else -1
        arrays = (batch.inputs, batch.targets, batch.positions, batch.segments)
        pack(shard.tokens, shard.offsets, starts, counts, rows, filled, before, after, following, *arrays)

    def check(self) -> None:
        """CorruptFileError where a shard is missing or has another size than its manifest records, without reading any.
        Shards on an object store, and what is in a shard, are checked when they are first opened.
        """
        for record in self.shards:
            path = self.directory / record.path
            if isinstance(path, Path) and not (path.exists() and path.stat().st_size == record.bytes):
                found = f"is {path.stat().st_size} bytes" if path.exists() else "is missing"
                raise CorruptFileError(
                    f"{path}: {found}, the corpus's manifest records {record.bytes} bytes; build the corpus again"
                )

    def packed(self, length: int, seed: int) -> "Source":
        """This source with its documents in best-fit sequences. Opens all of its shards."""
        shards = [(self.shard(number).offsets, record.xxh3_128) for number, record in enumerate(self.shards)]
        return replace(self, packing=pack_source(shards, length, self.frame.marks, seed))


@dataclass(frozen=True)
class Corpus:
    """The shards of one tokenizer over some corpora, by split and source; `directory` is that of the first corpus.
    `empty` are sources without training documents.
    """

    fingerprint: str
    tokenizer: TokenizerRecord
    directory: Path
    shard_set: str
    mixtures: dict[str, dict[str, float]]
    train: dict[str, Source]
    validation: dict[str, Source]
    empty: frozenset[str]


def open_corpus(directories: tuple[str, ...], shard_set: str | None, frame: Frame = Causal.frame) -> Corpus:
    """Read the manifests of `directories` and check that they fit together. Opens no shard. `frame` is the objective's.

    Raises UserError where a manifest is missing, sources share a name, tokenizers differ, or one lacks a special that
    readers need.
    """
    if not directories:
        raise ConfigError(
            "data.corpora: names no corpus; give corpus=DIRECTORY, a directory that `pipelines build` wrote"
        )
    parts = [_open_one(place_of(directory), shard_set, frame) for directory in directories]
    first = parts[0]
    train: dict[str, Source] = {}
    validation: dict[str, Source] = {}
    for directory, part in zip(directories, parts, strict=True):
        if part.tokenizer.xxh3_128 != first.tokenizer.xxh3_128:
            raise UserError(
                f"{directory}: made with tokenizer {part.tokenizer.xxh3_128}, {directories[0]} with "
                f"{first.tokenizer.xxh3_128}; corpora read together need the same tokenizer"
            )
        shared = set(part.train) & set(train)
        if shared:
            raise UserError(
                f"{directory}: the sources {', '.join(sorted(shared))} are in an earlier corpus too; rename them"
            )
        train.update(part.train)
        validation.update(part.validation)
    fingerprint = first.fingerprint if len(parts) == 1 else digest([part.fingerprint for part in parts])
    mixtures = first.mixtures if len(parts) == 1 else {}
    empty = frozenset[str]().union(*(part.empty for part in parts))
    return Corpus(fingerprint, first.tokenizer, first.directory, first.shard_set, mixtures, train, validation, empty)


def corpus_of(config: Pretraining) -> Corpus:
    """The corpus that a configuration names, marked as its objective wants it."""
    return open_corpus(config.data.corpora, config.data.shard_set, config.objective.frame)


def _open_one(directory: Path, wanted: str | None, frame: Frame) -> Corpus:
    directory = directory.parent if directory.suffix == ".json" else directory
    manifest = load_corpus(directory)
    names = sorted(manifest.shard_sets)
    if not names:
        raise UserError(f"{directory}: the corpus has no shards; add a `shards` step and build it again")
    if wanted is None and len(names) > 1:
        raise ConfigError(f"{directory}: has the shard sets {', '.join(names)}; choose one with data.shard_set=NAME")
    name = wanted or names[0]
    if name not in manifest.shard_sets:
        raise ConfigError(f"data.shard_set: got {name!r}, {directory} has {', '.join(names)}")
    chosen = manifest.shard_sets[name]
    by_split: dict[str, dict[str, Source]] = {split: {} for split in SPLITS}
    for split, sources in by_split.items():
        for source in manifest.sources:
            records = tuple(s for s in chosen.shards if s.source == source and s.split == split and s.tokens)
            if records:
                sources[source] = Source(source, directory, records, frame)
    needed = dict.fromkeys(["<pad>", "<eos>", *filter(None, (frame.before, frame.after))])
    missing = [mark for mark in needed if mark not in chosen.tokenizer.specials]
    if missing:
        raise UserError(f"{directory}: its tokenizer has no {', '.join(missing)}; readers need them to mark documents")
    splits = (by_split["train"], by_split["validation"], frozenset(manifest.sources) - set(by_split["train"]))
    return Corpus(manifest.fingerprint, chosen.tokenizer, directory, name, manifest.mixtures, *splits)


def verified_tokenizer(corpus: Corpus) -> Path:
    """The path of the corpus's tokenizer.json after checking its checksum."""
    return verify(corpus.directory, corpus.tokenizer.file)


def packed_rows(
    sources: Sequence[Source], samples: Samples, length: int, specials: Mapping[str, int], minimum: int = 0
) -> Batch:
    """The sequence of sample i in row i, then rows of padding up to `minimum` rows."""
    rows = max(minimum, len(samples))
    arrays: np.ndarray = np.empty((4, rows, length), dtype=np.int64)
    filling: np.ndarray = np.zeros((4, rows), dtype=np.int64)
    filling[2] = -1
    filling[:, : len(samples)] = samples.source, samples.sequence, samples.number, samples.epoch
    batch = Batch(arrays[0], arrays[1], arrays[2], arrays[3], *filling)
    filled = np.zeros(rows, dtype=np.int64)
    for index in np.unique(samples.source):
        there = np.flatnonzero(samples.source == index)
        sources[index].fill(samples.sequence[there], there, filled, batch, specials)
    pad(filled, specials["<pad>"], batch.inputs, batch.targets, batch.positions, batch.segments)
    return batch


@dataclass(frozen=True)
class TrainingData:
    """The training split in the order of a run. Documents whose id is `excluded` keep their place and have no targets.
    The run reads this corpus from sample `since` on: 0, unless it began with another one.
    """

    sources: tuple[Source, ...]
    order: Order
    objective: Objective
    context: Context
    excluded: frozenset[bytes] = frozenset()
    since: int = 0

    def seen(self, samples: int) -> dict[str, dict[str, float]]:
        """What the samples from `since` to `samples` read of each source, in tokens (separators included) and epochs,
        beside what the mixture asks for; `padding` is the positions of its sequences that hold no token.
        """
        sequences, tokens, requested = (
            upto - before for upto, before in zip(self._drawn(samples), self._before, strict=True)
        )
        padding = sequences * self.order.sequence_length - tokens
        return {
            source.name: {
                "requested_tokens": float(requested[i]),
                "tokens": int(tokens[i]),
                "sequences": int(sequences[i]),
                "epochs": float(tokens[i] / source.tokens),
                "padding": int(padding[i]),
            }
            for i, source in enumerate(self.sources)
        }

    @cached_property
    def _before(self) -> tuple[np.ndarray, ...]:
        return self._drawn(self.since)

    def _drawn(self, samples: int) -> tuple[np.ndarray, ...]:
        sequences, tokens = self.order.drawn(samples)
        return sequences, tokens, self.order.mixture.requested(int(tokens.sum()))

    def rows(self, samples: Samples, minimum: int = 0) -> Batch:
        """What the objective makes of `samples`, then rows of padding without targets up to `minimum` rows."""
        length = self.order.sequence_length
        packed = packed_rows(self.sources, samples, length, self.context.specials, minimum)
        batch = self.objective.apply(packed, self.context)
        if self.excluded:
            silence(batch, self.sources, length, self.excluded)
        return batch

    def micro_batches(self, first: int, count: int, size: int, rank: int, world: int) -> Iterator[Batch]:
        """Rank `rank`'s share of samples `first` to `first + count`: equally many batches of `size` rows on every rank.

        Sample i of the step goes to rank (i // size) % world, so that short ranks come last and get rows of padding.
        """
        return self.split(self.order.take(first, count), size, rank, world)

    def split(self, samples: Samples, size: int, rank: int, world: int) -> Iterator[Batch]:
        """Rank `rank`'s share of the samples of a step, as in `micro_batches`. Threads may split at the same time."""
        count = len(samples)
        for start in range(rank * size, -(-count // (size * world)) * size * world, size * world):
            chosen = np.arange(min(start, count), min(start + size, count))
            yield self.rows(samples.select(chosen), minimum=size)


def training_data(corpus: Corpus, config: Pretraining, excluded: frozenset[bytes] = frozenset()) -> TrainingData:
    """The training data of a run; `config` is resolved. Sources without a weight in any stage are not read."""
    data, length = config.data, stream_length(config)
    asked = mixture_of(corpus, data, length)
    sources = tuple(corpus.train[name] for name in asked.names)
    for source in sources:
        source.check()
    if data.packing == "best_fit":
        sources = tuple(source.packed(length, config.seed) for source in sources)
    streams = [Stream(s.name, s.tokens, s.packing.sizes if s.packing else None) for s in sources]
    order = Order(streams, asked, length, config.seed, corpus.fingerprint)
    return TrainingData(sources, order, config.objective, context_of(corpus, config, config.seed), excluded)


def stream_length(config: Pretraining) -> int:
    """How many tokens of the stream a row of the model takes."""
    return config.objective.stream_length(config.data.sequence_length, FAMILY[config.model.architecture])


def context_of(corpus: Corpus, config: Pretraining, seed: int) -> Context:
    """What the objective of a resolved configuration needs to know."""
    architecture, tokenizer = config.model.architecture, corpus.tokenizer
    return Context(
        seed,
        tokenizer.specials,
        tokenizer.vocab_size,
        FAMILY[architecture],
        config.data.sequence_length,
        _word_marks(corpus) if isinstance(config.objective, Masking) and config.objective.needs_words else None,
        decoder_start=DECODER_START.get(architecture),
    )


def _word_marks(corpus: Corpus) -> np.ndarray:
    """Which tokens of the corpus's tokenizer begin and end words; ConfigError where its file does not say."""
    from tokenizer.definition import read_definition
    from trainers.objectives.words import word_marks

    try:
        return word_marks(read_definition(str(verified_tokenizer(corpus))))
    except ValueError as error:
        raise ConfigError(f"objective.unit: {error}") from None


def mixture_of(corpus: Corpus, data: Data, length: int) -> Mixture:
    """The mixture that a resolved configuration asks for, over the sources it reads, in the order of their names.

    `length` is what a row takes of the stream.
    """
    assert isinstance(data.weights, dict)
    stages: list[tuple[float, dict[str, float]]] = []
    for stage in data.stages:
        assert isinstance(stage.weights, dict)
        stages.append((float(stage.until_tokens), stage.weights))
    stages.append((math.inf, data.weights))
    names = sorted({name for _, weights in stages for name, weight in weights.items() if weight > 0})
    epochs = data.max_epochs if isinstance(data.max_epochs, dict) else {}
    sizes = {name: corpus.train[name].tokens for name in names}
    caps = {name: cap(sizes[name], length, epochs[name]) for name in names if name in epochs}
    return mixture(stages, caps, names)


@dataclass(frozen=True)
class ValidationData:
    """Sequences spread evenly over each source's validation split: the same for every run of one sequence length."""

    sources: tuple[Source, ...]
    rows: tuple[tuple[int, int], ...]
    length: int
    objective: Objective
    context: Context

    def batches(self, size: int, rank: int, world: int) -> Iterator[Batch]:
        """Rank `rank`'s share in batches of `size` rows: the same number of batches on every rank."""
        rows = np.array(self.rows, dtype=np.int64).reshape(-1, 2)
        nothing = np.zeros(len(rows), dtype=np.int64)
        samples = Samples(np.arange(len(rows)), rows[:, 0], rows[:, 1], nothing, nothing)
        for first in range(rank * size, -(-len(rows) // (size * world)) * size * world, size * world):
            here = samples.select(np.arange(min(first, len(rows)), min(first + size, len(rows))))
            packed = packed_rows(self.sources, here, self.length, self.context.specials, size)
            yield self.objective.apply(packed, self.context)


def validation_data(corpus: Corpus, config: Pretraining, tokens: int) -> ValidationData:
    """Validation rows of `tokens` tokens per source, rounded up to sequences, or all that a source has.

    The run's seed does not enter: what an objective draws at random is the same for every run.
    """
    sources = tuple(corpus.validation[name] for name in sorted(corpus.validation))
    length, rows = stream_length(config), []
    for index, source in enumerate(sources):
        there = -(-source.tokens // length)
        wanted = min(there, -(-tokens // length))
        rows += [(index, number * there // wanted) for number in range(wanted)]
    return ValidationData(sources, tuple(rows), length, config.objective, context_of(corpus, config, 0))
