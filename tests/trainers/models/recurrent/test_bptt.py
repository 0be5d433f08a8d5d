"""Truncated back-propagation through time against a plain loop over torch's LSTM: document borders, divisions
of a step, resuming, non-finite updates, and configurations that are refused.
"""

import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from tokenizer.vocabulary.specials import SPECIAL_IDS
from trainers.config.architecture import Model
from trainers.config.job import BatchSize, Optimizer, TrainingBudget
from trainers.config.pretraining import Data, LengthPhase, Pretraining
from trainers.engine import engine as module
from trainers.engine.engine import Engine
from trainers.engine.forward import forward_of
from trainers.models import build_model
from trainers.objectives.bidirectional_lm import BidirectionalLM
from trainers.objectives.prefix_lm import PrefixLM
from trainers.rows.batch import IGNORED, PADDING, Batch

LENGTH, WINDOW, ROWS, STEPS, RATE = 24, 6, 4, 3, 1e-2
MODEL = Model("awd_lstm", layers=2, width=12, heads=1, positions=LENGTH, feed_forward=20, vocab_size=160)
DROPS = {"dropout": 0.2, "input_dropout": 0.2, "hidden_dropout": 0.2, "embedding_dropout": 0.1, "weight_dropout": 0.3}


def configuration(bptt=WINDOW, precision="fp32", isolation=True, **rates):
    return Pretraining(
        name="x",
        model=replace(MODEL, **rates),
        batch=BatchSize(sequences=ROWS), budget=TrainingBudget(steps=STEPS), precision=precision,
        data=Data(sequence_length=LENGTH, bptt=bptt, isolation=isolation),
        optimizer=Optimizer(gradient_clipping=0.5, learning_rate=RATE, weight_decay=0.1),
    )  # fmt: skip


def batches(step, parts=1):
    """Return `parts` micro-batches whose rows have document borders at different columns. The second half of
    the last row is padding.
    """
    generator = np.random.default_rng(step)
    ids = generator.integers(20, 160, (ROWS, LENGTH + 1))
    inputs, targets = ids[:, :-1].copy(), ids[:, 1:].copy()
    positions, segments = np.zeros_like(inputs), np.zeros_like(inputs)
    for row in range(ROWS):
        borders = sorted(generator.choice(np.arange(1, LENGTH), row, replace=False))  # none in the first row
        for number, (first, last) in enumerate(zip([0, *borders], [*borders, LENGTH], strict=True)):
            positions[row, first:last], segments[row, first:last] = np.arange(last - first), number
    half = np.s_[-1, LENGTH // 2 :]
    inputs[half], targets[half], positions[half], segments[half] = 0, IGNORED, 0, PADDING
    zeros = np.zeros(ROWS // parts, np.int64)
    split = (np.split(each, parts) for each in (inputs, targets, positions, segments))
    return [Batch(*rows, zeros, zeros, zeros, zeros) for rows in zip(*split, strict=True)]


@pytest.fixture
def make(monkeypatch):
    engines = []

    def make(config, parts=1, zero=None):
        monkeypatch.setattr(module, "_needs_deepspeed", lambda config: zero is not None)
        config = replace(config, execution=replace(config.execution, zero_stage=2 if zero is None else zero))
        engine = Engine(forward_of(build_model(config.model, SPECIAL_IDS, 0), config), config, ROWS // parts, parts)
        engines.append(engine)
        return engine

    yield make
    for engine in engines:
        engine.close()


def train(engine, steps=range(STEPS), parts=1):
    made = [engine.train_step(batches(step, parts), step, RATE, 1, False) for step in steps]
    return np.array([(totals.loss, norm) for totals, norm in made])


def copied(engine):
    return {name: {key: each.clone() for key, each in tensors.items()} for name, tensors in engine.state()}


def same(one, other, near):
    for name, tensors in one.items():
        for key, its in tensors.items():
            torch.testing.assert_close(its, other[name][key], atol=near, rtol=0, msg=f"{name} {key}")


class PlainLoop:
    """A simple implementation: it runs torch's LSTM token by token and layer by layer, so that a document can
    start at any column.
    """

    def __init__(self, config):
        network = build_model(config.model, SPECIAL_IDS, 0)
        self.embed, self.output, self.lstms = network.lstm.embed, network.lm_head, []
        for layer in network.lstm.layers:
            lstm = torch.nn.LSTM(layer.input_weight.shape[1], layer.recurrent_weight.shape[1], batch_first=True)
            ours = (layer.input_weight, layer.recurrent_weight, layer.input_bias, layer.recurrent_bias)
            for name, parameter in zip([name for name, _ in lstm.named_parameters()], ours, strict=True):
                setattr(lstm, name, parameter)
            self.lstms.append(lstm)
        self.named = dict(network.named_parameters())
        decayed = [each for each in self.named.values() if each.ndim > 1 and each is not self.embed.weight]
        others = [each for each in self.named.values() if all(each is not its for its in decayed)]
        groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
        optimizer = config.optimizer
        self.optimizer = torch.optim.AdamW(groups, lr=RATE, betas=optimizer.betas, eps=optimizer.epsilon)

    def step(self, batch, isolation=True):
        nats, count = 0.0, 0
        state = [[torch.zeros(1, ROWS, lstm.hidden_size) for _ in range(2)] for lstm in self.lstms]
        inputs, targets, positions = map(torch.from_numpy, (batch.inputs, batch.targets, batch.positions))
        for first in range(0, LENGTH, WINDOW):
            state = [[each.detach() for each in its] for its in state]
            total, its_targets = 0.0, (targets[:, first : first + WINDOW] != IGNORED).sum()
            for column in range(first, first + WINDOW):
                here = self.embed(inputs[:, column : column + 1])
                goes_on = (positions[:, column] > 0).float()[None, :, None] if isolation else 1.0
                for number, lstm in enumerate(self.lstms):
                    here, state[number] = lstm(here, tuple(each * goes_on for each in state[number]))
                logits = self.output(here[:, 0])
                total = total + cross_entropy(logits, targets[:, column], ignore_index=IGNORED, reduction="sum")
            self.optimizer.zero_grad()
            (total / its_targets).backward()
            torch.nn.utils.clip_grad_norm_(self.named.values(), 0.5)
            self.optimizer.step()
            nats, count = nats + total.item(), count + int(its_targets)
        return nats / count


@pytest.mark.parametrize("isolation", [True, False])
def test_weights_are_those_of_a_plain_loop(make, isolation):
    """Without isolation, the state also carries over from document to document, as in the code of AWD-LSTM's
    authors.
    """
    config = configuration(isolation=isolation)
    engine, loop = make(config), PlainLoop(config)
    expected = [loop.step(*batches(step), isolation) for step in range(STEPS)]
    assert train(engine)[:, 0] == pytest.approx(expected, abs=1e-5)
    assert engine.updates == STEPS * LENGTH // WINDOW
    trained = dict(engine._model.named_parameters())
    for name, parameter in loop.named.items():
        torch.testing.assert_close(trained[name], parameter, atol=2e-5, rtol=0, msg=name)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_window_of_the_whole_row_is_training_without_windows(make, precision):
    whole, windowed = (make(configuration(bptt, precision, **DROPS)) for bptt in (None, LENGTH))
    assert (train(whole) == train(windowed)).all()
    assert whole.updates == windowed.updates == STEPS
    same(copied(whole), copied(windowed), 0)


def test_losses_are_those_of_the_row_if_the_weights_hardly_change_and_not_those_of_its_parts(make):
    whole, carried, short = (
        make(replace(configuration(bptt), optimizer=Optimizer(learning_rate=1e-12, weight_decay=0.0)))
        for bptt in (None, WINDOW, None)
    )
    losses = [engine.train_step(batches(0), 0, 1e-12, 1, False)[0].loss for engine in (whole, carried)]
    assert losses[1] == pytest.approx(losses[0], abs=1e-6)
    names = ("inputs", "targets", "positions", "segments")
    (batch,) = batches(0)
    rows = {name: np.concatenate(np.split(getattr(batch, name), LENGTH // WINDOW, axis=1)) for name in names}
    zeros = np.zeros(ROWS * LENGTH // WINDOW, np.int64)
    batch = replace(batch, **rows, source=zeros, sequence=zeros, sample=zeros, epoch=zeros)
    assert short.train_step([batch], 0, 1e-12, 1, False)[0].loss != pytest.approx(losses[0], abs=1e-4)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_micro_batches_change_rounding_only(make, precision):
    whole, split = make(configuration(precision=precision)), make(configuration(precision=precision), ROWS)
    assert train(split, parts=ROWS) == pytest.approx(train(whole), rel=1e-5 if precision == "fp32" else 3e-2)
    if precision == "fp32":
        same(copied(whole), copied(split), 1e-5)


def test_micro_batches_without_the_last_columns_change_nothing(make):
    """The loader drops trailing columns that are padding in every row of a micro-batch, so micro-batches can
    have different widths.
    """
    whole, cut = make(configuration(), ROWS), make(configuration(), ROWS)
    expected = train(whole, parts=ROWS)
    for step in range(STEPS):
        *others, last = batches(step, ROWS)
        names = ("inputs", "targets", "positions", "segments")
        last = replace(last, **{name: getattr(last, name)[:, : LENGTH // 2] for name in names})
        totals, norm = cut.train_step([*others, last], step, RATE, 1, False)
        assert (totals.loss, norm) == pytest.approx(expected[step], abs=1e-6)
    same(copied(whole), copied(cut), 1e-6)


@pytest.mark.parametrize("border", [8, 2 * WINDOW])
def test_what_a_document_holds_changes_nothing_after_it(make, border):
    """The second document starts either within a window or at the start of one."""
    (batch,) = batches(0)
    positions = np.tile(np.concatenate([np.arange(border), np.arange(LENGTH - border)]), (ROWS, 1))
    batch = replace(
        batch, positions=positions, segments=np.tile(np.repeat([0, 1], [border, LENGTH - border]), (ROWS, 1))
    )
    targets = np.where(np.arange(LENGTH) < border, IGNORED, batch.targets)
    batch, found = replace(batch, targets=targets), []
    for change in (0, 1):
        inputs = batch.inputs.copy()
        inputs[:, :border] = (inputs[:, :border] + change) % 160
        engine = make(configuration())
        found.append(engine.train_step([replace(batch, inputs=inputs)], 0, RATE, 1, False)[0].loss)
    assert found[0] == found[1]
    assert found[0] != make(configuration(isolation=False)).train_step([batch], 0, RATE, 1, False)[0].loss


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_resuming_is_exact_with_dropout(make, precision):
    config = configuration(precision=precision, **DROPS)
    engine = make(config, 2)
    train(engine, range(2), 2)
    state, updates = copied(engine), engine.updates
    expected = train(engine, range(2, 5), 2)
    again = make(config, 2)
    again.restore(state, updates)
    assert updates == 2 * LENGTH // WINDOW
    assert (train(again, range(2, 5), 2) == expected).all()


def test_dropout_differs_from_window_to_window(make, monkeypatch):
    seeds = []
    monkeypatch.setattr(Engine, "_seed", lambda self, seed: seeds.append(seed))
    train(make(configuration(), 2), [0, 1], 2)
    assert len(set(seeds)) == len(seeds) == 2 * 2 * LENGTH // WINDOW


@pytest.mark.parametrize("wrong", ["loss", "gradient"])
def test_a_step_ends_at_a_window_that_is_not_finite(make, monkeypatch, wrong):
    """The updates before that window are kept, and later updates continue their count."""
    engine, nats, calls = make(configuration()), Engine._nats, []
    other = make(configuration())
    first_two = [replace(b, **{k: getattr(b, k)[:, : 2 * WINDOW] for k in ("inputs", "targets", "positions", "segments")})
                 for b in batches(0)]  # fmt: skip
    other.train_step(first_two, 0, RATE, 1, False)

    def broken(*given, **named):
        its = nats(*given, **named)["loss"]
        calls.append(its)
        if len(calls) == 3:
            its = its * float("nan") if wrong == "loss" else its + torch.sqrt(its * 0)
        return {"loss": its}

    monkeypatch.setattr(Engine, "_nats", broken)
    totals, norm = engine.train_step(batches(0), 0, RATE, 1, False)
    monkeypatch.undo()
    assert np.isfinite(totals.loss) == (wrong == "gradient")
    assert not np.isfinite(norm)
    assert (totals.updates, engine.updates, len(calls)) == (2, 2, 3)
    same(copied(engine), copied(other), 0)
    assert (train(engine, [1, 2]) == train(other, [1, 2])).all()


def test_counts_are_those_of_the_row(make):
    whole, windowed = (make(configuration(bptt)).train_step(batches(0), 0, RATE, 1, True)[0] for bptt in (None, WINDOW))
    for name in ("targets", "read", "decoded", "stops"):
        assert getattr(whole, name) == getattr(windowed, name), name
    assert (whole.updates, windowed.updates) == (1, LENGTH // WINDOW)


def test_weights_of_sources_are_those_of_a_windows_targets(make):
    counted = []

    def scale(counts):
        counted.append(int(counts.sum()))
        return 1 / counts

    plain, scaled = make(configuration()), make(configuration())
    expected = plain.train_step(batches(0), 0, RATE, 1, False)
    found = scaled.train_step(batches(0), 0, RATE, 1, False, scale)
    assert (found[0].loss, found[1]) == pytest.approx((expected[0].loss, expected[1]), rel=1e-6)
    assert counted == [
        int((batches(0)[0].targets[:, k : k + WINDOW] != IGNORED).sum()) for k in range(0, LENGTH, WINDOW)
    ]
    assert len(set(counted)) > 1


def test_the_norm_is_the_largest_of_the_windows(make, monkeypatch):
    engine, norms = make(configuration()), []
    update = engine._workers.update
    monkeypatch.setattr(engine._workers, "update", lambda: norms.append(update()) or norms[-1])
    assert train(engine, [0])[0, 1] == max(norms)
    assert len(set(norms)) == LENGTH // WINDOW


def test_a_step_that_has_changed_weights_is_not_repeated(make, monkeypatch):
    engine, nats, calls = make(configuration()), Engine._nats, []

    def fails(*given, at, **named):
        calls.append(at)
        if len(calls) == at:
            raise RuntimeError("out of memory")
        return nats(*given, **named)

    for at, repeatable in ((1, True), (2, False)):
        calls.clear()
        monkeypatch.setattr(Engine, "_nats", lambda *given, at=at, **named: fails(*given, at=at, **named))
        with pytest.raises(RuntimeError):
            train(engine, [0])
        assert engine.discard() == repeatable


@pytest.mark.deepspeed
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(
    ("precision", "stage", "parts"), [("fp32", 0, 2), ("fp32", 1, 1), ("fp32", 3, 2), ("bf16", 2, 2), ("bf16", 3, 1)]
)
def test_zero_trains_as_torch_alone(alone, make, precision, stage, parts):
    near = 2e-5 if precision == "fp32" else 1e-2
    config = configuration(precision=precision)
    single, zero = make(config, parts), make(config, parts, stage)
    assert train(zero, parts=parts) == pytest.approx(train(single, parts=parts), rel=near)
    assert zero.updates == single.updates


@pytest.mark.parametrize(
    ("bptt", "phases", "lengths"), [(7, (), "24"), (48, (), "24"), (0, (), "24"), (8, (LengthPhase(2, 12),), "24, 12")]
)
def test_windows_divide_every_row(bptt, phases, lengths):
    with pytest.raises(
        ValueError, match=rf"bptt: got {bptt}, allowed null and divisors of the length of a row \({lengths}\)"
    ):
        Data(sequence_length=LENGTH, bptt=bptt, phases=phases).check()
    Data(sequence_length=LENGTH, bptt=12, phases=phases).check()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"data": Data(sequence_length=24, bptt=6, packing="best_fit")},
            "data.packing best_fit; allowed with concatenate",
        ),
        ({"objective": PrefixLM()}, "objective prefix_lm; allowed with causal"),
        (
            {"model": Model("llama", layers=1, width=16, heads=2, positions=24)},
            "model.architecture llama; allowed with awd_lstm and xlnet",
        ),
        (
            {"model": Model("elmo", layers=1, width=16, heads=1, positions=24), "objective": BidirectionalLM()},
            "model.architecture elmo; allowed with awd_lstm and xlnet",
        ),
    ],
)
def test_what_carries_no_state_is_refused(changes, message):
    with pytest.raises(ValueError, match=f"^{re.escape(f'data.bptt: got 6 with {message}, otherwise null')}$"):
        replace(configuration(), **changes).check()
