"""The order of training sequences, a pure function of the global sample index.

A mixture may have stages, spans of the run with weights of their own (`mixture_weights`). The source of
sample n follows Tijdeman's solution of the chairman assignment problem (Discrete Mathematics 32, 1980): of
the sources that are due, the one with the nearest deadline is drawn. Deadlines look ahead into later stages,
and the lead or lag of a source at the end of a stage is carried into the next.

Within a source, every epoch reads each sequence once. A keyed Feistel permutation determines the order;
sources of fewer than 4,096 sequences are shuffled in memory instead. If the stream of a source is cut into
sequences one after another, a shorter last sequence comes last in every epoch.

Independently of stages, a run may have phases, each with its own sequences. Tokens drawn in earlier phases
keep counting for the mixture and its caps. Since the sequences differ, every source begins a new epoch in
each phase.

The order does not depend on world size, micro-batch size or loader threads. Its state is a few integers per
source. To reach a sample, the draws since the nearest earlier stored state are replayed.
"""

from bisect import bisect_right, insort
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np
import xxhash

from gristmill.storage.store import digest
from trainers.data.mixture_weights import UNCAPPED, SourceMixture
from trainers.data.order_kernels import draw, reachable_tokens

_VERSION = 2  # of the permutations in trainers.data.order_kernels
_CHUNK = 1 << 20
_REPLAY_INTERVAL = 1 << 23  # samples between stored states, which are replayed in under a second


@dataclass(frozen=True)
class Stream:
    """A source as `Order` reads it. `tokens` is the number of tokens in an epoch. `sizes` gives the number of
    tokens in each sequence; it is None if sequences are cut from the stream one after another. If only some
    sequences of the source are read, `subset` contains their indices, and `tokens` and `sizes` cover only
    these sequences.
    """

    name: str
    tokens: int
    sizes: np.ndarray | None = None
    subset: np.ndarray | None = None


def choose_sequences(count: int, share: float, key: str) -> np.ndarray:
    """Choose a random fraction `share` of `count` sequences, but at least one sequence, with the seed `key`.
    Return their indices, int64, ascending. With the same `count` and `key`, a smaller share yields a subset
    of what a larger one yields.
    """
    generator = np.random.Generator(np.random.PCG64(xxhash.xxh3_64_intdigest(key.encode())))
    return np.sort(generator.permutation(count)[: max(min(1, count), round(share * count))])


@dataclass(frozen=True)
class OrderPhase:
    """A phase of an order, in which samples are sequences of up to `length` tokens of the `streams`. The
    phase ends before sample `until`, which is None for the last phase.
    """

    streams: tuple[Stream, ...]
    length: int
    until: int | None = None


@dataclass(frozen=True)
class Samples:
    """Samples of a run, as arrays of shape [n]. `number` is the index of the sample in the run, `source` the
    index of its source, `sequence` the index of its sequence within the source, and `tokens` the length of
    the sequence. `epoch` is the epoch of the source, counted over all phases.
    """

    number: np.ndarray
    source: np.ndarray
    sequence: np.ndarray
    tokens: np.ndarray
    epoch: np.ndarray

    def __len__(self) -> int:
        return len(self.source)

    def select(self, rows: np.ndarray) -> "Samples":
        """Return the samples at the indices `rows`."""
        return Samples(self.number[rows], self.source[rows], self.sequence[rows], self.tokens[rows], self.epoch[rows])

    def share(self, size: int, rank: int, world: int) -> Iterator["Samples"]:
        """Yield rank `rank`'s share of the samples in parts of up to `size` samples, longest samples first.
        Every rank gets the same number of parts; a part may be empty.
        """
        count = len(self)
        by_length = np.argsort(-self.tokens, kind="stable")
        for start in range(rank * size, -(-count // (size * world)) * size * world, size * world):
            yield self.select(by_length[start : start + size])


@dataclass(frozen=True)
class DrawTotals:
    """What the first samples of a run draw from each source, as arrays of shape [sources], int64 except
    `requested`. `sequences` and `tokens` are the numbers drawn. `capacity` is the number of positions in
    these sequences, with or without a token. `epochs` is the number of epochs begun. `requested`, float64, is
    the number of tokens that the mixture requests.
    """

    sequences: np.ndarray
    tokens: np.ndarray
    capacity: np.ndarray
    epochs: np.ndarray
    requested: np.ndarray


@dataclass(frozen=True)
class _State:
    """The state of an order after `sample` samples. `sequences` [sources] counts the sequences drawn from
    each source in the current phase, and `tokens` [sources] the tokens drawn from it in the whole run.
    `begun` holds the totals at the start of the phase, as `Order._totals_at` returns them.
    """

    sample: int
    phase: int
    sequences: np.ndarray
    tokens: np.ndarray
    begun: np.ndarray


class MixtureExhausted(ValueError):
    """Raised if more samples are needed than the mixture has. The mixture ends when all sources of a stage
    have reached their caps. `samples` is its number of samples, or -1 if that is not known, and `tokens` is
    its number of tokens.
    """

    def __init__(self, samples: int, tokens: int) -> None:
        self.samples, self.tokens = samples, tokens
        super().__init__(f"the mixture has {samples} samples, but a later one was requested")


class Order:
    """The samples of a run, in the order in which they are read. Sources of weight 0 are never drawn."""

    def __init__(self, phases: Sequence[OrderPhase], mixture: SourceMixture, seed: int, fingerprint: str) -> None:
        """Create the order of a run with these consecutive phases. Every phase except the last must have an
        `until`, and the last must have none. The streams of every phase must have the names in `mixture`, in
        the same order. `fingerprint` identifies the corpus.
        """
        assert all(mixture.names == tuple(stream.name for stream in phase.streams) for phase in phases)
        ends = [phase.until for phase in phases]
        assert ends[-1] is None
        assert None not in ends[:-1]
        self.phases = tuple(phases)
        self.streams = self.phases[-1].streams
        self._requested = mixture
        self._tables = [_sequence_table(phase, f"{fingerprint}/{seed}", number) for number, phase in enumerate(phases)]
        self._mixtures: dict[int, SourceMixture] = {}
        nothing: np.ndarray = np.zeros((6, len(self.streams)), dtype=np.int64)
        self._replay_points = _replay_points(self.identity)
        self._at = _State(0, 0, nothing[0], nothing[1], nothing[2:])
        self._remember(self._at)

    def clone(self) -> "Order":
        """Return a copy with its own reading position."""
        return copy(self)

    @cached_property
    def identity(self) -> str:
        """A digest of everything that the samples depend on."""
        tables = [[xxhash.xxh3_128_hexdigest(array.tobytes()) for array in table] for table in self._tables]
        phases = [(phase.length, phase.until) for phase in self.phases]
        stages = [(repr(until), dict(weights)) for until, weights in self._requested.stages]
        chosen = [s.subset.tobytes() for phase in self.phases for s in phase.streams if s.subset is not None]
        tables += [[xxhash.xxh3_128_hexdigest(numbers) for numbers in chosen]] if chosen else []
        return digest([_VERSION, tables, phases, stages, self._requested.names, self._requested.caps.tolist()])

    def phase_of(self, sample: int) -> int:
        """Return the index of the phase that contains a sample."""
        return bisect_right([phase.until or 0 for phase in self.phases[:-1]], sample)

    def mixture(self, samples: int = 0) -> SourceMixture:
        """Return the mixture in the phase that contains sample `samples`, with caps rounded down to whole
        sequences.
        """
        self._seek(samples)
        return self._mixture(self._at)

    def take(self, first: int, count: int) -> Samples:
        """Return `count` samples of the run, from sample `first` on. Raises MixtureExhausted if the mixture
        ends before the last of them.
        """
        self._seek(first)
        parts = [self._draw(count)]
        while (missing := count - sum(map(len, parts))) > 0:
            parts.append(self._draw(missing))
        if len(parts) == 1:
            return parts[0]
        fields = ("number", "source", "sequence", "tokens", "epoch")
        return Samples(*(np.concatenate([getattr(part, name) for part in parts]) for name in fields))

    def totals(self, samples: int) -> DrawTotals:
        """Return what the first `samples` samples draw from each source."""
        self._seek(samples)
        sequences, capacity, tokens, epochs = self._totals_at(self._at)
        return DrawTotals(sequences, tokens, capacity, epochs, self._mixture(self._at).requested(int(tokens.sum())))

    def steps(self, size: int, tokens: int) -> int:
        """Return the number of steps of `size` samples that fit in `tokens` tokens. Raises MixtureExhausted
        if the mixture ends within these steps or the step after them.
        """
        steps, total = 0, 0
        longest = size * max(phase.length for phase in self.phases)
        while True:
            # First add the number of steps that are certain to fit, then add steps one at a time.
            many = min(max(1, (tokens - total) // longest), max(1, _CHUNK // size))
            sums = np.cumsum(self.take(steps * size, many * size).tokens.reshape(many, size).sum(axis=1))
            fitting = int(np.searchsorted(sums, tokens - total, side="right"))
            if fitting < many:
                return steps + fitting
            steps, total = steps + many, total + int(sums[-1])

    def state(self, samples: int) -> dict[str, Any]:
        """Return the state after `samples` samples as a JSON object, for `resume`."""
        self._seek(samples)
        state = self._at
        arrays = {name: getattr(state, name).tolist() for name in ("sequences", "tokens", "begun")}
        return {"order": self.identity, "sample": state.sample, "phase": state.phase, **arrays}

    def resume(self, record: Mapping[str, Any]) -> bool:
        """Add `record`, a result of `state`, to the states from which samples are replayed. Returns False,
        without effect, if `record` belongs to another order.
        """
        if record.get("order") != self.identity:
            return False
        arrays = [np.array(record[name], dtype=np.int64) for name in ("sequences", "tokens", "begun")]
        self._remember(_State(record["sample"], record["phase"], *arrays))
        return True

    def _remember(self, state: _State) -> None:
        if all(state.sample != other.sample for other in self._replay_points):
            insort(self._replay_points, state, key=lambda other: other.sample)

    def _seek(self, sample: int) -> None:
        nearest = self._replay_points[bisect_right(self._replay_points, sample, key=lambda state: state.sample) - 1]
        if not nearest.sample <= self._at.sample <= sample:
            self._at = nearest
        while self._at.sample < sample:
            self._draw(min(_CHUNK, sample - self._at.sample))

    def _draw(self, count: int) -> Samples:
        state = self._at
        phase, table, mixture = self.phases[state.phase], self._tables[state.phase], self._mixture(state)
        count = count if phase.until is None else min(count, phase.until - state.sample)
        source: np.ndarray = np.empty(count, dtype=np.int32)
        sequence, tokens, epoch = np.empty((3, count), dtype=np.int64)
        sequences, drawn = state.sequences.copy(), state.tokens.copy()
        requests = (mixture.ends, mixture.shares, mixture.given, mixture.caps)
        count_drawn = draw(*requests, *table, np.int64(phase.length), sequences, drawn, source, sequence, tokens, epoch)
        if count_drawn < count:
            raise MixtureExhausted(state.sample + count_drawn, int(drawn.sum()))
        epoch += state.begun[3][source]
        for index, stream in enumerate(phase.streams):
            if stream.subset is not None:
                drawn_here = source[:count_drawn] == index
                sequence[drawn_here] = stream.subset[sequence[drawn_here]]
        after = _State(state.sample + count, state.phase, sequences, drawn, state.begun)
        self._at = self._next_phase(after) if after.sample == phase.until else after
        if self._at.phase > state.phase or after.sample // _REPLAY_INTERVAL > state.sample // _REPLAY_INTERVAL:
            self._remember(self._at)
        return Samples(np.arange(state.sample, after.sample), source, sequence, tokens, epoch)

    def _next_phase(self, state: _State) -> _State:
        return _State(
            state.sample, state.phase + 1, np.zeros_like(state.sequences), state.tokens, self._totals_at(state)
        )

    def _totals_at(self, state: _State) -> np.ndarray:
        """Return `sequences`, `capacity`, `tokens` and `epochs` of `DrawTotals` as int64 [4, sources]."""
        sequences, capacity, _, epochs = state.begun
        table, length = self._tables[state.phase], self.phases[state.phase].length
        epochs = epochs - (-state.sequences // (table.full + (table.short > 0)))
        return np.stack([sequences + state.sequences, capacity + state.sequences * length, state.tokens, epochs])

    def caps(self, samples: int = 0) -> np.ndarray:
        """Return the maximum number of tokens drawn from each source in the whole run, int64 [sources];
        UNCAPPED for a source without a cap.

        A cap is rounded down to a total that can be reached with whole sequences of the phase that contains
        sample `samples`.
        """
        self._seek(samples)
        return self._caps(self._at)

    def _caps(self, state: _State) -> np.ndarray:
        phase, table, caps = self.phases[state.phase], self._tables[state.phase], self._requested.caps.copy()
        for source in np.flatnonzero(caps < UNCAPPED):
            before, tokens = int(state.begun[2][source]), phase.streams[source].tokens
            epochs, rest = divmod(max(0, int(caps[source]) - before), tokens)
            within = reachable_tokens(int(source), epochs, rest, *table, np.int64(phase.length))
            caps[source] = before + epochs * tokens + within
        return caps

    def _mixture(self, state: _State) -> SourceMixture:
        if state.phase not in self._mixtures:
            self._mixtures[state.phase] = self._requested.with_caps(self._caps(state))
        return self._mixtures[state.phase]


@lru_cache(maxsize=16)
def _replay_points(_identity: str) -> list[_State]:
    """Return the list of saved states that all orders with this identity share in this process."""
    return []


class _SequenceTable(NamedTuple):
    """The sequences of each source in a phase. `full` is the number of full sequences, and `short` the number
    of tokens in a shorter last sequence (0 if there is none). For a source that lists the sizes of its
    sequences, `full` counts all sequences and `short` is 0.

    `sizes` concatenates the lists of all sources; the list of a source begins at index `size_starts` (-1 if
    it has no list). `keys` determine the order of each source's sequences.
    """

    full: np.ndarray
    short: np.ndarray
    sizes: np.ndarray
    size_starts: np.ndarray
    keys: np.ndarray


def _sequence_table(phase: OrderPhase, name: str, number: int) -> _SequenceTable:
    epochs = np.array([stream.tokens for stream in phase.streams], dtype=np.int64)
    full, short = epochs // phase.length, epochs % phase.length
    listed = [np.empty(0, np.int64) if stream.sizes is None else stream.sizes for stream in phase.streams]
    size_starts: np.ndarray = np.full(len(epochs), -1, dtype=np.int64)
    for source, stream in enumerate(phase.streams):
        if stream.sizes is not None:
            size_starts[source] = sum(map(len, listed[:source]))
            full[source], short[source] = len(stream.sizes), 0
    suffix = f"/{number}" if number else ""
    names = [f"{name}/{phase.length}/{stream.name}{suffix}" for stream in phase.streams]
    keys = np.array([xxhash.xxh3_64_intdigest(name.encode()) for name in names], dtype=np.uint64)
    return _SequenceTable(full, short, np.concatenate(listed), size_starts, keys)
