"""Examples become inputs: what the model reads for each kind of task, with every kind of tokenizer, and what
is truncated.
"""

import numpy as np
import pytest

from gristmill.errors import ConfigError
from tests.trainers.data.examples.conftest import KINDS, sentences, texts
from tests.trainers.data.examples.examples_of import examples_of
from tests.trainers.models.test_models import tiny
from trainers.data.examples.make_inputs import InputMaker
from trainers.data.examples.text_format import text_format
from trainers.rows.batch import IGNORED


@pytest.fixture
def maker_of(encoder_of):
    def make(kind="wordpiece", architecture="roberta", length=64, stride=16, **options):
        encoder = encoder_of(kind)
        form = text_format(tiny(architecture), encoder.encoder.specials, **options)
        return InputMaker(encoder, form, length, stride)

    return make


def read(inputs, segment):
    return inputs.render(np.array([segment])).ids.tolist()


def slices(inputs, text, segment):
    begin = inputs.segments.begins[text, segment]
    return inputs.segments.tokens[text][begin : begin + inputs.segments.sizes[text, segment]].tolist()


def ids(maker, *values):
    encoded = maker.encoder.encode(texts(*values))
    return [encoded.tokens[a : a + n].tolist() for a, n in zip(encoded.first, encoded.sizes, strict=True)]


def test_pairs_lose_the_end_of_the_longer_text(maker_of, tmp_path):
    maker = maker_of(length=20)
    long, short = sentences(1)[0] * 5, "the fox"
    rows = [{"a": a, "b": b, "label": "yes"} for a, b in ((short, short), (long, short), (short, long), (long, long))]
    inputs = maker.make(examples_of("classify", rows, tmp_path))
    a, b = ids(maker, long, short)
    assert [slices(inputs, 0, i) for i in range(4)] == [b, a[: 16 - len(b)], b, a[:8]]
    assert [slices(inputs, 1, i) for i in range(4)] == [b, b, a[: 16 - len(b)], a[:8]]
    assert inputs.lengths.tolist() == [4 + 2 * len(b), 20, 20, 20]
    assert inputs.labels.tolist() == [1] * 4
    lost = 2 * (len(a) + len(b) - 16) + 2 * (len(a) - 8)
    assert (inputs.truncation.examples, inputs.truncation.tokens) == (3, lost)


def test_a_row_too_short_for_the_marks_is_refused(maker_of, tmp_path):
    examples = examples_of("classify", [{"a": "the", "b": "fox", "label": "no"}], tmp_path)
    with pytest.raises(
        ConfigError, match=r"^encoding.max_length: got 7, which leaves 3 tokens for text; allowed 8 or more"
    ):
        maker_of(length=7).make(examples)


def test_hidden_labels_stay_hidden(maker_of, tmp_path):
    rows = [{"a": "the fox"}, {"a": "a dog"}]
    hidden = {"columns": {"text": "a"}, "unlabelled": ["train"]}
    assert maker_of().make(examples_of("classify", rows, tmp_path, **hidden)).labels.tolist() == [IGNORED] * 2
    assert np.isnan(maker_of().make(examples_of("regress", rows, tmp_path, **hidden)).values).all()
    assert maker_of().make(examples_of("classify", rows, tmp_path, **hidden)).values is None


@pytest.mark.parametrize("passage", [False, True])
def test_each_candidate_follows_the_text(maker_of, tmp_path, passage):
    rows = [
        {"p": "seven wizards", "q": "the fox", "choices": ["jumps", "boxed"], "gold": 1},
        {"p": "a lazy dog", "q": "the dog", "choices": ["jumps", "over", "while"], "gold": 0},
    ]
    maker = maker_of()
    columns = {"text": "q", "candidates": "choices", "label": "gold", **({"passage": "p"} if passage else {})}
    inputs = maker.make(examples_of("choose", rows, tmp_path, columns=columns))
    assert inputs.offsets.tolist() == [0, 2, 5]
    assert inputs.labels.tolist() == [1, 0]
    expected = [
        (row["p"], f"{row['q']} {choice}") if passage else (row["q"], choice)
        for row in rows
        for choice in row["choices"]
    ]
    for segment, (first, second) in enumerate(expected):
        assert [slices(inputs, 0, segment), slices(inputs, 1, segment)] == ids(maker, first, second)


@pytest.mark.parametrize("kind", KINDS)
def test_every_word_is_predicted_once_where_it_begins(kind, maker_of, tmp_path):
    """Texts longer than a row are split into windows that overlap."""
    values = sentences(12, seed=2)
    rows = [{"words": value.split(" "), "tags": ["O"] * len(value.split(" "))} for value in values]
    examples = examples_of("tag", rows, tmp_path)
    maker = maker_of(kind, length=14, stride=5)
    inputs, whole = maker.make(examples), maker_of(kind, length=1000).make(examples)
    assert len(inputs) > len(whole) == 12
    assert sorted(inputs.words) == list(range(len(examples.word_starts)))
    assert inputs.truncation.windows == len(inputs) - int((np.bincount(inputs.example) == 1).sum())
    position = dict(zip(whole.words, whole.word_tokens, strict=True))
    for window in range(len(inputs)):
        for number in range(inputs.word_offsets[window], inputs.word_offsets[window + 1]):
            word = inputs.words[number]
            assert (
                examples.word_offsets[inputs.example[window]]
                <= word
                < examples.word_offsets[inputs.example[window] + 1]
            )
            assert (
                read(inputs, window)[inputs.word_tokens[number]] == read(whole, inputs.example[window])[position[word]]
            )
    assert inputs.tags.tolist() == [0] * len(inputs.words)


def test_a_word_without_a_token_is_not_predicted(maker_of, tmp_path):
    """WordPiece drops control characters, and the word after a dropped one must keep its own tag."""
    examples = examples_of(
        "tag", [{"words": ["the", "\u200b", "fox", "\u200b"], "tags": ["O", "B-X", "I-X", "B-X"]}], tmp_path
    )
    inputs = maker_of().make(examples)
    assert inputs.words.tolist() == [0, 2]
    assert inputs.tags.tolist() == [0, 2]


@pytest.mark.parametrize("kind", KINDS)
def test_answers_are_marked_in_the_windows_that_hold_them(kind, maker_of, tmp_path):
    passage = " ".join(sentences(6, seed=9))
    answer = " ".join(passage.split(" ")[20:22])
    start = passage.index(answer)
    rows = [
        {"q": "seven wizards?", "p": passage, "answers": [{"text": answer, "answer_start": start}]},
        {"q": "the quick brown fox jumps over", "p": passage, "answers": []},
    ]
    maker = maker_of(kind, length=100, stride=20)
    inputs = maker.make(examples_of("span", rows, tmp_path))
    question, other = ids(maker, *(row["q"] for row in rows))
    whole = ids(maker, passage)[0]
    kept = [question[:48], other[:48]]
    held = 0
    for window in range(len(inputs)):
        example = inputs.example[window]
        assert slices(inputs, 0, window) == kept[example]
        part = slices(inputs, 1, window)
        assert (
            whole[
                inputs.segments.begins[1, window] - inputs.segments.begins[1, inputs.example.searchsorted(example)] :
            ][: len(part)]
            == part
        )
        first, last = inputs.answers[window]
        if example == 1 or first < 0:
            assert (first, last) == (-1, -1)
            continue
        held += 1
        decoded = maker.encoder.encoder.decode(np.array(read(inputs, window)[first : last + 1])).replace("▁", " ")
        assert decoded.strip().replace(" ", "") == answer.replace(" ", "")
    assert held >= 1
    assert inputs.truncation.answers == 0


def test_an_answer_longer_than_a_window_is_counted(maker_of, tmp_path):
    passage = " ".join(sentences(6, seed=9))
    rows = [{"q": "the fox", "p": passage, "answers": [{"text": passage, "answer_start": 0}]}]
    inputs = maker_of(length=40).make(examples_of("span", rows, tmp_path))
    assert (inputs.answers == -1).all()
    assert inputs.truncation.answers == 1
    assert inputs.truncation.windowed == 1
    assert inputs.truncation.windows == len(inputs)


def test_text_to_text_keeps_the_beginnings(maker_of, tmp_path):
    """A decoder's row holds both source and target, and the source may take up to three quarters of the row."""
    values = [
        ("the fox", "a dog"),
        (sentences(1)[0] * 5, "a dog"),
        ("the fox", sentences(1)[0] * 5),
        (sentences(1)[0] * 5,) * 2,
    ]
    examples = examples_of("generate", [{"q": a, "answers": [b]} for a, b in values], tmp_path)
    pair = texts(*(a for a, _ in values)), texts(*(b for _, b in values))
    maker = maker_of(architecture="gpt2", length=21, text_to_text=True)
    inputs = maker.make(examples, pair)
    a, b = (ids(maker, *(value[t] for value in values)) for t in (0, 1))
    assert [slices(inputs, 0, i) for i in range(4)] == [a[0], a[1][:15], a[2], a[3][:15]]
    assert [slices(inputs, 1, i) for i in range(4)] == [b[0], b[1][:5], b[2][: 20 - len(a[2])], b[3][:5]]
    assert inputs.lengths.max() == 21
    both = maker_of(architecture="bart", length=21, text_to_text=True).make(examples, pair)
    assert [len(slices(both, t, 3)) for t in (0, 1)] == [19, 19]
    assert both.truncation.examples == 3
