"""The study of docs/ulmfit: the shipped settings parse, each arm differs from the whole as its name says, and
the table makes paired comparisons of predictions.
"""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import yaml

from gristmill.config import override, parse, plain
from gristmill.storage.disk import LocalPath
from tests.trainers.tasks.writing import read, task_of, write_lines
from trainers.adapters.weights.full import Full
from trainers.config.finetuning import Finetuning
from trainers.config.pretraining import Pretraining
from trainers.recipes import RECIPES
from trainers.recipes.finetuning_recipe import finetune
from trainers.tasks.load_task import load_task
from trainers.tasks.predictions import predictions_of, write_predictions

FOLDER = Path(__file__).parents[3] / "docs/ulmfit"
STUDY = yaml.safe_load((FOLDER / "ulmfit.yaml").read_text())


@pytest.fixture(scope="module")
def ablation():
    spec = importlib.util.spec_from_file_location("ablation", FOLDER / "ablation.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def pretraining_job(ablation, name):
    _, recipe, corpus, run, *assignments = ablation.pretraining(STUDY, name, 1)
    assert (corpus, run) == (
        f"corpus={STUDY['language_models'][name]['corpus']}",
        f"run={STUDY['output']}/seed_1/{name}",
    )
    return parse(Pretraining, override(plain(RECIPES[recipe]()), assignments), name)


def classifier_job(ablation, name):
    command, task, *assignments = ablation.finetuning(STUDY, name, 1)
    assert command == "finetune"
    fields = [one for one in assignments if one.split("=")[0] not in {"model", "tokenizer", "run"}]
    base = plain(finetune(name, (load_task(task),), RECIPES[STUDY["recipe"]]().model, "base", Full()))
    return parse(Finetuning, override(base, fields), name)


def test_language_models_begin_with_the_general_one_unless_that_is_left_out(ablation):
    starts = {name: pretraining_job(ablation, name).init for name in STUDY["language_models"]}
    assert {name: init and init.path for name, init in starts.items()} == {
        "general": None,
        "tuned": "runs/ulmfit/seed_1/general",
        "tuned_at_one_rate": "runs/ulmfit/seed_1/general",
        "tuned_alone": None,
    }
    tuned, constant = (pretraining_job(ablation, name) for name in ("tuned", "tuned_at_one_rate"))
    assert (tuned.schedule.kind, constant.schedule.kind, constant.schedule.warmup_steps) == ("linear", "constant", 0)
    assert tuned.budget == constant.budget == pretraining_job(ablation, "tuned_alone").budget


@pytest.mark.parametrize("name", STUDY["classifiers"])
def test_an_arm_differs_from_the_whole_in_what_its_name_says(ablation, name):
    fields = {
        "unfreeze_every": lambda job: job.unfreeze_every,
        "layer_decay": lambda job: job.layer_decay,
        "schedule": lambda job: job.schedule.kind,
        "pooling": lambda job: job.head.pooling,
    }
    whole, arm = classifier_job(ablation, STUDY["whole"]), classifier_job(ablation, name)
    changed = {field for field, value in fields.items() if value(whole) != value(arm)}
    assert changed == {
        "without gradual unfreezing": {"unfreeze_every"},
        "without discriminative rates": {"layer_decay"},
        "classifier at a constant rate": {"schedule"},
        "last state in place of concat pooling": {"pooling"},
        "without the three of the classifier": {"unfreeze_every", "layer_decay", "schedule"},
        "without unfreezing and discriminative rates": {"unfreeze_every", "layer_decay"},
        "random weights, without unfreezing and discriminative rates": {"unfreeze_every", "layer_decay"},
    }.get(name, set())
    assert (arm.seed, arm.budget, arm.optimizer) == (1, whole.budget, whole.optimizer)
    assert STUDY["classifiers"][name].get("model") in {*STUDY["language_models"], None}


def test_the_table_compares_with_the_whole(ablation, tmp_path):
    write_lines(tmp_path / "dev.jsonl", [{"a": f"text {n}", "y": n % 2} for n in range(40)])
    fields = {"files": {"dev": "dev.jsonl"}, "columns": {"text": "a", "label": "y"}, "labels": [0, 1]}
    examples = read(task_of(tmp_path, "classify", **fields), "dev")
    study = {"output": str(tmp_path), "seeds": 3, "whole": "all", "classifiers": {"all": {}, "less": {}, "unrun": {}}}
    for name, right in {"all": (30, 34), "less": (20, 28)}.items():
        for seed in range(2):
            labels = np.where(np.arange(40) < right[seed], examples.labels, 1 - examples.labels)
            path = LocalPath(tmp_path, f"seed_{seed}", "classifiers", name, "predictions", "dev.parquet")
            path.parent.mkdir(parents=True)
            write_predictions(predictions_of(examples, labels, name), path)
    head, _, whole, less = ablation.table(study)
    assert head.count("|") == whole.count("|") == less.count("|")
    assert whole.startswith("| all | 0.800 | [0.")
    assert whole.endswith("| 0.750, 0.850 |")
    assert less.startswith("| less | 0.600 | -0.200 [-0.")
    low, high = (float(bound) for bound in less.split("[")[1].split("]")[0].split(","))
    # of the 40 examples, the mean over seeds of the difference is -1 for 2 of them, -0.5 for 12, and 0 for the others
    deviation = np.std([*[1] * 2, *[0.5] * 12, *[0] * 26]) / np.sqrt(40)
    assert (high - low) / (2 * 1.96) == pytest.approx(deviation, rel=0.15)
