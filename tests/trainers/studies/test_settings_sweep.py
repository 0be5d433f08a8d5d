"""A sweep trains a run for every setting, chooses on dev alone, and predicts the other splits only with the
chosen setting.
"""

import json
import math
from types import SimpleNamespace

import pytest

from gristmill.config import load_yaml
from gristmill.errors import ConfigError, ConflictError
from gristmill.storage.disk import LocalPath
from gristmill.storage.store import read_json
from tests.trainers.training.test_finetuning import TASK, write_split
from trainers.__main__ import main, parser
from trainers.studies import settings_sweep
from trainers.studies.settings_sweep import SWEEP, Setting, finish_sweep, read_grid, require_scores

RATES = "optimizer.learning_rate: [1.0e-9, 5.0e-3]"


@pytest.fixture(scope="module")
def task_file(tmp_path_factory):
    directory = tmp_path_factory.mktemp("task")
    (directory / "find.yaml").write_text(TASK.replace("unlabelled: [test]\n", ""))
    for number, (split, count) in enumerate({"train": 320, "dev": 60, "test": 20}.items()):
        write_split(directory / f"{split}.jsonl", number, count)
    return directory / "find.yaml"


@pytest.mark.deepspeed
@pytest.mark.filterwarnings("default")
@pytest.mark.usefixtures("alone")
def test_dev_chooses_and_only_the_chosen_setting_predicts_test(
    task_file, corpus_directory, tmp_path, capsys, monkeypatch
):
    run, grid = LocalPath(tmp_path / "run"), tmp_path / "grid.yaml"
    grid.write_text(f"{RATES}\nbatch.sequences: [16]\n")
    settings = ["model=tiny_roberta", f"tokenizer={corpus_directory / 'tokenizer.json'}", "budget.steps=10"]
    command = ["finetune", str(task_file), f"run={run}", *settings, f"sweep={grid}"]
    assert main(command) == 0
    shown = capsys.readouterr().out
    names = [f"optimizer.learning_rate={rate},batch.sequences=16" for rate in ("1e-09", "0.005")]
    record = read_json(run / SWEEP)
    scores = {name: read_json(run / name / "scores.json")["splits"] for name in names}
    assert record["values"] == {name: [splits["dev"]["accuracy"]["value"]] for name, splits in scores.items()}
    assert (record["chosen"], record["predicted"]) == (max(names, key=record["means"].get), True)
    for name in names:
        known = ["dev", "test"] if name == record["chosen"] else ["dev"]
        assert list(scores[name]) == sorted(path.stem for path in (run / name / "predictions").iterdir()) == known
        assert f"{name}  {record['means'][name]:.4f}" in shown
    assert f"{scores[record['chosen']]['test']['accuracy']['value']:.4f}" in shown.split("chosen on dev")[1]

    def refuse(*_):
        raise AssertionError("test was predicted twice")

    monkeypatch.setattr(settings_sweep, "_predict_all", refuse)
    assert main(command) == 0
    with pytest.raises(ConflictError, match=r"this sweep has chosen .*,batch.sequences=16 among 2 settings; give the"):
        finish_sweep(run, {Setting((("batch.sequences", "8"),)): []}, print)


def test_a_grid_is_every_combination_in_order(tmp_path):
    (tmp_path / "grid.yaml").write_text(f"{RATES}\nclass_weights: [null, balanced]\n")
    for given in (str(tmp_path / "grid.yaml"), f"{{{RATES}, class_weights: [null, balanced]}}"):
        settings = read_grid(given, ())
        assert [str(setting) for setting in settings] == [
            "optimizer.learning_rate=1e-09,class_weights=null",
            "optimizer.learning_rate=1e-09,class_weights=balanced",
            "optimizer.learning_rate=0.005,class_weights=null",
            "optimizer.learning_rate=0.005,class_weights=balanced",
        ]
        assert settings[1].overrides == ("optimizer.learning_rate=1e-09", "class_weights=balanced")


@pytest.mark.parametrize(
    ("grid", "message"),
    [
        ("fast", r"sweep: got 'fast', expected {field: \[value, ...\], ...} or the path"),
        ("{}", "sweep: got '{}', expected"),
        ("{batch.sequences: 8}", r"sweep.batch.sequences: got 8, expected a list of values"),
        ("{batch.sequences: [8, 8]}", "sweep.batch.sequences: got 8, 8, each allowed only once"),
        ("{method.targets: [[query]]}", r"sweep.method.targets: got \"\['query'\]\", allowed are numbers, words"),
        ("{seed: [0, 1]}", "sweep.seed: cannot be swept"),
    ],
)
def test_a_grid_that_cannot_be_is_refused(grid, message):
    with pytest.raises(ConfigError, match=message):
        read_grid(grid, ("seed",))


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(
    ("task", "grid", "message"),
    [
        ({}, "{encoding.max_length: [64, 200]}", "encoding.max_length: got 200, the model has 128 positions"),
        ({}, "{batch.size: [16]}", "batch.size: no such field"),
        ({"unlabelled": ["dev"]}, "{batch.sequences: [16]}", "sweep: own has no labelled dev split, by which"),
    ],
)
def test_every_setting_is_checked_before_the_first_run(task_file, corpus_directory, tmp_path, task, grid, message):
    files = {split: str(task_file.with_name(f"{split}.jsonl")) for split in ("train", "dev")}
    (tmp_path / "own.yaml").write_text(json.dumps({**load_yaml(task_file), "files": files, **task}))
    named = ["model=tiny_roberta", f"tokenizer={corpus_directory / 'tokenizer.json'}", f"run={tmp_path / 'run'}"]
    options = parser().parse_args(["finetune", str(tmp_path / "own.yaml"), *named, f"sweep={grid}"])
    with pytest.raises(ConfigError, match=message):
        options.handler(options)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("metric", "chosen"), [("perplexity", "b=2"), ("accuracy", "b=1")])
def test_the_direction_of_the_metric_counts_and_what_is_not_finite_loses(metric, chosen, monkeypatch):
    values = {"b=0": math.nan, "b=1": 0.7, "b=2": 0.5}
    task = type("Task", (), {"metrics": (metric,)})
    monkeypatch.setattr(settings_sweep, "_config", lambda run: type("Config", (), {"tasks": (task,)}))
    monkeypatch.setattr(settings_sweep, "_dev_score", lambda run: values[run])
    assert settings_sweep._choice({Setting((("b", name[2:]),)): [name] for name in values})["chosen"] == chosen


def test_metrics_of_opposite_directions_choose_nothing():
    tasks = [SimpleNamespace(name=name, metrics=(name,)) for name in ("accuracy", "f1", "perplexity")]
    require_scores(SimpleNamespace(tasks=tasks[:2], splits=lambda task: ("train", "dev")))
    with pytest.raises(ConfigError, match="accuracy of accuracy and perplexity of perplexity have no mean by which"):
        require_scores(SimpleNamespace(tasks=tasks, splits=lambda task: ("train", "dev")))
