"""The examples of a probe: states of words or texts with their labels, and the labels of a control task."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from gristmill.errors import ConfigError, UserError
from gristmill.storage.location import Location
from trainers.evaluation.probing.features import pooled
from trainers.evaluation.probing.hidden_states import StateReader
from trainers.tasks.examples import Examples
from trainers.tasks.read_examples import read_examples
from trainers.tasks.schema.task import Task

_DOCUMENTS = 256  # documents in memory at once with the states of all their tokens


@dataclass(frozen=True)
class ProbeExamples:
    """The examples of a probe: n words or texts.

    - `states` [layers, n, width], float32.
    - `labels`, int64 [n].
    - `types`: each word in lower case, or the first word of each text.
    - `offsets`, int64: the boundaries of sentences, as indices of examples. A text counts as one sentence.
    """

    states: np.ndarray
    labels: np.ndarray
    types: list[str]
    offsets: np.ndarray

    def __len__(self) -> int:
        return len(self.labels)


def probe_split(task: Task, split: str, data: Location | None, limit: int | None) -> Examples:
    """Return the first `limit` examples of a split, or all if None. Raises ConfigError unless the task labels
    words or single texts, and UserError if the gold is hidden.
    """
    if task.kind not in ("tag", "classify") or "text_b" in task.roles:
        what = "two texts" if "text_b" in task.roles else f"kind {task.kind}"
        raise ConfigError(f"task: {task.name} has {what}; probes need labels of words (tag) or of one text (classify)")
    examples = read_examples(task, split, data)
    gold = examples.tags if task.kind == "tag" else examples.labels
    if not examples.labelled or gold is None or (gold < 0).any():
        raise UserError(f"{task.name}: {split}: its gold is hidden; probe another split")
    return _head(examples, limit) if limit is not None else examples


def _head(examples: Examples, limit: int) -> Examples:
    count = min(limit, len(examples))
    head = replace(examples, ids=examples.ids[:count], texts=(examples.texts[0][:count],))
    if examples.task.kind == "classify":
        assert examples.labels is not None
        return replace(head, labels=examples.labels[:count])
    assert examples.word_offsets is not None
    assert examples.word_starts is not None
    assert examples.word_ends is not None
    assert examples.tags is not None
    words = int(examples.word_offsets[count])
    return replace(
        head,
        word_offsets=examples.word_offsets[: count + 1],
        word_starts=examples.word_starts[:words],
        word_ends=examples.word_ends[:words],
        tags=examples.tags[:words],
    )


def probe_examples(reader: StateReader, examples: Examples, layers: Sequence[str]) -> ProbeExamples:
    """Return the states and labels of the words or texts of a split. The state of a word or text is the mean
    over its tokens.
    """
    texts = examples.texts[0]
    if examples.task.kind == "classify":
        assert examples.labels is not None
        parts = []
        for start in range(0, len(texts), _DOCUMENTS):
            states = reader.read(reader.encode(texts[start : start + _DOCUMENTS].to_pylist()), layers)
            parts.append(np.stack([pooled(each, "mean") for each in states], axis=1))
        first = [text.split(maxsplit=1)[0] for text in texts.to_pylist()]
        return ProbeExamples(np.concatenate(parts, axis=1), examples.labels, first, np.arange(len(texts) + 1))
    assert examples.word_offsets is not None
    assert examples.word_starts is not None
    assert examples.tags is not None
    parts, offsets = [], examples.word_offsets
    for first_text in range(0, len(texts), _DOCUMENTS):
        last = min(len(texts), first_text + _DOCUMENTS)
        bounds = offsets[first_text : last + 1]
        starts = examples.word_starts[bounds[0] : bounds[-1]]
        parts.append(_word_states(reader, texts[first_text:last], starts, bounds - bounds[0], layers))
    words = [word.lower() for number in range(len(texts)) for word in examples.words(number)]
    return ProbeExamples(np.concatenate(parts, axis=1), examples.tags, words, offsets)


def _word_states(
    reader: StateReader, texts: pa.LargeStringArray, starts: np.ndarray, offsets: np.ndarray, layers: Sequence[str]
) -> np.ndarray:
    """Return the states of words, float32 [layers, words, width]: for each word, the mean over its tokens. A
    word without tokens gets the state of the next token or, after the last, of the last token. In a text
    without tokens, every word gets the state of the text's first position.

    `starts` holds the byte position of each word in its text. The words of text n are those from `offsets[n]`
    to `offsets[n + 1]`.
    """
    ids, bounds, holders = reader.encoder.encode_with_positions(texts, starts, offsets)
    documents = [ids[bounds[n] : bounds[n + 1]].astype(np.int64) for n in range(len(texts))]
    found = []
    for number, states in enumerate(reader.read(documents, layers)):
        tokens = states.tokens if states.tokens.shape[1] else states.first[:, None]
        count = tokens.shape[1]
        begins = np.minimum(holders[offsets[number] : offsets[number + 1]].astype(np.int64), count)
        ends = np.append(begins[1:], count)
        begins = np.minimum(begins, count - 1)
        ends = np.maximum(ends, begins + 1)
        totals = np.concatenate([np.zeros_like(tokens[:, :1]), np.cumsum(tokens, axis=1, dtype=np.float64)], axis=1)
        found.append(((totals[:, ends] - totals[:, begins]) / (ends - begins)[:, None]).astype(np.float32))
    return np.concatenate(found, axis=1)


def control_labels(train: ProbeExamples, test: ProbeExamples, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the labels of the control task for the training and test examples, int64. All examples of a type
    share one label, drawn at random from the labels of the training examples (Hewitt and Liang, 2019, section
    2).
    """
    draw, of = np.random.default_rng(seed), {}
    for name in dict.fromkeys([*train.types, *test.types]):
        of[name] = int(train.labels[draw.integers(len(train.labels))])
    first, second = (np.array([of[name] for name in each.types], np.int64) for each in (train, test))
    return first, second
