"""Render the report of training runs from the template run.html."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from gristmill.config import dump_yaml
from gristmill.page.render import render_template
from gristmill.storage.disk import LocalPath
from trainers.report.read_runs import Run, flat, read_runs
from trainers.report.run_charts import Curves, happened, text
from trainers.report.run_comparisons import RunComparison, compare_groups
from trainers.report.run_cost import run_cost
from trainers.report.task_table import ScoreRow, group_results, results_of, score_rows

_EVENTS = 200  # events listed per run, half of them the first and half the last


def write_report(paths: Sequence[LocalPath], output: LocalPath) -> None:
    """Write the HTML report of these runs to `output`. Raises UserError if a path is not a run or is given
    twice.
    """
    output.write_atomic(render(read_runs(paths)).encode())


def render(runs: Sequence[Run]) -> str:
    """Return the report of `runs` as a self-contained HTML page."""
    curves = Curves(runs)
    title = runs[0].name if len(runs) == 1 else f"{len(runs)} training runs"
    scores, comparisons = _scores(runs)
    return render_template(
        Path(__file__).with_name("run.html"),
        title=title,
        kind="training report",
        tunes=all(run.config.get("kind") == "finetuning" for run in runs),
        runs=runs,
        summaries=[summary(run) for run in runs],
        curves=curves,
        measured=[run for run in runs if run.steps or run.validations],
        sources=(sources := _sources(runs, curves.sources())),
        without_validation=_without_validation(runs, sources),
        differences=differences(runs),
        evaluated=curves.evaluations(),
        scores=scores,
        comparisons=comparisons,
        names={run.path: run.name for run in runs},
        ledgers=[(run, ledger_rows(run.ledger)) for run in runs],
        events=[(run, *_listed([(event, text(event)) for event in happened(run)])) for run in runs],
        configs=[(run, _configuration(run.config)) for run in runs],
    )


def _configuration(config: Mapping[str, Any]) -> str:
    return dump_yaml(config, width=100)


def summary(run: Run) -> dict[str, Any]:
    """Return the key figures of a run, keyed by name. Missing figures are None, or 0 for counts."""
    validated = [event for event in run.validations if _is_finite(event.get("loss"))]
    best = min(validated, key=lambda event: event["loss"], default=None)
    speeds = [event["tokens_per_second"] for event in run.steps]
    used = [event["mfu"] for event in run.steps if event.get("mfu") is not None]
    start = run.starts[-1] if run.starts else {}
    return {
        "run": run,
        "state": run.state,
        "step": run.last_step,
        "steps": run.config["budget"]["steps"],
        "tokens": run.steps[-1]["tokens"] if run.steps else 0,
        "loss": run.steps[-1]["loss"] if run.steps else None,
        "validation": validated[-1] if validated else None,
        "best": best,
        "scored": _best_score(run),
        "tokens_per_second": median(speeds) if speeds else None,
        "mfu": median(used) if used else None,
        "skipped": len(run.skipped),
        "resumed": sum(event["event"] == "resume" for event in run.events),
        "seconds": run.seconds(),
        "parameters": start.get("parameters"),
        "workers": start.get("workers"),
        "device": start.get("device"),
        "cost": run_cost(run.events),
    }


def _best_score(run: Run) -> tuple[str, float, int] | None:
    scored = [event for event in run.validations if event.get("scores")]
    if not scored:
        return None
    metric = next(iter(scored[0]["scores"]))
    best = max(scored, key=lambda event: event["scores"][metric])
    return metric, best["scores"][metric], best["step"]


def differences(runs: Sequence[Run]) -> list[tuple[str, list[str]]]:
    """Return (field, its value in each run) for the configuration fields in which the runs differ."""
    configs = [dict(flat(run.config)) for run in runs]
    sections = list(dict.fromkeys(name.partition(".")[0] for config in configs for name in config))
    fields = dict.fromkeys(name for config in configs for name in config)
    names = sorted(fields, key=lambda name: sections.index(name.partition(".")[0]))
    rows = [(name, [_value(config, name) for config in configs]) for name in names]
    return [(name, values) for name, values in rows if len(set(values)) > 1]


def _value(config: Mapping[str, Any], name: str) -> str:
    value = config.get(name, "–")
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def ledger_rows(ledger: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """Return a row for each source in the ledger, in descending order of tokens; no rows if there is no
    ledger. A row contains the fields of the source's ledger entry, its `name`, its share of all tokens read
    (`share`), the share of its positions that are padding (`waste`), and the tokens read minus those
    requested (`off`).
    """
    sources = ledger["sources"] if ledger else {}
    total = sum(entry["tokens"] for entry in sources.values())
    rows = []
    for name, entry in sorted(sources.items(), key=lambda item: -item[1]["tokens"]):
        places = entry["tokens"] + entry["padding"]
        share = {"share": entry["tokens"] / max(1, total), "waste": entry["padding"] / max(1, places)}
        rows.append({"name": name, **share, "off": entry["tokens"] - entry["requested_tokens"], **entry})
    return rows


def _scores(runs: Sequence[Run]) -> tuple[list[ScoreRow], list[RunComparison]]:
    groups = group_results([result for run in runs for result in results_of(run.path) or ()])
    return list(score_rows(groups)), list(compare_groups(groups))


def _sources(runs: Sequence[Run], names: Sequence[str]) -> list[tuple[str, list[dict[str, Any]]]]:
    """Return (source, rows) for each source. A row contains the last training and validation measurements of
    one run; runs with neither are left out.
    """
    table = []
    for name in names:
        rows = []
        for run in runs:
            trained = next((e["sources"][name] for e in reversed(run.steps) if name in e["sources"]), None)
            validated = next((e["sources"][name] for e in reversed(run.validations) if name in e["sources"]), None)
            if trained or validated:
                rows.append({"run": run, "trained": trained or {}, "validated": validated or {}})
        table.append((name, rows))
    return table


def _without_validation(runs: Sequence[Run], sources: Sequence[tuple[str, list[dict[str, Any]]]]) -> list[str]:
    """Return the sources on which validated runs were trained, but for which none of these runs has a
    validation loss.
    """
    validated = [run for run in runs if run.validations]
    trained = [(name, [row for row in rows if row["run"] in validated and row["trained"]]) for name, rows in sources]
    return [name for name, rows in trained if rows and not any(row["validated"] for row in rows)]


def _listed(rows: list[Any]) -> tuple[list[Any], int]:
    if len(rows) <= _EVENTS:
        return rows, 0
    return rows[: _EVENTS // 2] + rows[-_EVENTS // 2 :], len(rows) - _EVENTS


def _is_finite(value: Any) -> bool:
    return isinstance(value, float | int) and abs(value) < float("inf")
