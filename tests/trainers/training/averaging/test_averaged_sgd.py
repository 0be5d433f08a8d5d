"""Runs with averaged SGD: when averaging begins, what is measured and exported, resuming, and configurations
that are refused.
"""

import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch

from gristmill.errors import ConfigError
from gristmill.events import read_events
from tests.trainers.launching import only_training
from trainers.config.finetuning import Finetuning
from trainers.config.job import BatchSize, Checkpoints, Init, Optimizer, Schedule, TrainingBudget
from trainers.config.pretraining import Validation
from trainers.data.packed_corpus import open_corpus
from trainers.evaluation.evaluate import evaluate
from trainers.inference.model_export import load_trained
from trainers.recipes import RECIPES
from trainers.runs import checkpoint
from trainers.runs.resolve import resolve
from trainers.runs.run import open_run
from trainers.tasks.load_task import load_task
from trainers.training.averaging_trigger import is_non_monotone
from trainers.training.loop import train

STEPS, INTERVAL = 10, 1


def config(corpus, **changes):
    recipe = RECIPES["tiny_awd_lstm"]()
    optimizer = {"learning_rate": 30.0, "weight_decay": 1.2e-6, "gradient_clipping": 0.25, "decay_embeddings": True}
    settings = {
        "model": replace(recipe.model, width=16, feed_forward=16),
        "data": replace(recipe.data, sequence_length=32),
        "batch": BatchSize(sequences=2),
        "budget": TrainingBudget(steps=STEPS),
        "optimizer": Optimizer(kind="asgd", non_monotone_interval=INTERVAL, **optimizer),
        "schedule": Schedule(kind="constant"),
        "validation": Validation(every=1, tokens=256, documents=False),
        "checkpoints": Checkpoints(every=1, keep=STEPS),
        "log_every": 1,
    }
    return resolve(replace(recipe, **{**settings, **changes}), corpus)


@pytest.fixture(scope="module")
def corpus(corpus_directory):
    return open_corpus((str(corpus_directory),), None)


@pytest.fixture(scope="module")
def run(corpus, tmp_path_factory):
    path = tmp_path_factory.mktemp("averaged") / "run"
    job = config(corpus)
    open_run(path, job, corpus)
    train(job, corpus, path, None)
    return path


def algorithm_1(losses, interval):
    """Return the number of the validation, counted from 1, at which averaging begins, or None. Implements
    lines 4 to 12 of algorithm 1 of Merity et al. (2017).
    """
    logs, t, trigger = [], 0, None
    for k, v in enumerate(losses, 1):
        if trigger is None:
            if t > interval and v > min(logs[i] for i in range(t - interval)):
                trigger = k
            logs.append(v)
            t += 1
    return trigger


def validations(path):
    return [event["loss"] for event in read_events(path / "log.jsonl", "validation")]


def state(path, step):
    found = checkpoint.newest(path, pytest.fail, step)
    assert found.step == step
    return {name: dict(tensors) for name, tensors in checkpoint.read_state(found).items()}


def trigger(path):
    (event,) = read_events(path / "log.jsonl", "averaging")
    return event["step"]


@pytest.mark.parametrize("interval", [1, 2, 5])
def test_the_criterion_is_that_of_the_paper(interval):
    begun = set()
    for seed in range(200):
        losses = np.random.default_rng([interval, seed]).normal(size=12) - np.arange(12) / 2
        first = next((k for k in range(12) if is_non_monotone(losses[:k], losses[k], interval)), None)
        assert (None if first is None else first + 1) == algorithm_1(losses, interval)
        begun.add(first)
    assert len(begun) > 4
    assert not is_non_monotone([1.0] * 9, 1.0, interval)


@pytest.mark.long
def test_averaging_begins_where_the_paper_has_it_and_the_average_is_the_model(run, corpus):
    began = trigger(run)
    assert began == algorithm_1(validations(run), INTERVAL)
    assert 2 < began < STEPS - 3
    for step in range(1, began + 2):
        for tensors in state(run, step).values():
            assert torch.equal(tensors["weight"], tensors["iterate"])
    iterates, final = [state(run, step) for step in range(began + 2, STEPS + 1)], state(run, STEPS)
    exported = dict(load_trained(run / "export").model.named_parameters())
    for name, tensors in final.items():
        mean = torch.stack([each[name]["iterate"] for each in iterates]).mean(dim=0)
        torch.testing.assert_close(tensors["weight"], mean, rtol=1e-5, atol=1e-6)
        assert torch.equal(exported[name], tensors["weight"])
    found = checkpoint.newest(run, pytest.fail).averaging
    assert (found.averaged, list(found.losses)) == (STEPS - began, validations(run)[:began])


@pytest.mark.long
def test_losses_measured_after_the_trigger_are_those_of_the_average(run, corpus_directory, tmp_path):
    logged, paths = validations(run), (str(corpus_directory),)
    assert evaluate(run, paths)["loss"] == pytest.approx(logged[-1], abs=1e-5)
    assert evaluate(run / "export", paths)["loss"] == pytest.approx(logged[-1], abs=1e-5)
    copy, last = tmp_path / "copy", state(run, STEPS)
    iterate = ((name, {"weight": tensors["iterate"]}) for name, tensors in last.items())
    shutil.copytree(run, copy)
    found = checkpoint.newest(run, pytest.fail)
    checkpoint.save(copy, STEPS, found.tokens, found.fingerprints, iterate, keep=STEPS)
    assert abs(evaluate(copy, paths)["loss"] - logged[-1]) > 1e-3


@pytest.mark.long
@pytest.mark.parametrize("step", [3, 8])
def test_a_run_that_resumes_before_or_after_the_trigger_is_the_uninterrupted_one(run, corpus, tmp_path, step):
    """The run either resumes from a checkpoint, or is a new run that takes the optimizer state of that
    checkpoint.
    """
    assert (step < trigger(run)) == (step == 3)
    paths = tmp_path / "resumed", tmp_path / "kept"
    ignored = [f"step-{later:08d}" for later in range(step + 1, STEPS + 1)]
    shutil.copytree(run, paths[0], ignore=shutil.ignore_patterns(*ignored, "finished.json", "export", "log*"))
    jobs = config(corpus), config(corpus, init=Init(str(run), step, "keep", "continue"))
    open_run(paths[1], jobs[1], corpus)
    for job, path in zip(jobs, paths, strict=True):
        with only_training():
            train(job, corpus, path, None)
        assert validations(path) == validations(run)[step:]
        assert step > 3 or trigger(path) == trigger(run)
        expected = state(run, STEPS)
        for name, tensors in state(path, STEPS).items():
            assert all(torch.equal(tensors[key], expected[name][key]) for key in ("weight", "iterate"))
        assert checkpoint.newest(path, pytest.fail).averaging == checkpoint.newest(run, pytest.fail).averaging


@pytest.mark.long
def test_every_update_of_a_step_in_windows_is_averaged(corpus, tmp_path):
    """With `data.bptt`, a step of rows in two windows makes two updates. A resumed run continues the count of
    averaged updates.
    """
    job, path = config(corpus), tmp_path / "run"
    job = replace(job, data=replace(job.data, bptt=16))
    open_run(path, job, corpus)
    with only_training():
        train(job, corpus, path, None)
        whole, expected = validations(path), state(path, STEPS)
        found = checkpoint.newest(path, pytest.fail)
        began = trigger(path)
        assert found.updates == 2 * STEPS
        assert found.averaging.averaged == 2 * (STEPS - began) > 2
        expected = {name: {key: each.clone() for key, each in tensors.items()} for name, tensors in expected.items()}
        for step in range(began + 2, STEPS + 1):
            shutil.rmtree(path / "checkpoints" / f"step-{step:08d}")
        for name in ("log.jsonl", "finished.json"):
            (path / name).unlink()
        train(job, corpus, path, None)
    assert validations(path) == whole[began + 1 :]
    for name, tensors in state(path, STEPS).items():
        assert all(torch.equal(tensors[key], expected[name][key]) for key in ("weight", "iterate"))


def test_what_averaged_sgd_cannot_do_is_refused(corpus):
    with pytest.raises(
        ValueError, match=r"weight_decay: got 0\.1, allowed below 1 / learning_rate \(0\.0333333\) with"
    ):
        Optimizer(kind="asgd", learning_rate=30.0).check()
    with pytest.raises(ValueError, match=r"non_monotone_interval: got 0, allowed 1 or more"):
        Optimizer(kind="asgd", weight_decay=0.0, non_monotone_interval=0).check()
    job = config(corpus)
    with pytest.raises(ConfigError, match=r"optimizer\.kind: got asgd, .* the corpus has no validation documents"):
        resolve(job, replace(corpus, validation={}))
    task = load_task("sst2")
    tuned = Finetuning(
        name="x", model=job.model, batch=job.batch, budget=job.budget, tasks=(task,), optimizer=job.optimizer
    )
    with pytest.raises(ValueError, match=r"optimizer\.kind: got asgd, .* allowed adamw, muon"):
        tuned.check()
