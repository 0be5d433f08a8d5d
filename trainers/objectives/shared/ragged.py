"""Variable-length lists of tokens, stored in two arrays."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from gristmill.compilation import kernel


@dataclass(frozen=True)
class Ragged:
    """Lists of tokens, concatenated: list i is `tokens[offsets[i]:offsets[i + 1]]`. Both arrays are int64."""

    tokens: np.ndarray
    offsets: np.ndarray

    @cached_property
    def sizes(self) -> np.ndarray:
        """The length of each list, int64 [lists]."""
        sizes: np.ndarray = np.diff(self.offsets)
        return sizes

    def keep(self, chosen: np.ndarray) -> "Ragged":
        """Return the same lists with only the tokens that `chosen`, bool [tokens], marks."""
        before = np.concatenate([[0], np.cumsum(chosen)])
        return Ragged(self.tokens[chosen], before[self.offsets])

    def with_marks(self, before: int | None, after: int | None, chosen: np.ndarray | None = None) -> "Ragged":
        """Return the lists with the token `before` prepended and the token `after` appended to each; None
        adds no token. Lists for which `chosen`, bool [lists], is false become empty instead.
        """
        taken = np.ones(len(self.sizes), dtype=bool) if chosen is None else chosen
        marks = (before is not None) + (after is not None)
        offsets = np.concatenate([[0], np.cumsum((self.sizes + marks) * taken)])
        tokens = np.empty(offsets[-1], dtype=np.int64)
        _mark(self.tokens, self.offsets, taken, _or(before, -1), _or(after, -1), tokens, offsets)
        return Ragged(tokens, offsets)

    def replaced(self, chosen: np.ndarray, others: "Ragged") -> "Ragged":
        """Return a copy in which list i is replaced by list i of `others` wherever `chosen[i]` is true.
        `chosen` is bool [lists].
        """
        sizes = np.where(chosen, others.sizes, self.sizes)
        from_others = np.repeat(chosen, sizes)
        tokens = np.empty(len(from_others), dtype=np.int64)
        tokens[from_others] = others.tokens[np.repeat(chosen, others.sizes)]
        tokens[~from_others] = self.tokens[np.repeat(~chosen, self.sizes)]
        return Ragged(tokens, np.concatenate([[0], np.cumsum(sizes)]))


def _or(token: int | None, other: int) -> int:
    return other if token is None else token


@kernel(nogil=True)
def _mark(
    tokens: np.ndarray,
    offsets: np.ndarray,
    chosen: np.ndarray,
    before: int,
    after: int,
    marked: np.ndarray,
    starts: np.ndarray,
) -> None:
    for i in range(len(chosen)):
        if not chosen[i]:
            continue
        place = starts[i]
        if before >= 0:
            marked[place] = before
            place += 1
        for k in range(offsets[i], offsets[i + 1]):
            marked[place] = tokens[k]
            place += 1
        if after >= 0:
            marked[place] = after
