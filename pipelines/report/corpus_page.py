"""Render the report page of a corpus from the template corpus.html and the numbers of the report."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gristmill.config import dump_yaml
from gristmill.page.formats import NONE
from gristmill.page.render import render_template
from pipelines.report.corpus_charts import clusters_chart, distribution_chart, drops_chart, short, tokens_chart
from pipelines.report.estimates import estimate_notes
from pipelines.stages.materialise.column_profile import TEXT_BYTES

_ROWS_OF_CHARTS = 12  # sources in a chart of distributions; those with the most documents are shown
_CHARTS = 24  # number of distributions drawn: all that filters test, then others up to this number
_VALUES = 8  # values listed per column and source


def render(report: Mapping[str, Any], runs: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the report page of a corpus as self-contained HTML. `runs` maps steps to the contents of their
    `run.json`; steps without a readable one are left out.
    """
    sources = [source["source"] for source in report["sources"]]
    charts = {
        "drops": drops_chart(report["funnel"], sources) if any(row["dropped"] for row in report["funnel"]) else "",
        "clusters": {d["step"]: clusters_chart(d) for d in report["duplicates"] if d["cluster_sizes"]},
        "tokens": {s["name"]: tokens_chart(s) for s in report["shard_sets"]},
        "distributions": _distributions(report),
    }
    return render_template(
        Path(__file__).with_name("corpus.html"),
        title=report["corpus"],
        kind="corpus report",
        report=report,
        charts=charts,
        estimate_notes=estimate_notes(report["estimates"]) if "estimates" in report else [],
        rules=(rules := rule_effects(report)),
        idle=_idle(rules),
        constant=_constant(report),
        not_drawn=_not_drawn(report),
        values=_values(report),
        samples=_samples(report, sources),
        unedited=[source for source in sources if source not in _searched_for_personal_data(report, sources)],
        runs=runs,
        specials=_specials,
        config=dump_yaml(report["config"], width=100),
    )


def _columns(report: Mapping[str, Any]) -> list[str]:
    """Return the columns with a histogram: first the length of the text, then the columns that filters test,
    then the others, except further measures of the length.
    """
    profiled = {name for columns in report["distributions"].values() for name in columns}
    tested = [threshold["signal"] for threshold in report["thresholds"]]
    shown = [name for name in dict.fromkeys([TEXT_BYTES, *tested, *sorted(profiled)]) if name in profiled]
    return [name for name in shown if name == TEXT_BYTES or name in tested or not _is_length(report, name)]


def _is_length(report: Mapping[str, Any], column: str) -> bool:
    """Return whether a column is another measure of the text's length: its histograms are the same."""
    return all(
        columns.get(column, columns[TEXT_BYTES]) == columns[TEXT_BYTES] for columns in report["distributions"].values()
    )


def _by_source(report: Mapping[str, Any], column: str) -> dict[str, Any]:
    return {source: columns[column] for source, columns in report["distributions"].items() if column in columns}


def _of_largest(histograms: Mapping[str, Any]) -> dict[str, Any]:
    ranked = sorted(histograms, key=lambda source: -sum(entry[1] for entry in histograms[source]["bins"]))
    return {source: histograms[source] for source in histograms if source in ranked[:_ROWS_OF_CHARTS]}


def _thresholds(report: Mapping[str, Any], column: str) -> list[dict[str, Any]]:
    return [threshold for threshold in report["thresholds"] if threshold["signal"] == column]


def _is_constant(report: Mapping[str, Any], column: str) -> bool:
    bins = {entry[0] for histogram in _by_source(report, column).values() for entry in histogram["bins"]}
    return len(bins) <= 1 and not _thresholds(report, column)


def _distributions(report: Mapping[str, Any]) -> list[dict[str, Any]]:
    charts = []
    for column in _drawn(report):
        by_source, tests = _of_largest(_by_source(report, column)), _thresholds(report, column)
        if any(histogram["bins"] for histogram in by_source.values()):
            charts.append(
                {"column": column, "tested": bool(tests), "svg": distribution_chart(column, by_source, tests)}
            )
    return charts


def _drawn(report: Mapping[str, Any]) -> list[str]:
    varied = [column for column in _columns(report) if not _is_constant(report, column)]
    return [column for number, column in enumerate(varied) if number < _CHARTS or _thresholds(report, column)]


def _not_drawn(report: Mapping[str, Any]) -> list[str]:
    drawn = _drawn(report)
    return [column for column in _columns(report) if column not in drawn and not _is_constant(report, column)]


def _constant(report: Mapping[str, Any]) -> list[str]:
    lines = []
    for column in _columns(report):
        if _is_constant(report, column):
            bins = [entry[0] for histogram in _by_source(report, column).values() for entry in histogram["bins"]]
            lines.append(f"{column} = {short(bins[0], column)}" if bins else f"{column} (no value)")
    return lines


def rule_effects(report: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return one row per rule of each step, with `step`, `rule`, `keeps` and `dropped`. `dropped` contains
    the number of documents that the rule dropped, keyed by source, for every source that the rule applies to.
    `keeps` is the condition under which a filter's rule keeps documents; it is empty for other rules.
    """
    applies: dict[str, dict[str, int]] = {}
    for row in report["funnel"]:
        applies.setdefault(row["step"], {})[row["source"]] = 0
    rules: dict[tuple[str, str], dict[str, Any]] = {}
    for test in report["thresholds"]:
        entry = {"step": test["step"], "rule": test["rule"], "keeps": _test(test)}
        rules[test["step"], test["rule"]] = entry | {"dropped": dict.fromkeys(test["sources"], 0)}
    for row in report["funnel"]:
        for rule, count in row["dropped"].items():
            blank = {"step": row["step"], "rule": rule, "keeps": "", "dropped": dict(applies[row["step"]])}
            rules.setdefault((row["step"], rule), blank)["dropped"][row["source"]] = count
    order = list(dict.fromkeys(row["step"] for row in report["funnel"]))
    return sorted(
        rules.values(), key=lambda entry: order.index(entry["step"]) if entry["step"] in order else len(order)
    )


def _idle(rules: Sequence[Mapping[str, Any]]) -> list[str]:
    return [
        f"{rule['rule']} ({rule['keeps']})" if rule["keeps"] else rule["rule"]
        for rule in rules
        if not sum(rule["dropped"].values())
    ]


def _values(report: Mapping[str, Any]) -> list[dict[str, Any]]:
    tables = []
    for column in sorted({name for columns in report["values"].values() for name in columns}):
        for source, columns in report["values"].items():
            table = columns.get(column, [])
            total = sum(entry[1] for entry in table) if table else 0
            if table is None or total:
                rows = [
                    {"value": v, "all": n, "kept": kept, "share": n / total} for v, n, kept in (table or [])[:_VALUES]
                ]
                others = total - sum(row["all"] for row in rows)
                tables.append(
                    {"column": column, "source": source, "too_many": table is None, "rows": rows, "others": others}
                )
    return tables


def _samples(report: Mapping[str, Any], sources: Sequence[str]) -> list[dict[str, Any]]:
    """Return the samples by source: kept documents, and dropped documents grouped by rule."""
    dropped = {(row["source"], row["step"], rule): n for row in report["funnel"] for rule, n in row["dropped"].items()}
    by_source = []
    for source in sources:
        samples = [sample for sample in report["samples"] if sample["source"] == source]
        groups = dict.fromkeys((sample["step"], sample["rule"]) for sample in samples if sample["rule"] is not None)
        by_rule = [
            {
                "step": step,
                "rule": rule,
                "dropped": dropped[source, step, rule],
                "samples": [sample for sample in samples if (sample["step"], sample["rule"]) == (step, rule)],
            }
            for step, rule in groups
        ]
        by_source.append(
            {"source": source, "kept": [sample for sample in samples if sample["rule"] is None], "groups": by_rule}
        )
    return by_source


def _searched_for_personal_data(report: Mapping[str, Any], sources: Sequence[str]) -> set[str]:
    covered: set[str] = set()
    for step in report["config"]["steps"]:
        if "pii" in step:
            covered.update(step.get("sources") or sources)
    return covered


def _specials(specials: Mapping[str, int]) -> list[str]:
    """Return the special tokens with their ids, sorted by id. A run of numbered tokens is shortened to its
    first and last.
    """
    runs: list[tuple[str, list[str]]] = []
    for token in sorted(specials, key=lambda token: specials[token]):
        stem = re.sub(r"\d+", "", token)
        if runs and runs[-1][0] == stem != token:
            runs[-1][1].append(token)
        else:
            runs.append((stem, [token]))
    return [
        f"{run[0]} {specials[run[0]]}"
        if len(run) == 1
        else f"{run[0]} to {run[-1]} {specials[run[0]]} to {specials[run[-1]]}"
        for _, run in runs
    ]


def _test(threshold: Mapping[str, Any]) -> str:
    sides, per = (("≥", "at_least"), ("≤", "at_most")), threshold["per"]
    bounds = [(sign, threshold[side]) for sign, side in sides]
    conditions = [f"{sign} {_bound(bound, per)}" for sign, bound in bounds if bound is not None]
    quantiles = [(sign, threshold[f"{side}_quantile"]) for sign, side in sides]
    conditions += [f"{sign} quantile {q:g}{f' per {per}' if per else ''}" for sign, q in quantiles if q is not None]
    conditions += [f"one of {', '.join(map(str, threshold['one_of']))}"] if threshold["one_of"] else []
    conditions += [f"none of {', '.join(map(str, threshold['none_of']))}"] if threshold["none_of"] else []
    limits = [f"{column} is one of {', '.join(map(str, values))}" for column, values in threshold["when"].items()]
    when = f" when {' and '.join(limits)}" if limits else ""
    return f"{threshold['signal']} {' and '.join(conditions)}{when}"


def _bound(bound: float | str | Mapping[str, float | str | None], per: str) -> str:
    if not isinstance(bound, Mapping):
        return bound if isinstance(bound, str) else f"{bound:,g}"
    bounds = [f"{key} {NONE if value is None else _bound(value, per)}" for key, value in bound.items()]
    return f"({per}: {', '.join(bounds)})"
