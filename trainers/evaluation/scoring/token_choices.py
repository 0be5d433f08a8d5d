"""The tokens that a model predicts at each position of a text, and the rank and surprisal of the actual
token.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from trainers.engine.forward import Forward
from trainers.evaluation.scoring.pieces import Piece, piece_logits
from trainers.rows.batch import IGNORED


@dataclass(frozen=True)
class TokenChoice:
    """A token of a text, with its `rank` among the model's predictions (1 for the most probable token) and
    its `surprisal` in bits. `candidates` are the most probable tokens at its position, with their
    probabilities.
    """

    token: str
    rank: int
    surprisal: float
    candidates: list[tuple[str, float]]


def choose_tokens(
    forward: Forward, architecture: str, pieces: Sequence[Piece], positions: int, top: int
) -> Iterator[tuple[int, int, float, list[int], list[float]]]:
    """Yield, for every target of the pieces in order: its id, its rank, its surprisal in bits, and the ids
    and probabilities of the `top` most probable tokens.
    """
    import torch

    first = np.cumsum([0, *(int((piece.targets != IGNORED).sum()) for piece in pieces)])
    numbered = [replace(piece, owner=number) for number, piece in enumerate(pieces)]
    seen = np.zeros(len(pieces), np.int64)
    found: list[Any] = [None] * int(first[-1])
    for logits, row, wanted, owner in piece_logits(forward, architecture, numbered, positions):
        shares = logits.log_softmax(1)
        best = shares.topk(min(top, shares.shape[1]), dim=1)
        for at, token, piece in zip(row.tolist(), wanted.tolist(), owner.tolist(), strict=True):
            own = shares[at, token]
            rank = 1 + int((shares[at] > own).sum())
            bits = -float(own) / float(np.log(2))
            ids, nats = best.indices[at].tolist(), best.values[at]
            found[first[piece] + seen[piece]] = (token, rank, bits, ids, torch.exp(nats).tolist())
            seen[piece] += 1
    yield from found
