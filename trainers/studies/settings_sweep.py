"""Choose fine-tuning settings by their scores on the dev split.

    grid -> a run per setting and seed, predicts dev only -> sweep.json -> the chosen runs predict the other splits

A score on the test split is unbiased only if the test split played no part in the choice. Only runs of the
chosen setting therefore predict that split.
"""

import itertools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean
from typing import Any

from gristmill.config import load_yaml, yaml_value
from gristmill.errors import ConfigError, ConflictError
from gristmill.storage.disk import LocalPath
from gristmill.storage.store import read_json, write_json
from trainers.config.finetuning import Finetuning
from trainers.data.examples.task_corpus import TaskCorpus, open_tasks
from trainers.inference.predict import score_run
from trainers.report.run_page import write_report
from trainers.report.task_table import align, read_results
from trainers.runs.run import locked, read_config, verified_copy
from trainers.tasks.scores import METRICS

SWEEP = "sweep.json"
FORMAT = "gristmill-sweep/1"
_WORD = re.compile(r"[\w.+-]+")


@dataclass(frozen=True)
class Setting:
    """One setting of a sweep: a point of its grid, as pairs of a dotted field name and a value in YAML."""

    values: tuple[tuple[str, str], ...] = ()

    @property
    def overrides(self) -> tuple[str, ...]:
        """The setting as `a.b=value` assignments."""
        return tuple(f"{field}={value}" for field, value in self.values)

    def __str__(self) -> str:
        return ",".join(self.overrides)


def read_grid(given: str, reserved: Sequence[str]) -> tuple[Setting, ...]:
    """Return all combinations of the values in the grid `{field: [value, ...], ...}`. `given` is the grid as
    YAML text or the path of a YAML file. Raises ConfigError if the grid is invalid or names one of the
    `reserved` fields.
    """
    grid = load_yaml(Path(given)) if given.endswith((".yaml", ".yml")) else yaml_value(given, f"sweep={given}")
    if not isinstance(grid, Mapping) or not grid:
        raise ConfigError(f"sweep: got {given!r}, expected {{field: [value, ...], ...}} or the path of a YAML file")
    for field in grid:
        if field in reserved:
            raise ConfigError(f"sweep.{field}: cannot be swept; allowed are fields of the job, such as batch.sequences")
    choices = [[(field, value) for value in _values(field, values)] for field, values in grid.items()]
    return tuple(Setting(values) for values in itertools.product(*choices))


def _values(field: str, values: Any) -> list[str]:
    if not isinstance(values, list) or not values:
        raise ConfigError(f"sweep.{field}: got {values!r}, expected a list of values")
    shown = [
        "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value) for value in values
    ]
    wrong = next((each for each in shown if not _WORD.fullmatch(each)), None)
    if wrong is not None:
        raise ConfigError(f"sweep.{field}: got {wrong!r}, allowed are numbers, words, true, false and null")
    if len(set(shown)) < len(shown):
        raise ConfigError(f"sweep.{field}: got {', '.join(shown)}, each allowed only once")
    return shown


def require_scores(corpus: TaskCorpus) -> None:
    """Raise ConfigError unless settings can be compared by score: every task needs a labelled dev split, and
    the first metrics of all tasks must agree on whether higher or lower is better.
    """
    for task in corpus.tasks:
        if len(corpus.splits(task)) == 1:
            raise ConfigError(
                f"sweep: {task.name} has no labelled dev split, by which a setting is chosen; add one to files, or "
                f"leave out sweep"
            )
    first, *others = ((task.name, METRICS[task.metrics[0]]) for task in corpus.tasks)
    for name, metric in others:
        if metric.higher_is_better != first[1].higher_is_better:
            raise ConfigError(
                f"sweep: {first[1].name} of {first[0]} and {metric.name} of {name} have no mean by which a setting can be "
                f"chosen, because only one of them is better if it is higher; name others first in metrics, or leave out sweep"
            )


def finish_sweep(
    directory: LocalPath, runs: Mapping[Setting, Sequence[LocalPath]], show: Callable[[str], None]
) -> Sequence[LocalPath]:
    """Choose the setting with the best score and write it to `sweep.json` in `directory`. Then predict all
    splits except `train` with the runs of that setting, and return these runs. `runs` maps each setting to
    its finished runs, one per seed; their tasks must pass `require_scores`. If `sweep.json` exists, its
    choice is kept, and the splits are predicted only if they have not been yet. `show` receives a table of
    the scores line by line.

    The score of a setting is the mean, over seeds and tasks, of each task's first metric on the split used
    for validation. The first of equally good settings is chosen. Raises ConflictError if `sweep.json` records
    a choice among other settings or with another number of seeds, because the setting chosen there may have
    predicted the other splits already.
    """
    if (directory / SWEEP).exists():
        record = read_json(directory / SWEEP)
        known = {name: len(values) for name, values in record["values"].items()}
        if known != {str(setting): len(its) for setting, its in runs.items()}:
            raise ConflictError(
                f"{directory}: this sweep has chosen {record['chosen']} among {len(known)} settings; give the same settings "
                f"and seeds, or another run=DIRECTORY"
            )
    else:
        record = _choice(runs)
        write_json(directory / SWEEP, record)
    for line in _table(record):
        show(line)
    (chosen,) = (its for setting, its in runs.items() if str(setting) == record["chosen"])
    if not record["predicted"]:
        for run in chosen:
            _predict_all(run)
        write_json(
            directory / SWEEP, {name: record[name] for name in record if name != "checksum"} | {"predicted": True}
        )
    return chosen


def _choice(runs: Mapping[Setting, Sequence[LocalPath]]) -> dict[str, Any]:
    metrics = [task.metrics[0] for task in _config(next(iter(runs.values()))[0]).tasks]
    values = {str(setting): [_dev_score(run) for run in its] for setting, its in runs.items()}
    means = {name: mean(its) for name, its in values.items()}
    sign = 1 if METRICS[metrics[0]].higher_is_better else -1
    chosen = max(means, key=lambda name: sign * means[name] if math.isfinite(means[name]) else -math.inf)
    return {
        "format": FORMAT,
        "metrics": metrics,
        "values": values,
        "means": means,
        "chosen": chosen,
        "predicted": False,
    }


def _config(run: LocalPath) -> Finetuning:
    config = read_config(run)
    assert isinstance(config, Finetuning)
    return config


def _dev_score(run: LocalPath) -> float:
    scored = zip(read_results([run]), _config(run).tasks, strict=True)
    return mean(float(result.scores[task.metrics[0]]["value"]) for result, task in scored)


def _predict_all(run: LocalPath) -> None:
    with locked(run):
        config = replace(_config(run), final_splits="all", init=None, tokenizer=str(verified_copy(run)))
        score_run(run, config, open_tasks(config))
        write_report([run], run / "report.html")


def _table(record: Mapping[str, Any]) -> list[str]:
    rows = [("", "setting", f"dev {', '.join(record['metrics'])}", "runs", "values")]
    for name, values in record["values"].items():
        mark = "*" if name == record["chosen"] else ""
        shown = " ".join(f"{value:.4f}" for value in values)
        rows.append((mark, name, f"{record['means'][name]:.4f}", str(len(values)), shown))
    return ["", *align(rows), f"* chosen on dev: {record['chosen']}"]
