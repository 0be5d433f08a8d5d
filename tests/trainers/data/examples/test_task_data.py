"""The order of a run's inputs, the mixing of tasks, and the inputs that each worker reads."""

import numpy as np
import pytest

from tests.trainers.data.examples.test_task_rows import SPECIALS, inputs_of
from tests.trainers.models.test_models import tiny
from trainers.config.finetuning import Mixing
from trainers.data.examples.held_out import HeldOut
from trainers.data.examples.task_data import TaskData, mixing_rates, order_of_tasks
from trainers.data.examples.text_format import text_format
from trainers.rows.batch import IGNORED, PADDING


def data_of(counts, mixing=None, seed=0, longest=30, fingerprint="f", packed=True):
    form = text_format(tiny("roberta"), SPECIALS)
    tasks = []
    for number, count in enumerate(counts):
        labels = np.random.default_rng(number).integers(0, 3, count)
        task = inputs_of(form, count=count, seed=number, longest=longest * (number + 1), labels=labels)
        tasks.append(task.__class__(**{**vars(task), "name": f"task{number}"}))
    order = order_of_tasks(tasks, mixing or Mixing(), seed, fingerprint)
    return TaskData(tuple(tasks), order, 128, packed)


def test_every_epoch_is_another_permutation():
    order = data_of([50]).order
    epochs = [order.take(50 * epoch, 50) for epoch in range(3)]
    assert all(sorted(epoch.sequence) == list(range(50)) for epoch in epochs)
    assert len({tuple(epoch.sequence) for epoch in epochs}) == 3
    assert [set(epoch.epoch) for epoch in epochs] == [{0}, {1}, {2}]


def test_the_order_depends_on_seed_and_files_alone():
    first = data_of([50]).order.take(0, 50).sequence
    assert (data_of([50], packed=False).order.take(0, 50).sequence == first).all()
    assert (data_of([50], seed=1).order.take(0, 50).sequence != first).any()
    assert (data_of([50], fingerprint="g").order.take(0, 50).sequence != first).any()


def test_a_run_resumes_from_a_few_numbers():
    data = data_of([50, 20])
    state = data.order.state(1000)
    expected = data.order.take(1000, 64)
    order = data_of([50, 20]).order
    assert order.resume(state)
    assert (order.take(1000, 64).sequence == expected.sequence).all()
    assert not data_of([50, 21]).order.resume(state)


COUNTS = {"small": 100, "middle": 400, "large": 10_000}


@pytest.mark.parametrize(
    ("mixing", "expected"),
    [
        (Mixing(limit=1 << 21), [100 / 10_500, 400 / 10_500, 10_000 / 10_500]),
        (Mixing(limit=500), [0.1, 0.4, 0.5]),
        (Mixing("temperature", 2.0), [10 / 130, 20 / 130, 100 / 130]),
        (Mixing("temperature", 2.0, limit=900), [10 / 60, 20 / 60, 30 / 60]),
        (Mixing("equal"), [1 / 3] * 3),
    ],
)
def test_rates_are_those_of_t5(mixing, expected):
    """The rates follow Raffel et al., 2020, section 3.5.2: r = min(e, K) / sum, raised to 1 / T and
    renormalised.
    """
    assert list(mixing_rates(COUNTS, mixing).values()) == pytest.approx(expected)


def test_samples_mix_by_examples_however_long_they_are():
    """Texts of the third task are about three times as long as those of the first."""
    order = data_of([40, 80, 200], Mixing(limit=100)).order
    drawn = np.bincount(order.take(0, 5600).source)
    assert drawn / 5600 == pytest.approx([40 / 220, 80 / 220, 100 / 220], abs=0.01)


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize(("size", "world"), [(4, 1), (8, 2), (3, 3), (64, 2)])
def test_how_a_step_is_split_changes_no_input(size, world, packed):
    """All workers get the same number of batches, and together they read each input of the step exactly once."""
    data = data_of([50], packed=packed)
    samples = data.order.take(70, 30)
    shares = [list(data.split(samples, size, rank, world)) for rank in range(world)]
    assert len({len(share) for share in shares}) == 1
    batches = [batch for share in shares for batch in share]
    assert sorted(n for batch in batches for n in batch.task.number) == sorted(samples.sequence)
    assert all(len(batch.task.number) <= size for batch in batches)
    tokens = sum((batch.segments != PADDING).sum() for batch in batches)
    assert tokens == samples.tokens.sum()
    labels = {
        int(n): int(label) for batch in batches for n, label in zip(batch.task.number, batch.task.labels, strict=True)
    }
    assert all(labels[int(n)] == data.tasks[0].labels[n] for n in samples.sequence)


def test_what_was_read_is_counted():
    data = data_of([50])
    seen = data.consumed(75)["task0"]
    tokens = data.order.take(0, 75).tokens.sum()
    assert (seen["tokens"], seen["sequences"], seen["epochs"]) == (tokens, 75, 1.5)
    assert seen["requested_tokens"] == pytest.approx(tokens)
    later = data.read_since(50).consumed(75)["task0"]
    assert later["sequences"] == 25
    assert data.epoch_inputs == 50
    ((event, fields),) = data.notices()
    assert event == "task"
    assert fields["message"].startswith("task0: 50 examples, 50 inputs of ")


@pytest.mark.parametrize("world", [1, 2])
def test_all_of_a_split_is_held_out(world):
    data = data_of([50])
    held_out = HeldOut(data.tasks, (None,), 128)
    shares = [list(held_out.batches(8, rank, world)) for rank in range(world)]
    numbers = [n for share in shares for batch in share for n in batch.task.number]
    assert sorted(numbers) == list(range(50))
    assert len({len(share) for share in shares}) == 1
    assert [source.name for source in held_out.sources] == ["task0"]
    assert all((batch.targets == IGNORED).all() for share in shares for batch in share)
