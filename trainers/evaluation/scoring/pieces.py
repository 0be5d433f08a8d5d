"""Pack scored texts into rows, isolated from one another, and sum the likelihood of their targets.

Pieces are sorted by length. Pieces of similar length are packed together, so rows have little padding. A piece
sees only itself, so its likelihood does not depend on what shares its row or its batch. Pieces that differ in their targets
only, such as candidates of one token after the same context, are computed once.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from trainers.engine.forward import Forward, tensors
from trainers.models import MODELS
from trainers.rows.batch import IGNORED, PADDING, Batch, Decoder
from trainers.rows.best_fit import best_fit

_WIDTH = 256  # columns of a row of short pieces; a wider row spends more on attention that is masked away
_LOGITS = 1 << 24  # logits in memory at once: 64 MB in fp32

_Targets = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Targets of a batch: the flattened position of each, its id, and the request that it belongs to; int64 [n] each."""


@dataclass(frozen=True)
class Piece:
    """A text that a model reads in one go; its scored tokens belong to request `owner`.

    `inputs`, int64, are the ids that the model reads; in an encoder-decoder those of the encoder, while
    `decoder` has those of the decoder. `targets`, int64, have the length of `decoder`, or else of `inputs`; -100 is
    no target. In a prefix LM the first `prefix` positions see one another.
    """

    owner: int
    inputs: np.ndarray
    targets: np.ndarray
    decoder: np.ndarray | None = None
    prefix: int = 0

    @property
    def length(self) -> int:
        """The columns that the piece takes in a row."""
        return max(len(self.inputs), len(self.targets))


@dataclass(frozen=True)
class Sums:
    """Sums over the targets of each of n requests: `log_likelihood` in nats, float64 [n]; the number of
    `tokens`, int64 [n]; and how many of these were the model's most probable token (`best`), int64 [n].
    """

    log_likelihood: np.ndarray
    tokens: np.ndarray
    best: np.ndarray


def sum_pieces(forward: Forward, architecture: str, pieces: Sequence[Piece], requests: int, positions: int) -> Sums:
    """Return the sums of `requests` requests. A batch has up to about `positions` positions of text."""
    sums = Sums(np.zeros(requests), np.zeros(requests, np.int64), np.zeros(requests, np.int64))
    for logits, row, wanted, owner in piece_logits(forward, architecture, pieces, positions):
        _add(sums, logits, row, wanted, owner)
    return sums


def piece_logits(
    forward: Forward, architecture: str, pieces: Sequence[Piece], positions: int
) -> Iterator[tuple[Any, np.ndarray, np.ndarray, np.ndarray]]:
    """Yield logits [m, vocabulary], and for n targets the row of its logits, its id and its request, int64 [n] each.
    Targets of the same piece are in order.
    """
    import torch

    forward.eval()
    device = next(forward.parameters()).device
    logits_of = MODELS[architecture].logits
    for batch, (at, wanted, owner) in _batches(_groups(pieces), positions):
        distinct, row = np.unique(at, return_inverse=True)
        with torch.no_grad():
            states = forward.states(**tensors(batch, device)).flatten(0, 1)
            step = max(1, _LOGITS // int(forward.model.config.vocab_size))
            for first in range(0, len(distinct), step):
                here = slice(*np.searchsorted(row, (first, first + step)))
                chosen = torch.from_numpy(distinct[first : first + step]).to(device)
                logits = logits_of(forward.model, states[chosen]).float()
                yield logits, row[here] - first, wanted[here], owner[here]


def _groups(pieces: Sequence[Piece]) -> list[list[Piece]]:
    """Return the pieces in groups that the model reads alike."""
    groups: dict[tuple[bytes, bytes, int], list[Piece]] = {}
    for piece in pieces:
        decoder = b"" if piece.decoder is None else piece.decoder.tobytes()
        groups.setdefault((piece.inputs.tobytes(), decoder, piece.prefix), []).append(piece)
    return list(groups.values())


def _add(sums: Sums, logits: Any, row: np.ndarray, wanted: np.ndarray, owner: np.ndarray) -> None:
    """Add the likelihood of the ids `wanted` [n], each given row `row` of logits [m, vocabulary], to those of their
    requests.
    """
    import torch

    places, target = (torch.from_numpy(each).to(logits.device) for each in (row, wanted))
    likelihood = (logits[places, target] - logits.logsumexp(1)[places]).double().cpu().numpy()
    best = (logits.argmax(1)[places] == target).cpu().numpy()
    count = len(sums.tokens)
    sums.log_likelihood[:] += np.bincount(owner, likelihood, count)
    sums.tokens[:] += np.bincount(owner, minlength=count)
    sums.best[:] += np.bincount(owner[best], minlength=count)


def _batches(groups: Sequence[Sequence[Piece]], positions: int) -> Iterator[tuple[Batch, _Targets]]:
    """Yield batches of the first pieces of groups, the longest first, and the targets of all pieces of these groups."""
    lengths = np.array([group[0].length for group in groups], np.int64)
    order = np.argsort(-lengths, kind="stable")
    ends = np.cumsum(lengths[order])
    first = 0
    while first < len(order):
        taken = int(np.searchsorted(ends, (ends[first - 1] if first else 0) + positions, side="right"))
        numbers = order[first : max(taken, first + 1)]
        first += len(numbers)
        width = max(int(lengths[numbers[0]]), min(_WIDTH, int(lengths[numbers].sum())))
        places, starts = best_fit(lengths[numbers], width, 0)
        yield _batch([[groups[i] for i in numbers[places[a:b]]] for a, b in pairwise(starts)])


def _batch(rows: Sequence[Sequence[Sequence[Piece]]]) -> tuple[Batch, _Targets]:
    first = rows[0][0][0]
    both, prefixed = first.decoder is not None, any(group[0].prefix for row in rows for group in row)
    columns = max(sum(len(group[0].inputs) for group in row) for row in rows)
    shape = (len(rows), columns)
    inputs, positions = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    segments, prefix = np.full(shape, PADDING, np.int64), np.zeros(shape, bool)
    goals = (len(rows), max(sum(len(group[0].targets) for group in row) for row in rows))
    targets, found = np.full(goals, IGNORED, np.int64), []
    decoder = Decoder(np.zeros(goals, np.int64), np.zeros(goals, np.int64), np.full(goals, PADDING, np.int64))
    for number, row in enumerate(rows):
        column = goal = 0
        for segment, group in enumerate(row):
            piece = group[0]
            here, there = slice(column, column + len(piece.inputs)), slice(goal, goal + len(piece.targets))
            inputs[number, here], segments[number, here] = piece.inputs, segment
            positions[number, here] = np.arange(len(piece.inputs))
            prefix[number, column : column + piece.prefix] = True
            targets[number, there] = piece.targets
            if piece.decoder is not None:
                decoder.inputs[number, there], decoder.segments[number, there] = piece.decoder, segment
                decoder.positions[number, there] = np.arange(len(piece.decoder))
            found += [(number * goals[1] + goal, member) for member in group]
            column, goal = here.stop, there.stop
    none = np.zeros(len(rows), np.int64)
    batch = Batch(
        inputs, targets, positions, segments, none, none, none, none,
        prefix=prefix if prefixed else None, decoder=decoder if both else None,
    )  # fmt: skip
    return batch, _all_targets(found)


def _all_targets(found: Sequence[tuple[int, Piece]]) -> _Targets:
    """Return the targets of pieces, each given with the flattened position at which it begins, in the order of positions."""
    at, wanted, owner = [], [], []
    for start, piece in found:
        places = np.flatnonzero(piece.targets != IGNORED)
        at.append(start + places)
        wanted.append(piece.targets[places])
        owner.append(np.full(len(places), piece.owner, np.int64))
    flat = np.concatenate(at)
    order = np.argsort(flat, kind="stable")
    return flat[order], np.concatenate(wanted)[order], np.concatenate(owner)[order]
