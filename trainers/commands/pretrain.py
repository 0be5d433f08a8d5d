"""`pretrain`: train the model of a recipe on a corpus."""

import argparse
import os
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gristmill.errors import ConfigError
from gristmill.storage.disk import LocalPath
from gristmill.storage.parsing import parse_local
from gristmill.storage.paths import local_path
from tokenizer.vocabulary.specials import MASK
from trainers.commands.settings import read_weights, split_settings

if TYPE_CHECKING:
    from trainers.config.pretraining import Pretraining
    from trainers.data.packed_corpus import TrainingCorpus
    from trainers.runs.run import Opened


def add_commands(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command `pretrain`."""
    pretrain = commands.add_parser("pretrain", help="train a recipe on a corpus; the same command resumes")
    pretrain.add_argument("recipe", metavar="RECIPE", help="a recipe's name, or the path of a resolved.yaml")
    pretrain.add_argument(
        "overrides",
        metavar="a.b=value",
        nargs="*",
        help="corpus=DIR, run=DIR (data/runs/RECIPE), or any field of the recipe",
    )
    pretrain.add_argument("--workers", type=int, default=1, help="more than one run on Ray; ignored under torchrun")
    pretrain.add_argument(
        "--exclude-documents",
        metavar="FILE",
        type=local_path,
        help="from now on these documents, one id per line, have loss weight 0; no other token moves",
    )
    pretrain.add_argument(
        "--another-corpus",
        action="store_true",
        help="continue on a corpus other than the run began with; it must have the same tokenizer",
    )
    pretrain.set_defaults(handler=_pretrain)


def _pretrain(options: argparse.Namespace) -> int:
    from gristmill.config import load_yaml, override, parse, plain
    from trainers.config.pretraining import Pretraining
    from trainers.data.packed_corpus import corpus_of
    from trainers.recipes import RECIPES
    from trainers.runs.checkpoint import published
    from trainers.runs.exclusion import exclude
    from trainers.runs.ledger import copy_ledger
    from trainers.runs.resolve import resolve
    from trainers.runs.run import known_init, locked, open_run

    if options.workers < 1:
        raise ConfigError(f"--workers: got {options.workers}, allowed 1 or more")
    named, overrides = split_settings(options.overrides, ("corpus", "run"))
    run = parse_local(named["run"], "run") if "run" in named else None
    if options.recipe in RECIPES:
        data, where = plain(RECIPES[options.recipe]()), f"recipe {options.recipe}"
    elif options.recipe.endswith((".yaml", ".yml")):
        data, where = load_yaml(parse_local(options.recipe, "RECIPE")), options.recipe
    else:
        raise ConfigError(
            f"{options.recipe!r}: no such recipe; there are {', '.join(RECIPES)}, or give a resolved.yaml"
        )
    config = parse(Pretraining, override(data, overrides), where)
    if "corpus" in named:
        config = replace(config, data=replace(config.data, corpora=tuple(named["corpus"].split(","))))
    config = replace(config, data=read_weights(config.data))
    corpus = corpus_of(config)
    run = run or LocalPath("data/runs", config.name)
    init, begun = known_init(run, config.init), bool(published(run))
    # Once the run has a checkpoint, it no longer needs its parent, which may be gone.
    config = resolve(replace(config, init=None if begun else init), corpus)
    config = replace(config, init=init if begun else config.init)
    if _is_follower():
        return _launch(config, corpus, run, options.workers)
    if config.init is not None and not (run / "run.json").exists():
        from trainers.training.begin import check_parent

        check_parent(config, corpus.tokenizer.specials)
    with locked(run):
        opened = open_run(run, config, corpus, options.another_corpus)
        if opened.finished:
            copy_ledger(run)  # a suspended process may have put back an older one, and been killed
            if not (run / "report.html").exists():  # the run was killed while writing it
                from trainers.report.run_page import write_report

                write_report([run], run / "report.html")
            print(f"{run}: finished at step {opened.finished['step']}, nothing to do; the model is in {run / 'export'}")
            return 0
        if options.exclude_documents:
            exclude(run, options.exclude_documents, corpus)
        _describe(data, where, config, corpus, opened)
        return _launch(config, corpus, run, options.workers)


def _is_follower() -> bool:
    """Return whether torchrun started this process as a worker other than the first."""
    return os.environ.get("RANK", "0") != "0"


def _launch(config: "Pretraining", corpus: "TrainingCorpus", run: LocalPath, workers: int) -> int:
    from trainers.training.launch import launch

    if (run / "finished.json").exists():
        return 0
    launch(config, corpus, run, workers, lambda line: print(line, flush=True))
    if (run / "finished.json").exists() and not _is_follower():
        print(f"run    {run}\nreport {run / 'report.html'}\nmodel  {run / 'export'}")
        example = f"generate {run} --prompt 'To be'"
        if config.model.family == "encoder":
            masks = MASK in config.objective.prompt_format.names
            example = f"fill-mask {run} --text 'To <mask> or not'" if masks else f"similarity {run} task=stsb data=DIR"
        print(f"try    python -m trainers {example}")
    return 0


def _describe(
    recipe: Mapping[str, Any], where: str, config: "Pretraining", corpus: "TrainingCorpus", opened: "Opened"
) -> None:
    from gristmill.config import plain
    from trainers.data.packed_corpus import training_data
    from trainers.runs.resolve import describe_data
    from trainers.runs.run import differing

    print(f"run  {opened.path}  {'new' if opened.is_new else 'resumed'}; settings in {opened.path / 'resolved.yaml'}")
    print("\n".join([where, *(f"  {line}" for line in differing(recipe, plain(config)))]))
    for change in opened.changed:
        print(f"changed since the run began: {change}")
    print("reading shards, compiling kernels", flush=True)
    order = training_data(corpus, config).order
    print("\n".join(describe_data(config, corpus, order)), flush=True)
