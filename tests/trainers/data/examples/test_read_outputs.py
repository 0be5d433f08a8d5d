"""Head outputs become predictions of examples, and a head that outputs the gold label predicts exactly the
gold answer.
"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.trainers.data.examples.conftest import KINDS, sentences
from tests.trainers.data.examples.examples_of import examples_of
from tests.trainers.data.examples.test_make_inputs import maker_of  # noqa: F401 - a fixture
from tests.trainers.data.examples.test_task_rows import SPECIALS, inputs_of
from tests.trainers.models.test_models import tiny
from trainers.data.examples.read_outputs import LONGEST_ANSWER, best_answers, read_outputs, whole_characters
from trainers.data.examples.task_rows import ChosenInputs, task_batch
from trainers.data.examples.text_format import text_format
from trainers.rows.batch import IGNORED
from trainers.rows.task_outputs import TaskOutputs, outputs_of


def all_outputs(inputs, predict):
    number = np.arange(len(inputs))
    batch = task_batch([ChosenInputs(inputs, 0, number, number, number)])
    return outputs_of(inputs.kind, predict(batch), batch)


@pytest.mark.parametrize("architecture", ["roberta", "gpt2", "t5"])
@pytest.mark.parametrize("kind", KINDS)
def test_tags_of_all_windows_are_joined(kind, architecture, maker_of, tmp_path):  # noqa: F811
    rng = np.random.default_rng(0)
    values = sentences(12, seed=2)
    rows = [{"words": v.split(" "), "tags": rng.choice(["O", "B-X"], len(v.split(" "))).tolist()} for v in values]
    examples = examples_of("tag", rows, tmp_path)
    inputs = maker_of(kind, architecture, length=14, stride=5, virtual_tokens=2).make(examples)
    assert len(inputs) > 12

    def predict(batch):
        scores = np.random.default_rng(1).random((*batch.task.tags.shape, 3)).astype(np.float32)
        row, column = np.nonzero(batch.task.tags != IGNORED)
        scores[row, column, batch.task.tags[row, column]] = 2.0
        return scores

    predicted, scores = read_outputs(inputs, examples, all_outputs(inputs, predict))
    assert scores is None
    assert predicted.tolist() == examples.tags.tolist()


def test_words_without_a_token_are_outside(maker_of, tmp_path):  # noqa: F811
    examples = examples_of("tag", [{"words": ["the", "\u200b"], "tags": ["B-X", "O"]}], tmp_path)
    inputs = maker_of().make(examples)
    found = all_outputs(inputs, lambda batch: np.tile([0.0, 2.0, 1.0], (*batch.task.tags.shape, 1)).astype(np.float32))
    assert read_outputs(inputs, examples, found)[0].tolist() == [1, 0]


@pytest.mark.parametrize("architecture", ["bert", "gpt2", "bart"])
@pytest.mark.parametrize("kind", KINDS)
def test_answers_come_back_as_they_are_written(kind, architecture, maker_of, tmp_path):  # noqa: F811
    """Answers of whole words are restored from the windows of a long passage, and a missing answer is
    recognised.
    """
    rows = []
    for seed in range(6):
        passage = " ".join(sentences(5, seed=seed + 20)).replace("fox", "🙂 fox").replace(" a ", "\n a  ")
        words = passage.split(" ")
        begin = 3 + 5 * seed
        answer = " ".join(words[begin : begin + 2]).strip()
        start = len(" ".join(words[:begin])) + 1
        start += len(passage[start:]) - len(passage[start:].lstrip())
        rows.append({"q": "seven wizards?", "p": passage, "answers": [{"text": answer, "answer_start": start}]})
    rows.append({**rows[0], "answers": []})
    examples = examples_of("span", rows, tmp_path)
    inputs = maker_of(kind, architecture, length=48 if kind == "unigram" else 96, stride=20, virtual_tokens=3).make(
        examples
    )
    assert len(inputs) > 7
    assert inputs.truncation.answers == 0

    def predict(batch):
        scores = np.zeros((batch.task.owner.size, 2), np.float32)
        scores[batch.task.starts, 0] = scores[batch.task.ends, 1] = 3.0
        return scores.reshape(*batch.task.owner.shape, 2)

    predicted, scores = read_outputs(inputs, examples, all_outputs(inputs, predict))
    assert predicted[:6] == [answers[0] for answers in examples.targets[:6]]
    answer, none = scores.T
    assert (answer[:6] > none[:6]).all()
    assert none[6] > answer[6]


@given(st.integers(0, 1000), st.sampled_from(["roberta", "gpt2"]))
def test_the_best_answer_is_found(seed, architecture):
    """The answers found equal those of an exhaustive search over pairs of positions."""
    rng = np.random.default_rng(seed)
    inputs = inputs_of(text_format(tiny(architecture), SPECIALS), "span", count=3, seed=seed, longest=50)
    counts = inputs.segments.sizes[1] + 1
    offsets = np.concatenate([[0], np.cumsum(counts)])
    scores = rng.normal(size=(offsets[-1], 2)).astype(np.float32)
    first, last, best, none = best_answers(inputs, scores, offsets)
    for window in range(3):
        own = scores[offsets[window] : offsets[window + 1]].astype(np.float64)
        lone, own = (own[-1], own[:-1]) if architecture == "gpt2" else (own[0], own[1:])
        pairs = [
            (own[i, 0] + own[j, 1], i, j) for i in range(len(own)) for j in range(i, min(len(own), i + LONGEST_ANSWER))
        ]
        expected, i, j = max(pairs)
        assert (best[window], first[window], last[window]) == (pytest.approx(expected, abs=1e-6), i, j)
        assert none[window] == pytest.approx(lone.sum(), abs=1e-6)


def test_the_highest_candidate_is_chosen(maker_of, tmp_path):  # noqa: F811
    rows = [{"q": "the", "choices": ["a", "dog", "fox"][:count], "gold": 0} for count in (2, 3)]
    examples = examples_of("choose", rows, tmp_path)
    inputs = maker_of().make(examples)
    predicted, scores = read_outputs(inputs, examples, all_outputs(inputs, lambda _: np.array([1, 2, 0, 5, 4.0])))
    assert predicted.tolist() == [1, 1]
    assert [part.tolist() for part in scores] == [[1, 2], [0, 5, 4]]


def test_classes_and_numbers(maker_of, tmp_path):  # noqa: F811
    rows = [{"a": "the", "b": "dog", "label": "no"}] * 2
    examples = examples_of("classify", rows, tmp_path)
    inputs = maker_of().make(examples)
    outputs = TaskOutputs(np.arange(2), np.array([[0.5, 0.1], [0.2, 0.3]]))
    assert read_outputs(inputs, examples, outputs)[0].tolist() == [0, 1]
    examples = examples_of("regress", [{"a": "the", "label": 1.5}] * 2, tmp_path)
    outputs = TaskOutputs(np.arange(2), np.array([0.5, 0.1], np.float32))
    assert read_outputs(maker_of().make(examples), examples, outputs)[0].tolist() == pytest.approx([0.5, 0.1])


def test_ends_inside_a_character_move_outwards():
    text = "añ🙂b".encode()
    assert whole_characters(text, 0, 1) == "a"
    assert whole_characters(text, 2, 4) == "ñ🙂"
    assert whole_characters(text, 4, 4) == ""
    assert whole_characters(text, 5, 8) == "🙂b"
