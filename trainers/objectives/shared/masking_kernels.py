"""Choose the tokens to mask (single tokens, whole words, or spans of words) and replace them.

Every segment of a row (a document or, in rows of sentence pairs, each part of the pair) has a budget of
`rate` times the number of its tokens that are not special, rounded up or down at random so that the mean is
exact. Short documents are therefore masked no more heavily, on average, than long ones, and the budget of a
document of at least 1 / rate tokens is never 0. BERT rounds to the nearest number, at least 1 per row;
`transformers` draws for every token independently, so at a rate of 15 % the number of targets in rows of 512
has a standard deviation of 8 around a mean of 77. With words and spans, words are never cut. A word larger
than the rest of the budget is taken with the probability that keeps the mean number of masked tokens equal to
the budget.

The kernels that choose tokens write `group`, int64 [rows, length]: -1 for a token that is not chosen,
otherwise the column whose uniform number decides the replacement. All tokens of a span share a column, so
they are replaced in the same way.
"""

import numpy as np

from gristmill.compilation import kernel
from trainers.rows.batch import IGNORED

BEGINS, ENDS = np.uint8(1), np.uint8(2)  # BEGINS: the token begins a word; ENDS: the next token begins a word


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
    """Choose the fraction `rate` of each document's tokens that are not special, with the number of tokens
    rounded up or down at random. `group`, int64 [rows, length], is set to the column of each chosen token and
    to -1 elsewhere. All sets of the same number of tokens are equally likely (selection sampling: Knuth,
    TAOCP 2, 3.4.2, algorithm S).

    `special`, bool [vocabulary], marks tokens that are never chosen; `rounding` [rows, documents] and `draws`
    [rows, length] are uniform numbers.
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
    """Choose spans of whole words, starting at random words, until about a share `rate` of each document's
    ordinary tokens is chosen. Set `group`, int64 [rows, length], as `Masking.choose` returns it.

    The maximum number of words of a span is 1 plus the number of entries of `longer` (ascending) that do not
    exceed the span's random number from `lengths`. If `longer` is empty, each span is one word, whose tokens
    are replaced independently. Otherwise all tokens of a span are replaced in the same way (SpanBERT).

    `special`, bool [vocabulary], marks tokens that are never chosen; `marks` [vocabulary] comes from
    `shared.whole_words`. `rounding` and `last` [rows, documents], and `draws` and `lengths` [rows, length],
    hold uniform random numbers.
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
    """Find the words of the document that begins at column `start` of a row, and write their bounds: word w
    consists of the columns `begins[w]:ends[w]`. Returns (end of the document, number of words, number of
    tokens in them).
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
    """Write to `masked` the inputs with the chosen tokens replaced, and to `targets` the original tokens at
    the chosen positions and -100 elsewhere.

    `kinds` and `others` [rows, length] hold uniform random numbers. `group` [rows, length] is -1 where no
    token is chosen. Elsewhere it is the column in `kinds` of the number that decides what replaces the token:
    `mask`, with probability `mask_share`; one of the `ordinary` ids, picked by `others`, with probability
    `random_share`; otherwise, nothing.
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
