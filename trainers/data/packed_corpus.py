"""Open the corpora of a run and turn their shards into batches for training and validation: cut documents
into sequences, and make rows from the sequences.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from gristmill.errors import ConfigError, UserError
from gristmill.storage.location import Location
from gristmill.storage.parsing import parse_location
from gristmill.storage.store import digest
from pipelines.contracts.given_split import SPLITS, TEST
from pipelines.contracts.manifest import load_corpus
from pipelines.contracts.shard_set import ShardRecord, TokenizerRecord, choose_shard_set
from tokenizer.vocabulary.specials import add_fallback_marks
from trainers.config.pretraining import Data, Pretraining
from trainers.data.domain_weights import names_above
from trainers.data.job_interface import verified_tokenizer
from trainers.data.mixture_weights import SourceMixture, build_mixture, epoch_cap
from trainers.data.order import DrawTotals, Order, OrderPhase, Samples, Stream, choose_sequences
from trainers.data.required_columns import check_lengths, check_pairs, check_sentences, check_spans
from trainers.data.sequence_documents import mask_documents
from trainers.data.stream import SourceStream
from trainers.objectives.causal import Causal
from trainers.objectives.shared.context import Context
from trainers.objectives.shared.spellings import SpelledTokens, character_counts, spellings
from trainers.objectives.shared.training_objective import TrainingObjective
from trainers.rows.batch import IGNORED, Batch, Frame
from trainers.rows.packing import pad
from trainers.rows.sentence_pairs import PAIR_PACKINGS, PairPacking
from trainers.rows.sequences import SENTENCE_PACKINGS

if TYPE_CHECKING:
    from trainers.objectives.shared.character_cuts import TokenTexts

_MULTIPLE = 8  # row lengths are rounded up to it, for tensor cores and vector units


@dataclass(frozen=True)
class TrainingCorpus:
    """The shards, by split and domain, of one or more corpora that were made with the same tokenizer. A
    domain is a source, or the part of a source in one group.

    `directory` and `shard_set` are those of the first corpus. `mixtures` are those that the manifest
    suggests; there are none if several corpora are read. `empty` names the sources and domains that have no
    training documents. `columns` and `span_types` contain only those that all corpora have.
    """

    fingerprint: str
    tokenizer: TokenizerRecord
    directory: Location
    shard_set: str | None
    mixtures: dict[str, dict[str, float]]
    train: dict[str, SourceStream]
    validation: dict[str, SourceStream]
    empty: frozenset[str]
    columns: frozenset[str]
    test: dict[str, SourceStream]
    span_types: frozenset[str] = frozenset()

    def held_out(self, split: str) -> dict[str, SourceStream]:
        """Return the sources, by name, of the split `validation` or `test`."""
        return self.test if split == TEST else self.validation


def open_corpus(directories: tuple[str, ...], shard_set: str | None, frame: Frame = Causal.frame) -> TrainingCorpus:
    """Open one or more corpora as one: read their manifests and check that they fit together. No shard is
    opened.

    Each of `directories` is the directory of a corpus or, for a variant of a corpus, the path of the
    variant's manifest. `frame` gives the special tokens around each document.

    Raises UserError if a manifest is missing, the shard set cannot be determined, sources share a name,
    tokenizers differ, or a tokenizer lacks a special token of the frame.
    """
    if not directories:
        raise ConfigError(
            "data.corpora: names no corpus; give corpus=DIRECTORY, a directory that `pipelines build` wrote"
        )
    parts = [_open_one(parse_location(directory), shard_set, frame) for directory in directories]
    first = parts[0]
    train: dict[str, SourceStream] = {}
    validation: dict[str, SourceStream] = {}
    test: dict[str, SourceStream] = {}
    seen: set[str] = set()
    with_documents: set[str] = set()
    for directory, part in zip(directories, parts, strict=True):
        if part.tokenizer.xxh3_128 != first.tokenizer.xxh3_128:
            raise UserError(
                f"{directory}: made with tokenizer {part.tokenizer.xxh3_128}, {directories[0]} with "
                f"{first.tokenizer.xxh3_128}; corpora read together need the same tokenizer"
            )
        own = _sources((*part.train, *part.validation, *part.test, *part.empty))
        with_documents |= _sources((*part.train, *part.validation, *part.test))
        if shared := own & seen & with_documents:
            raise UserError(
                f"{directory}: the sources {', '.join(sorted(shared))} are in an earlier corpus too; rename them"
            )
        seen |= own
        train.update(part.train)
        validation.update(part.validation)
        test.update(part.test)
    fingerprint = first.fingerprint if len(parts) == 1 else digest([part.fingerprint for part in parts])
    mixtures = first.mixtures if len(parts) == 1 else {}
    empty = frozenset[str]().union(*(part.empty for part in parts))
    columns = frozenset.intersection(*(part.columns for part in parts))
    span_types = frozenset.intersection(*(part.span_types for part in parts))
    name = first.shard_set if len({part.shard_set for part in parts}) == 1 else None
    common = (fingerprint, first.tokenizer, first.directory, name, mixtures)
    return TrainingCorpus(*common, train, validation, empty, columns, test, span_types)


def corpus_of(config: Pretraining) -> TrainingCorpus:
    """Open the corpora that a configuration names, as one corpus."""
    return open_corpus(config.data.corpora, config.data.shard_set, config.objective.frame)


def _open_one(directory: Location, wanted: str | None, frame: Frame) -> TrainingCorpus:
    manifest = load_corpus(directory)  # the path of a manifest names a variant of the corpus of its directory
    directory = directory.parent if directory.suffix == ".json" else directory
    name, chosen = choose_shard_set(manifest.shard_sets, wanted, f"{directory}: data.shard_set")
    records: dict[str, dict[str, list[ShardRecord]]] = {split: {} for split in SPLITS}
    for shard in sorted(chosen.shards, key=lambda shard: shard.domain):  # stable: a domain's shards keep their order
        if shard.tokens:
            records[shard.split].setdefault(shard.domain, []).append(shard)
    by_split = {
        split: {name: SourceStream(name, directory, tuple(shards), frame) for name, shards in domains.items()}
        for split, domains in records.items()
    }
    tokenizer = replace(chosen.tokenizer, specials=add_fallback_marks(chosen.tokenizer.specials))
    missing = [mark for mark in (frame.before, frame.after) if mark and mark not in tokenizer.specials]
    if missing:
        raise UserError(
            f"{directory}: its tokenizer has no {', '.join(missing)}, which the objective needs to mark documents; "
            f"name the objective in `add_reserved` of the `shards` step and build the corpus again"
        )
    known = {name for shard in chosen.shards for name in names_above(shard.domain)} | set(manifest.sources)
    empty = known - {name for domain in by_split["train"] for name in names_above(domain)}
    splits = (by_split["train"], by_split["validation"], frozenset(empty))
    columns = (frozenset(chosen.columns), by_split[TEST], frozenset[str](chosen.span_types))
    return TrainingCorpus(manifest.fingerprint, tokenizer, directory, name, manifest.mixtures, *splits, *columns)


def _sources(domains: Iterable[str]) -> set[str]:
    return {names_above(domain)[-1] for domain in domains}


@dataclass(frozen=True)
class PackedCorpus:
    """Sources cut into sequences of up to `length` stream tokens, and the objective that makes rows from the
    sequences.
    """

    sources: tuple[SourceStream, ...]
    length: int
    objective: TrainingObjective
    context: Context

    @cached_property
    def cropped_tokens(self) -> tuple[int, ...]:
        """For each source, the number of tokens per epoch that are in no sequence."""
        return tuple(s.tokens - int(s.packing.sizes.sum()) if s.packing else 0 for s in self.sources)

    def rows(self, samples: Samples, minimum: int = 0, excluded: frozenset[bytes] = frozenset()) -> Batch:
        """Return the rows that the objective makes from `samples`, padded to at least `minimum` rows.
        Documents whose id is in `excluded` keep their positions but have no targets.
        """
        batch = self.objective.apply(self._packed(samples, minimum), self.context)
        if excluded:
            mask_documents(batch, self.sources, self.length, excluded)
        return batch

    def _packed(self, samples: Samples, minimum: int) -> Batch:
        rows = max(minimum, len(samples))
        added = max((source.packing.added_marks for source in self.sources if source.packing), default=0)
        longest = int(samples.tokens.max(initial=1)) + added
        width = min(self.length, -(-longest // _MULTIPLE) * _MULTIPLE)
        arrays: np.ndarray = np.empty((4, rows, width), dtype=np.int64)
        filling: np.ndarray = np.zeros((4, rows), dtype=np.int64)
        filling[2] = -1
        filling[:, : len(samples)] = samples.source, samples.sequence, samples.number, samples.epoch
        begins = np.zeros((rows, width), dtype=bool) if self.objective.needs_sentences else None
        spans = np.full((rows, width, 2), -1, dtype=np.int64) if self.objective.span_types else None
        in_target = np.zeros((rows, width), dtype=bool) if self.objective.needs_pairs else None
        source, sequence, sample, epoch = filling
        batch = Batch(
            arrays[0],
            arrays[1],
            arrays[2],
            arrays[3],
            source,
            sequence,
            sample,
            epoch,
            sentence_starts=begins,
            spans=spans,
            in_target=in_target,
        )
        if self.objective.sentence_pairs:
            types, labels = np.zeros((rows, width), dtype=np.int64), np.full(rows, IGNORED, dtype=np.int64)
            batch = replace(batch, token_types=types, labels=labels)
        filled = np.zeros(rows, dtype=np.int64)
        for index in np.unique(samples.source):
            rows_of_source = np.flatnonzero(samples.source == index)
            specials = self.context.specials
            self.sources[index].fill(
                samples.sequence[rows_of_source], self.length, rows_of_source, filled, batch, specials
            )
        pad(filled, self.context.padding, batch.inputs, batch.targets, batch.positions, batch.segments)
        return batch


@dataclass(frozen=True)
class TrainingData:
    """The training split, read in the order of a run; phase i reads `packed_phases[i]`. Documents whose id is
    in `excluded` have no targets. The run reads this corpus from sample `since` on.
    """

    packed_phases: tuple[PackedCorpus, ...]
    order: Order
    excluded: frozenset[bytes] = frozenset()
    since: int = 0

    @property
    def sources(self) -> tuple[SourceStream, ...]:
        """The sources, cut into sequences as in the last phase."""
        return self.packed_phases[-1].sources

    @property
    def row_lengths(self) -> list[int]:
        """The configured sequence length of each phase."""
        return [packed.context.sequence_length for packed in self.packed_phases]

    def read_since(self, sample: int) -> "TrainingData":
        """Return the same training data, with `since` set to `sample`."""
        return replace(self, since=sample)

    def notices(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield an event (name, fields) for each source of sentence pairs, with the balance of its labels."""
        for source in self.sources:
            if isinstance(source.packing, PairPacking):
                its = source.packing.balance()
                message = (
                    f"{source.name}: {its['sequences']:,} rows, {its['not_next']:.1%} of the labels are not next; "
                    f"{its['without_second']:.1%} of the rows have no second part, {its['without_label']:.1%} no label"
                )
                yield "pairs", {"source": source.name, **its, "message": message}

    def packed_at(self, sample: int) -> PackedCorpus:
        """Return the packed corpus of the phase that contains a sample."""
        return self.packed_phases[self.order.phase_of(sample)]

    def consumed(self, samples: int) -> dict[str, dict[str, float]]:
        """Return the totals of what the run read from each source, keyed by source name. They cover the
        samples from `since` up to, but not including, `samples`:

        - `requested_tokens`: the number of tokens that the mixture requests
        - `tokens`: the number of tokens read, including the marks around documents
        - `sequences`: the number of sequences read
        - `epochs`: the number of epochs read, including the fraction of the current one
        - `padding`: the number of positions in these sequences without a token of the stream
        - `cropped`: an estimate of the number of tokens that packing left out of all sequences
        """
        upto, before = self.order.totals(samples), self._before
        tokens, requested = upto.tokens - before.tokens, upto.requested - before.requested
        sequences, padding = upto.sequences - before.sequences, upto.capacity - before.capacity - tokens
        return {
            source.name: {
                "requested_tokens": float(requested[i]),
                "tokens": int(tokens[i]),
                "sequences": int(sequences[i]),
                "epochs": float(tokens[i] / self.order.streams[i].tokens),
                "padding": int(padding[i]),
                "cropped": int(tokens[i] / self.order.streams[i].tokens * self.packed_phases[-1].cropped_tokens[i]),
            }
            for i, source in enumerate(self.sources)
        }

    @cached_property
    def _before(self) -> DrawTotals:
        return self.order.totals(self.since)

    def rows(self, samples: Samples, minimum: int = 0) -> Batch:
        """Make the rows of `samples`, padded to at least `minimum` rows. All samples must belong to the same
        phase.
        """
        first = int(samples.number[0]) if len(samples) else 0
        return self.packed_at(first).rows(samples, minimum, self.excluded)

    def micro_batches(self, first: int, count: int, size: int, rank: int, world: int) -> Iterator[Batch]:
        """Yield rank `rank`'s share of the `count` samples from sample `first` on, in batches of `size`
        samples. `count` must be at least 1, and all of these samples must belong to the same phase. Every
        rank gets the same number of batches; short batches are filled with rows of padding.
        """
        return self.split(self.order.take(first, count), size, rank, world)

    def split(self, samples: Samples, size: int, rank: int, world: int) -> Iterator[Batch]:
        """Yield rank `rank`'s share of `samples` in batches, as `micro_batches` does. There must be at least
        one sample, and all must belong to the same phase. Thread-safe.
        """
        packed = self.packed_at(int(samples.number[0]))
        for chosen in samples.share(size, rank, world):
            yield packed.rows(chosen, size, self.excluded)


def training_data(
    corpus: TrainingCorpus, config: Pretraining, excluded: frozenset[bytes] = frozenset()
) -> TrainingData:
    """Return the training data of a run with a resolved `config`. Sources whose weight is 0 in every stage
    are not read. Documents whose id is in `excluded` have no targets.
    """
    packed_phases = packed_phases_of(corpus, config)
    return TrainingData(packed_phases, order_of(corpus, config, packed_phases), excluded)


def packed_phases_of(corpus: TrainingCorpus, config: Pretraining) -> tuple[PackedCorpus, ...]:
    """Return the packed corpus of each phase of a run with a resolved `config`. Sources are ordered by name.

    Raises CorruptFileError if a shard is missing or has the wrong size, and ConfigError if the corpus lacks
    something that the objective or the packing needs.
    """
    sources = tuple(corpus.train[name] for name in sources_read(config.data))
    for source in sources:
        source.check()
    check_lengths(corpus.directory, config.objective, sources)
    lengths = [*(phase.sequence_length for phase in config.data.phases), config.data.sequence_length]
    return tuple(_pack(corpus, config, sources, length, config.seed) for length in lengths)


def order_of(corpus: TrainingCorpus, config: Pretraining, packed_phases: tuple[PackedCorpus, ...]) -> Order:
    """Return the order of a run's samples. The batch size in `config` must be resolved."""
    ends = [*(phase.until_step * (config.batch.sequences or 0) for phase in config.data.phases), None]
    phases = [
        OrderPhase(
            tuple(_stream(source, packed.length, config) for source in packed.sources),
            packed.length,
            end,
        )
        for packed, end in zip(packed_phases, ends, strict=True)
    ]
    return Order(phases, mixture_of(config.data, phases[-1].streams), config.seed, corpus.fingerprint)


def _stream(source: SourceStream, length: int, config: Pretraining) -> Stream:
    sizes = source.packing.sizes if source.packing else None
    count = source.tokens // length if sizes is None else len(sizes)
    if config.data.subset == 1 or not count:
        return Stream(source.name, source.tokens, sizes)
    chosen = choose_sequences(count, config.data.subset, f"{config.seed}/{source.name}/{length}")
    if sizes is None:
        return Stream(source.name, len(chosen) * length, None, chosen)
    return Stream(source.name, int(sizes[chosen].sum()), sizes[chosen], chosen)


def _pack(
    corpus: TrainingCorpus, config: Pretraining, sources: tuple[SourceStream, ...], sequence_length: int, seed: int
) -> PackedCorpus:
    packing, objective = config.data.packing, config.objective
    by_sentences = packing in (*SENTENCE_PACKINGS, *PAIR_PACKINGS)
    if "sentences" not in corpus.columns and (by_sentences or objective.needs_sentences):
        wants = f"data.packing: {packing}" if by_sentences else f"objective: {objective.kind}"
        raise ConfigError(
            f"{wants} needs sentence starts, which {corpus.directory} does not have; build the corpus with "
            f"`sentences: true` in its `shards` step"
        )
    check_sentences(corpus.directory, objective, sources)
    check_spans(corpus.directory, corpus.span_types, objective, sources)
    check_pairs(corpus.directory, corpus.columns, objective, sources)
    family = config.model.family
    length = objective.stream_length(sequence_length, family)
    room = objective.room(sequence_length, family)
    if objective.sentence_pairs:
        sources = tuple(source.paired(packing, length, objective.exchanges, seed) for source in sources)
    elif packing != "concatenate" or room is not None:
        sources = tuple(source.packed(packing, length, seed, room) for source in sources)
    return PackedCorpus(sources, length, objective, _context(corpus, config, sequence_length, seed))


def stream_length(config: Pretraining) -> int:
    """Return the maximum number of tokens that one row takes from the corpus at the final sequence length."""
    return config.objective.stream_length(config.data.sequence_length, config.model.family)


def _context(corpus: TrainingCorpus, config: Pretraining, sequence_length: int, seed: int) -> Context:
    tokenizer = corpus.tokenizer
    spelled = _spelled(corpus) if config.objective.needs_character_counts else None
    return Context(
        seed,
        tokenizer.specials,
        tokenizer.vocab_size,
        config.model.family,
        sequence_length,
        _word_marks(corpus) if config.objective.needs_words else None,
        decoder_start=config.model.traits.decoder_start,
        texts=_texts(corpus) if config.objective.needs_texts else None,
        character_counts=None if spelled is None else character_counts(spelled),
        spelled=None if spelled is None else SpelledTokens.of(spelled),
        character_buckets=config.model.character_buckets,
    )


def _texts(corpus: TrainingCorpus) -> "TokenTexts":
    from tokenizer.vocabulary.definition import read_definition
    from trainers.objectives.shared.character_cuts import TokenTexts

    return TokenTexts(read_definition(str(verified_tokenizer(corpus))))


def _spelled(corpus: TrainingCorpus) -> list[bytes]:
    from tokenizer.vocabulary.definition import read_definition

    return spellings(read_definition(str(verified_tokenizer(corpus))))


def _word_marks(corpus: TrainingCorpus) -> np.ndarray:
    """Return the flags of `word_marks` for the tokens of the corpus's tokenizer, uint8 [vocabulary]. Raises
    ConfigError if the tokens do not say where words begin.
    """
    try:
        return _marks_of(str(verified_tokenizer(corpus)), corpus.tokenizer.xxh3_128)
    except ValueError as error:
        raise ConfigError(f"objective.unit: {error}") from None


@lru_cache(maxsize=4)
def _marks_of(tokenizer: str, checksum: str) -> np.ndarray:
    from tokenizer.vocabulary.definition import read_definition
    from trainers.objectives.shared.whole_words import word_marks

    return word_marks(read_definition(tokenizer))


def sources_read(data: Data) -> tuple[str, ...]:
    """Return the sorted names of the sources with a positive weight in at least one stage. `data` must be
    from a resolved configuration.
    """
    return tuple(sorted({name for _, weights in _stages(data) for name, weight in weights.items() if weight > 0}))


def mixture_of(data: Data, streams: Sequence[Stream]) -> SourceMixture:
    """Return the mixture of the sources in `streams` that the resolved configuration `data` describes. Caps
    in `data.max_epochs` are converted to tokens with `Stream.tokens`, which counts only the sequences that
    are read.
    """
    epochs = data.max_epochs if isinstance(data.max_epochs, dict) else {}
    caps = {each.name: epoch_cap(each.tokens, epochs[each.name]) for each in streams if each.name in epochs}
    return build_mixture(_stages(data), caps, [each.name for each in streams])


def _stages(data: Data) -> list[tuple[float, dict[str, float]]]:
    stages: list[tuple[float, dict[str, float]]] = []
    for stage in data.stages:
        assert isinstance(stage.weights, dict)
        stages.append((float(stage.until_tokens), stage.weights))
    assert isinstance(data.weights, dict)
    return [*stages, (math.inf, data.weights)]


@dataclass(frozen=True)
class ValidationData:
    """Sequences spread evenly over each source's validation split. `weights` are the sources' weights at the
    end of training (`data.weights`); empty if the configuration gives a name, such as `uniform`, instead of
    weights.
    """

    packed: PackedCorpus
    samples: Samples
    weights: Mapping[str, float]

    @property
    def sources(self) -> tuple[SourceStream, ...]:
        """The sources that have validation documents."""
        return self.packed.sources

    def batches(self, size: int, rank: int, world: int) -> Iterator[Batch]:
        """Yield rank `rank`'s share of the sequences in batches of `size` rows. Every rank gets the same
        number of batches; short batches are filled with rows of padding.
        """
        for samples in self.samples.share(size, rank, world):
            yield self.packed.rows(samples, size)


def validation_data(corpus: TrainingCorpus, config: Pretraining, tokens: int) -> ValidationData:
    """Select validation sequences, packed as in training at the final sequence length: from each source,
    enough for at least `tokens` tokens, or all that it has. The run's seed has no influence.
    """
    sources = tuple(corpus.validation[name] for name in sorted(corpus.validation))
    for source in sources:
        source.check()
    packed = _pack(corpus, config, sources, config.data.sequence_length, 0)
    chosen = [(index, *_spread(source, packed.length, tokens)) for index, source in enumerate(packed.sources)]
    index = np.repeat([i for i, _, _ in chosen], [len(sequences) for _, sequences, _ in chosen]).astype(np.int32)
    sequence = np.concatenate([np.empty(0, np.int64), *(sequences for _, sequences, _ in chosen)])
    sequence_tokens = np.concatenate([np.empty(0, np.int64), *(sizes for _, _, sizes in chosen)])
    samples = Samples(np.arange(len(index)), index, sequence, sequence_tokens, np.zeros_like(sequence))
    weights = config.data.weights if isinstance(config.data.weights, dict) else {}
    return ValidationData(packed, samples, weights)


def _spread(source: SourceStream, length: int, tokens: int) -> tuple[np.ndarray, np.ndarray]:
    total, longest, count = source.count(length), source.longest(length), 0
    sizes = np.empty(0, np.int64)
    while sizes.sum() < tokens and count < total:
        # This is a lower bound on the number of sequences that contain the missing tokens.
        count = min(total, count + max(1, int(tokens - sizes.sum()) // longest))
        chosen = np.arange(count) * total // count
        sizes = source.sizes(length, chosen)
    return chosen, sizes
