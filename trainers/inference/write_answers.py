"""Generate greedy answers of a fine-tuned text-to-text model in batches.

To write the first token, the model reads whole rows, as in training, so that virtual tokens, prefixes and
inserted modules work as they were trained. Keys and values are cached, and for each further token the model
reads one position of every row. Models without a cache (GPT, clipped relative positions) read whole rows
again.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch

from trainers.data.examples.task_inputs import TaskInputs, TextSlices
from trainers.data.examples.task_rows import ChosenInputs, task_batch
from trainers.engine.forward import Forward, tensors
from trainers.rows.batch import IGNORED


def writable_ids(specials: Mapping[str, int], tokens: int, rows: int, end: int) -> np.ndarray:
    """Return which ids an answer may contain, bool [rows]: `end`, and the tokenizer's ids (`tokens` in all)
    that are not special. `rows` is the size of the model's vocabulary, which may be larger.
    """
    allowed = np.arange(rows) < tokens
    allowed[[number for number in specials.values() if number < rows]] = False
    allowed[end] = True
    return allowed


def write_answers(
    forward: Forward, task: TaskInputs, allowed: np.ndarray, tokens: int, length: int, size: int
) -> tuple[list[np.ndarray], int]:
    """Return the most probable answer to each text-to-text input, chosen token by token, as ids without
    `<eos>`; and the number of answers that were cut off before their `<eos>`.

    An answer is cut off after `tokens` tokens, or where its row has `length` positions, not counting virtual
    tokens. `allowed`, bool [vocabulary], are the ids that it may contain (`writable_ids`). Inputs are answered in
    batches of `size`, those of similar length together.
    """
    assert task.kind == "text_to_text"
    forward.eval()
    answers: list[np.ndarray] = [np.empty(0, np.int64)] * len(task)
    cut = 0
    by_length = np.argsort(-task.segments.sizes[0], kind="stable")
    for start in range(0, len(task), size):
        numbers = by_length[start : start + size]
        written, cut_here = _write(forward, task, numbers, allowed, tokens, length)
        for number, answer in zip(numbers, written, strict=True):
            answers[number] = answer
        cut += cut_here
    return answers, cut


def target_nats(forward: Forward, task: TaskInputs, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the nats, float64 [n], and the number of tokens, int64 [n], of the target of each text-to-text
    input, including `<eos>`.
    """
    forward.eval()
    nats, tokens = np.zeros(len(task)), np.zeros(len(task), np.int64)
    by_length = np.argsort(-task.sizes, kind="stable")
    device = next(forward.model.parameters()).device
    for start in range(0, len(task), size):
        numbers = by_length[start : start + size]
        batch = task_batch([ChosenInputs(task, 0, numbers, numbers, numbers)], packed=False)
        with torch.no_grad():
            nats[numbers] = forward(**tensors(batch, device))["loss"].double().sum(dim=1).cpu().numpy()
        tokens[numbers] = (batch.targets != IGNORED).sum(axis=1)
    return nats, tokens


def _write(
    forward: Forward, task: TaskInputs, numbers: np.ndarray, allowed: np.ndarray, tokens: int, length: int
) -> tuple[list[np.ndarray], int]:
    form, (end,) = task.format, task.format.target_after
    taken = 0 if form.decoder_start is not None else task.segments.sizes[0][numbers] + form.marks(1)
    fits = length - taken - len(form.target_before) + (form.decoder_start is None)
    room: np.ndarray = np.broadcast_to(np.maximum(fits, 0), len(numbers))
    written: np.ndarray = np.empty((len(numbers), min(tokens, int(room.max(initial=0)))), np.int64)
    count = np.zeros(len(numbers), np.int64)
    pending = np.flatnonzero(room > 0)
    cut = len(numbers) - len(pending)
    writer = _Writer(forward, task, numbers, ~allowed)
    while len(pending):
        following = writer.next(pending, written[pending, : count[pending[0]]])
        going = following != end
        full = going & (count[pending] == tokens)
        cut += int(full.sum())
        pending, following = pending[going & ~full], following[going & ~full]
        written[pending, count[pending]] = following
        count[pending] += 1
        at_end = count[pending] == room[pending]
        cut += int(at_end.sum())
        pending = pending[~at_end]
    return [row[:size] for row, size in zip(written, count, strict=True)], cut


class _Writer:
    """Finds the likeliest next token of each input. As answers end, later calls ask for fewer inputs."""

    def __init__(self, forward: Forward, task: TaskInputs, numbers: np.ndarray, banned: np.ndarray) -> None:
        """`numbers` are the numbers of the inputs in `task`; ids marked in `banned`, bool [vocabulary], are
        never written.
        """
        self._forward, self._task, self._numbers = forward, task, numbers
        self._device = next(forward.model.parameters()).device
        self._banned = torch.from_numpy(banned).to(self._device)
        self._past = forward.new_past()
        self._rows, self._positions = np.empty(0, np.int64), np.empty(0, np.int64)

    def next(self, rows: np.ndarray, written: np.ndarray) -> np.ndarray:
        """Return the likeliest next id for each of these inputs, int64 [n], given the m tokens written so far
        [n, m]. `rows` are indices into `numbers`, a subset of those of the previous call, in which answers
        had one token less.
        """
        with torch.no_grad():
            logits = (
                self._first(rows, written)
                if self._past is None or not len(self._rows)
                else self._further(rows, written)
            )
        likeliest: np.ndarray = logits.masked_fill(self._banned, -torch.inf).argmax(dim=-1).cpu().numpy()
        return likeliest

    def _first(self, rows: np.ndarray, written: np.ndarray) -> torch.Tensor:
        """Return the logits [n, vocabulary] after reading whole rows."""
        number = np.arange(len(rows))
        task = _continued(self._task, self._numbers[rows], written)
        batch = task_batch([ChosenInputs(task, 0, number, number, number)], packed=False)
        # The last target of a row, which stands for <eos>, is predicted where the next token is.
        width = batch.targets.shape[1]
        last = width - 1 - (batch.targets[:, ::-1] != IGNORED).argmax(axis=1)
        self._rows = rows
        self._positions = (batch.positions if batch.decoder is None else batch.decoder.positions)[number, last]
        at = torch.from_numpy(number * width + last).to(self._device)
        logits: torch.Tensor = self._forward.logits_at(at, self._past, **tensors(batch, self._device))
        return logits

    def _further(self, rows: np.ndarray, written: np.ndarray) -> torch.Tensor:
        """Return the logits [n, vocabulary] after reading only the token that the previous call added to each
        row.
        """
        assert self._past is not None
        if len(rows) < len(self._rows):
            kept = np.flatnonzero(np.isin(self._rows, rows))
            self._past.select(torch.from_numpy(kept).to(self._device))
            self._rows, self._positions = rows, self._positions[kept]
        self._positions = self._positions + 1
        given = (torch.from_numpy(each).to(self._device) for each in (written[:, -1].copy(), self._positions))
        logits: torch.Tensor = self._forward.logits_after(self._past, *given)
        return logits


def _continued(task: TaskInputs, numbers: np.ndarray, written: np.ndarray) -> TaskInputs:
    """Return the inputs `numbers` with the answers generated so far, [n, m], as their targets."""
    many, steps = written.shape
    begins = np.stack([task.segments.begins[0][numbers], np.arange(many) * steps])
    sizes = np.stack([task.segments.sizes[0][numbers], np.full(many, steps)])
    segments = TextSlices((task.segments.tokens[0], written.ravel().astype(np.int32)), begins, sizes)
    return replace(task, segments=segments, offsets=np.arange(many + 1), example=np.arange(many))
