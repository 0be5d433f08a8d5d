"""Rows of separate sentences. Each sentence is enclosed in `<cls>` and `<sep>`, attends only to itself, and
appears once or several times.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from gristmill.errors import ConfigError
from tokenizer.vocabulary.specials import CLS, SEP
from trainers.objectives.shared.context import Context
from trainers.objectives.shared.ragged import Ragged
from trainers.rows.batch import IGNORED, PADDING, Batch

_MULTIPLE = 8
_MARKS = 2


def stream_of_sentences(sequence_length: int, min_tokens: int, copies: int, least: int, what: str) -> int:
    """Return the number of stream tokens that fit in a row if every sentence has `min_tokens` tokens and
    appears `copies` times, each time with its marks. Raises ConfigError if fewer than `least` such sentences
    fit; `what` names them in the message.
    """
    needed = least * copies * (min_tokens + _MARKS)
    if sequence_length < needed:
        raise ConfigError(
            f"data.sequence_length: got {sequence_length}, too short for {what} of {min_tokens} tokens, each "
            f"{'twice and ' if copies == 2 else ''}with its marks; allowed {needed} or more, or lower objective.min_tokens"
        )
    return sequence_length * min_tokens // (copies * (min_tokens + _MARKS))


def sentence_rows(batch: Batch, context: Context, min_tokens: int, copies: int = 1) -> Batch:
    """Return the batch with each row rebuilt from its sentences. Each sentence appears `copies` times in
    succession, and each copy is a segment between `<cls>` and `<sep>`. Sentences of fewer than `min_tokens`
    tokens are left out. If `batch` has no `sentence_starts`, each document counts as one sentence.

    In the result, positions restart in every segment, and no token is a target. `documents` holds, for each
    position, the segment number that its document had in `batch`.
    """
    cls, sep = context.special(CLS), context.special(SEP)
    texts, rows, documents = _texts(batch, (cls, sep), min_tokens)
    texts = texts.with_marks(cls, sep)
    sizes, rows, documents = (np.repeat(each, copies) for each in (texts.sizes, rows, documents))
    ends = np.cumsum(sizes)
    begins, count = ends - sizes, len(batch.inputs)
    held = np.bincount(rows, minlength=count)
    first = (np.cumsum(held) - held)[rows]  # the number of the first segment in the row of each
    width = -(-int(np.bincount(rows, sizes, minlength=count).max(initial=1)) // _MULTIPLE) * _MULTIPLE
    inside = np.arange(sizes.sum()) - np.repeat(begins, sizes)
    columns = inside + np.repeat(begins - begins[first], sizes) if len(sizes) else inside
    there = (np.repeat(rows, sizes), columns)
    inputs = np.full((count, width), context.padding, np.int64)
    positions, segments = np.zeros_like(inputs), np.full_like(inputs, PADDING)
    origin = segments.copy()
    inputs[there] = texts.tokens[inside + np.repeat(np.repeat(texts.offsets[:-1], copies), sizes)]
    positions[there], origin[there] = inside, np.repeat(documents, sizes)
    segments[there] = np.repeat(np.arange(len(sizes)) - first, sizes)
    targets = np.full_like(inputs, IGNORED)
    return replace(
        batch,
        inputs=inputs,
        targets=targets,
        positions=positions,
        segments=segments,
        documents=origin,
        sentence_starts=None,
    )


def _texts(batch: Batch, marks: Sequence[int], min_tokens: int) -> tuple[Ragged, np.ndarray, np.ndarray]:
    """Return the sentences that have at least `min_tokens` tokens, without `marks`, and for each its row and
    the segment number of its document.
    """
    starts = np.ones(batch.segments.shape, dtype=bool)
    starts[:, 1:] = batch.segments[:, 1:] != batch.segments[:, :-1]
    if batch.sentence_starts is not None:
        starts |= batch.sentence_starts
    number = np.cumsum(starts.ravel()) - 1
    is_text = (batch.segments != PADDING) & ~np.isin(batch.inputs, marks)
    sizes = np.bincount(number[is_text.ravel()], minlength=number[-1] + 1)
    kept = sizes >= min_tokens
    tokens = batch.inputs[is_text & kept[number].reshape(starts.shape)]
    rows, columns = (at[kept] for at in np.nonzero(starts))
    return Ragged(tokens, np.concatenate([[0], np.cumsum(sizes[kept])])), rows, batch.segments[rows, columns]
