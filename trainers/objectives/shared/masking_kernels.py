"""Which tokens of a batch are masked: single tokens, whole words, or spans of words; and what takes their place.

Every document of a row (every pair of segments, where rows hold pairs) has a budget of `rate` times its tokens, rounded
up or down at random so that the mean is exact: a document of 1 / rate tokens always has a target, and a shorter one is
masked no more than a long one. BERT rounds to the nearest number, at least 1 a row; RoBERTa throws a coin for every
token, which varies the number of targets by 8 % of itself in rows of 512. Words are never cut: one that is larger than what
is left of the budget is taken with the probability at which the mean of the tokens taken is still the budget.

`group` [rows, length] int64 is what the kernels choose: -1 where a token stays, else the column whose uniform number
decides what takes its place, so that a span is replaced as one.
"""

import numpy as np

from gristmill.compilation import kernel
from trainers.rows.batch import IGNORED

BEGINS, ENDS = np.uint8(1), np.uint8(2)  # the token begins a word; the token after it does


@kernel(nogil=True)
def choose_tokens(
    inputs: np.ndarray,
    segments: np.ndarray,
    special: np.ndarray,
    rate: float,
    rounding: np.ndarray,
    draws: np.ndarray,
    group: np.ndarray,
) -> None:
    """Single tokens, every set of them equally likely (selection sampling: Knuth, TAOCP 2, 3.4.2, algorithm S).

    `special` [vocabulary] marks tokens that are never chosen; `rounding` [rows, documents] and `draws` [rows, length] are
    uniform numbers.
    """
    length = inputs.shape[1]
    for row in range(len(inputs)):
        start = 0
        while start < length:
            segment, end, eligible = segments[row, start], start, 0
            while end < length and segments[row, end] == segment:
                group[row, end] = -1
                eligible += not special[inputs[row, end]]
                end += 1
            if segment >= 0:
                budget = int(rate * eligible + rounding[row, segment])
                for column in range(start, end):
                    if budget == 0:
                        break
                    if not special[inputs[row, column]]:
                        if draws[row, column] * eligible < budget:
                            group[row, column] = column
                            budget -= 1
                        eligible -= 1
            start = end


@kernel(nogil=True)
def choose_words(
    inputs: np.ndarray,
    segments: np.ndarray,
    special: np.ndarray,
    marks: np.ndarray,
    rate: float,
    longer: np.ndarray,
    rounding: np.ndarray,
    last: np.ndarray,
    draws: np.ndarray,
    lengths: np.ndarray,
    group: np.ndarray,
) -> None:
    """Whole words in random order until a document's budget is spent, and with each so many words after it that they are n.

    `marks` [vocabulary] are those of `shared.whole_words`. n is 1 plus how many entries of `longer`, ascending, are
    at most a number of `lengths` [rows, length]. Without entries words are chosen, and their tokens replaced one by one;
    with entries spans, replaced as one (SpanBERT). A span ends with its document, at a special token and at a word that is
    chosen already. `rounding` and `last` [rows, documents], `draws` and `lengths` are uniform numbers.
    """
    length = inputs.shape[1]
    begins, ends, order = np.empty(length, np.int64), np.empty(length, np.int64), np.empty(length, np.int64)
    for row in range(len(inputs)):
        end = 0
        while end < length:
            start, segment = end, segments[row, end]
            end, words, eligible = _find_words(inputs[row], segments[row], start, special, marks, begins, ends)
            group[row, start:end] = -1
            budget = int(rate * eligible + rounding[row, segment]) if segment >= 0 else 0
            for i in range(words):
                order[i] = i
            for i in range(words):
                if budget == 0:
                    break
                j = min(words - 1, i + int(draws[row, start + i] * (words - i)))
                order[i], order[j] = order[j], order[i]
                first, until = order[i], order[i] + 1
                if group[row, begins[first]] >= 0:
                    continue
                while until - first <= len(longer) and longer[until - first - 1] <= lengths[row, start + i]:
                    until += 1
                for word in range(first, min(words, until)):
                    size = ends[word] - begins[word]
                    apart = word > first and begins[word] != ends[word - 1]
                    if budget == 0 or apart or group[row, begins[word]] >= 0:
                        break
                    if size > budget and last[row, segment] * size >= budget:
                        budget = 0
                        break
                    for column in range(begins[word], ends[word]):
                        group[row, column] = begins[first] if len(longer) else column
                    budget = max(0, budget - size)


@kernel(nogil=True)
def _find_words(
    tokens: np.ndarray,
    segments: np.ndarray,
    start: int,
    special: np.ndarray,
    marks: np.ndarray,
    begins: np.ndarray,
    ends: np.ndarray,
) -> tuple[int, int, int]:
    """(end, words, tokens in them) of the document of a row that begins at `start`; word w is the columns from begins[w] to
    ends[w].
    """
    end, words, eligible, goes_on = start, 0, 0, False
    while end < len(tokens) and segments[end] == segments[start]:
        token = tokens[end]
        if special[token]:
            goes_on = False
        else:
            if not goes_on or marks[token] & BEGINS:
                begins[words] = end
                words += 1
            ends[words - 1] = end + 1
            goes_on = not marks[token] & ENDS
            eligible += 1
        end += 1
    return end, words, eligible


@kernel(nogil=True)
def replace_chosen(
    inputs: np.ndarray,
    group: np.ndarray,
    mask: int,
    mask_share: float,
    random_share: float,
    ordinary: np.ndarray,
    kinds: np.ndarray,
    others: np.ndarray,
    masked: np.ndarray,
    targets: np.ndarray,
) -> None:
    """Write `masked`, the inputs with what takes the place of the chosen tokens, and `targets`, the tokens that were there.

    `kinds` and `others` [rows, length] are uniform numbers, for what takes a token's place and which of the `ordinary`
    ids it is where that is a random one.
    """
    for row in range(len(inputs)):
        for column in range(inputs.shape[1]):
            token, decides = inputs[row, column], group[row, column]
            masked[row, column] = token
            targets[row, column] = IGNORED
            if decides >= 0:
                targets[row, column] = token
                kind = kinds[row, decides]
                if kind < mask_share:
                    masked[row, column] = mask
                elif kind < mask_share + random_share:
                    place = int(others[row, column] * len(ordinary))
                    masked[row, column] = ordinary[min(place, len(ordinary) - 1)]
