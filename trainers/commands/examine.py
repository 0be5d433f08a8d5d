"""`report`, `cost` and `blame`: write a report on runs, estimate their cost, and show the documents that a
step read.
"""

import argparse
import sys
from dataclasses import replace

from gristmill.errors import ConfigError
from gristmill.storage.paths import local_path

_NAMED_RUNS = 4  # runs whose names go into the file name of a report of several


def add_commands(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the commands `report`, `cost` and `blame`."""
    report = commands.add_parser("report", help="one HTML page of curves, data, events and settings of runs")
    report.add_argument("runs", metavar="RUN", nargs="+", type=local_path, help="several are overlaid and compared")
    report.add_argument(
        "--output",
        metavar="FILE",
        type=local_path,
        help="default: RUN/report.html; for several runs report-RUN-RUN.html next to the first",
    )
    report.set_defaults(handler=_report)
    cost = commands.add_parser(
        "cost", help="operations, device hours, energy and CO2e of runs and of their evaluations"
    )
    cost.add_argument("runs", metavar="RUN", nargs="+", type=local_path)
    cost.add_argument("--pue", type=float, help="power usage effectiveness of the site; default 1.58")
    cost.add_argument(
        "--kg-per-kwh", type=float, help="CO2e of its electricity; default 0.433, the mean of the United States"
    )
    cost.set_defaults(handler=_cost)
    blame = commands.add_parser("blame", help="the documents that a step read, worst losses first, with their history")
    blame.add_argument("run", metavar="RUN", type=local_path)
    blame.add_argument("--step", type=int, required=True, help="counted as in the log: the first is 1")
    blame.add_argument("--documents", type=int, default=10, help="how many to show")
    blame.set_defaults(handler=_blame)


def _report(options: argparse.Namespace) -> int:
    from trainers.report.run_comparisons import compare_groups, comparison_lines
    from trainers.report.run_page import write_report
    from trainers.report.task_table import group_results, results_of, table

    runs = options.runs
    output = options.output or runs[0] / "report.html"
    if options.output is None and len(runs) > 1:
        names = "-".join(run.resolve().name for run in runs[:_NAMED_RUNS])
        more = f"-and-{len(runs) - _NAMED_RUNS}-more" if len(runs) > _NAMED_RUNS else ""
        output = runs[0].resolve().parent / f"report-{names}{more}.html"
    write_report(runs, output)
    results = [result for run in runs for result in results_of(run) or ()]
    if results:
        print(
            "\n".join([*table(results), "", *comparison_lines(list(compare_groups(group_results(results))))]).rstrip()
        )
    print(output)
    return 0


def _cost(options: argparse.Namespace) -> int:
    from gristmill.events import read_events
    from gristmill.terminal import printable
    from trainers.engine.hardware.footprint import KG_PER_KWH, PUE, add_footprints
    from trainers.report.run_cost import evaluation_cost, run_cost
    from trainers.runs.run import read_run

    pue = PUE if options.pue is None else options.pue
    factor = KG_PER_KWH if options.kg_per_kwh is None else options.kg_per_kwh
    if pue < 1:
        raise ConfigError(f"--pue: got {pue:g}, allowed 1 or more")
    if factor < 0:
        raise ConfigError(f"--kg-per-kwh: got {factor:g}, allowed 0 or more")
    costs = []
    for run in options.runs:
        read_run(run)
        training, evaluations = run_cost(read_events(run / "log.jsonl")), evaluation_cost(run)
        for kind, found in (("training", training), ("evaluations", evaluations)):
            if found is not None:
                costs.append(replace(found, pue=pue, kg_per_kwh=factor))
                print(f"{printable(str(run))}  {kind}: {costs[-1]}")
        if training is None:
            print(f"{printable(str(run))}  not begun")
    if len(costs) > 1:
        print(f"total: {add_footprints(costs)}")
    return 0


def _blame(options: argparse.Namespace) -> int:
    from trainers.evaluation.blame import blame, show

    if options.documents < 1:
        raise ConfigError(f"--documents: got {options.documents}, allowed 1 or more")
    show(blame(options.run, options.step, lambda line: print(line, file=sys.stderr)), options.documents, print)
    return 0
