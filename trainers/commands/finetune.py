"""`finetune`: train a base on a task, or on every task of a suite."""

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gristmill.errors import ConfigError
from gristmill.storage.disk import LocalPath
from gristmill.storage.parsing import parse_local
from trainers.commands.settings import split_settings

if TYPE_CHECKING:
    from trainers.config.finetuning import Finetuning
    from trainers.tasks.load_task import Suite

_NAMED = ("model", "run", "data", "method", "seeds", "tokenizer")


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
        "tokenizer=FILE (with a recipe), or any field of the job",
    )
    finetune.add_argument("--workers", type=int, default=1, help="more than one run on Ray; ignored under torchrun")
    finetune.set_defaults(handler=_finetune)


@dataclass(frozen=True)
class _Request:
    """One run: its directory, its task, and how it differs from the defaults."""

    run: LocalPath
    task: str
    overrides: tuple[str, ...]


def _finetune(options: argparse.Namespace) -> int:
    from trainers.tasks.load_task import is_suite, load_suite

    if options.workers < 1:
        raise ConfigError(f"--workers: got {options.workers}, allowed 1 or more")
    named, overrides = split_settings(options.overrides, _NAMED)
    if "model" not in named:
        raise ConfigError("model: missing; give model=DIR, a run, an export or a Hugging Face directory")
    suite = load_suite(options.task) if is_suite(options.task) else None
    tasks = suite.tasks if suite else (options.task,)
    name = options.task.rsplit("/", 1)[-1].removesuffix(".yaml")
    output = parse_local(named.get("run", f"data/runs/{name}"), "run")
    seeds = _seeds(named.get("seeds"))
    requests = [
        _Request(_directory(output, task if suite else None, seed), task, (*overrides, *_seed(seed)))
        for task in tasks
        for seed in seeds
    ]
    if len(requests) > 1 and os.environ.get("WORLD_SIZE", "1") != "1":
        raise ConfigError("torchrun trains one run; give one task and no seeds, or --workers N without torchrun")
    for number, request in enumerate(requests, 1):
        if len(requests) > 1:
            print(f"run {number} of {len(requests)}  {request.run}", flush=True)
        if not _train(request, named, options.workers):
            return 0  # stopped: the same command continues
    if len(requests) > 1:
        _show_results([request.run for request in requests], suite)
    return 0


def _seeds(given: str | None) -> tuple[int | None, ...]:
    if given is None:
        return (None,)
    if not given.isdecimal() or int(given) < 1:
        raise ConfigError(f"seeds: got {given!r}, expected how many runs to make, 1 or more")
    return tuple(range(int(given)))


def _seed(seed: int | None) -> tuple[str, ...]:
    return () if seed is None else (f"seed={seed}",)


def _directory(output: LocalPath, task: str | None, seed: int | None) -> LocalPath:
    directory = output if task is None else output / task
    return directory if seed is None else directory / f"seed_{seed}"


def _job(request: _Request, named: dict[str, str]) -> "tuple[Finetuning, dict[str, Any]]":
    """The job of a request before it is resolved, and its defaults as plain data."""
    from gristmill.config import near_match, override, parse, plain
    from trainers.adapters import METHODS
    from trainers.config.finetuning import Finetuning
    from trainers.inference.base import open_base
    from trainers.recipes import RECIPES
    from trainers.recipes.finetuning_recipe import finetune
    from trainers.tasks.load_task import load_task
    from trainers.tasks.scores import require_libraries

    model = named["model"]
    tasks = tuple(load_task(task) for task in request.task.split(","))
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
    return config, data


def _train(request: _Request, named: dict[str, str], workers: int) -> bool:
    """Train one run, unless it is finished; False if it was stopped."""
    from dataclasses import replace

    from gristmill.config import plain
    from trainers.data.examples.task_corpus import open_tasks, task_training
    from trainers.inference.predict import held_out_splits
    from trainers.runs.resolve_finetuning import describe_tasks, resolve_finetuning
    from trainers.runs.run import differing, known_init, locked, open_run
    from trainers.training.launch import launch

    config, defaults = _job(request, named)
    config = replace(config, init=known_init(request.run, config.init))
    corpus = open_tasks(config)
    for task in config.tasks:  # what is scored at the end is checked before the beginning
        for split in held_out_splits(corpus, task):
            corpus.examples(task, split)
    config = resolve_finetuning(config, corpus)

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
        print(
            f"run  {opened.path}  {'new' if opened.is_new else 'resumed'}; settings in {opened.path / 'resolved.yaml'}"
        )
        print("\n".join(f"  {line}" for line in differing(defaults, plain(config)) if not line.startswith("tasks")))
        print("\n".join(describe_tasks(config, corpus, task_training(corpus, config, frozenset()))), flush=True)
        launch(config, corpus, request.run, workers, show)
    if not (request.run / "finished.json").exists():
        return False
    print(
        f"run          {request.run}\nscores       {request.run / 'scores.json'}\npredictions  {request.run / 'predictions'}"
    )
    return True


def _show_results(runs: Sequence[LocalPath], suite: "Suite | None") -> None:
    """Print the table of several finished runs, and the score of their suite."""
    from trainers.report.task_table import read_results, suite_lines, table

    results = read_results(runs)
    print("\n" + "\n".join([*table(results), *(suite_lines(suite, results) if suite else [])]))
