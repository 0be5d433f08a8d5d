"""Numba kernels of `trainers.data.order`, which choose the source to draw from and the sequence within it."""

from typing import Any

import numpy as np

from gristmill.compilation import kernel
from trainers.rows.random import mix

_U = np.uint64
_ROUNDS = 6
# Epochs of fewer sequences are shuffled in memory: Feistel networks of few bits are not uniform.
_SHUFFLE_BELOW = 1 << 12


@kernel(nogil=True)
def reachable_tokens(
    source: int,
    epoch: int,
    most: int,
    full: np.ndarray,
    short: np.ndarray,
    sizes: np.ndarray,
    size_starts: np.ndarray,
    keys: np.ndarray,
    length: int,
) -> int:
    """Return how many tokens of `source` can be drawn in whole sequences from the start of epoch `epoch`
    without exceeding `most`, which must be less than the number of tokens in an epoch. `full` to `length` are
    as in `draw`.
    """
    if size_starts[source] < 0:
        return min(most // length, full[source]) * length
    total = 0
    count = full[source]
    order = np.empty(count if count < _SHUFFLE_BELOW else 0, dtype=np.int64)
    _shuffle(order, keys[source], epoch)
    for position in range(count):
        number = order[position] if len(order) else _permute(position, count, keys[source], epoch)
        size = sizes[size_starts[source] + number]
        if total + size > most:
            break
        total += size
    return total


@kernel(nogil=True)
def draw(
    ends: np.ndarray,
    shares: np.ndarray,
    given: np.ndarray,
    caps: np.ndarray,
    full: np.ndarray,
    short: np.ndarray,
    sizes: np.ndarray,
    size_starts: np.ndarray,
    keys: np.ndarray,
    length: int,
    counts: np.ndarray,
    drawn: np.ndarray,
    source: np.ndarray,
    sequence: np.ndarray,
    tokens: np.ndarray,
    epochs: np.ndarray,
) -> int:
    """Draw the next samples of a phase into `source`, `sequence`, `tokens` and `epochs`, [samples] each.
    Epochs are numbered from the start of the phase. `counts` [sources] is the number of sequences drawn from
    each source in this phase, and `drawn` [sources] the number of tokens drawn from it in the whole run. Both
    are updated in place.

    `ends` to `caps` are those of a `SourceMixture`, and `full` to `keys` those of the `_SequenceTable` in
    `trainers.data.order`. `length` is the number of tokens in a full sequence.

    Returns the number of samples drawn, which is less than the length of `source` if the mixture ends.
    """
    live = (caps > 0).sum()
    due = 1.0 / (2 * live - 2) if live > 1 else 0.0
    total, part, ahead_part = drawn.sum(), 0, 0
    # The orders of small sources. Each is shuffled when its epoch is first read.
    small = np.where(full < _SHUFFLE_BELOW, full, 0)
    begins_at = np.cumsum(small) - small
    orders: np.ndarray = np.empty(small.sum(), dtype=np.int64)
    shuffled: np.ndarray = np.full(len(full), -1, dtype=np.int64)
    for n in range(len(source)):
        if total >= ends[-1]:
            return n
        ahead = min(float(total + length), ends[-1])
        while part < len(ends) - 1 and ends[part] <= total:
            part += 1
        ahead_part = max(part, ahead_part)
        while ahead_part < len(ends) - 1 and ends[ahead_part] < ahead:
            ahead_part += 1
        begins = ends[ahead_part - 1] if ahead_part > 0 else 0.0
        best, best_deadline, latest, latest_lag = -1, np.inf, -1, -np.inf
        for s in range(len(caps)):
            if drawn[s] >= caps[s]:
                continue
            lag = (given[ahead_part, s] + (ahead - begins) * shares[ahead_part, s] - drawn[s]) / length
            if lag > latest_lag:
                latest, latest_lag = s, lag
            if lag >= due:
                deadline = _deadline(ends, shares, given, part, s, drawn[s] + (1.0 - due) * length)
                if best < 0 or deadline < best_deadline:
                    best, best_deadline = s, deadline
        # The lags sum to 1, so some source is due, except because of rounding or at the end of a mixture. The
        # source furthest behind is then drawn.
        chosen = best if best >= 0 else latest
        if chosen < 0:
            return n
        in_epoch: Any = full[chosen] + (1 if short[chosen] > 0 else 0)
        epoch, position = divmod(counts[chosen], in_epoch)
        size, number = short[chosen], position
        if position < full[chosen]:
            if full[chosen] < _SHUFFLE_BELOW:
                order = orders[begins_at[chosen] : begins_at[chosen] + full[chosen]]
                if shuffled[chosen] != epoch:
                    _shuffle(order, keys[chosen], epoch)
                    shuffled[chosen] = epoch
                number = order[position]
            else:
                number = _permute(position, full[chosen], keys[chosen], epoch)
            size = length if size_starts[chosen] < 0 else sizes[size_starts[chosen] + number]
        source[n], sequence[n], tokens[n], epochs[n] = chosen, number, size, epoch
        counts[chosen] += 1
        drawn[chosen] += size
        total += size
    return len(source)


@kernel(nogil=True)
def _deadline(ends: np.ndarray, shares: np.ndarray, given: np.ndarray, part: int, source: int, tokens: float) -> float:
    """Return the number of tokens of the whole run after which the mixture has requested `tokens` tokens from
    a source, or infinity if it never does. The result is never below the start of part `part` of the mixture.
    """
    while part < len(ends) - 1 and tokens > given[part + 1, source]:
        part += 1
    missing = tokens - given[part, source]
    begins = ends[part - 1] if part > 0 else 0.0
    if missing <= 0:
        return begins
    return begins + missing / shares[part, source] if shares[part, source] > 0 else np.inf


@kernel(nogil=True)
def _epoch_key(key: np.uint64, epoch: int) -> np.uint64:
    return mix(key + _U(epoch) * _U(0x9E3779B97F4A7C15))


@kernel(nogil=True)
def _shuffle(order: np.ndarray, key: np.uint64, epoch: int) -> None:
    """Fill `order` with a permutation of range(len(order)) that `key` and `epoch` determine.

    This is Algorithm P (Knuth, The Art of Computer Programming 2, 3.4.2) with SplitMix64 as its generator.
    The modulo bias is below 2^-52 for up to 2^12 elements.
    """
    epoch_key = _epoch_key(key, epoch)
    for index in range(len(order)):
        order[index] = index
    for last in range(len(order) - 1, 0, -1):
        other = np.int64(mix(epoch_key + _U(last) * _U(0x9E3779B97F4A7C15)) % _U(last + 1))
        order[last], order[other] = order[other], order[last]


@kernel(nogil=True)
def _permute(index: int, size: int, key: np.uint64, epoch: int) -> np.int64:
    """Return element `index` of a keyed permutation of range(size), by a Feistel network with cycle walking."""
    half = _U(1)
    while (_U(1) << (_U(2) * half)) < _U(size):
        half += _U(1)
    mask = (_U(1) << half) - _U(1)
    epoch_key = _epoch_key(key, epoch)
    value = _U(index)
    while True:
        left, right = value >> half, value & mask
        for number in range(_ROUNDS):
            left, right = right, left ^ (mix(right + epoch_key + _U(number) * _U(0xD1B54A32D192ED03)) & mask)
        value = (left << half) | right
        if value < _U(size):
            return np.int64(value)
