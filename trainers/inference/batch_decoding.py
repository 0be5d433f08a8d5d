"""Decode texts in batches, token by token. Models without a cache, such as GPT and models with clipped
relative positions, read the whole row again for every new token.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from trainers.engine.forward import Forward, tensors
from trainers.rows.batch import IGNORED, Batch

Rows = Callable[[np.ndarray, np.ndarray], Batch]
"""A function that returns the rows of n prompts, one row per prompt. It takes the indices of the prompts, int64 [n], and the m
tokens that follow each of them, [n, m]. The last target of a row is at the position where the next token is predicted."""
Choose = Callable[[np.ndarray, torch.Tensor], np.ndarray]
"""A function that returns the ids of the next tokens of n prompts, int64 [n]. It takes the indices of the prompts and the
logits of their next tokens, [n, vocabulary]."""
Stops = Callable[[np.ndarray], bool]
"""A function that returns whether a text, given as the ids written so far, is complete without an end token."""


def choose_likeliest(numbers: np.ndarray, logits: torch.Tensor) -> np.ndarray:
    """Return the id of the most probable next token of each prompt."""
    likeliest: np.ndarray = logits.argmax(dim=-1).cpu().numpy()
    return likeliest


@dataclass(frozen=True)
class Sampler:
    """Samples the next token of each prompt. Every prompt has its own random generator, so its text does not
    depend on the other prompts of the batch.

    Only the `top_k` most probable tokens are kept (0: all), and their probabilities are rescaled to sum to 1.
    These are cut further to the fewest most probable tokens whose probabilities sum to at least `top_p`
    (Holtzman et al., 2020; 1: all). `temperature` must be above 0.
    """

    generators: Sequence[np.random.Generator]
    temperature: float
    top_k: int = 0
    top_p: float = 1.0

    def __call__(self, numbers: np.ndarray, logits: torch.Tensor) -> np.ndarray:
        """Sample the next token of each prompt from `logits`, [n, vocabulary]. `numbers`, int64 [n], contains
        the indices of the prompts. Returns the ids of the tokens, int64 [n].
        """
        ordered = (logits.double() / self.temperature).softmax(-1).sort(dim=-1, descending=True, stable=True)
        shares, ids = ordered.values.cpu().numpy(), ordered.indices.cpu().numpy()
        if self.top_k:
            shares, ids = shares[:, : self.top_k], ids[:, : self.top_k]
        totals = shares.cumsum(axis=1)
        totals /= totals[:, -1:]
        chosen = []
        for number, row, those in zip(numbers.tolist(), totals, ids, strict=True):
            kept = min(int(np.searchsorted(row, self.top_p)), len(row) - 1)
            drawn = self.generators[number].random() * row[kept]
            chosen.append(those[min(int(np.searchsorted(row, drawn, side="right")), kept)])
        return np.array(chosen, np.int64)


def decode_batch(
    forward: Forward,
    rows: Rows,
    rooms: np.ndarray,
    tokens: int,
    allowed: np.ndarray,
    ends: Sequence[int],
    choose: Choose = choose_likeliest,
    stops: Stops = lambda written: False,
) -> tuple[list[np.ndarray], np.ndarray]:
    """Write a text after each of n prompts. Return the ids of each text, without its end token, and which
    texts are complete, bool [n]: those that ended at one of the tokens `ends`, or because `stops` returned
    true. Other texts were cut off after `tokens` tokens, or when their row was full.

    `rooms`, int64 [n], is the number of tokens that fit in the row of each prompt, including the end token.
    `allowed`, bool [vocabulary], marks the ids that the model may choose, end tokens included.
    """
    reader = _RowReader(forward, rows)
    banned = torch.from_numpy(~allowed).to(reader.device)
    written = np.empty((len(rooms), min(tokens, int(rooms.max(initial=0)))), np.int64)
    sizes, ended = np.zeros(len(rooms), np.int64), np.zeros(len(rooms), bool)
    pending, count = np.flatnonzero(rooms > 0), 0
    while len(pending):
        logits = reader.logits(pending, written[pending, :count])
        following = choose(pending, logits.masked_fill(banned, -torch.inf))
        last = np.isin(following, ends)
        ended[pending[last]] = True
        pending, following = pending[~last], following[~last]
        if count == tokens:
            break
        written[pending, count] = following
        count += 1
        sizes[pending] = count
        stopped = np.array([stops(written[number, :count]) for number in pending], bool)
        ended[pending[stopped]] = True
        pending = pending[~stopped & (rooms[pending] > count)]
    return [row[:size] for row, size in zip(written, sizes, strict=True)], ended


class _RowReader:
    def __init__(self, forward: Forward, rows: Rows) -> None:
        self._forward, self._make_rows = forward, rows
        self.device = next(forward.model.parameters()).device
        self._past = forward.new_past()
        self._rows, self._positions = np.empty(0, np.int64), np.empty(0, np.int64)

    def logits(self, rows: np.ndarray, written: np.ndarray) -> torch.Tensor:
        """Return the logits of the token that follows each prompt and its `written` tokens, [n, vocabulary].
        `rows`, int64 [n], contains the indices of the prompts. A later call may omit prompts of the previous
        call, but must keep their order and add one written token to each.
        """
        with torch.no_grad():
            if self._past is None or not len(self._rows):
                return self._first(rows, written)
            return self._further(rows, written)

    def _first(self, rows: np.ndarray, written: np.ndarray) -> torch.Tensor:
        batch = self._make_rows(rows, written)
        number, width = np.arange(len(rows)), batch.targets.shape[1]
        last = width - 1 - (batch.targets[:, ::-1] != IGNORED).argmax(axis=1)
        self._rows = rows
        self._positions = (batch.positions if batch.decoder is None else batch.decoder.positions)[number, last]
        at = torch.from_numpy(number * width + last).to(self.device)
        logits: torch.Tensor = self._forward.logits_at(at, self._past, **tensors(batch, self.device))
        return logits

    def _further(self, rows: np.ndarray, written: np.ndarray) -> torch.Tensor:
        assert self._past is not None
        if len(rows) < len(self._rows):
            kept = np.flatnonzero(np.isin(self._rows, rows))
            self._past.select(torch.from_numpy(kept).to(self.device))
            self._rows, self._positions = rows, self._positions[kept]
        self._positions = self._positions + 1
        given = (torch.from_numpy(each).to(self.device) for each in (written[:, -1].copy(), self._positions))
        logits: torch.Tensor = self._forward.logits_after(self._past, *given)
        return logits
