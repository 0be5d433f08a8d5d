"""Training on one worker without DeepSpeed against training under ZeRO: the losses, norms and state are
equal, and either resumes from the other. Averaged SGD is compared with torch's.
"""

import numpy as np
import pytest
import torch

from tokenizer.vocabulary.specials import SPECIAL_IDS
from trainers.config.architecture import Model
from trainers.config.job import BatchSize, Execution, Optimizer, TrainingBudget
from trainers.config.pretraining import Data, Pretraining
from trainers.engine import engine as module
from trainers.engine.engine import Engine, start_group
from trainers.engine.forward import forward_of, tensors
from trainers.engine.optimizers import parameter_groups
from trainers.models import build_model
from trainers.rows.batch import Batch

LENGTH, STEPS, RATE = 16, 6, 3e-3
ASGD = Optimizer(kind="asgd", gradient_clipping=0.5, learning_rate=3.0, weight_decay=0.01)
MODEL = Model("gpt2", layers=2, width=32, heads=2, positions=LENGTH, vocab_size=160)


def configuration(precision, stage=2, optimizer=None):
    return Pretraining(
        name="x",
        model=MODEL,
        batch=BatchSize(sequences=6), budget=TrainingBudget(steps=STEPS), precision=precision, data=Data(sequence_length=LENGTH),
        optimizer=optimizer or Optimizer(gradient_clipping=0.5, learning_rate=RATE), execution=Execution(zero_stage=stage),
    )  # fmt: skip


def batches(step, parts):
    ids = np.random.default_rng(step).zipf(1.3, (6, LENGTH + 1)) % 128 + 20
    for rows in np.split(ids, parts):
        positions, zeros = np.tile(np.arange(LENGTH), (len(rows), 1)), np.zeros(len(rows), np.int64)
        sides = (np.ascontiguousarray(rows[:, :-1]), np.ascontiguousarray(rows[:, 1:]))
        yield Batch(*sides, positions, np.zeros_like(positions), zeros, zeros, zeros, zeros)


@pytest.fixture
def make(monkeypatch):
    engines = []

    def make(zero, precision, parts, stage=2, optimizer=None):
        monkeypatch.setattr(module, "_needs_deepspeed", lambda config: zero)
        config = configuration(precision, stage, optimizer)
        engine = Engine(forward_of(build_model(MODEL, SPECIAL_IDS, 0), config), config, 6 // parts, parts)
        engines.append(engine)
        return engine

    yield make
    for engine in engines:
        engine.close()


def train(engine, steps, parts):
    rate = engine._config.optimizer.learning_rate
    made = [engine.train_step(list(batches(step, parts)), step, rate, 1, False) for step in steps]
    return np.array([(totals.loss, norm) for totals, norm in made])


def copied(engine):
    return {name: {key: each.clone() for key, each in tensors.items()} for name, tensors in engine.state()}


@pytest.mark.deepspeed
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(
    ("precision", "stage", "parts"), [("fp32", 2, 1), ("fp32", 0, 3), ("bf16", 2, 2), ("bf16", 3, 1)]
)
def test_a_single_worker_trains_as_under_zero_and_resumes_either_way(alone, make, precision, stage, parts):
    near = 2e-6 if precision == "fp32" else 2e-3  # a weight in bf16 may round the other way
    single = make(False, precision, parts)
    begun = train(single, range(3), parts)
    state = copied(single)
    whole = np.concatenate([begun, train(single, range(3, STEPS), parts)])

    zero = make(True, precision, parts, stage)
    assert (single.zero_stage, zero.zero_stage) == (0, stage)
    assert train(zero, range(3), parts) == pytest.approx(begun, rel=near)
    theirs = copied(zero)
    for key in ("weight", "exp_avg", "exp_avg_sq"):
        ours, others = (torch.cat([each[key].flatten() for each in its.values()]) for its in (state, theirs))
        assert float((ours - others).norm()) <= 10 * near * float(ours.norm()), key

    zero.restore(state, 3)
    assert train(zero, range(3, STEPS), parts) == pytest.approx(whole[3:], rel=near)
    single.restore(theirs, 3)
    assert train(single, range(3, STEPS), parts) == pytest.approx(whole[3:], rel=near)


@pytest.mark.deepspeed
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(
    ("precision", "stage", "parts"), [("fp32", 0, 3), ("fp32", 1, 1), ("bf16", 2, 2), ("fp32", 3, 1)]
)
def test_averages_are_those_of_zero_and_take_the_place_of_the_weights_for_a_while(alone, make, precision, stage, parts):
    near = 2e-6 if precision == "fp32" else 2e-3
    engines = [make(of_zero, precision, parts, stage, ASGD) for of_zero in (False, True)]
    states, measured = [], []
    for engine in engines:
        train(engine, range(2), parts)
        engine.begin_averaging()
        train(engine, range(2, 5), parts)
        states.append(copied(engine))
        with engine.averaged_weights():
            swapped, inside = copied(engine), engine.evaluate(batches(9, 1), 1).loss
        measured.append((inside, engine.evaluate(batches(9, 1), 1).loss))
        for name, found in copied(engine).items():
            for key, other in (("weight", "iterate"), ("iterate", "weight")):
                assert torch.equal(found[key], states[-1][name][key]), "the weights are not back"
                assert torch.equal(found[key], swapped[name][other]), "not the averages"
    assert abs(measured[0][0] - measured[0][1]) > 1e-3
    assert measured[1] == pytest.approx(measured[0], rel=10 * near)
    for engine, other in zip(engines, reversed(states), strict=True):
        engine.restore(other, 5)
        engine.begin_averaging(3)
        train(engine, range(5, STEPS), parts)
    single, zero = map(copied, engines)
    for name, its in single.items():
        for key, tensor in its.items():
            torch.testing.assert_close(zero[name][key], tensor, rtol=10 * near, atol=10 * near)


def test_weights_and_averages_are_those_of_the_authors_code(make):
    """Follows main.py of salesforce/awd-lstm-lm: clip the gradients, step torch.optim.SGD, and replace it
    with a new torch.optim.ASGD once averaging is triggered.
    """
    engine, trigger, steps = make(False, "fp32", 2, optimizer=ASGD), 4, 11
    network = build_model(MODEL, SPECIAL_IDS, 0)
    forward = forward_of(network, engine._config).train()
    groups = [
        {key: group[key] for key in ("params", "lr", "weight_decay")} for group in parameter_groups(network, ASGD)
    ]
    theirs = torch.optim.SGD(groups)
    for step in range(steps):
        if step == trigger:
            engine.begin_averaging()
            theirs = torch.optim.ASGD(groups, t0=0, lambd=0.0)
        train(engine, [step], 2)
        (batch,) = batches(step, 1)
        theirs.zero_grad()
        forward(**tensors(batch, "cpu"))["loss"].sum().div(6 * LENGTH).backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), ASGD.gradient_clipping)
        theirs.step()
        of_engine, near = copied(engine), {"rtol": 1e-5, "atol": 1e-6}
        for name, parameter in network.named_parameters():
            average = theirs.state[parameter]["ax"] if step >= trigger else parameter
            torch.testing.assert_close(of_engine[name]["iterate"], parameter.detach(), **near)
            torch.testing.assert_close(of_engine[name]["weight"], average.detach(), **near)
    assert engine.averaged == steps - trigger


@pytest.mark.long
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_resuming_is_exact_and_micro_batches_change_rounding_only(make, precision):
    engine = make(False, precision, 1)
    begun = train(engine, range(3), 1)
    state = copied(engine)
    whole = np.concatenate([begun, train(engine, range(3, STEPS), 1)])
    again = make(False, precision, 1)
    again.restore(state, 3)
    assert (train(again, range(3, STEPS), 1) == whole[3:]).all()
    split = make(False, precision, 6)
    assert train(split, range(STEPS), 6) == pytest.approx(whole, rel=1e-5 if precision == "fp32" else 3e-2)


@pytest.mark.parametrize(("precision", "optimizer"), [("fp32", None), ("bf16", None), ("fp32", ASGD)])
def test_a_step_that_is_not_finite_changes_nothing(make, monkeypatch, precision, optimizer):
    engine = make(False, precision, 2, optimizer=optimizer)
    train(engine, [0], 2)
    if optimizer:
        engine.begin_averaging()
    train(engine, [1], 2)
    before, weights = copied(engine), [each.clone() for each in engine._model.parameters()]
    nats = Engine._nats
    monkeypatch.setattr(Engine, "_nats", lambda *given, **named: {"loss": nats(*given, **named)["loss"] * float("nan")})
    totals, norm = engine.train_step(list(batches(2, 2)), 2, RATE, 1, False)
    assert not np.isfinite(totals.loss)
    assert not np.isfinite(norm)
    assert engine.averaged == (1 if optimizer else None)
    monkeypatch.undo()
    after = copied(engine)
    assert all(torch.equal(before[name][key], after[name][key]) for name in before for key in before[name])
    assert all(torch.equal(old, new) for old, new in zip(weights, engine._model.parameters(), strict=True))
    ((loss, norm),) = train(engine, [3], 2)
    assert np.isfinite([loss, norm]).all()


def test_a_single_worker_joins_no_group(monkeypatch):
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: False)
    monkeypatch.setattr(module, "join_group", lambda: pytest.fail("joined"))
    assert start_group() == (0, 1)


def test_a_step_can_be_repeated_if_what_comes_before_it_fails(make):
    engine = make(False, "fp32", 1)
    train(engine, [0], 1)
    assert not engine.discard()  # the weights have changed

    def reference(**arrays):
        raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError):
        engine.excess(list(batches(1, 1)), reference, 1)
    assert engine.discard()
