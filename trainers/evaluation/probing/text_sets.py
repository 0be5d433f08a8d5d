"""Probing sets made from arbitrary texts, after the tasks of Conneau et al. (2018, "What you can cram into a
single vector").

length           the number of words of a sentence, in up to six classes of about equal size
word_content     which of up to twenty words of medium frequency a sentence contains; it contains exactly one of them
word_order       whether two adjacent words of a sentence were swapped
sentence_order   whether two consecutive sentences were swapped

Sentences of fewer than 5 or more than 40 words are left out beforehand.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Literal

import numpy as np
import pyarrow as pa

from gristmill.errors import UserError
from trainers.tasks.examples import Examples
from trainers.tasks.schema.task import Task

TextSet = Literal["length", "word_content", "word_order", "sentence_order"]
_Labelled = list[tuple[str, int]]
_Documents = list[list[str]]

_END = re.compile(r"(?<=[.!?])\s+")
_WORD = re.compile(r"[^\W\d_]+")
_GAP = ""  # between sentences that do not follow one another
_LEAST, _MOST = 5, 40  # words of a sentence
_CLASSES = 6
_WORDS, _COMMON = 20, 50  # words to distinguish; more common words that are skipped
_TESTED = 5  # every fifth document is for the test split, so no document is in both splits
_ENOUGH = 20  # examples that a split needs


def text_set(name: TextSet, texts: Examples, limit: int, seed: int) -> tuple[Examples, Examples]:
    """Build the probing set `name` from the sentences of `texts`, and return its training and its test
    examples, up to `limit` of each. Raises UserError if a split has too few examples or fewer than two
    classes.
    """
    documents = [_sentences(text) for text in texts.texts[0].to_pylist()]
    train = [each for number, each in enumerate(documents) if number % _TESTED]
    test = documents[::_TESTED]
    if len(documents) < _TESTED:  # one long text is cut instead
        flat = [sentence for each in documents for sentence in [*each, _GAP]]
        cut = len(flat) // _TESTED
        train, test = [flat[cut:]], [flat[:cut]]
    labels, first, second = _MAKERS[name](train, test, np.random.default_rng(seed))
    for split, made in (("train", first), ("test", second)):
        if len(made) < _ENOUGH or len({label for _, label in made}) < 2:
            raise UserError(
                f"text: has {len(made):,} examples of {name} for {split}, needs {_ENOUGH} or more of two classes; "
                f"give more text"
            )
    task = Task(
        kind="classify", files={"train": texts.task.name, "test": texts.task.name},
        columns={"text": "text", "label": "label"}, labels=labels, metrics=("accuracy",), name=f"{texts.task.name}_{name}",
    )  # fmt: skip
    return _examples(task, "train", first[:limit]), _examples(task, "test", second[:limit])


def _examples(task: Task, split: str, made: _Labelled) -> Examples:
    texts = (pa.array([text for text, _ in made], pa.large_string()),)
    labels = np.array([label for _, label in made], np.int64)
    return Examples(task, split, [str(number) for number in range(len(made))], texts, True, (), labels=labels)


def _sentences(text: str) -> list[str]:
    """Return the sentences of a text, with single spaces between words. `_GAP` takes the place of each
    sentence that is too short or too long.
    """
    found = (" ".join(part.split()) for part in _END.split(text))
    return [sentence if _LEAST <= len(sentence.split()) <= _MOST else _GAP for sentence in found]


_Made = tuple[tuple[str, ...], _Labelled, _Labelled]


def _flat(documents: _Documents) -> list[str]:
    return [sentence for each in documents for sentence in each if sentence != _GAP]


def _length(train: _Documents, test: _Documents, draw: np.random.Generator) -> _Made:
    sizes = [len(sentence.split()) for sentence in _flat(train)] or [0]
    bounds = np.unique(np.quantile(sizes, np.arange(1, _CLASSES) / _CLASSES))

    def labelled(documents: _Documents) -> _Labelled:
        return [(s, int(np.searchsorted(bounds, len(s.split()), side="left"))) for s in _flat(documents)]

    return tuple(f"class_{number}" for number in range(len(bounds) + 1)), labelled(train), labelled(test)


def _word_content(train: _Documents, test: _Documents, draw: np.random.Generator) -> _Made:
    counts = Counter(word for sentence in _flat(train) for word in set(_words(sentence)))
    chosen = [word for word, _ in counts.most_common(_COMMON + _WORDS)[_COMMON:]]
    number = {word: place for place, word in enumerate(chosen)}

    def labelled(documents: _Documents) -> _Labelled:
        found = [(sentence, number.keys() & set(_words(sentence))) for sentence in _flat(documents)]
        return [(sentence, number[next(iter(words))]) for sentence, words in found if len(words) == 1]

    return tuple(chosen), labelled(train), labelled(test)


def _words(sentence: str) -> list[str]:
    return [word.lower() for word in _WORD.findall(sentence)]


def _word_order(train: _Documents, test: _Documents, draw: np.random.Generator) -> _Made:
    def labelled(documents: _Documents) -> _Labelled:
        made = []
        for sentence in _flat(documents):
            words, exchanged = sentence.split(), int(draw.integers(2))
            places = [at for at in range(len(words) - 1) if words[at] != words[at + 1]]
            if exchanged and places:
                at = places[int(draw.integers(len(places)))]
                words[at], words[at + 1] = words[at + 1], words[at]
            if places:
                made.append((" ".join(words), exchanged))
        return made

    return ("kept", "exchanged"), labelled(train), labelled(test)


def _sentence_order(train: _Documents, test: _Documents, draw: np.random.Generator) -> _Made:
    def labelled(documents: _Documents) -> _Labelled:
        made = []
        for sentences in documents:
            for first, second in _pairs(sentences):
                exchanged = int(draw.integers(2))
                made.append((f"{second} {first}" if exchanged else f"{first} {second}", exchanged))
        return made

    return ("kept", "exchanged"), labelled(train), labelled(test)


def _pairs(sentences: list[str]) -> Iterator[tuple[str, str]]:
    """Yield the sentences as consecutive pairs that do not overlap. No pair spans a gap, so the last of an
    odd number of sentences between two gaps is left out.
    """
    waiting = _GAP
    for sentence in sentences:
        if _GAP in (waiting, sentence):
            waiting = sentence
        else:
            yield waiting, sentence
            waiting = _GAP


_MAKERS: dict[TextSet, Callable[[_Documents, _Documents, np.random.Generator], _Made]] = {
    "length": _length, "word_content": _word_content, "word_order": _word_order, "sentence_order": _sentence_order,
}  # fmt: skip

TEXT_SETS: tuple[TextSet, ...] = tuple(_MAKERS)
"""The names of the probing sets."""
