"""Decode texts in batches, token by token.

To write the first token, the model reads whole rows, as in training, so that virtual tokens, prefixes and
inserted modules work as they were trained. Keys and values are cached, and for each further token the model
reads one position of every row. Models without a cache (GPT, clipped relative positions) read whole rows
again.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from trainers.engine.forward import Forward, tensors
from trainers.rows.batch import IGNORED, Batch

Rows = Callable[[np.ndarray, np.ndarray], Batch]
"""A function from the numbers of n prompts, int64 [n], and the m tokens that follow each, [n, m], to their rows: one prompt
a row, whose last target is where the next token is predicted."""
Choose = Callable[[np.ndarray, torch.Tensor], np.ndarray]
"""A function from the numbers of n prompts and the logits [n, vocabulary] of their next tokens to the ids of these, int64
[n]."""
Stops = Callable[[np.ndarray], bool]
"""Whether a text, given as its ids so far, is complete without an end token."""


def choose_likeliest(numbers: np.ndarray, logits: torch.Tensor) -> np.ndarray:
    """Return the most probable token of each row."""
    likeliest: np.ndarray = logits.argmax(dim=-1).cpu().numpy()
    return likeliest


@dataclass(frozen=True)
class Sampler:
    """Samples the next token of each prompt with a generator of its own, so the text of a prompt does not depend on what else
    is in the batch.

    `temperature` divides the logits. `top_k` keeps the most probable tokens (0: all), and `top_p` the fewest of these that
    have this share of the probability (Holtzman et al., 2020; 1: all).
    """

    generators: Sequence[np.random.Generator]
    temperature: float
    top_k: int = 0
    top_p: float = 1.0

    def __call__(self, numbers: np.ndarray, logits: torch.Tensor) -> np.ndarray:
        """Return the ids of the next tokens."""
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
    """Return the ids that the model writes after each of n prompts, without the end token, and whether each text ended by
    itself, bool [n]: at one of the tokens `ends`, or where `stops` says so.

    A text is cut off after `tokens` tokens, or after those that its row has room for (`rooms`, int64 [n]). `allowed`, bool
    [vocabulary], are the ids that may be written.
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
    """Computes the logits of the next token of each prompt. As texts end, later calls ask for fewer prompts."""

    def __init__(self, forward: Forward, rows: Rows) -> None:
        self._forward, self._make_rows = forward, rows
        self.device = next(forward.model.parameters()).device
        self._past = forward.new_past()
        self._rows, self._positions = np.empty(0, np.int64), np.empty(0, np.int64)

    def logits(self, rows: np.ndarray, written: np.ndarray) -> torch.Tensor:
        """Return the logits [n, vocabulary] after the m tokens written so far [n, m] of these prompts, int64 [n]: a subset
        of those of the previous call, in which texts had one token less.
        """
        with torch.no_grad():
            if self._past is None or not len(self._rows):
                return self._first(rows, written)
            return self._further(rows, written)

    def _first(self, rows: np.ndarray, written: np.ndarray) -> torch.Tensor:
        """Return the logits after reading whole rows."""
        batch = self._make_rows(rows, written)
        number, width = np.arange(len(rows)), batch.targets.shape[1]
        last = width - 1 - (batch.targets[:, ::-1] != IGNORED).argmax(axis=1)
        self._rows = rows
        self._positions = (batch.positions if batch.decoder is None else batch.decoder.positions)[number, last]
        at = torch.from_numpy(number * width + last).to(self.device)
        logits: torch.Tensor = self._forward.logits_at(at, self._past, **tensors(batch, self.device))
        return logits

    def _further(self, rows: np.ndarray, written: np.ndarray) -> torch.Tensor:
        """Return the logits after reading only the token that the previous call added to each row."""
        assert self._past is not None
        if len(rows) < len(self._rows):
            kept = np.flatnonzero(np.isin(self._rows, rows))
            self._past.select(torch.from_numpy(kept).to(self.device))
            self._rows, self._positions = rows, self._positions[kept]
        self._positions = self._positions + 1
        given = (torch.from_numpy(each).to(self.device) for each in (written[:, -1].copy(), self._positions))
        logits: torch.Tensor = self._forward.logits_after(self._past, *given)
        return logits
