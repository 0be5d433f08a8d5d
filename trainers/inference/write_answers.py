"""Greedy answers of a fine-tuned model to inputs as text to text, in batches.

Each token takes a pass over whole rows, as in training, without a cache of keys and values. Methods with
virtual tokens, prefixes and inserted modules thus write as they were trained. Answers of a few tokens cost
little more.
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
    """Return which ids an answer may contain, bool [rows]: `end`, and those of the tokenizer's `tokens` ids
    that are not special. `rows` is the size of the model's vocabulary, which may be larger.
    """
    allowed = np.arange(rows) < tokens
    allowed[[number for number in specials.values() if number < rows]] = False
    allowed[end] = True
    return allowed


def write_answers(
    forward: Forward, task: TaskInputs, allowed: np.ndarray, tokens: int, length: int, size: int
) -> list[np.ndarray]:
    """Return the ids that the model writes for each input of text to text, without `<eos>`; each is the most
    probable one.

    An answer ends at `<eos>`, after `tokens` tokens, or where its row has `length` positions, not counting
    virtual tokens. `allowed`, bool [vocabulary], are the ids that it may contain (`writable_ids`). Inputs are
    answered in batches of `size`, those of similar length together.
    """
    assert task.kind == "text_to_text"
    forward.eval()
    answers: list[np.ndarray] = [np.empty(0, np.int64)] * len(task)
    by_length = np.argsort(-task.segments.sizes[0], kind="stable")
    for start in range(0, len(task), size):
        numbers = by_length[start : start + size]
        for number, answer in zip(numbers, _write(forward, task, numbers, allowed, tokens, length), strict=True):
            answers[number] = answer
    return answers


def target_nats(forward: Forward, task: TaskInputs, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return (nats, tokens) of the target of each input of text to text, including `<eos>`; float64 and int64
    [n].
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
) -> list[np.ndarray]:
    form, (end,) = task.format, task.format.target_after
    taken = 0 if form.decoder_start is not None else task.segments.sizes[0][numbers] + form.marks(1)
    room = np.minimum(tokens, length - taken - len(form.target_before) + (form.decoder_start is None))
    room = np.broadcast_to(room, len(numbers))
    written: np.ndarray = np.empty((len(numbers), int(room.max(initial=0))), np.int64)
    count = np.zeros(len(numbers), np.int64)
    pending = np.flatnonzero(room > 0)
    banned = torch.from_numpy(~allowed)
    while len(pending):
        following = _next(forward, _continued(task, numbers[pending], written[pending, : count[pending[0]]]), banned)
        going = following != end
        pending, following = pending[going], following[going]
        written[pending, count[pending]] = following
        count[pending] += 1
        pending = pending[count[pending] < room[pending]]
    return [row[:size] for row, size in zip(written, count, strict=True)]


def _continued(task: TaskInputs, numbers: np.ndarray, written: np.ndarray) -> TaskInputs:
    """Some inputs with what was written of their answers, equally many tokens [n, m], as targets."""
    many, steps = written.shape
    begins = np.stack([task.segments.begins[0][numbers], np.arange(many) * steps])
    sizes = np.stack([task.segments.sizes[0][numbers], np.full(many, steps)])
    segments = TextSlices((task.segments.tokens[0], written.ravel().astype(np.int32)), begins, sizes)
    return replace(task, segments=segments, offsets=np.arange(many + 1), example=np.arange(many))


def _next(forward: Forward, task: TaskInputs, banned: torch.Tensor) -> np.ndarray:
    """The likeliest id after what was written of each input, int64 [n]."""
    number = np.arange(len(task))
    batch = task_batch([ChosenInputs(task, 0, number, number, number)], packed=False)
    # The last target of a row, which stands for <eos>, is predicted where the next token is.
    width = batch.targets.shape[1]
    last = width - 1 - (batch.targets[:, ::-1] != IGNORED).argmax(axis=1)
    device = next(forward.model.parameters()).device
    with torch.no_grad():
        logits = forward.logits_at(torch.from_numpy(number * width + last).to(device), **tensors(batch, device))
    likeliest: np.ndarray = logits.masked_fill(banned.to(device), -torch.inf).argmax(dim=-1).cpu().numpy()
    return likeliest
