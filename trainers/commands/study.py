"""`study`: fit laws to the mixtures of finished runs, and propose a mixture."""

import argparse
from typing import TYPE_CHECKING

from gristmill.storage.paths import local_path

if TYPE_CHECKING:
    from trainers.studies.run_table import RunTable


def add_commands(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the commands of studies."""
    study = commands.add_parser("study", help="from proxy runs on several data mixtures to a mixture")
    verbs = study.add_subparsers(required=True, metavar="VERB")
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
    propose.add_argument(
        "overrides",
        metavar="a.b=value",
        nargs="*",
        help="settings: kl, weights, prior, tokens, target_tokens, max_epochs, floors, fixed, draws (docs/studies.md)",
    )
    propose.set_defaults(handler=_propose)


def _add_table(parser: argparse.ArgumentParser) -> None:
    """Add the arguments for a table of runs and the laws to fit to it."""
    parser.add_argument("--ratios", metavar="FILE", type=local_path, required=True, help="CSV: a mixture per run")
    parser.add_argument("--metrics", metavar="FILE", type=local_path, required=True, help="CSV: metrics per run")
    parser.add_argument("--metric", metavar="NAME", action="append", help="a metric to fit; default: all")
    parser.add_argument(
        "--higher-is-better", metavar="NAME", action="append", default=[], help="a metric of which more is better"
    )
    parser.add_argument("--normalise", action="store_true", help="divide each mixture by its sum")
    parser.add_argument(
        "--law",
        metavar="NAME",
        action="append",
        help="log_linear (default), linear, quadratic, gaussian_process; "
        "of several the best in an inner cross-validation is taken",
    )
    parser.add_argument("--seed", type=int, default=0, help="of folds and of the bootstrap")


def _fit(options: argparse.Namespace) -> int:
    from gristmill.errors import ConfigError
    from gristmill.storage.store import write_json
    from trainers.studies.fit_study import fit_lines, fit_metrics, fit_record, law_set, laws_of
    from trainers.studies.run_table import align_domains, read_run_table

    table, tests = _table(options), None
    laws = laws_of(options.law or ["log_linear"])
    if (options.test_ratios is None) != (options.test_metrics is None):
        raise ConfigError("--test-ratios: give both --test-ratios and --test-metrics, or neither")
    if options.test_ratios is not None:
        better = options.higher_is_better
        tests = read_run_table(options.test_ratios, options.test_metrics, options.normalise, better)
        tests = align_domains(table, tests, options.test_ratios).select(table.metrics)
    fits = fit_metrics(table, laws, tests, options.seed)
    print("\n".join(fit_lines(table, fits)))
    if options.output:
        write_json(options.output, fit_record(table, fits, law_set(table, fits, draws=0)))
        print(options.output)
    return 0


def _propose(options: argparse.Namespace) -> int:
    import yaml

    from gristmill.config import load_yaml, override, parse
    from trainers.studies.fit_study import choose_laws, laws_of
    from trainers.studies.laws.law_set import fit_laws
    from trainers.studies.proposals.proposal_settings import ProposalSettings
    from trainers.studies.proposals.propose import proposal_lines, proposal_record, propose

    data = load_yaml(options.settings) if options.settings else {}
    settings = parse(ProposalSettings, override(data, options.overrides), str(options.settings or "study propose"))
    table = _table(options)
    laws = choose_laws(table, laws_of(options.law or ["log_linear"]), options.seed)
    runs = (table.ratios, table.values, table.censored)
    fitted = fit_laws(laws, table.domains, table.metrics, *runs, settings.draws, options.seed)
    proposal = propose(fitted, table.ratios, settings, options.seed)
    print("\n".join(proposal_lines(proposal)))
    if options.output:
        options.output.write_atomic(yaml.safe_dump(proposal_record(proposal), sort_keys=False).encode())
        print(options.output)
    return 0


def _table(options: argparse.Namespace) -> "RunTable":
    """Read the table of runs and print how many of its metrics are censored."""
    from trainers.studies.run_table import read_run_table

    table = read_run_table(options.ratios, options.metrics, options.normalise, options.higher_is_better)
    table = table.select(options.metric or table.metrics)
    for name, missing in zip(table.metrics, table.censored.T, strict=True):
        if missing.any():
            runs = [run for run, gone in zip(table.runs, missing, strict=True) if gone]
            print(
                f"{name}: {len(runs)} runs have no value and count as no better than the worst: {', '.join(runs[:5])}"
            )
    return table
