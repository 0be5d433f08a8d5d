"""The commands `init`, `plan` and `build`: write a first corpus file, plan the corpus, and build it."""

import argparse
import os
import re

from gristmill.errors import UserError
from gristmill.storage.disk import LocalPath
from gristmill.storage.paths import local_path
from gristmill.terminal import printable
from pipelines.commands.arguments import add_config

_VARIANT = re.compile(r"[\w-]+", re.ASCII)


def add_commands(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the commands `init`, `plan` and `build`."""
    init = commands.add_parser("init", help="look at directories of files and write a first corpus file for them")
    init.add_argument("directories", nargs="+", metavar="DIR", type=local_path, help="each becomes a source per format")
    init.add_argument("--name", default="corpus", help="name of the corpus (default corpus)")
    init.add_argument("--output", type=local_path, help="the file to write (default NAME.yaml)")
    init.set_defaults(handler=_init)
    plan = commands.add_parser("plan", help="show the steps of a build, what is finished, what will run and why")
    add_config(plan)
    plan.add_argument(
        "--check", action="store_true",
        help="only validate the file and the step graph, and import the optional libraries it needs; touch no source",
    )  # fmt: skip
    plan.add_argument(
        "--rates", action="append", default=[], type=local_path, metavar="OUTPUT",
        help="estimate from the builds in this directory, too (default: only from earlier builds of this corpus)",
    )  # fmt: skip
    _memory_argument(plan)
    plan.set_defaults(handler=_plan)
    build = commands.add_parser("build", help="run the steps that are not finished")
    add_config(build)
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
        "--variant", metavar="NAME",
        help="publish as variant-NAME.json beside manifest.json, without a report: another corpus in the same directory, "
        "which shares all steps that both have (corpus=OUTPUT/variant-NAME.json of a training run)",
    )  # fmt: skip
    build.add_argument(
        "--sample", type=float, metavar="SHARE",
        help="rehearse: build from this share of the records, such as 0.001, in a directory of its own beside OUTPUT, and "
        "estimate the whole corpus from it",
    )  # fmt: skip
    build.add_argument(
        "--address",
        help="join the Ray cluster at this address instead of starting one (default: RAY_ADDRESS, as in a job)",
    )
    build.set_defaults(handler=_build)


def _memory_argument(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--memory-per-worker", metavar="SIZE",
        help="memory that a task may use, such as 4GB; one that needs more is tried again with fewer tasks at the same time "
        "(default: the memory of the machine, or of a node, divided among its workers)",
    )  # fmt: skip


def _init(options: argparse.Namespace) -> int:
    from pipelines.planning.corpus import load_corpus_config
    from pipelines.planning.starting.starter_file import (
        RULE_SETS,
        rule_lines,
        sample_line,
        starter_sources,
        write_starter,
    )
    from pipelines.planning.starting.starter_sample import sample_for_start

    if not re.fullmatch(r"[a-z][a-z0-9_]*", options.name):
        raise UserError(
            f"--name: got {options.name!r}, expected lower-case letters, digits and underscores, a letter first"
        )
    sources, unknown = starter_sources(options.directories)
    file = options.output or LocalPath(f"{options.name}.yaml")
    write_starter(sources, options.name, file)
    samples = {}
    for source, parsed in zip(sources, load_corpus_config(file).sources, strict=True):
        print(printable(f"{source.name}: {source.group.amount}, format {source.group.kind}"), flush=True)
        if source.group.kind not in ("code", "git"):
            samples[source.name] = sample = sample_for_start(parsed, RULE_SETS)
            for line in (sample_line(sample), *rule_lines(source.name, sample)):
                print(printable(f"  {line}"))
    for suffix, number in unknown.most_common():
        print(printable(f"left out: {number:,} files of {suffix}, which no format reads"))
    write_starter(sources, options.name, file, samples)
    load_corpus_config(file)
    print(printable(f"wrote {file}; next: python -m pipelines plan {file}"))
    return 0


def _plan(options: argparse.Namespace) -> int:
    memory = _memory(options)
    from gristmill.machine import machine_memory
    from pipelines.building.build_plan import plan_build
    from pipelines.cluster.memory import LEAST
    from pipelines.commands.show_plan import show_plan
    from pipelines.planning.corpus import load_corpus_config
    from pipelines.planning.inventory import Inventory
    from pipelines.planning.plan import make_plan
    from pipelines.planning.required_libraries import refuse_missing
    from pipelines.planning.rule_checks import null_notices, undivided_notices

    config = load_corpus_config(options.config, options.overrides)
    if options.check:
        plan = make_plan(config, {source.name: Inventory((), ()) for source in config.sources})
        refuse_missing(config)
        for notice in null_notices(config):
            print(f"warning: {printable(notice)}")
        for notice in undivided_notices(config):
            print(printable(notice))
        print(f"{options.config}: valid: {len(config.sources)} sources, {len(plan.steps)} steps")
        return 0
    memory = memory or max(LEAST, machine_memory() // (os.cpu_count() or 1))  # as a build on this machine
    planned = plan_build(config, options.rates)
    show_plan(planned.plan, config.place, planned.expected, memory, planned.warnings)
    return 0


def _memory(options: argparse.Namespace) -> int | None:
    """Return the value of --memory-per-worker in bytes. Must be called before Arrow is loaded, because it
    sets Arrow's allocator in the environment.
    """
    from pipelines.cluster.memory import ALLOCATOR, ceiling_of, leave_pandas_out

    os.environ.update(ALLOCATOR)
    leave_pandas_out()
    if options.memory_per_worker is None:
        return None
    try:
        return ceiling_of(options.memory_per_worker)
    except UserError as error:
        raise UserError(f"--memory-per-worker: {error}") from None


def _build(options: argparse.Namespace) -> int:
    memory = _memory(options)
    from gristmill.storage.store import read_json
    from pipelines.building.rehearsal import rehearsal
    from pipelines.building.run_build import run_build
    from pipelines.commands.show_funnel import show_estimates, show_funnel
    from pipelines.planning.corpus import load_corpus_config
    from pipelines.report.write import JSON

    if options.workers < 1:
        raise UserError(f"--workers: got {options.workers}, expected 1 or more")
    if options.variant is not None and not _VARIANT.fullmatch(options.variant):
        raise UserError(f"--variant: got {options.variant!r}, expected letters, digits, _ and -")
    if options.variant is not None and options.sample is not None:
        raise UserError("--variant: has no report and so no estimates; leave it out of a rehearsal")
    config = load_corpus_config(options.config, options.overrides)
    if options.sample is not None:
        config = rehearsal(config, options.sample)
    corpus = run_build(
        config,
        options.workers,
        options.address,
        in_process=options.in_process,
        quarantine=options.quarantine_poison,
        memory=memory,
        variant=options.variant,
    )
    show_funnel(corpus)
    if config.is_sampled and options.variant is None:
        show_estimates(read_json(config.place / JSON)["estimates"])
    return 0
