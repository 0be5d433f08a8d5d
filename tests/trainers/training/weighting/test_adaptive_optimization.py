"""ADO against a second implementation of the paper (Jiang et al., 2024), resuming, skipped steps, and a
domain of noise.
"""

import json
import math
import shutil
from dataclasses import replace

import numpy as np
import pytest
import yaml

from gristmill.errors import UserError
from gristmill.events import read_events
from gristmill.storage.disk import LocalPath
from tests.trainers.studies.planted_corpus import build_planted
from tests.trainers.training.weighting.test_group_dro import train, trains, weights_in
from trainers.config.job import BatchSize, TrainingBudget
from trainers.config.loss_weighting import ADO
from trainers.data.packed_corpus import open_corpus
from trainers.engine.engine import Totals
from trainers.recipes import llama_tiny
from trainers.training.weighting.adaptive_optimization import ADOState, ADOWeights, fit_power_law

LAWS = [(1.5, 20.0, 0.3), (0.2, 3.0, 0.05), (2.0, 300.0, 0.6)]
"""Floor, coefficient and exponent of three domains."""


@pytest.mark.parametrize(("floor", "coefficient", "exponent"), LAWS)
def test_a_law_without_noise_is_found(floor, coefficient, exponent):
    amounts = np.geomspace(1e3, 1e6, 60)
    found = fit_power_law(amounts, floor + coefficient * amounts**-exponent)
    assert found == pytest.approx((coefficient, exponent), rel=0.02)


def test_points_without_a_loss_are_left_out_and_few_points_have_no_law():
    amounts = np.geomspace(1e3, 1e6, 60)
    losses = 1 + 9 * amounts**-0.25
    losses[::3] = 0
    assert fit_power_law(amounts, losses) == pytest.approx((9, 0.25), rel=0.02)
    assert fit_power_law(amounts[:7], losses[:7]) == (0, 0)  # four points


def test_a_rising_loss_has_no_speed():
    amounts = np.arange(1.0, 50)
    assert fit_power_law(amounts, 2 + 0.01 * amounts)[0] == 0


def second_reading(steps, warmup, share, settings):
    """Return the weights after each step for domains that follow LAWS, with 1,000 targets per step."""
    k = len(share)
    credit, average, seen, policy = list(share), list(share), [0.0] * k, list(share)
    result = []
    for step in range(1, steps + 1):
        seen = [seen[i] + 1000 * (policy[i] if step > warmup else share[i]) for i in range(k)]
        if step >= warmup:
            speeds = [b * a * seen[i] ** (-a - 1) for i, (_, b, a) in enumerate(LAWS)]
            wanted = [share[i] * credit[i] ** settings.credit_exponent * speeds[i] for i in range(k)]
            policy = [
                settings.policy_rate * wanted[i] / sum(wanted) + (1 - settings.policy_rate) * average[i]
                for i in range(k)
            ]
            policy = [(1 - settings.smoothing) * each + settings.smoothing / k for each in policy]
            credit = [settings.credit_rate * policy[i] + (1 - settings.credit_rate) * credit[i] for i in range(k)]
            t = step - warmup + 1
            average = [policy[i] / (t + 1) + (1 - 1 / (t + 1)) * average[i] for i in range(k)]
        result.append(policy)
    return result


@pytest.mark.long
def test_the_weights_are_those_of_the_paper():
    settings, warmup, share = ADO(credit_rate=0.2, policy_rate=0.3), 200, np.array([0.5, 0.3, 0.2])
    state, targets, found = ADOState.initial(3), 1000 * share, []
    for _ in range(600):
        middle = state.effective + state.factors(targets, warmup) * targets / 2
        losses = [floor + b * n**-a for (floor, b, a), n in zip(LAWS, middle, strict=True)]
        state = state.update(losses * targets, targets, settings, warmup)
        found.append(state.weights)
    expected = second_reading(600, warmup, share.tolist(), settings)
    assert np.abs(np.diff(expected[-300:], axis=0)).max() > 0  # they move
    np.testing.assert_allclose(found, expected, rtol=0.03)
    np.testing.assert_allclose(np.sum(found, axis=1), 1)
    assert np.max(np.abs(np.subtract(found[-1], share))) > 0.05
    np.testing.assert_allclose(state.summed, np.sum(found, axis=0))


def test_the_warm_up_changes_no_loss_and_later_factors_are_weight_by_share_read():
    weights = ADOWeights(ADO(warmup_fraction=0.5), ["a", "b"], 40)
    counts = np.array([[30.0, 10.0], [3.0, 1.0]])
    np.testing.assert_allclose(weights.begin([])(counts), [[1 / 40, 1 / 40], [1 / 4, 1 / 4]])
    for step in range(39):
        sums = np.array([[[30 * (5 - step * 0.1), 10 * 5.0], [30.0, 10.0]]])
        weights.end(Totals(sums, 1.0, 0), 1.0)
    assert weights.now.weights[0] > 0.76  # its loss falls, that of b does not
    factors = weights.now.weights / [0.75, 0.25]
    np.testing.assert_allclose(weights.begin([])(counts), [factors / 40, factors / 4])


@pytest.mark.long
def test_a_skipped_step_changes_nothing_and_a_state_is_exact_in_json():
    weights = ADOWeights(ADO(), ["a", "b", "c"], 60)
    rng = np.random.default_rng(0)

    def step(its, loss=1.0):
        targets = rng.integers(0, 3, 3) * 10.0
        its.end(Totals(np.stack((targets * rng.uniform(2, 5, 3), targets))[None], loss, 0), 1.0)

    for _ in range(30):
        step(weights)
    before = weights.state()
    step(weights, math.nan)
    assert weights.state() == before
    again = ADOWeights(ADO(), ["a", "b", "c"], 60)
    again.resume(json.loads(json.dumps(before)))
    for its in (weights, again):
        rng = np.random.default_rng(1)
        for _ in range(20):
            step(its)
    assert again.state() == weights.state()
    with pytest.raises(UserError, match="domains a, b, c, the run reads a, b; begin another run"):
        ADOWeights(ADO(), ["a", "b"], 60).resume(before)
    del before["curve"]
    with pytest.raises(UserError, match="by another method"):
        again.resume(before)


def test_a_state_without_a_point_of_the_curves_is_resumed():
    def trained(steps, resumed_at):
        weights, rng = ADOWeights(ADO(warmup_fraction=0.5), ["a", "b"], 20), np.random.default_rng(0)
        for step in range(steps):
            if step == resumed_at:
                state = json.loads(json.dumps(weights.state()))
                weights = ADOWeights(ADO(warmup_fraction=0.5), ["a", "b"], 20)
                weights.resume(state)
            weights.end(Totals(np.array([[rng.uniform(20, 60, 2), [10.0, 10.0]]]), 1.0, 0), 1.0)
        return weights.state()

    assert not trained(3, None)["curve"]
    assert trained(20, 3) == trained(20, None)


@pytest.mark.parametrize("steps", [1, 2, 3, 20, 21, 40, 41, 100])
def test_weights_sum_to_1_in_runs_of_any_length(steps):
    weights = ADOWeights(ADO(), ["a", "b"], steps)
    for _ in range(steps):
        weights.end(Totals(np.array([[[30.0, 50.0], [10.0, 10.0]]]), 1.0, 0), 1.0)
        assert weights.now.weights.sum() == pytest.approx(1)


@pytest.mark.parametrize(
    ("field", "value"), [("credit_exponent", -1), ("policy_rate", 1.5), ("smoothing", 2), ("warmup_fraction", 0)]
)
def test_settings_out_of_range_are_errors(field, value):
    with pytest.raises(ValueError, match=f"{field}: got {value}, allowed"):
        replace(ADO(), **{field: value}).check()


class TestARun:
    pytestmark = trains

    def test_noise_loses_weight_and_a_run_resumes_exactly(self, tmp_path):
        from trainers.training.loop import train as go_on

        corpus = open_corpus((str(build_planted(LocalPath(tmp_path / "corpus"))),), None)
        path = LocalPath(tmp_path / "run")
        config = train(
            corpus,
            path,
            batch=BatchSize(sequences=12),
            budget=TrainingBudget(steps=60),
            optimizer=replace(llama_tiny().optimizer, learning_rate=5e-3),
            execution=replace(llama_tiny().execution, micro_batch=12),
            online_weights=ADO(warmup_fraction=0.2),
        )
        log = weights_in(path)
        assert log[60]["garbage"] < log[5]["garbage"]
        mean = yaml.safe_load((path / "domain_weights.yaml").read_text())["weights"]
        assert sum(mean.values()) == pytest.approx(1)
        shutil.copytree(path, tmp_path / "again")
        again = LocalPath(tmp_path / "again")
        last = sorted((again / "checkpoints").iterdir())[-1]
        (last / "model.safetensors").write_bytes(b"")
        for name in ("log.jsonl", "finished.json", "domain_weights.yaml"):
            (again / name).unlink()
        go_on(config, corpus, again, None)
        assert (again / "domain_weights.yaml").read_text() == (path / "domain_weights.yaml").read_text()
        assert len(list(read_events(again / "log.jsonl", "step"))) < 60
