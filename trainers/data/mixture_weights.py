"""Compute how many tokens a mixture requests from each source up to any point of a run, given stages and caps
on epochs.

A mixture is a list of parts with constant shares. A part ends where a stage ends, or where a source reaches
its cap; from there on, the other sources of the stage share its weight in proportion to their own.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

UNCAPPED = np.iinfo(np.int64).max


@dataclass(frozen=True)
class SourceMixture:
    """The mixture of the sources `names` over a run, as a sequence of parts with constant shares. Part i ends
    at token `ends[i]` of the whole run, and `shares[i]` [sources] are the sources' shares of its tokens.
    `stages` are those given to `build_mixture`.

    `caps` [sources] is the maximum number of tokens drawn from each source: 0 if no part reads it, UNCAPPED
    if it has no cap.
    """

    names: tuple[str, ...]
    stages: tuple[tuple[float, Mapping[str, float]], ...]
    ends: np.ndarray
    shares: np.ndarray
    caps: np.ndarray

    @property
    def total(self) -> float:
        """The number of tokens after which the mixture ends because of caps; infinity if it never ends."""
        return float(self.ends[-1])

    def with_caps(self, caps: np.ndarray) -> "SourceMixture":
        """Return the mixture of the same stages with other caps: the maximum number of tokens of each source,
        shape [sources].
        """
        return build_mixture(self.stages, dict(zip(self.names, caps.tolist(), strict=True)), self.names)

    @cached_property
    def starts(self) -> np.ndarray:
        """The token of the whole run at which each part begins, shape [parts]."""
        return np.concatenate([[0.0], self.ends[:-1]])

    @cached_property
    def given(self) -> np.ndarray:
        """The number of tokens requested from each source before each part begins, shape [parts, sources]."""
        sizes = (self.ends - self.starts)[:-1, None] * self.shares[:-1]
        before: np.ndarray = np.concatenate([np.zeros((1, len(self.names))), np.cumsum(sizes, axis=0)])
        # Rounding errors must not lift a request above a cap.
        return np.minimum(before, self.caps)

    def requested(self, tokens: int) -> np.ndarray:
        """Return the number of tokens requested from each source in the first `tokens` tokens of the whole
        run, shape [sources].
        """
        part = max(0, int(np.searchsorted(self.starts, tokens, side="right")) - 1)
        request: np.ndarray = self.given[part] + (tokens - self.starts[part]) * self.shares[part]
        return np.minimum(request, self.caps)


def build_mixture(
    stages: Sequence[tuple[float, Mapping[str, float]]], caps: Mapping[str, int], names: Sequence[str]
) -> SourceMixture:
    """Build the mixture of the sources `names`. Each of the `stages` is (end in tokens of the whole run,
    weights by source); the last must end at infinity. `caps` maps each source that has a cap to its maximum
    number of tokens. If all sources of a stage reach their caps, the mixture ends early: sources of other
    stages do not replace them.
    """
    limits = np.array([caps.get(name, UNCAPPED) for name in names], dtype=np.int64)
    given, start = np.zeros(len(names)), 0.0
    ends: list[float] = []
    shares: list[np.ndarray] = []
    for until, weights in stages:
        stage_weights = np.array([weights.get(name, 0.0) for name in names])
        while start < until and (stage_weights[given < limits] > 0).any():
            share = np.where(given < limits, stage_weights, 0.0)
            share /= share.sum()
            room = np.full(len(names), np.inf)
            capped = (share > 0) & (limits < UNCAPPED)
            room[capped] = (limits - given)[capped] / share[capped]
            step = min(until - start, float(room.min()))
            given = np.where(room <= step, limits, given + (share * step if step < np.inf else 0.0))
            start += step
            ends.append(start)
            shares.append(share)
        if start < until:
            break
    read = np.any(shares, axis=0) if shares else np.zeros(len(names), dtype=bool)
    return SourceMixture(tuple(names), tuple(stages), np.array(ends), np.array(shares), np.where(read, limits, 0))


def epoch_cap(tokens: int, epochs: float) -> int:
    """Return the number of tokens in `epochs` epochs of a source with `tokens` tokens per epoch, rounded down
    and at most UNCAPPED.
    """
    return int(epochs * tokens) if epochs * tokens < UNCAPPED else UNCAPPED
