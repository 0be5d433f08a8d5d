"""The study of docs/encoders: encoders with full rows have budgets of equal tokens and of nearly equal
operations, and the table makes paired comparisons of predictions.
"""

import importlib.util
import math
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from gristmill.config import override, parse, plain
from gristmill.events import EventLog
from gristmill.storage.disk import LocalPath
from tests.trainers.tasks.writing import read, task_of, write_lines
from trainers.adapters.weights.full import Full
from trainers.config.architecture import fill
from trainers.config.finetuning import Finetuning
from trainers.config.pretraining import Pretraining
from trainers.engine.hardware.mfu import flops_of
from trainers.models import build_model
from trainers.recipes import RECIPES
from trainers.recipes.finetuning_recipe import finetune
from trainers.tasks.load_task import load_task
from trainers.tasks.predictions import predictions_of, write_predictions

FOLDER = Path(__file__).parents[3] / "docs/encoders"
STUDY = yaml.safe_load((FOLDER / "encoders.yaml").read_text())
SPECIALS = {"cls": 0, "sep": 1, "pad": 2, "mask": 3, "bos": 4, "eos": 5}
FULL_ROWS = ("concatenate", "best_fit")


@pytest.fixture(scope="module")
def compare():
    spec = importlib.util.spec_from_file_location("compare", FOLDER / "compare.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def job_of(compare, name):
    _, recipe, _, _, *assignments = compare.pretraining(STUDY, name, 1)
    return parse(Pretraining, override(plain(RECIPES[recipe]()), assignments), name)


def operations_of_a_step(job):
    """Return the expected operations of a step with full rows, with 4.66 characters per token as in the
    study's vocabulary.
    """
    model = fill(job.model, 4096)
    with torch.device("meta"):
        network = build_model(model, SPECIALS, 0)
        if model.traits.characters:
            network.spell([b"a" * (5 if number % 100 < 66 else 4) for number in range(4096)], SPECIALS)
        each = flops_of(network, model, job.data.sequence_length)
    rates = {"permutation": lambda its: 1 / its.partial_prediction, "bidirectional_lm": lambda its: 1}
    rate = rates.get(job.objective.kind, lambda its: its.rate)(job.objective)
    return job.batch.sequences * job.data.sequence_length * (each.read + rate * each.predicted)


@pytest.mark.parametrize("name", STUDY["encoders"])
def test_budgets_are_equal(compare, name):
    job, base = job_of(compare, name), job_of(compare, STUDY["baseline"])
    tokens, operations = STUDY["encoders"][name]["steps"]
    # Gated feed-forwards are narrower by default, and cells are no feed-forward. Positions can be of characters.
    other = {"modernbert": {"feed_forward"}, "elmo": {"feed_forward", "heads"}, "canine": {"positions"}}.get(
        name, set()
    )
    same = {"layers", "width", "heads", "positions", "feed_forward"} - other
    assert {field: getattr(job.model, field) for field in same} == {field: getattr(base.model, field) for field in same}
    assert (job.seed, job.budget.steps, job.checkpoints.every) == (1, max(tokens, operations), min(tokens, operations))
    assert job.schedule.kind == "constant"  # or the earlier checkpoint were not that of a shorter run
    if job.data.packing in FULL_ROWS:
        assert tokens == base.budget.steps
        ratio = operations_of_a_step(job) * operations / (operations_of_a_step(base) * base.budget.steps)
        assert math.isclose(ratio, 1, abs_tol=0.1 if tokens == operations else 0.015)


@pytest.mark.parametrize("name", STUDY["finetuning"]["tasks"])
def test_tasks_have_settings_that_parse(compare, name):
    _, task, _, run, *assignments = compare.finetuning(STUDY, "electra", 1, "operations", name)
    base = plain(finetune(name, (load_task(task),), job_of(compare, "electra").model, "base", Full()))
    job = parse(Finetuning, override(base, assignments), name)
    assert run == f"run=runs/encoders/electra/seed_1/operations/{name}"
    assert (job.seed, job.init.step) == (1, STUDY["encoders"]["electra"]["steps"][1])


def predict(folder, output, encoder, seed, right):
    """Write a run's predictions for 40 examples, of which the first `right` are correct."""
    write_lines(folder / "dev.jsonl", [{"a": f"text {n}", "y": n % 2} for n in range(40)])
    fields = {"files": {"dev": "dev.jsonl"}, "columns": {"text": "a", "label": "y"}, "labels": [0, 1]}
    examples = read(task_of(folder, "classify", **fields), "dev")
    labels = np.where(np.arange(40) < right, examples.labels, 1 - examples.labels)
    path = LocalPath(output, encoder, f"seed_{seed}", "tokens", "mine", "predictions", "dev.parquet")
    path.parent.mkdir(parents=True)
    write_predictions(predictions_of(examples, labels, encoder), path)


def test_the_table_has_means_differences_and_intervals(compare, tmp_path):
    output = tmp_path / "runs"
    steps = {"recipe": "tiny_roberta", "steps": [20, 20]}
    study = {
        "output": str(output), "baseline": "base", "seeds": 2, "encoders": {"base": steps, "same": steps, "better": steps},
        "finetuning": {"tasks": {"mine": {}}},
    }  # fmt: skip
    for encoder, right in {"base": (20, 22), "same": (20, 22), "better": (30, 26)}.items():
        for seed in range(2):
            predict(tmp_path, output, encoder, seed, right[seed])
        log = EventLog(LocalPath(output, encoder, "seed_0", "pretraining", "log.jsonl"))
        for step in (10, 20, 30):
            flops = {"read": 1e12, "decoded": 0.0, "predicted": 5e11}
            log.write("step", step=step, tokens=step * 1e5, tokens_per_second=1e5, flops=flops)
        log.close()
    base, same, better = compare.table(study, ["base", "same", "better"])[4:7]
    assert base.startswith("| base | 2.00 M | 3.00 | 20 | 0.525 [0.")
    assert "| 0.525, +0.000 [+0.000, +0.000] (+0.000, +0.000) |" in same
    assert "| 0.700, +0.175 [+0." in better
    assert "(+0.250, +0.100)" in better
    low, high = (float(bound) for bound in better.split("[")[1].split("]")[0].split(","))
    # of the 40 examples, the mean over seeds of the difference is 1 for 4, 0.5 for 6, and 0 for the others
    deviation = np.std([*[1] * 4, *[0.5] * 6, *[0] * 30]) / np.sqrt(40)
    assert (high - low) / (2 * 1.96) == pytest.approx(deviation, rel=0.1)


def test_an_unknown_encoder_is_named(compare, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["compare.py", str(FOLDER / "encoders.yaml"), "finetune", "berd"])
    with pytest.raises(SystemExit):
        compare.main()
    assert "ENCODER: got berd, expected some of bert_masked" in capsys.readouterr().err
