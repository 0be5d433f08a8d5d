"""`finetune`: train one model on one or more tasks, or one model for each task of a suite."""

import argparse
import gc
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gristmill.errors import ConfigError, UserError
from gristmill.storage.disk import LocalPath
from gristmill.storage.parsing import parse_local
from gristmill.storage.store import read_json
from trainers.commands.settings import split_settings

if TYPE_CHECKING:
    from trainers.config.finetuning import Finetuning
    from trainers.data.examples.task_corpus import TaskCorpus
    from trainers.runs.run import Opened
    from trainers.studies.settings_sweep import Setting
    from trainers.tasks.load_task import Suite

_NAMED = ("model", "run", "data", "method", "seeds", "tokenizer", "leak", "sweep")


def add_commands(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command `finetune`."""
    finetune = commands.add_parser("finetune", help="train a model on a task or a suite; the same command resumes")
    finetune.add_argument(
        "task",
        metavar="TASK",
        help="a shipped task or suite, or the path of a task's YAML file; A,B trains one model on both",
    )
    finetune.add_argument(
        "overrides",
        metavar="a.b=value",
        nargs="*",
        help="model=RUN|EXPORT|HF_DIR|RECIPE, run=DIR (data/runs/TASK), data=DIR (the tasks' files), method=NAME, seeds=N, "
        "tokenizer=FILE (with a recipe), leak=report (accept copies of training examples), sweep={a.b: [value, ...]} or a YAML "
        "file (settings to choose from on dev), or any field of the job",
    )
    finetune.add_argument("--workers", type=int, default=1, help="more than one run on Ray; ignored under torchrun")
    finetune.set_defaults(handler=_finetune)


@dataclass(frozen=True)
class _Request:
    run: LocalPath
    task: str
    setting: "Setting"
    overrides: tuple[str, ...]


def _finetune(options: argparse.Namespace) -> int:
    from trainers.studies.settings_sweep import Setting, read_grid
    from trainers.tasks.load_task import is_suite, load_suite

    if options.workers < 1:
        raise ConfigError(f"--workers: got {options.workers}, allowed 1 or more")
    named, overrides = split_settings(options.overrides, _NAMED)
    if "model" not in named:
        raise ConfigError("model: missing; give model=DIR, a run, an export or a Hugging Face directory")
    suite = load_suite(options.task) if is_suite(options.task) else None
    name = options.task.rsplit("/", 1)[-1].removesuffix(".yaml")
    output = parse_local(named.get("run", f"data/runs/{name}"), "run")
    sweeps = "sweep" in named
    settings = read_grid(named["sweep"], (*_NAMED, "seed", "final_splits")) if sweeps else (Setting(),)
    dev_only = ("final_splits=dev",) if sweeps else ()
    requests = [
        _Request(
            _directory(output, task if suite else None, setting, seed),
            task,
            setting,
            (*overrides, *setting.overrides, *dev_only, *_seed(seed)),
        )
        for task in (suite.tasks if suite else (options.task,))
        for setting in settings
        for seed in _seeds(named.get("seeds"))
    ]
    if (sweeps or len(requests) > 1) and os.environ.get("WORLD_SIZE", "1") != "1":
        raise ConfigError(
            "torchrun trains a single run; give one task, no seeds and no sweep, or --workers N without torchrun"
        )
    if sweeps:
        _check_settings(requests, named)
    for number, request in enumerate(requests, 1):
        if len(requests) > 1:
            print(f"run {number} of {len(requests)}  {request.run}", flush=True)
        if not _train(request, named, options.workers):
            return 0  # stopped: the same command continues
    runs = _chosen(output, requests, suite) if sweeps else [request.run for request in requests]
    if len(requests) > 1:
        _show_results(runs, suite)
    return 0


def _seeds(given: str | None) -> tuple[int | None, ...]:
    if given is None:
        return (None,)
    if not given.isdecimal() or int(given) < 1:
        raise ConfigError(f"seeds: got {given!r}, expected how many runs to make, 1 or more")
    return tuple(range(int(given)))


def _seed(seed: int | None) -> tuple[str, ...]:
    return () if seed is None else (f"seed={seed}",)


def _directory(output: LocalPath, task: str | None, setting: "Setting", seed: int | None) -> LocalPath:
    parts = [task, str(setting) or None, None if seed is None else f"seed_{seed}"]
    return output.joinpath(*(part for part in parts if part is not None))


def _job(request: _Request, named: dict[str, str]) -> "Finetuning":
    from gristmill.config import near_match, override, parse, plain
    from trainers.adapters import METHODS
    from trainers.config.finetuning import Finetuning
    from trainers.inference.base import open_base
    from trainers.recipes import RECIPES
    from trainers.recipes.finetuning_recipe import finetune
    from trainers.runs.run import known_init
    from trainers.tasks.load_task import load_task
    from trainers.tasks.scores import require_libraries

    model = named["model"]
    settings = [f"leak={named['leak']}"] if "leak" in named else []
    tasks = tuple(load_task(task, settings) for task in request.task.split(","))
    for task in tasks:
        require_libraries(task.metrics)
    kind = named.get("method", "full")
    if kind not in METHODS:
        raise ConfigError(
            f"method: got {kind!r}, expected one of {', '.join(METHODS)}{near_match(kind, list(METHODS))}"
        )
    method = METHODS[kind]()
    names = ",".join(task.name for task in tasks)
    name = f"{names}-{method.kind}"
    if model in RECIPES:
        if "tokenizer" not in named:
            raise ConfigError(f"tokenizer: missing; {model} is a recipe, so give tokenizer=FILE, a tokenizer.json")
        recipe = finetune(name, tasks, RECIPES[model]().model, None, method)
    else:
        base = open_base(parse_local(model, "model"))
        recipe = finetune(name, tasks, base.model, str(base.path), method)
    data = plain(recipe) | {"files": named.get("data"), "tokenizer": named.get("tokenizer")}
    config: Finetuning = parse(Finetuning, override(data, list(request.overrides)), f"finetune {names}")
    return replace(config, init=known_init(request.run, config.init))


def _check_settings(requests: Sequence[_Request], named: dict[str, str]) -> None:
    from trainers.data.examples.task_corpus import open_tasks
    from trainers.studies.settings_sweep import require_scores

    corpora: dict[str, TaskCorpus] = {}
    for request in {(request.task, request.setting): request for request in requests}.values():
        job = _job(request, named)
        corpus = corpora.setdefault(request.task, open_tasks(job))
        require_scores(corpus)
        _resolve(job, corpus, request.run)


def _chosen(output: LocalPath, requests: Sequence[_Request], suite: "Suite | None") -> list[LocalPath]:
    """Finish the sweep of each task with `finish_sweep`, and return the runs of the chosen settings."""
    from trainers.studies.settings_sweep import finish_sweep

    of_task: dict[str, dict[Setting, list[LocalPath]]] = {}
    for request in requests:
        of_task.setdefault(request.task, {}).setdefault(request.setting, []).append(request.run)
    return [
        run
        for task, runs in of_task.items()
        for run in finish_sweep(output / task if suite else output, runs, lambda line: print(line, flush=True))
    ]


def _train(request: _Request, named: dict[str, str], workers: int) -> bool:
    """Train one run, unless it is finished. Returns False if it was stopped; under torchrun, ranks other than
    0 always return True.
    """
    from trainers.data.examples.task_corpus import open_tasks
    from trainers.runs.parent import require_parent
    from trainers.runs.run import locked, open_run, read_run
    from trainers.training.launch import launch

    if (request.run / "run.json").exists() and (parent := read_run(request.run).get("parent")):
        try:
            require_parent(parent)
        except UserError:
            if not _is_finished(request.run, named["model"], parent["path"]):
                raise
            return True
    job = _job(request, named)
    gc.freeze()  # so that full collections skip the million objects imported so far
    corpus = open_tasks(job)
    config = _resolve(job, corpus, request.run)

    def show(line: str) -> None:
        print(line, flush=True)

    if os.environ.get("RANK", "0") != "0":
        launch(config, corpus, request.run, workers, show)
        return True
    with locked(request.run):
        opened = open_run(request.run, config, corpus)
        if opened.finished:
            print(f"{request.run}: finished at step {opened.finished['step']}, nothing to do")
            return True
        _describe(job, config, corpus, opened)
        launch(config, corpus, request.run, workers, show)
    if not (request.run / "finished.json").exists():
        return False
    for name, path in (
        ("scores", "scores.json"),
        ("report", "report.html"),
        ("predictions", "predictions"),
        ("export", "export"),
    ):
        print(f"{name:<12} {request.run / path}")
    return True


def _is_finished(run: LocalPath, model: str, base: str) -> bool:
    """Return whether a run has finished whose base, or the checkpoint of it that the run began from, is gone,
    and say so. False if `model` is not its base.
    """
    file = run / "finished.json"
    if not file.exists() or str(parse_local(model, "model").resolve()) != base:
        return False
    print(
        f"{run}: finished at step {read_json(file)['step']}, nothing to do; the settings given were not compared with those of "
        f"the run, because its base {base}, or the checkpoint of it that the run began from, is gone"
    )
    return True


def _resolve(job: "Finetuning", corpus: "TaskCorpus", run: LocalPath) -> "Finetuning":
    """Return the resolved job. Raises all errors that can be found before the run directory is written."""
    from trainers.engine.hardware.compiler import check_compiler
    from trainers.inference.base import check_model
    from trainers.inference.predict import held_out_splits
    from trainers.runs.resolve_finetuning import resolve_finetuning

    for task in job.tasks:
        for split in held_out_splits(corpus, task):
            corpus.examples(task, split)
    config = resolve_finetuning(job, corpus)
    if not (run / "run.json").exists():
        check_compiler(config)
        check_model(config, corpus)
    return config


def _describe(job: "Finetuning", config: "Finetuning", corpus: "TaskCorpus", opened: "Opened") -> None:
    from trainers.data.examples.task_corpus import task_training
    from trainers.runs.resolve_finetuning import describe_tasks

    state = "new" if opened.is_new else "resumed"
    print(f"run  {opened.path}  {state}; all settings in {opened.path / 'resolved.yaml'}")
    for change in opened.changed:
        print(f"changed since the run began: {change}")
    print("\n".join(describe_tasks(job, config, corpus, task_training(corpus, config))), flush=True)


def _show_results(runs: Sequence[LocalPath], suite: "Suite | None") -> None:
    from trainers.report.task_table import read_results, suite_lines, table

    results = read_results(runs)
    print("\n" + "\n".join([*table(results), *(suite_lines(suite, results) if suite else [])]))
