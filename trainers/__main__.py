"""Commands: python -m trainers pretrain | t5-grid | report | blame | evaluate | generate | fill-mask | export. Heavy libraries
are imported when a command needs them.
"""

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gristmill.cli import run
from gristmill.errors import ConfigError, StorageError, UserError, reason_of
from gristmill.storage.location import local_of, place_of
from gristmill.storage.paths import local_path
from gristmill.terminal import printable

_NAMED_RUNS = 4  # in the name of a report of several

if TYPE_CHECKING:
    from trainers.config.pretraining import Pretraining
    from trainers.data.packed_corpus import Corpus
    from trainers.runs.run import Opened


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; 2 and one line for an error that a user can act on, 130 when interrupted, 141 where the reader of the
    standard output has left.
    """
    top = parser()
    options, rest = top.parse_known_args(arguments)
    # argparse takes no positional arguments after an option that follows one, and a=b belongs anywhere.
    if rest and (not hasattr(options, "settings") or any(word.startswith("-") for word in rest)):
        top.error(f"unrecognized arguments: {' '.join(rest)}")
    if rest:
        options.settings += rest
    try:
        return run(lambda: int(options.command(options)))
    except UserError as error:
        print(f"error: {printable(str(error))}", file=sys.stderr)
    except StorageError as error:
        print(
            f"error: {printable(str(error))}; run the same command again, which goes on from the last checkpoint",
            file=sys.stderr,
        )
    except OSError as error:
        print(f"error: {printable(reason_of(error))}; mend that and run the same command again", file=sys.stderr)
    except KeyboardInterrupt:
        print("interrupted; the same command goes on from the last checkpoint", file=sys.stderr)
        return 130
    return 2


def parser() -> argparse.ArgumentParser:
    """The commands and their arguments."""
    parser = argparse.ArgumentParser(prog="python -m trainers", description="Pretrain and use language models.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    pretrain = commands.add_parser("pretrain", help="train a recipe on a corpus; the same command resumes")
    pretrain.add_argument("recipe", metavar="RECIPE", help="a recipe's name, or the path of a resolved.yaml")
    pretrain.add_argument(
        "settings",
        metavar="a.b=value",
        nargs="*",
        help="corpus=DIR, run=DIR (data/runs/RECIPE), or any field of the recipe",
    )
    pretrain.add_argument(
        "--workers", type=int, default=1, help="several run on Ray; under torchrun it does not matter"
    )
    pretrain.add_argument(
        "--exclude-documents",
        metavar="FILE",
        type=local_path,
        help="from here on these documents, one id a line, have loss weight 0; every other token stays where it is",
    )
    pretrain.add_argument(
        "--another-corpus",
        action="store_true",
        help="go on with a corpus (of the same tokenizer) that is not the one the run began with",
    )
    pretrain.set_defaults(command=_pretrain)

    grid = commands.add_parser(
        "t5-grid", help="the T5 paper's table of architectures and objectives on tiny models; the same command resumes"
    )
    grid.add_argument(
        "settings",
        metavar="a.b=value",
        nargs="*",
        help="corpus=DIR, output=DIR (data/runs/t5_grid), or any field that the ten runs share",
    )
    grid.add_argument("--workers", type=int, default=1, help="several run on Ray")
    grid.set_defaults(command=_t5_grid)

    report = commands.add_parser("report", help="one HTML page of curves, data, events and settings of runs")
    report.add_argument("runs", metavar="RUN", nargs="+", type=local_path, help="several are overlaid and compared")
    report.add_argument(
        "--output",
        metavar="FILE",
        type=local_path,
        help="default: RUN/report.html; of several runs report-RUN-RUN.html beside the first",
    )
    report.set_defaults(command=_report)

    blame = commands.add_parser("blame", help="the documents that a step read, worst losses first, with their history")
    blame.add_argument("run", metavar="RUN", type=local_path)
    blame.add_argument("--step", type=int, required=True, help="as the log counts them: the first is 1")
    blame.add_argument("--documents", type=int, default=10, help="how many to show")
    blame.set_defaults(command=_blame)

    evaluate = commands.add_parser("evaluate", help="validation loss and bits per byte of a run or an export")
    evaluate.add_argument("model", metavar="RUN_OR_EXPORT", type=local_path)
    evaluate.add_argument("settings", metavar="corpus=DIR", nargs="*", help="the corpus; that of the run by default")
    evaluate.add_argument("--tokens", type=int, help="validation tokens per source; the run's by default")
    evaluate.set_defaults(command=_evaluate)

    generate = commands.add_parser("generate", help="continue a prompt")
    generate.add_argument("model", metavar="RUN_OR_EXPORT", type=local_path)
    generate.add_argument("--prompt", default="", help="text to continue; empty begins a document")
    generate.add_argument("--tokens", type=int, default=100)
    generate.add_argument("--temperature", type=float, default=0.8, help="0 takes the likeliest token")
    generate.add_argument("--top-k", type=int, default=0, help="0 for all tokens")
    generate.add_argument("--top-p", type=float, default=0.95)
    generate.add_argument("--seed", type=int, default=0)
    generate.set_defaults(command=_generate)

    fill = commands.add_parser("fill-mask", help="what an encoder puts in the place of <mask> in a text")
    fill.add_argument("model", metavar="RUN_OR_EXPORT", type=local_path)
    fill.add_argument("--text", required=True, help="a text with <mask> in it, once or more")
    fill.add_argument("--top", type=int, default=5, help="how many of the likeliest tokens to show")
    fill.set_defaults(command=_fill_mask)

    export = commands.add_parser("export", help="write a run's newest checkpoint in Hugging Face layout")
    export.add_argument("run", metavar="RUN", type=local_path)
    export.add_argument("--output", metavar="DIR", type=local_path, help="RUN/export by default")
    export.set_defaults(command=_export)
    return parser


def _pretrain(options: argparse.Namespace) -> int:
    from gristmill.config import load_yaml, override, parse, plain
    from trainers.config.pretraining import Pretraining
    from trainers.data.packed_corpus import corpus_of
    from trainers.recipes import RECIPES
    from trainers.report import write_report
    from trainers.runs.exclusion import exclude
    from trainers.runs.resolve import resolve
    from trainers.runs.run import known_init, locked, open_run

    if options.workers < 1:
        raise ConfigError(f"--workers: got {options.workers}, allowed 1 and more")
    named, overrides = _split(options.settings, ("corpus", "run"))
    run = local_of(named["run"], "run") if "run" in named else None
    if options.recipe in RECIPES:
        data, where = plain(RECIPES[options.recipe]()), f"recipe {options.recipe}"
    elif options.recipe.endswith((".yaml", ".yml")):
        data, where = load_yaml(local_of(options.recipe, "RECIPE")), options.recipe
    else:
        raise ConfigError(
            f"{options.recipe!r}: no such recipe; there are {', '.join(RECIPES)}, or give a resolved.yaml"
        )
    config = parse(Pretraining, override(data, overrides), where)
    if "corpus" in named:
        config = replace(config, data=replace(config.data, corpora=tuple(named["corpus"].split(","))))
    corpus = corpus_of(config)
    run = run or Path("data/runs", config.name)
    config = resolve(replace(config, init=known_init(run, config.init)), corpus)
    if _is_follower():
        return _launch(config, corpus, run, options.workers)
    with locked(run):
        opened = open_run(run, config, corpus, options.another_corpus)
        if opened.finished:
            if not (run / "report.html").exists():  # a run that was killed while it wrote it
                write_report([run], run / "report.html")
            print(f"{run}: finished at step {opened.finished['step']}, nothing to do; the model is in {run / 'export'}")
            return 0
        if options.exclude_documents:
            exclude(run, options.exclude_documents, corpus)
        _describe(data, where, config, corpus, opened)
        return _launch(config, corpus, run, options.workers)


def _t5_grid(options: argparse.Namespace) -> int:
    from trainers.studies.t5_grid import table, train_grid

    if options.workers < 1:
        raise ConfigError(f"--workers: got {options.workers}, allowed 1 and more")
    named, overrides = _split(options.settings, ("corpus", "output"))
    output = local_of(named.get("output", "data/runs/t5_grid"), "output")
    corpora = _corpora(named)
    rows = train_grid(corpora, output, overrides, options.workers, lambda line: print(line, flush=True))
    if rows is None:
        print(f"stopped; the same command goes on with {output}")
        return 0
    print(
        f"\n{table(rows)}\n\nloss in nats per target on the validation split  {output / 'grid.json'}  {output / 'report.html'}"
    )
    return 0


def _split(settings: Sequence[str], names: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Settings with one of `names` as a mapping, and the others as they are."""
    named = {key: value for key, _, value in (s.partition("=") for s in settings) if key in names}
    return named, [setting for setting in settings if setting.partition("=")[0] not in names]


def _corpora(named: Mapping[str, str]) -> tuple[str, ...]:
    """The places of `corpus=A,B`; ConfigError for one that can be neither a directory nor a URL of a corpus."""
    corpora = tuple(filter(None, named.get("corpus", "").split(",")))
    for name in corpora:
        place_of(name)
    return corpora


def _is_follower() -> bool:
    """Whether torchrun started this process as another worker than the first."""
    return os.environ.get("RANK", "0") != "0"


def _launch(config: "Pretraining", corpus: "Corpus", run: Path, workers: int) -> int:
    from trainers.config.architecture import FAMILY
    from trainers.training.launch import launch

    if (run / "finished.json").exists():
        return 0
    launch(config, corpus, run, workers, lambda line: print(line, flush=True))
    if (run / "finished.json").exists() and not _is_follower():
        print(f"run    {run}\nreport {run / 'report.html'}\nmodel  {run / 'export'}")
        encodes = FAMILY[config.model.architecture] == "encoder"
        example = f"fill-mask {run} --text 'To <mask> or not'" if encodes else f"generate {run} --prompt 'To be'"
        print(f"try    python -m trainers {example}")
    return 0


def _describe(recipe: Mapping[str, Any], where: str, config: "Pretraining", corpus: "Corpus", opened: "Opened") -> None:
    """Print how the resolved configuration differs from the recipe, what the budget reads, and what changed since the run
    began.
    """
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


def _report(options: argparse.Namespace) -> int:
    from trainers.report import write_report

    runs = options.runs
    output = options.output or runs[0] / "report.html"
    if options.output is None and len(runs) > 1:
        names = "-".join(run.resolve().name for run in runs[:_NAMED_RUNS])
        more = f"-and-{len(runs) - _NAMED_RUNS}-more" if len(runs) > _NAMED_RUNS else ""
        output = runs[0].resolve().parent / f"report-{names}{more}.html"
    write_report(runs, output)
    print(output)
    return 0


def _blame(options: argparse.Namespace) -> int:
    from trainers.evaluation.blame import blame, show

    if options.documents < 1:
        raise ConfigError(f"--documents: got {options.documents}, allowed 1 and more")
    show(blame(options.run, options.step, lambda line: print(line, file=sys.stderr)), options.documents, print)
    return 0


def _evaluate(options: argparse.Namespace) -> int:
    from gristmill.events import human_line
    from trainers.evaluation.evaluate import evaluate

    named, others = _split(options.settings, ("corpus",))
    if others:
        raise ConfigError(f"{others[0]!r}: expected corpus=DIR")
    corpora = _corpora(named)
    fields = evaluate(options.model, corpora, options.tokens)
    whole = {key: value for key, value in fields.items() if key != "sources"}
    rows = {"all": whole, **fields["sources"]}
    for name, row in rows.items():
        print(f"{name:20} {human_line(**{key: f'{v:.5f}' if isinstance(v, float) else v for key, v in row.items()})}")
    return 0


def _generate(options: argparse.Namespace) -> int:
    from gristmill.config import parse
    from trainers.inference.generate import Sampling, generate

    names = ("tokens", "temperature", "top_k", "top_p", "seed")
    sampling = parse(Sampling, {name: getattr(options, name) for name in names}, "generate")
    print(printable(generate(options.model, options.prompt, sampling), lines=True))  # it may have learned control codes
    return 0


def _fill_mask(options: argparse.Namespace) -> int:
    from trainers.inference.fill_mask import fill_mask

    if options.top < 1:
        raise ConfigError(f"--top: got {options.top}, allowed 1 and more")
    for number, tokens in enumerate(fill_mask(options.model, options.text, options.top), 1):
        print(f"mask {number}")
        for token, share in tokens:
            print(f"{share:8.4f}  {printable(repr(token))}")
    return 0


def _export(options: argparse.Namespace) -> int:
    from trainers.inference.model_export import export_checkpoint, notes_of

    output = export_checkpoint(options.run, options.output or options.run / "export")
    print("\n".join([str(output), *(f"note   {note}" for note in notes_of(output))]))
    return 0


if __name__ == "__main__":
    status = main()
    if "trainers.engine.engine" in sys.modules:
        sys.modules["trainers.engine.engine"].leave(status)
    sys.exit(status)
