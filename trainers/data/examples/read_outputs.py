"""Turn the scores that a head computes for inputs into predictions for examples."""

from collections.abc import Sequence

import numpy as np

from gristmill.compilation import kernel
from trainers.data.examples.task_inputs import TaskInputs
from trainers.rows.task_outputs import TaskOutputs
from trainers.tasks.examples import Examples

LONGEST_ANSWER = 30  # tokens (Devlin et al., 2019, in the code for SQuAD)

Scores = Sequence[np.ndarray] | np.ndarray | None


def read_outputs(task: TaskInputs, examples: Examples, outputs: TaskOutputs) -> tuple[np.ndarray | list[str], Scores]:
    """Return predictions and scores for the examples of a split, in the form that
    `trainers.tasks.predictions.predictions_of` expects. `outputs` holds the head's outputs for all inputs of
    the split, in the order of the inputs.

    A word that no input predicts gets the tag `O`, or the first label if there is no `O`. The predicted
    answer is the one with the highest sum of start score and end score among the answers of up to
    LONGEST_ANSWER tokens in all windows (Devlin et al., 2019, section 4.2). The no-answer score is the lowest
    of any window, as in their code for SQuAD.
    """
    assert len(outputs.numbers) == len(task), f"{len(outputs.numbers)} outputs of {len(task)} inputs"
    scores, offsets = outputs.scores, outputs.offsets
    if task.kind == "regress":
        return scores.astype(np.float64), None
    if task.kind == "classify":
        return scores.argmax(axis=1), scores
    assert offsets is not None
    if task.kind == "choose":
        parts = np.split(scores, offsets[1:-1])
        return np.array([part.argmax() for part in parts], dtype=np.int64), parts
    if task.kind == "tag":
        return _word_tags(task, examples, scores, offsets), None
    first, last, best, none = best_answers(task, scores, offsets)
    windows, best, none = _best_windows(task.example, len(examples), best, none)
    texts = _answer_texts(task, examples, windows, first, last)
    return texts, np.stack([best, none], axis=1).astype(np.float32)


def _word_tags(task: TaskInputs, examples: Examples, scores: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    assert task.word_offsets is not None
    assert task.words is not None
    assert task.word_tokens is not None
    assert examples.word_offsets is not None
    window = np.repeat(np.arange(len(task)), np.diff(task.word_offsets))
    names = examples.task.label_names
    tags = np.full(examples.word_offsets[-1], names.index("O") if "O" in names else 0)
    tags[task.words] = scores[offsets[window] + task.word_tokens - len(task.format.before)].argmax(axis=1)
    return tags


def best_answers(
    task: TaskInputs, scores: np.ndarray, offsets: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return the best answer in each window, and the window's no-answer score, as arrays (first token, last
    token, score of the answer, no-answer score). Tokens are indices into the window's part of the passage. In
    a window without passage tokens, the score of the answer is -inf. `scores` and `offsets` are those of
    `TaskOutputs`.
    """
    first, last = np.zeros((2, len(task)), np.int64)
    best, none = np.empty((2, len(task)))
    leads = int(not task.format.reads_last)  # 1 if the score of no answer precedes those of the passage
    _search(scores, offsets, leads, LONGEST_ANSWER, first, last, best, none)
    return first, last, best, none


@kernel(nogil=True)
def _search(
    scores: np.ndarray,
    offsets: np.ndarray,
    leads: int,
    longest: int,
    first: np.ndarray,
    last: np.ndarray,
    best: np.ndarray,
    none: np.ndarray,
) -> None:
    for window in range(len(offsets) - 1):
        begin, end = offsets[window] + leads, offsets[window + 1] - (1 - leads)
        other = begin - 1 if leads else end
        none[window] = scores[other, 0] + scores[other, 1]
        best[window] = -np.inf
        for i in range(begin, end):
            for j in range(i, min(end, i + longest)):
                score = scores[i, 0] + scores[j, 1]
                if score > best[window]:
                    best[window], first[window], last[window] = score, i - begin, j - begin


def _best_windows(
    example: np.ndarray, count: int, best: np.ndarray, none: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return (window with the best answer, score of this answer, lowest no-answer score) for each example."""
    order = np.lexsort((np.arange(len(best)), -best, example))
    window = order[np.searchsorted(example[order], np.arange(count))]
    begins = np.searchsorted(example, np.arange(count))
    return window, best[window], np.minimum.reduceat(none, begins)


def _answer_texts(
    task: TaskInputs, examples: Examples, windows: np.ndarray, first: np.ndarray, last: np.ndarray
) -> list[str]:
    assert task.token_starts is not None
    assert task.token_ends is not None
    begins, sizes = task.segments.begins[1][windows], task.segments.sizes[1][windows]
    starts, ends = np.zeros((2, len(windows)), np.int64)
    filled = sizes > 0
    starts[filled] = task.token_starts[(begins + first[windows])[filled]]
    ends[filled] = task.token_ends[(begins + last[windows])[filled]]
    return [
        whole_characters(passage.as_buffer().to_pybytes(), start, end).strip()
        for passage, start, end in zip(examples.texts[1], starts.tolist(), ends.tolist(), strict=True)
    ]


def whole_characters(text: bytes, start: int, end: int) -> str:
    """Return the text of the bytes `text[start:end]`, extended at both ends to whole UTF-8 characters. An
    empty range is not extended.
    """
    if start == end:
        return ""
    while text[start] & 0xC0 == 0x80:
        start -= 1
    while end < len(text) and text[end] & 0xC0 == 0x80:
        end += 1
    return text[start:end].decode()
