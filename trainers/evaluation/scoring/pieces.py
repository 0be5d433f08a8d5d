"""Pack the texts to be scored into rows, and sum the log-likelihoods of their targets.

A `Piece` is a text that the model reads in one forward pass. A piece attends only to itself, so its
likelihood does not depend on the other pieces in its row or batch. Attention is faster without a mask, so a
piece that needs no mask when it is alone in its row usually gets a row of its own.

Pieces share the computation of common input. In most decoders, continuations of the same context share the
context. In every family, pieces that differ only in their targets, such as candidates of one token, share
their whole input.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from trainers.config.architecture import ARCHITECTURES
from trainers.engine.forward import Forward, tensors
from trainers.models import MODELS
from trainers.rows.batch import IGNORED, PADDING, Batch, Decoder
from trainers.rows.best_fit import best_fit

_WIDTH = 256  # columns of a row of short pieces; in a wider row, more of the attention is masked and wasted
_SIMILAR = 0.9  # of the longest piece of a batch of single rows: the least length of the others
_ENOUGH = {"cpu": 512, "cuda": 1 << 14}  # positions that are computed together without loss of speed
_LOGITS = {"cpu": 1 << 21, "cuda": 1 << 24}  # logits in memory at once: on a CPU 8 MB in fp32, which stay in its cache


@dataclass(frozen=True)
class Piece:
    """A text that a model reads in one forward pass; its scored tokens belong to the request `owner`.

    - `inputs`, int64: the ids that the model or, in an encoder-decoder, its encoder reads.
    - `decoder`, int64: in an encoder-decoder, the ids that the decoder reads.
    - `targets`, int64: the target at each position of `decoder` or, without `decoder`, of `inputs`; -100 for none.
    - `prefix`: in a prefix LM, the number of leading positions within which attention is bidirectional.
    - `shared`: in a decoder, the number of leading inputs that are the context, which pieces can share.
    """

    owner: int
    inputs: np.ndarray
    targets: np.ndarray
    decoder: np.ndarray | None = None
    prefix: int = 0
    shared: int = 0


_Targets = tuple[np.ndarray, np.ndarray, np.ndarray]
"""For n targets, three arrays int64 [n]: the column or the flattened position of each target, its id, and its
request.
"""


@dataclass(frozen=True)
class _Tree:
    """Pieces that are read together as a tree: the trunk is the beginning that they share, and each distinct
    remainder is a branch. `branch`, int64 [inputs], holds 0 for the inputs in the trunk and the number of the
    branch, from 1, for all others. If there is only one branch, it continues the trunk and has 0 too.
    """

    inputs: np.ndarray
    positions: np.ndarray
    branch: np.ndarray
    targets: _Targets
    decoder: np.ndarray | None
    prefix: int

    @property
    def goals(self) -> int:
        """The number of positions that predict a token: the length of `decoder` or, if it is None, of
        `inputs`.
        """
        return len(self.inputs if self.decoder is None else self.decoder)

    @property
    def length(self) -> int:
        """The larger of the lengths of `inputs` and `decoder`."""
        return max(len(self.inputs), self.goals)


@dataclass(frozen=True)
class Sums:
    """Sums over the targets of each of n requests: the `log_likelihood` in nats, float64 [n], the number of
    targets (`tokens`), and the number of targets that were the model's most probable token (`best`), both
    int64 [n].
    """

    log_likelihood: np.ndarray
    tokens: np.ndarray
    best: np.ndarray


def sum_pieces(forward: Forward, architecture: str, pieces: Sequence[Piece], requests: int, positions: int) -> Sums:
    """Return the log-likelihood and the target counts of each request, summed over its pieces (see `Sums`).
    Requests are numbered from 0 to `requests` - 1. The pieces are read in batches of up to about `positions`
    positions.
    """
    sums = Sums(np.zeros(requests), np.zeros(requests, np.int64), np.zeros(requests, np.int64))
    for logits, row, wanted, owner in piece_logits(forward, architecture, pieces, positions):
        _add(sums, logits, row, wanted, owner)
    return sums


def piece_logits(
    forward: Forward, architecture: str, pieces: Sequence[Piece], positions: int
) -> Iterator[tuple[Any, np.ndarray, np.ndarray, np.ndarray]]:
    """Yield (logits, rows, ids, requests) for the targets of `pieces`, n at a time. The logits are float32
    [m, vocabulary]. The other arrays, int64 [n], hold the row of each target's logits, its id and its
    request. The targets of a piece come in order. The caller may overwrite the logits.
    """
    import torch

    forward.eval()
    device = next(forward.parameters()).device
    logits_of = MODELS[architecture].logits
    if not MODELS[architecture].branches:
        pieces = [replace(piece, shared=0) for piece in pieces]
    kind = "cpu" if device.type == "cpu" else "cuda"
    alone = _alone(forward, architecture)
    for batch, (at, wanted, owner) in _batches(_trees(pieces), positions, alone, _ENOUGH[kind]):
        distinct, row = np.unique(at, return_inverse=True)
        with torch.no_grad():
            states = forward.states(**tensors(batch, device)).flatten(0, 1)
            step = max(1, _LOGITS[kind] // int(forward.model.config.vocab_size))
            for first in range(0, len(distinct), step):
                here = slice(*np.searchsorted(row, (first, first + step)))
                chosen = torch.from_numpy(distinct[first : first + step]).to(device)
                logits = logits_of(forward.model, states[chosen]).float()
                yield logits, row[here] - first, wanted[here], owner[here]


def _trees(pieces: Sequence[Piece]) -> list[_Tree]:
    groups: dict[tuple[bytes, bytes, int], list[Piece]] = {}
    for piece in pieces:
        decoder = b"" if piece.decoder is None else piece.decoder.tobytes()
        trunk = piece.inputs[: piece.shared] if piece.shared else piece.inputs
        groups.setdefault((trunk.tobytes(), decoder, piece.prefix), []).append(piece)
    trees = []
    for group in groups.values():
        first = columns = 0
        for number, piece in enumerate(group):
            rest = len(piece.inputs) - piece.shared if piece.shared else 0
            columns += rest
            if columns > max(_WIDTH - piece.shared, piece.shared) and number > first:
                trees.append(_tree(group[first:number]))
                first, columns = number, rest
        trees.append(_tree(group[first:]))
    return trees


def _tree(pieces: Sequence[Piece]) -> _Tree:
    first = pieces[0]
    shared = first.shared or len(first.inputs)
    parts, starts, column = [first.inputs[:shared]], {b"": shared}, shared
    targets = []
    for piece in pieces:
        rest = piece.inputs[shared:]
        start = starts.setdefault(rest.tobytes(), column)
        if start == column and len(rest):
            parts.append(rest)
            column += len(rest)
        at = np.flatnonzero(piece.targets != IGNORED)
        wanted = piece.targets[at]
        at = np.where(at < shared, at, at - shared + start) if first.decoder is None else at
        targets.append((at, wanted, np.full(len(at), piece.owner, np.int64)))
    positions = [np.arange(shared), *(np.arange(shared, shared + len(part)) for part in parts[1:])]
    branches = (
        np.arange(len(parts)) if len(parts) > 2 else np.zeros(len(parts), np.int64)
    )  # a single remainder continues the trunk
    branch = np.repeat(branches, [len(part) for part in parts])
    at, wanted, owner = (np.concatenate(each) for each in zip(*targets, strict=True))
    made = (np.concatenate(parts), np.concatenate(positions), branch, (at, wanted, owner))
    return _Tree(*made, first.decoder, first.prefix)


def _add(sums: Sums, logits: Any, row: np.ndarray, wanted: np.ndarray, owner: np.ndarray) -> None:
    """Add targets to the sums. The other arguments are what `piece_logits` yields; the logits are
    overwritten.
    """
    import torch

    places, target = (torch.from_numpy(each).to(logits.device) for each in (row, wanted))
    chosen, largest = logits[places, target], logits.amax(1)
    most = chosen == largest[places]
    most[most.clone()] = logits[places[most]].argmax(1) == target[most]  # of equal logits, the first; argmax is slow
    norm = logits.sub_(largest[:, None]).exp_().sum(1).log_().add_(largest)
    likelihood, best = (chosen - norm[places]).double().cpu().numpy(), most.cpu().numpy()
    count = len(sums.tokens)
    sums.log_likelihood[:] += np.bincount(owner, likelihood, count)
    sums.tokens[:] += np.bincount(owner, minlength=count)
    sums.best[:] += np.bincount(owner[best], minlength=count)


def _alone(forward: Forward, architecture: str) -> float:
    """Return the least length of a piece that gets a row of its own without a mask, as a share of the longest
    piece in its batch; 0 if the model never reads pieces in this way. Only a decoder allows padding after a
    piece.
    """
    if not MODELS[architecture].unmasked or forward.model.config._attn_implementation != "sdpa":
        return 0.0
    return _SIMILAR if ARCHITECTURES[architecture].family == "decoder" else 1.0


def _batches(trees: Sequence[_Tree], positions: int, alone: float, enough: int) -> Iterator[tuple[Batch, _Targets]]:
    shared = []
    for numbers, single in _groups(trees, positions, alone, enough):
        if single:
            yield _batch([[trees[i]] for i in numbers], unmasked=True)
        else:
            shared += numbers
    yield from _shared_rows([trees[i] for i in shared], positions)


def _groups(trees: Sequence[_Tree], positions: int, alone: float, enough: int) -> Iterator[tuple[list[int], bool]]:
    """Divide trees into groups, and yield the indices of each group's trees and whether each tree gets a row
    of its own. The first group, which may be empty, contains the trees that need a mask. Trees in other
    groups have similar lengths, as `alone` says; in a decoder, a group of fewer than `enough` positions may
    mix any lengths, because its padding costs no time.
    """
    single = [i for i, tree in enumerate(trees) if alone and not (tree.prefix or tree.branch.any())]
    chosen = set(single)
    yield [i for i in range(len(trees)) if i not in chosen], False
    single.sort(key=lambda i: -trees[i].length)
    first = 0
    while first < len(single):
        longest, last = trees[single[first]].length, first + 1
        while last < len(single) and (last - first + 1) * longest <= positions:
            padded = alone < 1 and (last - first) * longest < enough
            if not padded and trees[single[last]].length < alone * longest:
                break
            last += 1
        yield single[first:last], alone < 1 or (last - first) * longest >= enough
        first = last


def _shared_rows(trees: Sequence[_Tree], positions: int) -> Iterator[tuple[Batch, _Targets]]:
    lengths = np.array([tree.length for tree in trees], np.int64)
    order = np.argsort(-lengths, kind="stable")
    ends = np.cumsum(lengths[order])
    first = 0
    while first < len(order):
        taken = int(np.searchsorted(ends, (ends[first - 1] if first else 0) + positions, side="right"))
        numbers = order[first : max(taken, first + 1)]
        first += len(numbers)
        width = max(int(lengths[numbers[0]]), min(_WIDTH, int(lengths[numbers].sum())))
        places, starts = best_fit(lengths[numbers], width, 0)
        yield _batch([[trees[i] for i in numbers[places[a:b]]] for a, b in pairwise(starts)])


def _batch(rows: Sequence[Sequence[_Tree]], unmasked: bool = False) -> tuple[Batch, _Targets]:
    flat = [tree for row in rows for tree in row]
    shape = (len(rows), max(sum(len(tree.inputs) for tree in row) for row in rows))
    inputs, positions = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    segments, prefix, trunks = (
        np.full(shape, 0 if unmasked else PADDING, np.int64),
        np.zeros(shape, bool),
        np.full(shape, -1, np.int64),
    )
    goals = (len(rows), max(sum(tree.goals for tree in row) for row in rows))
    decoder = Decoder(np.zeros(goals, np.int64), np.zeros(goals, np.int64), np.full(goals, PADDING, np.int64))
    found = []
    for number, row in enumerate(rows):
        column = goal = segment = 0
        for tree in row:
            here, there = slice(column, column + len(tree.inputs)), slice(goal, goal + tree.goals)
            inputs[number, here], positions[number, here] = tree.inputs, tree.positions
            segments[number, here] = segment + tree.branch
            trunks[number, here] = np.where(tree.branch > 0, segment, -1)
            prefix[number, column : column + tree.prefix] = True
            if tree.decoder is not None:
                decoder.inputs[number, there], decoder.segments[number, there] = tree.decoder, segment
                decoder.positions[number, there] = np.arange(len(tree.decoder))
            at, wanted, owner = tree.targets
            found.append((number * goals[1] + goal + at, wanted, owner))
            column, goal, segment = here.stop, there.stop, segment + int(tree.branch[-1]) + 1
    at, wanted, owner = (np.concatenate(each) for each in zip(*found, strict=True))
    targets = np.full(goals, IGNORED, np.int64)
    targets.ravel()[at] = wanted
    none = np.zeros(len(rows), np.int64)
    batch = Batch(
        inputs, targets, positions, segments, none, none, none, none,
        prefix=prefix if any(tree.prefix for tree in flat) else None,
        decoder=decoder if flat[0].decoder is not None else None,
        trunks=trunks if (trunks >= 0).any() else None,
    )  # fmt: skip
    order = np.argsort(at, kind="stable")
    return batch, (at[order], wanted[order], owner[order])
