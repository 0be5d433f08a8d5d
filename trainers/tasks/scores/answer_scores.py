"""Metrics of answers: exact match and token F1, as the evaluation scripts of SQuAD 1.1 and 2.0 define them,
and `number_match`, which compares the last numbers of two texts.

If questions may have no answer, exact match and token F1 follow SQuAD 2.0: a prediction that is empty after
normalisation means "no answer", and is right only if the question has none. `best_threshold` chooses a
threshold for no-answer scores.
"""

import re
import string
from collections import Counter
from collections.abc import Callable

import numpy as np

from gristmill.errors import UserError
from trainers.tasks.scores.metric import TaskMetric, mean_of, summed
from trainers.tasks.scores.outcomes import Outcomes

_ARTICLES = re.compile(r"\b(a|an|the)\b")
# A minus after a word is a hyphen.
_NUMBER = re.compile(r"(?:(?<![\w.])-)?(?:\d[\d,]*(?:\.\d+)?|\.\d+)(?:[eE][-+]?\d+\b)?")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalise_answer(text: str) -> str:
    """Normalise an answer: lower case, no ASCII punctuation, no English articles, single spaces (Rajpurkar et
    al., 2016, section 6.1).
    """
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact_match(text: str, reference: str) -> float:
    """Return 1 if the two texts are equal after normalisation, else 0."""
    return float(normalise_answer(text) == normalise_answer(reference))


def token_f1(text: str, reference: str, empty_matches: bool) -> float:
    """Return the F1 score of the words that two texts share after normalisation. If neither has words, it is
    1 if `empty_matches` is true, otherwise 0.
    """
    predicted, gold = normalise_answer(text).split(), normalise_answer(reference).split()
    if not predicted or not gold:
        return float(empty_matches and predicted == gold)
    shared = sum((Counter(predicted) & Counter(gold)).values())
    return 2 * shared / (len(predicted) + len(gold))


def last_number(text: str) -> float | None:
    """Return the last number in a text, or None if the text has none. Commas within a number or directly
    after it are ignored. A number may have an exponent, as in 1e5.
    """
    found = _NUMBER.findall(text)
    return float(found[-1].replace(",", "")) if found else None


def number_match(text: str, reference: str) -> float:
    """Return 1 if the last numbers of the two texts are equal, else 0. Raises UserError if the reference has
    no number.
    """
    gold = last_number(reference)
    if gold is None:
        raise UserError("metrics: number_match needs a number in each accepted text, and one has none; correct it")
    return float(last_number(text) == gold)


def answer_values(outcomes: Outcomes, score: Callable[[str, str], float]) -> np.ndarray:
    """Return each example's best `score(text, reference)` over its references, float64 [n]; 0 if it has none.
    In a task with `no_answer`, references that normalisation leaves empty are ignored, and an example that
    then has none is compared with the empty text.
    """
    assert outcomes.references is not None
    assert outcomes.texts is not None
    values = []
    for text, references in zip(outcomes.texts, outcomes.references, strict=True):
        if outcomes.no_answer:
            references = [reference for reference in references if normalise_answer(reference)] or [""]
        values.append(max((score(text, reference) for reference in references), default=0.0))
    return np.array(values, np.float64)


def exact_matches(outcomes: Outcomes) -> np.ndarray:
    """Return the best `exact_match` of each example over its references, float64 [n]."""
    return answer_values(outcomes, exact_match)


def token_f1s(outcomes: Outcomes) -> np.ndarray:
    """Return the best `token_f1` of each example over its references, float64 [n]."""
    return answer_values(outcomes, lambda text, reference: token_f1(text, reference, outcomes.no_answer))


def number_matches(outcomes: Outcomes) -> np.ndarray:
    """Return 1 for each example whose predicted text has the same last number as one of its references, else
    0, float64 [n]. If a question has no answer, a text without a number is right. Raises UserError for a
    reference that has text but no number.
    """

    def score(text: str, reference: str) -> float:
        unanswerable = outcomes.no_answer and not reference
        return float(last_number(text) is None) if unanswerable else number_match(text, reference)

    return answer_values(outcomes, score)


def _counted(values: np.ndarray) -> np.ndarray:
    return np.stack([values, np.ones(len(values))], axis=1)


def best_threshold(values: np.ndarray, answerable: np.ndarray, answered: np.ndarray, no_answer: np.ndarray) -> float:
    """Return the no-answer threshold that maximises the mean score of the examples. The empty answer is
    predicted if the no-answer score is above the threshold. Unlike the script of SQuAD 2.0, this considers
    only thresholds that keep examples with equal no-answer scores together.

    For each example, `values` is the score of the predicted answer, `answerable` says whether there is a gold
    answer, `answered` says whether the prediction is not empty, and `no_answer` is the no-answer score.
    """
    order = np.argsort(no_answer, kind="stable")
    scores = no_answer[order]
    gains = np.where(answerable, values, np.where(answered, -1.0, 0.0))[order]
    totals = np.concatenate([[0.0], np.cumsum(gains)])
    possible = np.concatenate([[True], np.append(scores[1:] > scores[:-1], True)])  # equal scores are not split
    best = int(np.argmax(np.where(possible, totals, -np.inf)))
    return float(scores[best - 1]) if best else float(scores[0]) - 1.0


METRICS = (
    TaskMetric("exact_match", lambda o: _counted(exact_matches(o)), summed(mean_of), "Rajpurkar et al., 2016 and 2018"),
    TaskMetric("token_f1", lambda o: _counted(token_f1s(o)), summed(mean_of), "Rajpurkar et al., 2016 and 2018"),
    TaskMetric(
        "number_match",
        lambda o: _counted(number_matches(o)),
        summed(mean_of),
        "Cobbe et al., 2021 (GSM8K); the last number is the answer",
    ),
)
