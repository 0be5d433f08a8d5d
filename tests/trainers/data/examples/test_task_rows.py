"""Rows of tasks: the contents of each position, also compared with a tokenizer of `transformers`."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from tests.trainers.models.test_models import tiny
from trainers.config.architecture import ARCHITECTURES
from trainers.data.examples.task_inputs import TaskInputs, TextSlices
from trainers.data.examples.task_rows import ChosenInputs, task_batch
from trainers.data.examples.text_format import text_format
from trainers.data.examples.truncation import Truncation
from trainers.rows.batch import IGNORED, PADDING

SPECIALS = {"<pad>": 0, "<bos>": 1, "<eos>": 2, "<cls>": 5, "<sep>": 6}


def inputs_of(form, kind="classify", texts=2, count=12, seed=0, longest=30, **gold):
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, longest, (texts, count))
    begins = np.cumsum(sizes, axis=1) - sizes
    tokens = tuple(rng.integers(10, 190, its.sum()).astype(np.int32) for its in sizes)
    segments = TextSlices(tokens, begins, sizes)
    number = np.arange(count)
    return TaskInputs("task", kind, form, segments, np.arange(count + 1), number, Truncation(count), **gold)


def all_of(inputs, source=0):
    number = np.arange(len(inputs))
    return ChosenInputs(inputs, source, number, 100 + number, np.zeros_like(number))


def text(inputs, which, segment):
    begin = inputs.segments.begins[which, segment]
    return inputs.segments.tokens[which][begin : begin + inputs.segments.sizes[which, segment]].tolist()


def rows_of(ids, segments, positions):
    """Return (ids, positions) of the segments of each row, in order, after checking that segments are
    contiguous and padding comes last.
    """
    found = []
    for row_ids, row_segments, row_positions in zip(ids, segments, positions, strict=True):
        filled = row_segments != PADDING
        assert filled[: filled.sum()].all()
        assert (np.diff(row_segments[filled], prepend=-1) >= 0).all()
        for segment in range(row_segments.max() + 1):
            own = row_segments == segment
            assert own.any()
            found.append((row_ids[own].tolist(), row_positions[own].tolist()))
    return found


FORMS = {
    "encoder": lambda a, b: [5, *a, 6, *b, 6],
    "decoder": lambda a, b: [1, *a, 6, *b, 5],
    "encoder_decoder": lambda a, b: [1, *a, 2, *b, 2],
}
EXCEPTIONS = {"roberta": lambda a, b: [5, *a, 6, 6, *b, 6], "t5": lambda a, b: [*a, 2, *b, 2]}


@pytest.mark.parametrize("virtual", [0, 3])
@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_rows_hold_every_text_once(architecture, packed, virtual):
    """Each example has its special tokens and follows the virtual tokens. In an encoder-decoder, the decoder
    reads the same tokens, shifted by one and without virtual tokens. The task's targets give the positions of
    each summary state (`at`) and of the texts (`owner`).
    """
    form = text_format(tiny(architecture), SPECIALS, virtual_tokens=virtual, first_position=4)
    inputs = inputs_of(form, labels=np.arange(12) % 3)
    batch = task_batch([all_of(inputs)], packed)
    expected_row = EXCEPTIONS.get(architecture, FORMS[ARCHITECTURES[architecture].family])
    expected = [expected_row(text(inputs, 0, i), text(inputs, 1, i)) for i in range(12)]
    ahead = list(range(200, 200 + virtual))
    written = rows_of(batch.inputs, batch.segments, batch.positions)
    assert sorted(ids for ids, _ in written) == sorted([*ahead, *ids] for ids in expected)
    assert all(positions == list(range(4, 4 + len(positions))) for _, positions in written)
    read, task = batch.inputs, batch.task
    if ARCHITECTURES[architecture].family == "encoder_decoder":
        start = 0 if architecture == "t5" else 2
        behind = rows_of(batch.decoder.inputs, batch.decoder.segments, batch.decoder.positions)
        assert sorted(ids for ids, _ in behind) == sorted([start, *ids[:-1]] for ids in expected)
        assert all(positions == list(range(4, 4 + len(positions))) for _, positions in behind)
        read, virtual = batch.decoder.inputs, 0
    reads_last = ARCHITECTURES[architecture].family != "encoder"
    assert batch.targets.shape == task.owner.shape == read.shape
    assert (batch.targets == IGNORED).all()
    assert task.labels.tolist() == [i % 3 for i in range(12)]
    for segment, ids in enumerate(expected):
        begin = task.at[segment] - (len(ids) - 1 if reads_last else 0)
        here = read.ravel()[begin : begin + len(ids)].tolist()
        assert here == (ids if read is batch.inputs else [start, *ids[:-1]])
        a, b = text(inputs, 0, segment), text(inputs, 1, segment)
        own = np.flatnonzero(task.owner.ravel() == segment) - begin
        assert [ids[i] for i in own] == [*a, *b]
    shape = batch.inputs.shape
    assert shape[1] % 8 == 0
    assert shape[0] == 12 if not packed else (batch.segments == PADDING).mean() < 0.15


def test_bert_pairs_are_those_of_transformers(tmp_path):
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import BertTokenizerFast

    plain = Tokenizer(
        models.WordPiece({"[PAD]": 0, "[UNK]": 9, "[CLS]": 5, "[SEP]": 6, **{f"w{i}": i for i in range(10, 190)}})
    )
    plain.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    plain.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 5), ("[SEP]", 6)]
    )
    reference = BertTokenizerFast(tokenizer_object=plain)
    inputs = inputs_of(text_format(tiny("bert"), SPECIALS))
    batch = task_batch([all_of(inputs)], packed=False)
    pairs = [[" ".join(f"w{token}" for token in text(inputs, t, i)) for i in range(12)] for t in (0, 1)]
    theirs = reference(*pairs, padding=True, pad_to_multiple_of=8, return_tensors="np")
    assert (batch.inputs == theirs["input_ids"]).all()
    assert (batch.token_types == theirs["token_type_ids"]).all()
    assert ((batch.segments != PADDING) == theirs["attention_mask"]).all()


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("architecture", ["gpt2", "llama", "bart", "t5"])
def test_text_to_text_predicts_the_target_alone(architecture, packed):
    form = text_format(tiny(architecture), SPECIALS, text_to_text=True, virtual_tokens=2)
    inputs = inputs_of(form, "text_to_text")
    batch = task_batch([all_of(inputs)], packed)
    assert batch.task is None
    bos = [1] if architecture != "t5" else []
    read, goals, segments = [], [], batch.target_segments
    for row in range(len(segments)):
        for segment in range(segments[row].max() + 1):
            own = segments[row] == segment
            read.append((batch.inputs if batch.decoder is None else batch.decoder.inputs)[row][own].tolist())
            goals.append(batch.targets[row][own].tolist())
    if batch.decoder is None:
        whole = [[200, 201, *bos, *text(inputs, 0, i), *text(inputs, 1, i), 2] for i in range(12)]
        told = [2 + len(bos) + len(text(inputs, 0, i)) for i in range(12)]
        assert sorted(read) == sorted(ids[:-1] for ids in whole)
        assert sorted(goals) == sorted([IGNORED] * (n - 1) + ids[n:] for ids, n in zip(whole, told, strict=True))
    else:
        encoder = [ids for ids, _ in rows_of(batch.inputs, batch.segments, batch.positions)]
        assert sorted(encoder) == sorted([200, 201, *bos, *text(inputs, 0, i), 2] for i in range(12))
        start = 0 if architecture == "t5" else 2
        targets = [[*bos, *text(inputs, 1, i), 2] for i in range(12)]
        assert sorted(goals) == sorted(targets)
        assert sorted(read) == sorted([start, *ids[:-1]] for ids in targets)


def test_a_row_holds_one_task():
    """Sums by row are therefore sums by task. Rows without inputs are padding with sample -1."""
    form = text_format(tiny("gpt2"), SPECIALS, text_to_text=True)
    both = [inputs_of(form, "text_to_text", seed=seed, longest=12) for seed in (0, 1)]
    batch = task_batch([all_of(inputs, source) for source, inputs in enumerate(both)])
    tokens = np.array([(batch.segments[batch.source == source] != PADDING).sum() for source in (0, 1)])
    assert tokens.tolist() == [inputs.lengths.sum() for inputs in both]
    empty = ChosenInputs(both[0], 0, *np.zeros((3, 0), np.int64))
    batch = task_batch([empty])
    assert batch.inputs.shape == (1, 8)
    assert batch.sample.tolist() == [-1]
    assert (batch.segments == PADDING).all()
    assert (batch.targets == IGNORED).all()


@pytest.mark.parametrize("architecture", ["bert", "gpt2", "bart"])
def test_a_choice_is_a_segment_for_each_candidate(architecture):
    form = text_format(tiny(architecture), SPECIALS)
    offsets = np.array([0, 2, 5, 12])
    inputs = replace(inputs_of(form, "choose"), offsets=offsets, example=np.arange(3), labels=np.array([1, IGNORED, 4]))
    number = np.array([2, 0])
    task = task_batch([ChosenInputs(inputs, 0, number, number, number)]).task
    assert task.number.tolist() == [2, 0]
    assert task.choice.tolist() == [0] * 7 + [1] * 2
    assert task.labels.tolist() == [4, 1]
    assert len(task.at) == 9
    assert inputs.sizes.tolist() == [inputs.lengths[a:b].sum() for a, b in pairwise(offsets)]


@pytest.mark.parametrize("virtual", [0, 3])
@pytest.mark.parametrize("architecture", ["roberta", "llama", "t5"])
def test_tags_and_answers_are_at_their_tokens(architecture, virtual):
    form = text_format(tiny(architecture), SPECIALS, virtual_tokens=virtual)
    before = len(form.before)
    tags = {
        "word_offsets": np.array([0, 2, 2, 3]),
        "words": np.arange(3),
        "word_tokens": np.array([before, before + 2, before + 1]),
    }
    inputs = inputs_of(form, "tag", texts=1, count=3, labels=None, tags=np.array([7, 8, 9]), **tags)
    number = np.array([2, 0, 1])
    batch = task_batch([ChosenInputs(inputs, 0, number, number, number)])
    begins = batch.task.at - (inputs.lengths[number] - 1 if form.reads_last else 0)
    at = {int(begins[1]) + before: 7, int(begins[1]) + before + 2: 8, int(begins[0]) + before + 1: 9}
    assert {int(i): int(batch.task.tags.ravel()[i]) for i in np.flatnonzero(batch.task.tags != IGNORED)} == at
    inputs = inputs_of(form, "span", count=3, answers=np.array([[4, 6], [-1, -1], [5, 5]]))
    batch = task_batch([ChosenInputs(inputs, 0, number, number, number)])
    task, begins = batch.task, batch.task.at - (inputs.lengths[number] - 1 if form.reads_last else 0)
    assert (task.starts - begins).tolist() == [5, 4, begins[2] * 0 + task.at[2] - begins[2]]
    assert (task.ends - begins).tolist() == [5, 6, task.at[2] - begins[2]]
    allowed = np.flatnonzero(task.answerable)
    size = inputs.segments.sizes[:, number]
    expected = set(task.at.tolist())
    for segment in range(3):
        first = int(begins[segment]) + before + int(size[0, segment]) + len(form.between)
        expected |= set(range(first, first + int(size[1, segment])))
    assert set(allowed.tolist()) == expected
