"""`evaluate`: measure the losses of a model on a corpus, or the scores of one or more models on a suite,
tasks or a text.
"""

import argparse
import operator
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from gristmill.config import near_match
from gristmill.errors import ConfigError
from gristmill.storage.disk import LocalPath
from gristmill.storage.parsing import parse_local, parse_location
from gristmill.storage.paths import local_path
from gristmill.terminal import printable
from trainers.commands.settings import corpora_of, split_settings

if TYPE_CHECKING:
    from trainers.evaluation.suites.run_evaluation import Evaluation, EvaluationSettings
    from trainers.evaluation.suites.task_result import TaskResult
    from trainers.tasks.examples import Examples
    from trainers.tasks.harness_format.harness_task import HarnessTask
    from trainers.tasks.load_task import Suite
    from trainers.tasks.schema.task import Task

_ASKS = ("suite", "task", "text")
_SETTINGS = ("shots", "seed", "limit", "pseudo", "window", "calibrate", "balanced")
_NAMED = (*_ASKS, "corpus", "data", "splits", *_SETTINGS)
LIKELIHOOD = "likelihood"  # the suite of held-out documents, which has no task files
Requirement = tuple[str, str, str, float, str]
"""A requirement: task or suite, score, comparison, bound, and the text that was given."""
Known = dict[tuple[str, str], list[tuple[str, float]]]
"""The measured scores: {(task or suite, score): [(model, value), ...]}"""
_REQUIREMENT = re.compile(r"(.+)\.(\w+)\s*(>=|<=|>|<)\s*(-?\d+(?:\.\d+)?)")
_COMPARES: dict[str, Callable[[float, float], bool]] = {
    ">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt,
}  # fmt: skip


def add_commands(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command `evaluate`."""
    evaluate = commands.add_parser(
        "evaluate", help="loss on a corpus; or likelihood, accuracy and bits per byte on a suite, tasks or texts"
    )
    evaluate.add_argument(
        "model", metavar="RUN_OR_EXPORT", type=local_path, help="several are compared, on a suite, tasks or texts"
    )
    evaluate.add_argument(
        "overrides",
        metavar="name=value",
        nargs="*",
        help="suite=NAME, task=NAME|FILE.yaml (A,B for several), or text=FILE; then data=DIR (the tasks' files), "
        "limit=N (items of each split or subtask), shots=N, seed=N, balanced=true (shots), splits=NAME (of task=), "
        "pseudo=token|within_word (encoders), window=N (positions, of text=), calibrate=true (labels). Without these: "
        "corpus=DIR, by default that of the run",
    )
    evaluate.add_argument("--split", choices=("validation", "test"), default="validation", help="of the corpus")
    evaluate.add_argument("--tokens", type=int, help="tokens of the split per source; default: those of the run")
    evaluate.add_argument(
        "--output",
        metavar="FILE",
        type=local_path,
        help="a page (.html), or data alone (.json); beside it all scores as .json and .csv, and the items as .parquet",
    )
    evaluate.add_argument(
        "--require",
        metavar="NAME.SCORE>=X",
        action="append",
        default=[],
        help="such as 'core.mean>=0.1'; exit status 1 if a model fails it",
    )
    evaluate.add_argument(
        "--checkpoints",
        metavar="all|STEP,STEP",
        help="evaluate checkpoints of runs; results are stored in RUN/evaluations and not measured again",
    )
    evaluate.add_argument(
        "--average",
        type=int,
        default=None,
        metavar="K",
        help="with --checkpoints: average the last K of them (default 5)",
    )
    evaluate.add_argument(
        "--write-items",
        metavar="FILE.jsonl",
        type=local_path,
        help="write the items, for the step `decontaminate` of a corpus, instead of evaluating models",
    )
    evaluate.set_defaults(handler=_evaluate)


def _evaluate(options: argparse.Namespace) -> int:
    named, others = split_settings([str(options.model), *options.overrides], _NAMED)
    asked = [name for name in _ASKS if name in named]
    if unknown := [word for word in others if "=" in word and not local_path(word).exists()]:
        near = near_match(unknown[0].partition("=")[0], _NAMED)
        raise ConfigError(f"{unknown[0]!r}: expected {', '.join(f'{name}=' for name in _NAMED)}{near}")
    if options.write_items is not None:
        return _write_items(options.write_items, named, others)
    if not others:
        raise ConfigError("RUN_OR_EXPORT: missing; give a run or an export")
    if not asked:
        return _losses(options, named, others)
    if len(asked) > 1:
        raise ConfigError(f"{asked[1]}: got {asked[0]} too; give one of suite, task and text")
    if "corpus" in named and named.get("suite") != LIKELIHOOD:
        raise ConfigError(f"corpus: not read with {asked[0]}; leave it out")
    requirements = [_requirement(text) for text in options.require]
    if options.output is not None and options.output.suffix not in (".html", ".json"):
        raise ConfigError(f"--output: got {options.output}, expected a name that ends in .html or .json")
    if options.checkpoints is not None:
        return _checkpoints(options, [parse_local(word, "model") for word in others], named, requirements)
    if options.average is not None:
        raise ConfigError("--average: needs --checkpoints")
    evaluation = _measure([parse_local(word, "model") for word in others], named)
    _show(evaluation)
    if options.output is not None:
        _write(evaluation, options.output)
    return _check(_known_scores(evaluation), requirements)


def _write_items(output: LocalPath, named: Mapping[str, str], models: list[str]) -> int:
    from trainers.evaluation.suites.item_file import write_item_file
    from trainers.tasks.task_files import data_directory

    if ("suite" in named) == ("task" in named):
        raise ConfigError("--write-items: needs suite=NAME or task=NAME")
    if models:
        raise ConfigError(f"{models[0]!r}: --write-items reads no model; leave it out")
    if output.suffix != ".jsonl":
        raise ConfigError(f"--write-items: got {output}, expected a name that ends in .jsonl")
    written = write_item_file(_columns(named)[1], data_directory(named.get("data")), output)
    print(f"{output}  {written:,} items; in the corpus file, before the steps that drop documents:")
    fields = f"name: evaluation, file: {output}, ids: id, prompts: [prompt], answers: [answer]"
    print(f"  - decontaminate: {{sets: [{{{fields}}}]}}")
    return 0


def _checkpoints(
    options: argparse.Namespace, runs: list[LocalPath], named: Mapping[str, str], requirements: list[Requirement]
) -> int:
    from gristmill.storage.store import write_json
    from trainers.evaluation.checkpoints.evaluate_checkpoints import evaluate_checkpoints
    from trainers.evaluation.checkpoints.history_lines import history_lines
    from trainers.evaluation.checkpoints.history_page import render_histories
    from trainers.evaluation.checkpoints.score_history import ScoreHistory, plain_histories
    from trainers.tasks.task_files import data_directory

    if len({str(run) for run in runs}) < len(runs):
        raise ConfigError("models: one is given twice; give each once")
    steps, last = _steps(options.checkpoints), 5 if options.average is None else options.average
    if last < 1:
        raise ConfigError(f"--average: got {last}, allowed 1 or more")
    if named.get("suite") == LIKELIHOOD:
        raise ConfigError(f"--checkpoints: not for the suite {LIKELIHOOD}; validation in training measures the same")
    suite, columns = _columns(named)
    settings = _settings(named)
    if suite is not None and suite.shots and "shots" not in named:
        raise ConfigError(
            f"--checkpoints: the suite {suite.name} has several numbers of shots; choose one with shots=N"
        )
    if suite is not None and "limit" not in named:
        settings = replace(settings, limit=suite.limit)
    data = data_directory(named.get("data"))
    found = evaluate_checkpoints(runs, steps, suite, columns, data, settings, _tell)
    if empty := [run for run, results in zip(runs, found, strict=True) if not results]:
        raise ConfigError(f"--checkpoints: {empty[0]} has no checkpoint yet")
    histories = [ScoreHistory(str(run), tuple(results), suite, last) for run, results in zip(runs, found, strict=True)]
    print("\n".join(printable(line) for line in history_lines(histories)))
    if options.output is not None:
        if options.output.suffix == ".html":
            title = suite.name if suite is not None else ", ".join(task.name for task, _ in columns)
            options.output.write_atomic(render_histories(histories, title).encode())
        else:
            write_json(options.output, plain_histories(histories))
        print(options.output)
    known: Known = {}
    for history in histories:
        for name, each in history.averages.items():
            task, _, score = (
                name.partition(".")
                if each.influences is None
                else (name, "", history.results[-1].scores[name]["score"])
            )
            known.setdefault((task, score), []).append((history.run, each.score.value))
    return _check(known, requirements)


def _steps(text: str) -> list[int] | None:
    if text == "all":
        return None
    words = text.split(",")
    if not all(word.isdecimal() for word in words):
        raise ConfigError(f"--checkpoints: got {text!r}, expected all, or steps such as 500,1000")
    return sorted({int(word) for word in words})


def _losses(options: argparse.Namespace, named: Mapping[str, str], models: list[str]) -> int:
    from gristmill.events import human_line
    from trainers.evaluation.evaluate import evaluate

    given = [name for name in named if name != "corpus"]
    given += [f"--{name}" for name in ("output", "require", "checkpoints", "average") if getattr(options, name)]
    if given:
        raise ConfigError(f"{given[0]}: needs suite=NAME, task=NAME or text=FILE")
    if len(models) > 1:
        raise ConfigError(f"{models[1]!r}: expected corpus=DIR; several models need suite=NAME, task=NAME or text=FILE")
    if options.tokens is not None and not 1 <= options.tokens < 1 << 63:
        raise ConfigError(f"--tokens: got {options.tokens}, allowed 1 or more, below 2**63")
    corpora = corpora_of(named)
    fields = evaluate(parse_local(models[0], "model"), corpora, options.tokens, split=options.split)
    whole = {key: value for key, value in fields.items() if key not in ("sources", "parents")}
    rows = {"all": whole, **fields.get("parents", {}), **fields["sources"]}
    print(f"split {options.split}")
    for name, row in rows.items():
        print(f"{name:20} {human_line(**{key: f'{v:.5f}' if isinstance(v, float) else v for key, v in row.items()})}")
    return 0


def _measure(models: list[LocalPath], named: Mapping[str, str]) -> "Evaluation":
    from trainers.evaluation.suites.clean_scores import clean_scores, corpus_shares
    from trainers.evaluation.suites.run_evaluation import Evaluation, evaluate_models
    from trainers.evaluation.suites.seed_scores import seed_groups
    from trainers.evaluation.suites.suite_result import with_shots, without_shots
    from trainers.tasks.task_files import data_directory

    settings = _settings(named)
    if named.get("suite") == LIKELIHOOD:
        texts = _held_out(models[0], named, settings.limit)
        return Evaluation(evaluate_models(models, (), None, replace(settings, limit=None), _tell, texts))
    suite, columns = _columns(named)
    data = data_directory(named.get("data"))
    if suite is not None and "limit" not in named:
        settings = replace(settings, limit=suite.limit)
    results: Sequence[TaskResult]
    if suite is None or not suite.shots or "shots" in named:
        results = evaluate_models(models, columns, data, settings, _tell)
    else:
        results = []
        for shots in suite.shots:
            marked = [(replace(task, name=with_shots(task.name, shots)), split) for task, split in columns]
            results += evaluate_models(models, marked, data, replace(settings, shots=shots), _tell)
    if "text" in named:
        return Evaluation(tuple(results), suite)
    tasks = list(dict.fromkeys(without_shots(result.task) for result in results))
    held = {str(model): corpus_shares(model, tasks, _tell) for model in models}
    return Evaluation(tuple(results), suite, clean_scores(results, held), tuple(seed_groups(models)))


def _held_out(model: LocalPath, named: Mapping[str, str], limit: int | None) -> "list[Examples]":
    from trainers.config.job_kinds import as_pretraining
    from trainers.evaluation.suites.corpus_texts import corpus_texts
    from trainers.inference.export_form import ORIGIN, read_export
    from trainers.runs.run import read_config

    corpora = corpora_of(named)
    if not corpora:
        config = read_export(model)[1] if (model / ORIGIN).exists() else read_config(model)
        corpora = as_pretraining(config, model).data.corpora
    return [texts for name in corpora for texts in corpus_texts(parse_location(name), limit)]


def _tell(line: str) -> None:
    print(printable(line), file=sys.stderr, flush=True)


def _settings(named: Mapping[str, str]) -> "EvaluationSettings":
    from gristmill.config import override, parse
    from trainers.evaluation.suites.run_evaluation import EvaluationSettings

    given = [f"{name}={named[name]}" for name in _SETTINGS if name in named]
    settings: EvaluationSettings = parse(EvaluationSettings, override({}, given), "evaluate")
    return settings


def _columns(named: Mapping[str, str]) -> "tuple[Suite | None, list[tuple[Task | HarnessTask, str]]]":
    """Return the suite, or None if the command names none, and the (task, split) pairs to evaluate."""
    from trainers.evaluation.suites.text_bits import SPLIT, text_task
    from trainers.tasks.load_task import load_suite, load_task

    _settings(named)  # numbers that are none
    if "splits" in named and "task" not in named:
        raise ConfigError("splits: needs task=NAME")
    if "suite" in named:
        suite = load_suite(named["suite"])
        return suite, [(load_task(column.task), column.split) for column in suite.columns]
    if "text" in named:
        return None, [(text_task(parse_location(named["text"], field="text")), SPLIT)]
    tasks = [_load(name, named.get("shots")) for name in named["task"].split(",")]
    columns = [(task, split) for task in tasks for split in _splits(task, named.get("splits"))]
    names = [(task.name, split) for task, split in columns]
    if twice := next((each for each in names if names.count(each) > 1), None):
        raise ConfigError(
            f"task: two are called {twice[0]} and have a split {twice[1]}; give one of them another `name`"
        )
    return None, columns


def _load(name: str, shots: str | None) -> "Task | HarnessTask":
    from trainers.tasks.harness_format.harness_task import is_harness_task, load_harness_task
    from trainers.tasks.load_task import load_task

    if name.endswith((".yaml", ".yml")) and is_harness_task(path := Path(parse_local(name, "task"))):
        return load_harness_task(path, None if shots is None else int(shots))
    return load_task(name)


def _splits(task: "Task | HarnessTask", named: str | None) -> tuple[str, ...]:
    from trainers.tasks.harness_format.harness_task import HarnessTask

    if isinstance(task, HarnessTask):
        if named:
            raise ConfigError(f"splits: {task.path} names its split itself, in test_split; leave it out")
        return (task.split,)
    if named:
        return tuple(named.split(","))
    labelled = [split for split in task.splits if split not in task.unlabelled]
    return ("dev",) if "dev" in labelled else tuple(labelled[-1:])


def _show(evaluation: "Evaluation") -> None:
    from trainers.evaluation.evaluation_lines import evaluation_lines

    print("\n".join(printable(line) for line in evaluation_lines(evaluation)))


def _write(evaluation: "Evaluation", output: LocalPath) -> None:
    from gristmill.storage.store import write_json
    from trainers.evaluation.evaluation_page import render_evaluation

    rows, table, data = (output.with_suffix(suffix) for suffix in (".parquet", ".csv", ".json"))
    evaluation.write_rows(rows)
    evaluation.write_table(table)
    write_json(data, evaluation.plain())
    if output.suffix == ".html":
        output.write_atomic(render_evaluation(evaluation).encode())
        print(output)
    print(f"{data}\n{table}\n{rows}")


def _requirement(text: str) -> Requirement:
    found = _REQUIREMENT.fullmatch(text.strip())
    if found is None:
        raise ConfigError(f"--require: got {text!r}, expected such as 'core.mean>=0.1' or 'piqa.accuracy>0.6'")
    return found[1], found[2], found[3], float(found[4]), text


def _known_scores(evaluation: "Evaluation") -> Known:
    known: Known = {}
    for mean in evaluation.means:
        known.setdefault((mean.suite, "mean"), []).append((mean.model, mean.mean.value))
    for result in evaluation.results:
        for name, score in result.scores.items():
            known.setdefault((result.task, name), []).append((result.model, score.value))
    return known


def _check(known: Known, requirements: list[Requirement]) -> int:
    failed = 0
    for name, score_name, sign, bound, text in requirements:
        if (name, score_name) not in known:
            allowed = ", ".join(".".join(each) for each in known)
            raise ConfigError(f"--require: no score {name}.{score_name}; allowed {allowed}")
        for model, value in known[name, score_name]:
            if not _COMPARES[sign](value, bound):
                failed = 1
                print(f"{printable(model)}: {name}.{score_name} is {value:.4f}, required {text}")
    return failed
