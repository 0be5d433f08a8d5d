"""From the shards of a build to batches: memory-mapped reading, packing, and which rows a worker takes.

The stream of a source is cut into sequences once and for all; `trainers.data.order` says which sequence sample n is, and the
objective makes of it what the model learns from. So a batch depends on the corpus, the seed, the mixture, the sequence
length, the objective and the sample number, and on nothing else.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from gristmill.errors import ConfigError, UserError
from gristmill.storage.location import Location
from gristmill.storage.parsing import parse_location
from gristmill.storage.store import digest
from pipelines.contracts.manifest import TokenizerRecord, load_corpus
from tokenizer.vocabulary.specials import add_fallback_marks
from trainers.config.pretraining import Data, Pretraining
from trainers.data.mixture_weights import SourceMixture, cap, mixture
from trainers.data.order import Drawn, Order, OrderPhase, Samples, Stream
from trainers.data.sequence_documents import silence
from trainers.data.stream import SourceStream
from trainers.objectives.causal import Causal
from trainers.objectives.shared.context import Context
from trainers.objectives.shared.training_objective import TrainingObjective
from trainers.rows.batch import IGNORED, Batch, Frame
from trainers.rows.packing import pad
from trainers.rows.sentence_pairs import OF_PAIRS
from trainers.rows.sequences import OF_SENTENCES

if TYPE_CHECKING:
    from trainers.objectives.shared.character_cuts import TokenTexts

SPLITS = ("train", "validation")
_MULTIPLE = 8  # of row lengths: what tensor cores and vector units like


@dataclass(frozen=True)
class TrainingCorpus:
    """The shards of one tokenizer over some corpora, by split and source; `directory` is that of the first corpus.
    `empty` are sources without training documents, `columns` the optional columns that all shards have.
    """

    fingerprint: str
    tokenizer: TokenizerRecord
    directory: Location
    shard_set: str
    mixtures: dict[str, dict[str, float]]
    train: dict[str, SourceStream]
    validation: dict[str, SourceStream]
    empty: frozenset[str]
    columns: frozenset[str]


def open_corpus(directories: tuple[str, ...], shard_set: str | None, frame: Frame = Causal.frame) -> TrainingCorpus:
    """Read the manifests of `directories` and check that they fit together. Opens no shard. `frame` is the objective's.

    Raises UserError where a manifest is missing, sources share a name, tokenizers differ, or one lacks a special that
    readers need.
    """
    if not directories:
        raise ConfigError(
            "data.corpora: names no corpus; give corpus=DIRECTORY, a directory that `pipelines build` wrote"
        )
    parts = [_open_one(parse_location(directory), shard_set, frame) for directory in directories]
    first = parts[0]
    train: dict[str, SourceStream] = {}
    validation: dict[str, SourceStream] = {}
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
    columns = frozenset.intersection(*(part.columns for part in parts))
    named = (fingerprint, first.tokenizer, first.directory, first.shard_set, mixtures)
    return TrainingCorpus(*named, train, validation, empty, columns)


def corpus_of(config: Pretraining) -> TrainingCorpus:
    """The corpus that a configuration names, marked as its objective wants it."""
    return open_corpus(config.data.corpora, config.data.shard_set, config.objective.frame)


def _open_one(directory: Location, wanted: str | None, frame: Frame) -> TrainingCorpus:
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
    by_split: dict[str, dict[str, SourceStream]] = {split: {} for split in SPLITS}
    for split, sources in by_split.items():
        for source in manifest.sources:
            records = tuple(s for s in chosen.shards if s.source == source and s.split == split and s.tokens)
            if records:
                sources[source] = SourceStream(source, directory, records, frame)
    tokenizer = replace(chosen.tokenizer, specials=add_fallback_marks(chosen.tokenizer.specials))
    missing = [mark for mark in (frame.before, frame.after) if mark and mark not in tokenizer.specials]
    if missing:
        raise UserError(
            f"{directory}: its tokenizer has no {', '.join(missing)}, with which the objective marks documents; name the "
            "objective in `add_reserved` of the `shards` step and build the corpus again"
        )
    splits = (by_split["train"], by_split["validation"], frozenset(manifest.sources) - set(by_split["train"]))
    columns = frozenset(chosen.columns)
    return TrainingCorpus(manifest.fingerprint, tokenizer, directory, name, manifest.mixtures, *splits, columns)


def verified_tokenizer(corpus: TrainingCorpus) -> Path:
    """The path of the corpus's tokenizer.json after checking its checksum."""
    return corpus.directory.verify(corpus.tokenizer.file)


@dataclass(frozen=True)
class Grid:
    """Sources cut into sequences of up to `length` tokens of their streams, and the objective that makes rows of them."""

    sources: tuple[SourceStream, ...]
    length: int
    objective: TrainingObjective
    context: Context

    @cached_property
    def left_out(self) -> tuple[int, ...]:
        """Tokens of an epoch of each source that no sequence holds: none where sequences are cut from its stream."""
        return tuple(s.tokens - int(s.packing.sizes.sum()) if s.packing else 0 for s in self.sources)

    def rows(self, samples: Samples, minimum: int = 0, excluded: frozenset[bytes] = frozenset()) -> Batch:
        """What the objective makes of `samples`, then rows of padding without targets up to `minimum` rows. Documents whose
        id is `excluded` keep their place and have no targets.
        """
        batch = self.objective.apply(self._packed(samples, minimum), self.context)
        if excluded:
            silence(batch, self.sources, self.length, excluded)
        return batch

    def _packed(self, samples: Samples, minimum: int) -> Batch:
        """The sequence of sample i in row i. Rows are as long as the longest sequence, rounded up to a multiple of 8."""
        rows = max(minimum, len(samples))
        added = max((source.packing.added for source in self.sources if source.packing), default=0)
        longest = int(samples.tokens.max(initial=1)) + added
        width = min(self.length, -(-longest // _MULTIPLE) * _MULTIPLE)
        arrays: np.ndarray = np.empty((4, rows, width), dtype=np.int64)
        filling: np.ndarray = np.zeros((4, rows), dtype=np.int64)
        filling[2] = -1
        filling[:, : len(samples)] = samples.source, samples.sequence, samples.number, samples.epoch
        begins = np.zeros((rows, width), dtype=bool) if self.objective.needs_sentences else None
        source, sequence, sample, epoch = filling
        batch = Batch(
            arrays[0], arrays[1], arrays[2], arrays[3], source, sequence, sample, epoch, sentence_starts=begins
        )
        if self.objective.sentence_pairs:
            types, labels = np.zeros((rows, width), dtype=np.int64), np.full(rows, IGNORED, dtype=np.int64)
            batch = replace(batch, token_types=types, labels=labels)
        filled = np.zeros(rows, dtype=np.int64)
        for index in np.unique(samples.source):
            there = np.flatnonzero(samples.source == index)
            specials = self.context.specials
            self.sources[index].fill(samples.sequence[there], self.length, there, filled, batch, specials)
        pad(filled, self.context.padding, batch.inputs, batch.targets, batch.positions, batch.segments)
        return batch

    def share(self, samples: Samples, size: int, rank: int, world: int) -> Iterator[Samples]:
        """Rank `rank`'s share of `samples`: equally many parts of up to `size` on every rank.

        The longest come first, so that a part holds rows of about one length, and at any time all ranks have about the
        same; short parts come last. Which rank takes a sample changes nothing but rounding.
        """
        count = len(samples)
        by_length = np.argsort(-samples.tokens, kind="stable")
        for start in range(rank * size, -(-count // (size * world)) * size * world, size * world):
            yield samples.select(by_length[start : start + size])


@dataclass(frozen=True)
class TrainingData:
    """The training split in the order of a run, whose phases read one of `grids` each. Documents whose id is `excluded` keep
    their place and have no targets. The run reads this corpus from sample `since` on: 0, unless it began with another one.
    """

    grids: tuple[Grid, ...]
    order: Order
    excluded: frozenset[bytes] = frozenset()
    since: int = 0

    @property
    def sources(self) -> tuple[SourceStream, ...]:
        """The sources, as the last phase reads them."""
        return self.grids[-1].sources

    def grid(self, sample: int) -> Grid:
        """What a sample is read from."""
        return self.grids[self.order.phase_of(sample)]

    def seen(self, samples: int) -> dict[str, dict[str, float]]:
        """What the samples from `since` to `samples` read of each source, in tokens (marks included) and epochs, beside what
        the mixture asks for; `padding` is the positions of its sequences that hold no token (where an objective adds marks to
        each document, those that the marks take as well), `cropped` the tokens that these epochs have and no sequence holds.
        """
        upto, before = self.order.drawn(samples), self._before
        tokens, requested = upto.tokens - before.tokens, upto.requested - before.requested
        sequences, padding = upto.sequences - before.sequences, upto.places - before.places - tokens
        return {
            source.name: {
                "requested_tokens": float(requested[i]),
                "tokens": int(tokens[i]),
                "sequences": int(sequences[i]),
                "epochs": float(tokens[i] / source.tokens),
                "padding": int(padding[i]),
                "cropped": int(tokens[i] / source.tokens * self.grids[-1].left_out[i]),
            }
            for i, source in enumerate(self.sources)
        }

    @cached_property
    def _before(self) -> Drawn:
        return self.order.drawn(self.since)

    def rows(self, samples: Samples, minimum: int = 0) -> Batch:
        """The rows of samples of one phase, as `Grid.rows` makes them."""
        first = int(samples.number[0]) if len(samples) else 0
        return self.grid(first).rows(samples, minimum, self.excluded)

    def micro_batches(self, first: int, count: int, size: int, rank: int, world: int) -> Iterator[Batch]:
        """Rank `rank`'s share of samples `first` to `first + count`: equally many batches of `size` rows on every rank, as
        `Grid.share` says, short ones filled with rows of padding.
        """
        return self.split(self.order.take(first, count), size, rank, world)

    def split(self, samples: Samples, size: int, rank: int, world: int) -> Iterator[Batch]:
        """Rank `rank`'s share of the samples of a step, as in `micro_batches`. Threads may split at the same time."""
        grid = self.grid(int(samples.number[0]))
        for chosen in grid.share(samples, size, rank, world):
            yield grid.rows(chosen, size, self.excluded)


def training_data(
    corpus: TrainingCorpus, config: Pretraining, excluded: frozenset[bytes] = frozenset()
) -> TrainingData:
    """The training data of a run; `config` is resolved. Sources without a weight in any stage are not read."""
    grids = grids_of(corpus, config)
    return TrainingData(grids, order_of(corpus, config, grids), excluded)


def grids_of(corpus: TrainingCorpus, config: Pretraining) -> tuple[Grid, ...]:
    """What each phase of a run reads, in the order of the sources' names. CorruptFileError where a shard is missing, ConfigError
    where the corpus lacks a column that is needed.
    """
    sources = tuple(corpus.train[name] for name in mixture_of(corpus, config.data).names)
    for source in sources:
        source.check()
    lengths = [*(phase.sequence_length for phase in config.data.phases), config.data.sequence_length]
    return tuple(_grid(corpus, config, sources, length, config.seed) for length in lengths)


def order_of(corpus: TrainingCorpus, config: Pretraining, grids: tuple[Grid, ...]) -> Order:
    """The order of the samples of a run whose batch is resolved."""
    ends = [*(phase.until_step * (config.batch.sequences or 0) for phase in config.data.phases), None]
    phases = [
        OrderPhase(
            tuple(Stream(s.name, s.tokens, s.packing.sizes if s.packing else None) for s in grid.sources),
            grid.length,
            end,
        )
        for grid, end in zip(grids, ends, strict=True)
    ]
    return Order(phases, mixture_of(corpus, config.data), config.seed, corpus.fingerprint)


def _grid(
    corpus: TrainingCorpus, config: Pretraining, sources: tuple[SourceStream, ...], sequence_length: int, seed: int
) -> Grid:
    packing, objective = config.data.packing, config.objective
    by_sentences = packing in (*OF_SENTENCES, *OF_PAIRS)
    if "sentences" not in corpus.columns and (by_sentences or objective.needs_sentences):
        wants = f"data.packing: {packing}" if by_sentences else f"objective: {objective.kind}"
        raise ConfigError(
            f"{wants} needs to know where sentences begin, and {corpus.directory} does not say; build the corpus with "
            f"`sentences: true` in its `shards` step"
        )
    family = config.model.family
    length = objective.stream_length(sequence_length, family)
    room = objective.room(sequence_length, family)
    if objective.sentence_pairs:
        sources = tuple(source.paired(packing, length, objective.exchanges, seed) for source in sources)
    elif packing != "concatenate" or room is not None:
        sources = tuple(source.packed(packing, length, seed, room) for source in sources)
    return Grid(sources, length, objective, _context(corpus, config, sequence_length, seed))


def stream_length(config: Pretraining) -> int:
    """How many tokens of the stream a row of the model takes at the final sequence length."""
    return config.objective.stream_length(config.data.sequence_length, config.model.family)


def _context(corpus: TrainingCorpus, config: Pretraining, sequence_length: int, seed: int) -> Context:
    tokenizer = corpus.tokenizer
    return Context(
        seed,
        tokenizer.specials,
        tokenizer.vocab_size,
        config.model.family,
        sequence_length,
        _word_marks(corpus) if config.objective.needs_words else None,
        decoder_start=config.model.traits.decoder_start,
        texts=_texts(corpus) if config.objective.needs_texts else None,
    )


def _texts(corpus: TrainingCorpus) -> "TokenTexts":
    """The texts of the tokens of the corpus's tokenizer."""
    from tokenizer.vocabulary.definition import read_definition
    from trainers.objectives.shared.character_cuts import TokenTexts

    return TokenTexts(read_definition(str(verified_tokenizer(corpus))))


def _word_marks(corpus: TrainingCorpus) -> np.ndarray:
    """Which tokens of the corpus's tokenizer begin and end words; ConfigError where its file does not say."""
    from tokenizer.vocabulary.definition import read_definition
    from trainers.objectives.shared.whole_words import word_marks

    try:
        return word_marks(read_definition(str(verified_tokenizer(corpus))))
    except ValueError as error:
        raise ConfigError(f"objective.unit: {error}") from None


def mixture_of(corpus: TrainingCorpus, data: Data) -> SourceMixture:
    """The mixture that a resolved configuration asks for, over the sources it reads, in the order of their names."""
    assert isinstance(data.weights, dict)
    stages: list[tuple[float, dict[str, float]]] = []
    for stage in data.stages:
        assert isinstance(stage.weights, dict)
        stages.append((float(stage.until_tokens), stage.weights))
    stages.append((math.inf, data.weights))
    names = sorted({name for _, weights in stages for name, weight in weights.items() if weight > 0})
    epochs = data.max_epochs if isinstance(data.max_epochs, dict) else {}
    caps = {name: cap(corpus.train[name].tokens, epochs[name]) for name in names if name in epochs}
    return mixture(stages, caps, names)


@dataclass(frozen=True)
class ValidationData:
    """Sequences spread evenly over each source's validation split: the same for every run of one objective, sequence length
    and packing. `weights` are the sources' shares of a text mixed as in training, empty where they are not resolved.
    """

    grid: Grid
    samples: Samples
    weights: Mapping[str, float]

    @property
    def sources(self) -> tuple[SourceStream, ...]:
        """The sources that have validation documents."""
        return self.grid.sources

    def batches(self, size: int, rank: int, world: int) -> Iterator[Batch]:
        """Rank `rank`'s share in batches of `size` rows: the same number of batches on every rank."""
        for samples in self.grid.share(self.samples, size, rank, world):
            yield self.grid.rows(samples, size)


def validation_data(corpus: TrainingCorpus, config: Pretraining, tokens: int) -> ValidationData:
    """Validation rows of `tokens` tokens per source, rounded up to sequences, or all that a source has, in the packing and at
    the final length of training.

    The run's seed does not enter: what an objective draws at random is the same for every run.
    """
    sources = tuple(corpus.validation[name] for name in sorted(corpus.validation))
    for source in sources:
        source.check()
    grid = _grid(corpus, config, sources, config.data.sequence_length, 0)
    chosen = [(index, *_spread(source, grid.length, tokens)) for index, source in enumerate(grid.sources)]
    index = np.repeat([i for i, _, _ in chosen], [len(sequences) for _, sequences, _ in chosen]).astype(np.int32)
    sequence = np.concatenate([np.empty(0, np.int64), *(sequences for _, sequences, _ in chosen)])
    held = np.concatenate([np.empty(0, np.int64), *(sizes for _, _, sizes in chosen)])
    samples = Samples(np.arange(len(index)), index, sequence, held, np.zeros_like(sequence))
    weights = config.data.weights if isinstance(config.data.weights, dict) else {}
    return ValidationData(grid, samples, weights)


def _spread(source: SourceStream, length: int, tokens: int) -> tuple[np.ndarray, np.ndarray]:
    """(numbers, tokens) of a source's sequences, evenly spread over all, as few as hold `tokens` tokens, or all of them."""
    total, longest, count = source.count(length), source.longest(length), 0
    held = np.empty(0, np.int64)
    while held.sum() < tokens and count < total:
        # No fewer can hold what is missing.
        count = min(total, count + max(1, int(tokens - held.sum()) // longest))
        chosen = np.arange(count) * total // count
        held = source.sizes(length, chosen)
    return chosen, held
