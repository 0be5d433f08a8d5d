"""The order of training sequences: a pure function of the global sample number.

Which source sample n comes from is Tijdeman's solution of the chairman assignment problem (Discrete Mathematics 32,
1980): among the sources that are due, the one whose deadline is nearest, looking ahead into later stages. At every n
the tokens drawn from a source differ from what the mixture asks for by less than one sequence; what a source is ahead
or behind at the end of a stage is carried into the next one. Within a source every epoch reads each sequence once, in
an order given by a keyed Feistel permutation, which needs no memory; the last, shorter sequence of a source comes last
in its epoch.

World size, micro-batch and workers do not enter. The state is one integer: reaching sample n from 0 replays n
decisions, some millions a second.
"""

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any

import numba
import numpy as np
import xxhash

from trainers.mixture import Mixture

_CHUNK = 1 << 20
_U = np.uint64
_ROUNDS = 6


@dataclass(frozen=True)
class Stream:
    """A source as the order sees it: the tokens of one epoch, and those of each of its sequences where they are not cut
    from its stream one after another.
    """

    name: str
    tokens: int
    sizes: np.ndarray | None = None


@dataclass(frozen=True)
class Samples:
    """Samples, arrays of shape [n]: global number, index of the source, number of the sequence in it, its tokens, and how
    often the source was read before.
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


class Order:
    """The samples of a run. Sources of weight 0 are never drawn."""

    def __init__(
        self, streams: Sequence[Stream], mixture: Mixture, sequence_length: int, seed: int, fingerprint: str
    ) -> None:
        """`mixture` is over the names of `streams`; `fingerprint` is the corpus's: another corpus has another order."""
        assert mixture.names == tuple(stream.name for stream in streams)
        self.streams = tuple(streams)
        self.mixture = mixture
        self.sequence_length = sequence_length
        epochs = np.array([stream.tokens for stream in streams], dtype=np.int64)
        self._full, self._short = epochs // sequence_length, epochs % sequence_length
        listed = [np.empty(0, np.int64) if stream.sizes is None else stream.sizes for stream in streams]
        self._sizes = np.concatenate(listed)
        self._places: np.ndarray = np.full(len(streams), -1, dtype=np.int64)
        for source, stream in enumerate(streams):
            if stream.sizes is not None:
                self._places[source] = sum(map(len, listed[:source]))
                self._full[source], self._short[source] = len(stream.sizes), 0
        names = [f"{fingerprint}/{seed}/{sequence_length}/{stream.name}" for stream in streams]
        self._keys = np.array([xxhash.xxh3_64_intdigest(name.encode()) for name in names], dtype=np.uint64)
        self._restart()

    def take(self, first: int, count: int) -> Samples:
        """Samples `first` to `first + count` of the run. ValueError beyond the end that epoch caps give a mixture."""
        if first < self._next:
            self._restart()
        while self._next < first:
            self._draw(min(_CHUNK, first - self._next))
        return self._draw(count)

    def twin(self) -> "Order":
        """The same order, read from another place on: neither moves the other."""
        other = copy(self)
        other._restart()
        return other

    def drawn(self, samples: int) -> tuple[np.ndarray, np.ndarray]:
        """(sequences, tokens) drawn from each source by the first `samples` samples, each of shape [sources] int64."""
        self.take(samples, 0)
        return self._counts.copy(), self._tokens.copy()

    def _restart(self) -> None:
        self._next = 0
        self._counts: np.ndarray = np.zeros(len(self.streams), dtype=np.int64)
        self._tokens: np.ndarray = np.zeros(len(self.streams), dtype=np.int64)

    def _draw(self, count: int) -> Samples:
        source: np.ndarray = np.empty(count, dtype=np.int32)
        sequence: np.ndarray = np.empty(count, dtype=np.int64)
        tokens: np.ndarray = np.empty(count, dtype=np.int64)
        epochs: np.ndarray = np.empty(count, dtype=np.int64)
        asked = (self.mixture.ends, self.mixture.shares, self.mixture.given, self.mixture.caps)
        sizes = (self._full, self._short, self._sizes, self._places, np.int64(self.sequence_length))
        state = (self._counts, self._tokens)
        there = _schedule(*asked, *sizes, self._keys, *state, source, sequence, tokens, epochs)
        if there < count:
            raise ValueError(
                f"the mixture has {self._next + there} samples, sample {self._next + count - 1} was asked for"
            )
        samples = Samples(np.arange(self._next, self._next + count), source, sequence, tokens, epochs)
        self._next += count
        return samples


@numba.njit(cache=True, nogil=True)
def _schedule(
    ends: np.ndarray,
    shares: np.ndarray,
    given: np.ndarray,
    caps: np.ndarray,
    full: np.ndarray,
    short: np.ndarray,
    sizes: np.ndarray,
    places: np.ndarray,
    length: int,
    keys: np.ndarray,
    counts: np.ndarray,
    drawn: np.ndarray,
    source: np.ndarray,
    sequence: np.ndarray,
    tokens: np.ndarray,
    epochs: np.ndarray,
) -> int:
    """Fill `source`, `sequence`, `tokens`, `epochs` with the next samples and advance `counts` and `drawn`, both [sources].

    `sizes` are the tokens of the sequences of all sources that list theirs, from `places` [sources] on; -1 for the others.

    Returns how many there are: fewer than asked for where all sources have given their cap.
    """
    live = (caps > 0).sum()
    due = 1.0 / (2 * live - 2) if live > 1 else 0.0
    total, here, there = drawn.sum(), 0, 0
    for n in range(len(source)):
        ahead = min(float(total + length), ends[-1])
        while here < len(ends) - 1 and ends[here] <= total:
            here += 1
        there = max(here, there)
        while there < len(ends) - 1 and ends[there] < ahead:
            there += 1
        begins = ends[there - 1] if there > 0 else 0.0
        best, best_deadline, latest, latest_lag = -1, np.inf, -1, -np.inf
        for s in range(len(caps)):
            if drawn[s] >= caps[s]:
                continue
            lag = (given[there, s] + (ahead - begins) * shares[there, s] - drawn[s]) / length
            if lag > latest_lag:
                latest, latest_lag = s, lag
            if lag >= due:
                deadline = _deadline(ends, shares, given, here, s, drawn[s] + (1.0 - due) * length)
                if best < 0 or deadline < best_deadline:
                    best, best_deadline = s, deadline
        # The lags sum to 1, so one is due, but for rounding and at the end of a mixture: then the one furthest behind.
        chosen = best if best >= 0 else latest
        if chosen < 0:
            return n
        in_epoch: Any = full[chosen] + (1 if short[chosen] > 0 else 0)
        epoch, position = divmod(counts[chosen], in_epoch)
        size, number = short[chosen], position
        if position < full[chosen]:
            number = _permuted(position, full[chosen], keys[chosen], epoch)
            size = length if places[chosen] < 0 else sizes[places[chosen] + number]
        source[n], sequence[n], tokens[n], epochs[n] = chosen, number, size, epoch
        counts[chosen] += 1
        drawn[chosen] += size
        total += size
    return len(source)


@numba.njit(cache=True, nogil=True)
def _deadline(ends: np.ndarray, shares: np.ndarray, given: np.ndarray, part: int, source: int, tokens: float) -> float:
    """Tokens of the whole run at which `tokens` are asked of a source; the search begins at `part`."""
    while part < len(ends) - 1 and tokens > given[part + 1, source]:
        part += 1
    missing = tokens - given[part, source]
    begins = ends[part - 1] if part > 0 else 0.0
    if missing <= 0:
        return begins
    return begins + missing / shares[part, source] if shares[part, source] > 0 else np.inf


@numba.njit(cache=True, nogil=True)
def _mix(x: np.uint64) -> np.uint64:
    """The finaliser of SplitMix64 (Steele et al., 2014): a bijection of 64-bit integers."""
    x = (x ^ (x >> _U(30))) * _U(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> _U(27))) * _U(0x94D049BB133111EB)
    return x ^ (x >> _U(31))


@numba.njit(cache=True, nogil=True)
def _permuted(index: int, size: int, key: np.uint64, epoch: int) -> np.int64:
    """Place `index` of a keyed permutation of range(size): a Feistel network over 2^2h >= size, walked until inside."""
    half = _U(1)
    while (_U(1) << (_U(2) * half)) < _U(size):
        half += _U(1)
    mask = (_U(1) << half) - _U(1)
    epoch_key = _mix(key + _U(epoch) * _U(0x9E3779B97F4A7C15))
    value = _U(index)
    while True:
        left, right = value >> half, value & mask
        for number in range(_ROUNDS):
            left, right = right, left ^ (_mix(right + epoch_key + _U(number) * _U(0xD1B54A32D192ED03)) & mask)
        value = (left << half) | right
        if value < _U(size):
            return np.int64(value)
