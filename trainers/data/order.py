"""The order of training sequences: a pure function of the global sample number.

Which source sample n comes from is Tijdeman's solution of the chairman assignment problem (Discrete Mathematics 32,
1980): among the sources that are due, the one whose deadline is nearest, looking ahead into later stages. At every n
the tokens drawn from a source differ from what the mixture asks for by less than one sequence; what a source is ahead
or behind at the end of a stage is carried into the next one. Within a source every epoch reads each sequence once, in
an order given by a keyed Feistel permutation, which needs no memory, or by a shuffle where a source has fewer than 4,096
sequences; the last, shorter sequence of a source comes last in its epoch.

A run may have phases, each with sequences of its own. What was drawn goes on counting for the mixture and its caps; the
sequences are others, so every source begins another epoch.

World size, micro-batch and workers do not enter. The state is a few integers per source; from it any later sample is
reached by replaying the decisions between, some ten million a second.
"""

from bisect import bisect_right, insort
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np
import xxhash

from gristmill.storage.store import digest
from trainers.data.mixture_weights import UNCAPPED, SourceMixture
from trainers.data.order_kernels import draw, reachable

_VERSION = 2  # of the permutations of trainers.data.order_kernels
_CHUNK = 1 << 20
_KEPT = 1 << 23  # samples between states that are remembered: under a second to replay


@dataclass(frozen=True)
class Stream:
    """A source as the order sees it: the tokens of one epoch, and those of each of its sequences where they are not cut
    from its stream one after another.
    """

    name: str
    tokens: int
    sizes: np.ndarray | None = None


@dataclass(frozen=True)
class OrderPhase:
    """Sequences of up to `length` tokens of some streams, drawn before sample `until`; None for the last phase of a run."""

    streams: tuple[Stream, ...]
    length: int
    until: int | None = None


@dataclass(frozen=True)
class Samples:
    """Samples, arrays of shape [n]: global number, index of the source, number of the sequence in it, its tokens, and how
    many epochs of the source began before the one that it belongs to.
    """

    number: np.ndarray
    source: np.ndarray
    sequence: np.ndarray
    tokens: np.ndarray
    epoch: np.ndarray

    def __len__(self) -> int:
        return len(self.source)

    def select(self, rows: np.ndarray) -> "Samples":
        """The samples at `rows`."""
        return Samples(self.number[rows], self.source[rows], self.sequence[rows], self.tokens[rows], self.epoch[rows])


@dataclass(frozen=True)
class Drawn:
    """What some samples have taken of each source, each of shape [sources]: `sequences`, `tokens`, `places`, the positions
    that the sequences have room for, and `epochs` that were begun, int64; the tokens that the mixture asks for, float64.
    """

    sequences: np.ndarray
    tokens: np.ndarray
    places: np.ndarray
    epochs: np.ndarray
    requested: np.ndarray


@dataclass(frozen=True)
class _State:
    """After `sample` samples: the sequences drawn in this phase and the tokens drawn in the run, [sources]; `begun`
    [4, sources] is, at the start of the phase, sequences, places and tokens drawn and epochs begun.
    """

    sample: int
    phase: int
    sequences: np.ndarray
    tokens: np.ndarray
    begun: np.ndarray


class MixtureEnds(ValueError):
    """A mixture whose sources have all given their cap: it has `samples` samples, with `tokens` tokens."""

    def __init__(self, samples: int, tokens: int) -> None:
        self.samples, self.tokens = samples, tokens
        super().__init__(f"the mixture has {samples} samples, a later one was asked for")


class Order:
    """The samples of a run. Sources of weight 0 are never drawn."""

    def __init__(self, phases: Sequence[OrderPhase], mixture: SourceMixture, seed: int, fingerprint: str) -> None:
        """`mixture` is over the names of the streams of each phase; `fingerprint` is the corpus's: another corpus has another
        order. Phases follow one another, the last one has no end.
        """
        assert all(mixture.names == tuple(stream.name for stream in phase.streams) for phase in phases)
        ends = [phase.until for phase in phases]
        assert ends[-1] is None
        assert None not in ends[:-1]
        self.phases = tuple(phases)
        self.streams = self.phases[-1].streams
        self._asked = mixture
        self._grids = [_grid(phase, f"{fingerprint}/{seed}", number) for number, phase in enumerate(phases)]
        self._mixtures: dict[int, SourceMixture] = {}
        nothing: np.ndarray = np.zeros((6, len(self.streams)), dtype=np.int64)
        self._known = _known(self.identity)
        self._at = _State(0, 0, nothing[0], nothing[1], nothing[2:])
        self._remember(self._at)

    def twin(self) -> "Order":
        """The same order, read from another place on: neither moves the other."""
        return copy(self)

    @cached_property
    def identity(self) -> str:
        """A digest of all that the samples depend on."""
        grids = [[xxhash.xxh3_128_hexdigest(array.tobytes()) for array in grid] for grid in self._grids]
        phases = [(phase.length, phase.until) for phase in self.phases]
        stages = [(repr(until), dict(weights)) for until, weights in self._asked.stages]
        return digest([_VERSION, grids, phases, stages, self._asked.names, self._asked.caps.tolist()])

    def phase_of(self, sample: int) -> int:
        """The number of the phase that a sample belongs to."""
        return bisect_right([phase.until or 0 for phase in self.phases[:-1]], sample)

    def mixture(self, samples: int = 0) -> SourceMixture:
        """What is asked for in the phase of sample `samples`, under the caps that whole sequences reach."""
        self._go(samples)
        return self._mixture(self._at)

    def take(self, first: int, count: int) -> Samples:
        """Samples `first` to `first + count` of the run. MixtureEnds beyond the end that epoch caps give a mixture."""
        self._go(first)
        parts = [self._draw(count)]
        while (missing := count - sum(map(len, parts))) > 0:
            parts.append(self._draw(missing))
        if len(parts) == 1:
            return parts[0]
        fields = ("number", "source", "sequence", "tokens", "epoch")
        return Samples(*(np.concatenate([getattr(part, name) for part in parts]) for name in fields))

    def drawn(self, samples: int) -> Drawn:
        """What the first `samples` samples have taken."""
        self._go(samples)
        sequences, places, tokens, epochs = self._totals(self._at)
        return Drawn(sequences, tokens, places, epochs, self._mixture(self._at).requested(int(tokens.sum())))

    def steps(self, size: int, tokens: int) -> int:
        """How many steps of `size` samples take `tokens` tokens or fewer. MixtureEnds where there are not that many."""
        steps, total = 0, 0
        longest = size * max(phase.length for phase in self.phases)
        while True:
            # As many as are left at least, then one after another.
            many = min(max(1, (tokens - total) // longest), max(1, _CHUNK // size))
            sums = np.cumsum(self.take(steps * size, many * size).tokens.reshape(many, size).sum(axis=1))
            fitting = int(np.searchsorted(sums, tokens - total, side="right"))
            if fitting < many:
                return steps + fitting
            steps, total = steps + many, total + int(sums[-1])

    def state(self, samples: int) -> dict[str, Any]:
        """The state after `samples` samples, as JSON has it; `resume` takes it."""
        self._go(samples)
        state = self._at
        arrays = {name: getattr(state, name).tolist() for name in ("sequences", "tokens", "begun")}
        return {"order": self.identity, "sample": state.sample, "phase": state.phase, **arrays}

    def resume(self, record: Mapping[str, Any]) -> bool:
        """Know a state that `state` gave, so that samples after it are reached from there. False where it is that of another
        order, and nothing is changed.
        """
        if record.get("order") != self.identity:
            return False
        arrays = [np.array(record[name], dtype=np.int64) for name in ("sequences", "tokens", "begun")]
        self._remember(_State(record["sample"], record["phase"], *arrays))
        return True

    def _remember(self, state: _State) -> None:
        if all(state.sample != other.sample for other in self._known):
            insort(self._known, state, key=lambda other: other.sample)

    def _go(self, sample: int) -> None:
        """Be at a sample, from the nearest state before it that is known."""
        nearest = self._known[bisect_right(self._known, sample, key=lambda state: state.sample) - 1]
        if not nearest.sample <= self._at.sample <= sample:
            self._at = nearest
        while self._at.sample < sample:
            self._draw(min(_CHUNK, sample - self._at.sample))

    def _draw(self, count: int) -> Samples:
        """The next `count` samples, or fewer where a phase ends."""
        state = self._at
        phase, grid, asked = self.phases[state.phase], self._grids[state.phase], self._mixture(state)
        count = count if phase.until is None else min(count, phase.until - state.sample)
        source: np.ndarray = np.empty(count, dtype=np.int32)
        sequence, tokens, epoch = np.empty((3, count), dtype=np.int64)
        sequences, drawn = state.sequences.copy(), state.tokens.copy()
        wanted = (asked.ends, asked.shares, asked.given, asked.caps)
        there = draw(*wanted, *grid, np.int64(phase.length), sequences, drawn, source, sequence, tokens, epoch)
        if there < count:
            raise MixtureEnds(state.sample + there, int(drawn.sum()))
        epoch += state.begun[3][source]
        after = _State(state.sample + count, state.phase, sequences, drawn, state.begun)
        self._at = self._next_phase(after) if after.sample == phase.until else after
        if self._at.phase > state.phase or after.sample // _KEPT > state.sample // _KEPT:
            self._remember(self._at)
        return Samples(np.arange(state.sample, after.sample), source, sequence, tokens, epoch)

    def _next_phase(self, state: _State) -> _State:
        return _State(state.sample, state.phase + 1, np.zeros_like(state.sequences), state.tokens, self._totals(state))

    def _totals(self, state: _State) -> np.ndarray:
        """Of the run up to a state: sequences, places and tokens drawn and epochs begun, int64 [4, sources]."""
        sequences, places, _, epochs = state.begun
        grid, length = self._grids[state.phase], self.phases[state.phase].length
        epochs = epochs - (-state.sequences // (grid.full + (grid.short > 0)))
        return np.stack([sequences + state.sequences, places + state.sequences * length, state.tokens, epochs])

    def caps(self, samples: int = 0) -> np.ndarray:
        """Tokens that each source gives at most in the whole run, int64 [sources]: what the whole sequences of the phase of
        sample `samples` reach, from what was drawn before it.
        """
        self._go(samples)
        return self._caps(self._at)

    def _caps(self, state: _State) -> np.ndarray:
        phase, grid, caps = self.phases[state.phase], self._grids[state.phase], self._asked.caps.copy()
        for source in np.flatnonzero(caps < UNCAPPED):
            before, tokens = int(state.begun[2][source]), phase.streams[source].tokens
            epochs, rest = divmod(max(0, int(caps[source]) - before), tokens)
            within = reachable(int(source), epochs, rest, *grid, np.int64(phase.length))
            caps[source] = before + epochs * tokens + within
        return caps

    def _mixture(self, state: _State) -> SourceMixture:
        if state.phase not in self._mixtures:
            self._mixtures[state.phase] = self._asked.capped(self._caps(state))
        return self._mixtures[state.phase]


@lru_cache(maxsize=16)
def _known(_identity: str) -> list[_State]:
    """The states of an order that this process has come by, which orders of the same identity share."""
    return []


class _Grid(NamedTuple):
    """The sequences of a phase, by source: how many there are and the tokens of a last, shorter one (0: none); the tokens of
    those that sources list, and where a source's begin, -1 for the others; the keys of their permutations.
    """

    full: np.ndarray
    short: np.ndarray
    sizes: np.ndarray
    places: np.ndarray
    keys: np.ndarray


def _grid(phase: OrderPhase, name: str, number: int) -> _Grid:
    epochs = np.array([stream.tokens for stream in phase.streams], dtype=np.int64)
    full, short = epochs // phase.length, epochs % phase.length
    listed = [np.empty(0, np.int64) if stream.sizes is None else stream.sizes for stream in phase.streams]
    places: np.ndarray = np.full(len(epochs), -1, dtype=np.int64)
    for source, stream in enumerate(phase.streams):
        if stream.sizes is not None:
            places[source] = sum(map(len, listed[:source]))
            full[source], short[source] = len(stream.sizes), 0
    suffix = f"/{number}" if number else ""
    names = [f"{name}/{phase.length}/{stream.name}{suffix}" for stream in phase.streams]
    keys = np.array([xxhash.xxh3_64_intdigest(name.encode()) for name in names], dtype=np.uint64)
    return _Grid(full, short, np.concatenate(listed), places, keys)
