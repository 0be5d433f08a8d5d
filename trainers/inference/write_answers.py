"""Write the greedy answers of a fine-tuned text-to-text model, and compute its loss on the target answers."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch

from trainers.data.examples.task_inputs import TaskInputs, TextSlices
from trainers.data.examples.task_rows import ChosenInputs, task_batch
from trainers.engine.forward import Forward, tensors
from trainers.inference.batch_decoding import decode_batch
from trainers.rows.batch import IGNORED, Batch


def writable_ids(specials: Mapping[str, int], tokens: int, rows: int, end: int) -> np.ndarray:
    """Return a mask, bool [rows], of the ids that an answer may contain: `end`, and all ids below `tokens`,
    the size of the tokenizer, that are not special. `rows` is the size of the model's vocabulary.
    """
    allowed = np.arange(rows) < tokens
    allowed[[number for number in specials.values() if number < rows]] = False
    allowed[end] = True
    return allowed


def write_answers(
    forward: Forward, task: TaskInputs, allowed: np.ndarray, tokens: int, length: int, size: int
) -> tuple[list[np.ndarray], int]:
    """Return the greedy answer to each text-to-text input, as ids without `<eos>`, and the number of answers
    that were cut off before their `<eos>`.

    An answer is cut off after `tokens` tokens, or when its row has reached `length` positions, not counting
    virtual tokens. `allowed`, bool [vocabulary], marks the ids that an answer may contain. `size` is the
    number of inputs per batch.
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
    """Return, for each input, the loss of its target in nats, summed over tokens, float64 [n], and the
    target's number of tokens, int64 [n]. Both include `<eos>`. The inputs must be text to text. `size` is the
    number of inputs per batch.
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
    form = task.format
    taken = 0 if form.decoder_start is not None else task.segments.sizes[0][numbers] + form.marks(1)
    fits = length - taken - len(form.target_before) + (form.decoder_start is None)
    room: np.ndarray = np.broadcast_to(np.maximum(fits, 0), len(numbers))

    def rows(chosen: np.ndarray, written: np.ndarray) -> Batch:
        # The last target of a row, which stands for <eos>, is predicted where the next token is.
        number = np.arange(len(chosen))
        its = _continued(task, numbers[chosen], written)
        return task_batch([ChosenInputs(its, 0, number, number, number)], packed=False)

    written, ended = decode_batch(forward, rows, room, tokens, allowed, form.target_after)
    return written, int((~ended).sum())


def _continued(task: TaskInputs, numbers: np.ndarray, written: np.ndarray) -> TaskInputs:
    many, steps = written.shape
    begins = np.stack([task.segments.begins[0][numbers], np.arange(many) * steps])
    sizes = np.stack([task.segments.sizes[0][numbers], np.full(many, steps)])
    segments = TextSlices((task.segments.tokens[0], written.ravel().astype(np.int32)), begins, sizes)
    return replace(task, segments=segments, offsets=np.arange(many + 1), example=np.arange(many))
