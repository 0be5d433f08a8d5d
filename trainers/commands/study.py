"""`study`: plan, run and report a study, or fit laws and propose mixtures from the results of existing runs."""

import argparse
from typing import TYPE_CHECKING

from gristmill.errors import ConfigError
from gristmill.storage.disk import LocalPath
from gristmill.storage.paths import local_path

if TYPE_CHECKING:
    from trainers.studies.designs.study_run import StudyRun
    from trainers.studies.designs.study_runs import OpenStudy
    from trainers.studies.laws.law_set import LawSet
    from trainers.studies.outcomes.study_steps import StudyFit
    from trainers.studies.run_table import RunTable
    from trainers.studies.running.ray_runs import RayResources
    from trainers.studies.schema.study_file import Study


def add_commands(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command `study` and its verbs."""
    study = commands.add_parser("study", help="a question about training data: proxy runs, laws, proposal, verdict")
    verbs = study.add_subparsers(required=True, metavar="VERB")
    plan = verbs.add_parser("plan", help="runs, tokens, operations, time and disk; nothing is trained")
    _add_study(plan, required=True)
    plan.add_argument(
        "--calibrate", action="store_true", help="train a few steps per worker first and record their speed"
    )
    plan.set_defaults(handler=_plan)
    run = verbs.add_parser("run", help="train, fit, propose, confirm and report; the same command resumes")
    _add_study(run, required=True)
    _add_ray(run)
    run.set_defaults(handler=_run)
    fit = verbs.add_parser("fit", help="fit a law to the metrics of runs, and say how far it can be trusted")
    _add_table(fit)
    fit.add_argument("--test-ratios", metavar="FILE", type=local_path, help="mixtures of runs to score the law on")
    fit.add_argument("--test-metrics", metavar="FILE", type=local_path, help="their metrics")
    fit.add_argument(
        "--output", metavar="FILE", type=local_path, help="write scores, parameters and predictions as JSON"
    )
    fit.set_defaults(handler=_fit)
    propose = verbs.add_parser("propose", help="the mixture of the best predicted metrics, and what ties with it")
    _add_table(propose)
    propose.add_argument("--settings", metavar="FILE", type=local_path, help="YAML: the settings of the proposal")
    propose.add_argument(
        "--output", metavar="FILE", type=local_path, help="write YAML, for data.weights=FILE of a run too"
    )
    propose.set_defaults(handler=_propose)
    scaling = verbs.add_parser("scaling", help="a law of model size and tokens, and the largest runs predicted by it")
    _add_study(scaling, required=False)
    scaling.add_argument(
        "--runs", metavar="FILE", type=local_path, help="CSV instead of a study: run, parameters, tokens, metrics"
    )
    scaling.add_argument("--metric", metavar="NAME", help="a metric of the file, needed if it has several")
    scaling.add_argument("--key", metavar="NAME", help="the column that names runs, as for `study fit`")
    scaling.add_argument("--seed", type=int, default=0, help="of the bootstrap")
    scaling.add_argument("--output", metavar="FILE", type=local_path, help="write the law and predictions as JSON")
    scaling.set_defaults(handler=_scaling)
    confirm = verbs.add_parser("confirm", help="larger runs of the candidates with paired seeds, and the verdict")
    _add_study(confirm, required=True)
    _add_ray(confirm)
    confirm.set_defaults(handler=_confirm)
    report = verbs.add_parser("report", help="one HTML page of all that is known")
    _add_study(report, required=True)
    report.set_defaults(handler=_report)


def _add_study(parser: argparse.ArgumentParser, required: bool) -> None:
    parser.add_argument(
        "overrides",
        metavar="STUDY | a.b=value",
        nargs="+" if required else "*",
        help="a study file or the directory of a study, then fields of it (docs/studies.md)",
    )
    parser.add_argument("--workers", type=int, default=1, help="processes that train at a time (default 1)")


def _add_ray(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--ray",
        action="store_true",
        help="train as tasks of the cluster that RAY_ADDRESS names, or of this machine, as many at a time as have room",
    )
    parser.add_argument("--cpus-per-run", type=float, default=1.0, help="with --ray; may be a fraction (default 1)")
    parser.add_argument("--gpus-per-run", type=float, default=0.0, help="with --ray; may be a fraction (default 0)")


def _add_table(parser: argparse.ArgumentParser) -> None:
    _add_study(parser, required=False)
    parser.add_argument("--ratios", metavar="FILE", type=local_path, help="CSV instead of a study: a mixture per run")
    parser.add_argument("--metrics", metavar="FILE", type=local_path, help="CSV instead of a study: metrics per run")
    parser.add_argument(
        "--key",
        metavar="NAME",
        help="the column that names runs; default: run_id, run, index or name, if it comes first",
    )
    parser.add_argument("--metric", metavar="NAME", action="append", help="a metric to fit; default: all")
    parser.add_argument(
        "--higher-is-better", metavar="NAME", action="append", default=[], help="a metric of which more is better"
    )
    parser.add_argument(
        "--at",
        metavar="NAME=SIZE",
        action="append",
        default=[],
        help="a column of the ratios that is a size, and the target",
    )
    parser.add_argument("--normalise", action="store_true", help="divide each mixture by its sum")
    parser.add_argument(
        "--law",
        metavar="NAME",
        action="append",
        help="log_linear (default), linear, quadratic, gaussian_process, lightgbm; "
        "of several the best in an inner cross-validation is taken",
    )
    parser.add_argument("--seed", type=int, default=0, help="of folds and of the bootstrap")


def _check_seed(seed: int) -> None:
    if seed < 0:
        raise ConfigError(f"--seed: got {seed}, allowed 0 or more")


def _split(options: argparse.Namespace) -> tuple[str | None, list[str]]:
    named = [word for word in options.overrides if "=" not in word]
    if len(named) > 1:
        raise ConfigError(f"{named[1]!r}: expected one study, then a.b=value")
    return (named[0] if named else None), [word for word in options.overrides if "=" in word]


def _open(options: argparse.Namespace) -> tuple["OpenStudy", LocalPath]:
    from trainers.studies.designs.study_runs import open_study

    study, root = _load(options)
    return open_study(study), root


def _load(options: argparse.Namespace) -> "tuple[Study, LocalPath]":
    from trainers.studies.running.study_directory import load_study, root_of

    name, settings = _split(options)
    if name is None:
        raise ConfigError("STUDY: missing; name a study file or the directory of a study")
    if options.workers < 1:
        raise ConfigError(f"--workers: got {options.workers}, allowed 1 or more")
    study = load_study(local_path(name), settings)
    return study, root_of(study)


def _is_study(options: argparse.Namespace) -> bool:
    name, _ = _split(options)
    tables = [given for given in (options.ratios, options.metrics) if given is not None]
    if (name is not None) == bool(tables) or len(tables) == 1:
        raise ConfigError("give a STUDY, or both --ratios and --metrics")
    return name is not None


def _say(line: str) -> None:
    print(line, flush=True)


def _plan(options: argparse.Namespace) -> int:
    from trainers.studies.designs.study_entries import variants_of
    from trainers.studies.designs.study_runs import open_study
    from trainers.studies.planning.plan_study import calibration_runs, plan_lines, plan_study
    from trainers.studies.running.build_corpora import corpora_lines
    from trainers.studies.running.study_directory import CALIBRATION

    study, root = _load(options)
    print("".join(f"{line}\n" for line in corpora_lines(study, root)), end="")
    variants = variants_of(study)
    if variants and not any(variant.is_built for variant in variants):
        print("`study run` builds these corpora first; the cost of the runs is known once one of them is built")
        return 0
    opened = open_study(study)
    if options.calibrate:
        _train(calibration_runs(opened, options.workers), root / CALIBRATION, options.workers)
    print("\n".join(plan_lines(plan_study(opened, root, options.workers))))
    return 0


def _train(
    runs: "tuple[StudyRun, ...]", directory: LocalPath, workers: int, resources: "RayResources | None" = None
) -> None:
    from gristmill.machine import usable_cores
    from trainers.studies.running.study_workers import StudyWorkers
    from trainers.studies.running.train_study_run import read_result

    results = {run.key: read_result(directory / run.key) for run in runs}
    left = [run for run in runs if run.is_ready and ((known := results[run.key]) is None or known.state == "failed")]
    if left and resources is not None:
        from trainers.studies.running.ray_runs import train_on_ray

        _say(f"{len(left)} of {len(runs)} runs to train on Ray  {directory}")
        train_on_ray(directory, left, resources, _say)
    elif left:
        _say(f"{len(left)} of {len(runs)} runs to train on {workers} workers  {directory}")
        threads = max(1, usable_cores() // workers)
        StudyWorkers(directory, min(workers, len(left)), threads, _say).run(left)


def _resources(options: argparse.Namespace) -> "RayResources | None":
    from trainers.studies.running.ray_runs import RayResources

    resources = RayResources(options.cpus_per_run, options.gpus_per_run)
    if not options.ray:
        if resources != RayResources():
            raise ConfigError("--cpus-per-run, --gpus-per-run: need --ray")
        return None
    try:
        resources.check()
    except ValueError as error:
        raise ConfigError(str(error)) from None
    return resources


def _run(options: argparse.Namespace) -> int:
    from trainers.studies.designs.study_runs import open_study
    from trainers.studies.planning.plan_study import plan_lines, plan_study
    from trainers.studies.running.build_corpora import build_corpora, record_failed_builds
    from trainers.studies.running.study_directory import RUNS, check_registered, register

    study, root = _load(options)
    resources = _resources(options)
    check_registered(study, root)
    build_corpora(study, root, options.workers, _say)
    opened = open_study(study)
    plan = plan_study(opened, root, options.workers)
    for change in register(opened.study, root):
        _say(f"changed since it last ran: {change}")
    record_failed_builds(opened, root)
    _say("\n".join(plan_lines(plan)))
    _train((*opened.proxies, *opened.doremi[:1]), root / RUNS, options.workers, resources)
    _train(opened.doremi[1:], root / RUNS, options.workers, resources)  # needs the reference
    if opened.study.has_mixtures:
        fit = _fit_study(opened, root)
        _propose_study(opened, root, fit.table, fit.laws)
    if opened.study.confirmation is not None:
        _confirm_study(opened, root, options.workers, resources)
    elif not opened.study.has_mixtures:
        _print_verdict(opened, root)
    return _report_study(opened, root)


def _fit_study(opened: "OpenStudy", root: LocalPath) -> "StudyFit":
    from trainers.studies.fit_study import fit_lines
    from trainers.studies.outcomes.study_steps import fit_step
    from trainers.studies.outcomes.study_table import missing_lines, unmeasured_lines
    from trainers.studies.running.study_directory import results_of

    results = results_of(root, opened.proxies)
    for line in [*missing_lines(opened.proxies, results), *unmeasured_lines(opened, results)]:
        _say(line)
    fit = fit_step(opened, root, results)
    print("\n".join(fit_lines(fit.table, fit.fits)))
    return fit


def _propose_study(opened: "OpenStudy", root: LocalPath, table: "RunTable", laws: "LawSet") -> None:
    from trainers.studies.outcomes.study_steps import PROPOSAL, propose_step
    from trainers.studies.proposals.propose import proposal_lines

    print("\n".join(proposal_lines(propose_step(opened, root, table, laws))))
    _say(str(root / PROPOSAL))


def _confirm_study(opened: "OpenStudy", root: LocalPath, workers: int, resources: "RayResources | None") -> None:
    from trainers.studies.outcomes.study_verdict import candidate_runs
    from trainers.studies.running.study_directory import RUNS

    _train(candidate_runs(opened, root), root / RUNS, workers, resources)
    _print_verdict(opened, root)


def _print_verdict(opened: "OpenStudy", root: LocalPath) -> None:
    from gristmill.storage.store import write_json
    from trainers.studies.outcomes.study_steps import CONFIRMATION
    from trainers.studies.outcomes.study_table import missing_lines, repeated_lines
    from trainers.studies.outcomes.study_verdict import candidate_runs, judge, verdict_lines
    from trainers.studies.running.study_directory import results_of

    runs = candidate_runs(opened, root) if opened.study.confirmation else opened.points
    results = results_of(root, runs)
    for line in [*missing_lines(runs, results, censors=False), *repeated_lines(runs)]:
        _say(line)
    verdict = judge(opened, runs, results)
    write_json(root / CONFIRMATION, verdict.fields())
    print("\n".join(verdict_lines(verdict, opened.study.rule.level)))


def _confirm(options: argparse.Namespace) -> int:
    from trainers.studies.outcomes.study_verdict import candidate_runs
    from trainers.studies.running.study_directory import register

    opened, root = _open(options)
    resources = _resources(options)
    candidate_runs(opened, root)  # raises without a confirmation or a proposal
    register(opened.study, root)
    _confirm_study(opened, root, options.workers, resources)
    return 0


def _report(options: argparse.Namespace) -> int:
    from trainers.studies.running.study_directory import check_registered

    opened, root = _open(options)
    check_registered(opened.study, root)  # the page says that its rule was registered
    return _report_study(opened, root)


def _report_study(opened: "OpenStudy", root: LocalPath) -> int:
    from trainers.studies.page.study_page import write_study_page

    print(write_study_page(opened, root))
    return 0


def _fit(options: argparse.Namespace) -> int:
    _check_seed(options.seed)
    if not _is_study(options):
        return _fit_table(options)
    _fit_study(*_open(options))
    return 0


def _fit_table(options: argparse.Namespace) -> int:
    from gristmill.storage.store import write_json
    from trainers.studies.fit_study import fit_lines, fit_metrics, fit_record, law_set, laws_of, sized
    from trainers.studies.run_table import align_domains, read_run_table

    table, tests = _table(options), None
    laws = sized(laws_of(options.law or ["log_linear"]), table)
    if (options.test_ratios is None) != (options.test_metrics is None):
        raise ConfigError("--test-ratios: give both --test-ratios and --test-metrics, or neither")
    if options.test_ratios is not None:
        better = options.higher_is_better
        files = options.test_ratios, options.test_metrics
        tests = read_run_table(*files, options.normalise, better, options.key, options.metric or (), _sizes(options.at))
        tests = align_domains(table, tests, options.test_ratios).select(table.metrics)
    fits = fit_metrics(table, laws, tests, options.seed)
    print("\n".join(fit_lines(table, fits)))
    if options.output:
        write_json(options.output, fit_record(table, fits, law_set(table, fits, draws=0), table.ratios.mean(axis=0)))
        print(options.output)
    return 0


def _scaling(options: argparse.Namespace) -> int:
    _check_seed(options.seed)
    from gristmill.storage.store import write_json
    from trainers.studies.outcomes.study_ladder import (
        SCALING,
        fit_ladder,
        ladder_of,
        read_ladder,
        scaling_lines,
        scaling_record,
    )
    from trainers.studies.running.study_directory import results_of

    output = options.output
    if (_split(options)[0] is None) == (options.runs is None):
        raise ConfigError("give a STUDY or --runs FILE")
    if options.runs is not None:
        ladder = read_ladder(options.runs, options.metric, options.key)
    else:
        opened, root = _open(options)
        ladder, output = ladder_of(opened, results_of(root, opened.proxies)), output or root / SCALING
    found = fit_ladder(ladder, seed=options.seed)
    print("\n".join(scaling_lines(found)))
    if output:
        write_json(output, scaling_record(found))
        print(output)
    return 0


def _propose(options: argparse.Namespace) -> int:
    _check_seed(options.seed)
    if not _is_study(options):
        return _propose_table(options)
    from trainers.studies.outcomes.study_steps import fitted_laws, require_mixtures
    from trainers.studies.outcomes.study_table import run_table
    from trainers.studies.running.study_directory import results_of

    opened, root = _open(options)
    require_mixtures(opened, "propose from")
    table = run_table(opened, results_of(root, opened.proxies))
    laws = fitted_laws(opened, root, table)
    if laws is None:  # not fitted yet, or to other runs
        laws = _fit_study(opened, root).laws
    _propose_study(opened, root, table, laws)
    return 0


def _propose_table(options: argparse.Namespace) -> int:
    from gristmill.config import dump_yaml, load_yaml, override, parse
    from trainers.studies.fit_study import choose_laws, laws_of, sized
    from trainers.studies.laws.law_set import fit_laws
    from trainers.studies.proposals.proposal_settings import ProposalSettings
    from trainers.studies.proposals.propose import proposal_lines, proposal_record, propose

    data = load_yaml(options.settings) if options.settings else {}
    settings = parse(ProposalSettings, override(data, _split(options)[1]), str(options.settings or "study propose"))
    table = _table(options)
    laws = choose_laws(table, sized(laws_of(options.law or ["log_linear"]), table), options.seed)
    runs = (table.features, table.values, table.censored)
    fitted = fit_laws(laws, table.domains, table.metrics, *runs, settings.draws, options.seed)
    proposal = propose(fitted, table.ratios, settings, options.seed)
    print("\n".join(proposal_lines(proposal)))
    if options.output:
        options.output.write_atomic(dump_yaml(proposal_record(proposal)).encode())
        print(options.output)
    return 0


def _sizes(words: list[str]) -> dict[str, float]:
    sizes = {}
    for word in words:
        name, _, size = word.rpartition("=")
        try:
            sizes[name] = float(size)
        except ValueError:
            sizes[name] = 0.0
        if not (name and 0 < sizes[name] < float("inf")):
            raise ConfigError(f"--at: got {word!r}, expected NAME=SIZE with a number above 0")
    return sizes


def _table(options: argparse.Namespace) -> "RunTable":
    from trainers.studies.run_table import read_run_table

    better, chosen = options.higher_is_better, options.metric or ()
    files = options.ratios, options.metrics
    table = read_run_table(*files, options.normalise, better, options.key, chosen, _sizes(options.at))
    table = table.select(chosen or table.metrics)
    for name, missing in zip(table.metrics, table.censored.T, strict=True):
        if missing.any():
            runs = [run for run, gone in zip(table.runs, missing, strict=True) if gone]
            print(
                f"{name}: {len(runs)} runs have no value and count as no better than the worst: {', '.join(runs[:5])}"
            )
    return table
